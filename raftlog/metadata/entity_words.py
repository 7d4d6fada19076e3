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
    """Return a value as in JSON: structs as objects (in the log's hash they are arrays), bytes in
    hex.
    """
    if isinstance(value, KeyValue):
        return key_value(value.key, value.value, value.offset, value.create_offset, value.lease_id)
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return value


def text_and_base64(value: bytes | None) -> tuple[str | None, str | None]:
    """Return bytes exactly: as text if they are UTF-8, else in base64; the other is None. Without
    bytes both are.
    """
    if value is None:
        return None, None
    try:
        return value.decode(), None
    except UnicodeDecodeError:
        return None, b64encode(value).decode()


def key_value(
    key: str, value: bytes, offset: int, create_offset: int, lease_id: int
) -> dict[str, Any]:
    """Return a key of the key-value store as an object; its lease is null if it has none."""
    text, base64 = text_and_base64(value)
    return {
        "key": key,
        "value": text,
        "value_base64": base64,
        "offset": offset,
        "create_offset": create_offset,
        "lease_id": lease_id or None,
    }


def to_json(value: Any) -> str:
    """Return ``plain`` as JSON text."""
    return msgspec.json.encode(plain(value)).decode()


def config_key(resource_type: int, resource_name: str, name: str = "") -> str:
    """Return the key of a config, as topic:orders:retention.ms."""
    resource = f"{RESOURCE_TYPES.get(resource_type, resource_type)}:{resource_name}"
    return f"{resource}:{name}" if name else resource


def result_key(result: ClientResult) -> str:
    """Return the key of a result, client and number: 1234-7."""
    return f"{result.client_id}-{result.sequence}"
