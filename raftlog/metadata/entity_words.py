"""Entities of the image in words: printable keys, and values as JSON objects."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import msgspec

from raftlog.metadata.entities import ClientResult, KeyValue

RESOURCE_TYPES = {2: "topic", 4: "broker", 16: "client-metrics", 32: "group"}
"""Kafka's config resource types."""
TYPE_NUMBERS = {name: number for number, name in RESOURCE_TYPES.items()}


def plain(value: Any) -> Any:
    """A value as JSON has it: structs as objects (in the log's hash they are arrays), bytes in
    hex.
    """
    if isinstance(value, KeyValue):
        return _key_value(value)
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return value


def _key_value(one: KeyValue) -> dict[str, Any]:
    """The value as text if it is UTF-8, else in base64 under another name: either way exactly."""
    fields = {name: getattr(one, name) for name in one.__struct_fields__}
    try:
        fields["value"] = one.value.decode()
    except UnicodeDecodeError:
        del fields["value"]
        fields["value_base64"] = b64encode(one.value).decode()
    return fields


def to_json(value: Any) -> str:
    """``plain`` as JSON text."""
    return msgspec.json.encode(plain(value)).decode()


def config_key(resource_type: int, resource_name: str, name: str = "") -> str:
    """topic:orders:retention.ms."""
    resource = f"{RESOURCE_TYPES.get(resource_type, resource_type)}:{resource_name}"
    return f"{resource}:{name}" if name else resource


def result_key(result: ClientResult) -> str:
    """Client and number: 1234-7."""
    return f"{result.client_id}-{result.sequence}"
