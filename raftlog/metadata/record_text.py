"""Records and numbers in the form shown to people and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf.message import Message

from raftlog.batch import RecordData
from raftlog.metadata.records import RecordType, UnknownRecordError, parse
from raftlog.metadata.words import RESOURCE_TYPES
from raftlog.text import columns_of, counted, moment, printable

_BLANK = str.maketrans("\t\r\n", "   ")
LEAST_SHOWN = 6
"""Minimum width of a shortened value; with less room it is omitted."""
_ASIDE = frozenset(' "=,{}[]')
"""Characters that separate values; a text that contains one is quoted."""


def record_to_dict(
    data: RecordData, of_bytes: Callable[[bytes], Any] = bytes.hex
) -> dict[str, Any]:
    """Return a record's fields, or its bytes if this build does not support it, since a dump also
    shows such records.
    """
    try:
        return message_to_dict(parse(data), of_bytes)
    except UnknownRecordError:
        return {"undecoded": of_bytes(data.body)}


def record_fields(data: RecordData) -> dict[str, Any]:
    """Return a record's fields as shown to users: bytes as text if they are text, else in hex."""
    return record_to_dict(data, bytes)


def record_name(type_: int) -> str:
    """Return the record type's name, or its number."""
    try:
        return RecordType(type_).name
    except ValueError:
        return f"UNKNOWN_{type_}"


def message_to_dict(
    message: Message, of_bytes: Callable[[bytes], Any] = bytes.hex
) -> dict[str, Any]:
    """Return a message as plain containers: bytes in hex, optional fields only if set, all other
    fields always.
    """
    return {
        field.name: _plain(getattr(message, field.name), of_bytes)
        for field in message.DESCRIPTOR.fields
        if not field.has_presence or message.HasField(field.name)
    }


def _plain(value: Any, of_bytes: Callable[[bytes], Any]) -> Any:
    if isinstance(value, Message):
        return message_to_dict(value, of_bytes)
    if isinstance(value, bytes):
        return of_bytes(value)
    if isinstance(value, str | int | float):
        return value
    return [_plain(one, of_bytes) for one in value]


def fields_text(fields: Mapping[str, Any], room: int | None = None) -> str:
    """Return ``name=value ...`` on one line, without empty fields.

    ``room``: available columns, or None if unlimited. If there is too little room, the first field
    and then the shortest ones are shown, one more is shortened, and the rest is counted.
    """
    texts = {name: f"{name}={_text(one)}" for name, one in fields.items() if one not in _EMPTY}
    whole = " ".join(texts.values())
    if room is None or columns_of(whole) <= room:
        return whole
    shown: dict[str, str] = {}
    first, *others = texts
    for name in (first, *sorted(others, key=lambda name: len(texts[name]))):
        if columns_of(_line(texts, shown | {name: texts[name]})) > room:
            break
        shown[name] = texts[name]
    for name in (one for one in texts if one not in shown):
        free = room - columns_of(_line(texts, shown | {name: ""}))
        if cut := shortened(texts[name], fields[name], free, len(name) + 1):
            shown[name] = cut
            break
    return _line(texts, shown)


_EMPTY: tuple[Any, ...] = ("", b"", [], {})


def _line(texts: Mapping[str, str], shown: Mapping[str, str]) -> str:
    """Return the shown fields in their original order, and the number of the others."""
    left = len(texts) - len(shown)
    more = [f"… {left} more"] if left else []
    return " ".join([*(shown[name] for name in texts if name in shown), *more])


def config_text(fields: Mapping[str, Any]) -> str:
    """Return the change in a CONFIG record, such as ``topic orders: retention.ms=3600000``, or ``…
    deleted``.
    """
    value = fields.get("value")
    to = f"={value}" if value is not None else " deleted"
    of = resource_text(fields["resource_type"], fields["resource_name"])
    return f"{of}: {fields['name']}{to}"


def resource_text(type_: int, name: str) -> str:
    """Return text such as ``topic orders``; ``broker`` alone stands for all brokers."""
    return f"{RESOURCE_TYPES.get(type_, str(type_))} {name}".strip()


def one_line(text: str, room: int | None) -> str:
    """Return the text if it fits, else its beginning followed by its size in bytes."""
    text = printable(text)
    if room is None or columns_of(text) <= room:
        return text
    return shortened(text, text, room) or text


def shortened(text: str, value: Any, room: int, kept: int = 0) -> str:
    """Return the beginning of a value's text with the size of the whole, or "" if there is no room.
    ``kept``: number of characters before the value itself.
    """
    if isinstance(value, int | float):
        return ""
    size = f"… {_size(value)}"
    begins = room - columns_of(size)
    if begins < kept + LEAST_SHOWN:
        return ""
    head = text[:begins]
    while columns_of(head) > begins:
        head = head[:-1]
    return head + size


def _size(value: Any) -> str:
    if isinstance(value, bytes | str):
        length = len(value if isinstance(value, bytes) else value.encode(errors="replace"))
        return f"{length:,} byte{'' if length == 1 else 's'}"
    return counted(len(value), "field" if isinstance(value, dict) else "item")


def value_text(value: bytes) -> str:
    """Return bytes as shown to users: as text if they are UTF-8 without control characters other
    than tabs and line ends, which are escaped; else in hex.
    """
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return f"0x{value.hex()}"
    is_text = text.translate(_BLANK).isprintable()
    return printable(text) if is_text else f"0x{value.hex()}"


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + fields_text(value) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_text(one) for one in value) + "]"
    if isinstance(value, bytes):
        text = value_text(value)
        return text if text == f"0x{value.hex()}" else _quoted(text)
    return _quoted(value) if isinstance(value, str) else str(value)


def _quoted(text: str) -> str:
    """Return a text that cannot be mistaken for another value."""
    shown = printable(text)
    if _ASIDE & {*text} or text.startswith("0x"):
        return '"' + shown.replace('"', '\\"') + '"'
    return shown


def time_text(timestamp_ms: int) -> str:
    """Return milliseconds since 1970 as UTC in ISO 8601."""
    return moment(timestamp_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")
