"""Records and numbers as people and JSON show them."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from raftlog.batch import RecordData
from raftlog.metadata.records import RecordType, UnknownRecordError, parse
from raftlog.words import moment


def record_to_dict(data: RecordData) -> dict[str, Any]:
    """A record's fields; one that this build does not know as its bytes in hex: a dump must show it
    all the same.
    """
    try:
        return message_to_dict(parse(data))
    except UnknownRecordError:
        return {"undecoded": data.body.hex()}


def record_name(type_: int) -> str:
    """The record type's name, or its number."""
    try:
        return RecordType(type_).name
    except ValueError:
        return f"UNKNOWN_{type_}"


def message_to_dict(message: Message) -> dict[str, Any]:
    """A message as plain containers: bytes in hex, optional fields only if set, all others
    always.
    """
    return {
        field.name: _plain(getattr(message, field.name))
        for field in message.DESCRIPTOR.fields
        if not field.has_presence or message.HasField(field.name)
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Message):
        return message_to_dict(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, str | int | float):
        return value
    return [_plain(one) for one in value]


def fields_text(fields: dict[str, Any]) -> str:
    """``name=value ...`` in one line; empty fields are left out."""
    return " ".join(
        f"{name}={_text(value)}" for name, value in fields.items() if value not in ("", [], {})
    )


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + fields_text(value) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_text(one) for one in value) + "]"
    return str(value)


def time_text(timestamp_ms: int) -> str:
    """Milliseconds since 1970 as UTC, ISO 8601."""
    return moment(timestamp_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")
