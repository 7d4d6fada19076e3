"""Kafka's message schemas as data, and the decoder that goes by them.

A schema says of each field since which version it is there; a tagged field carries its tag.
Numbers, names, types, versions, tags and defaults are those of the message definitions that Kafka
publishes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from replay.kafka.errors import MalformedRecordError
from replay.kafka.primitives import READERS, Reader

UNKNOWN_TAGS = "unknown_tags"
"""Where a decoded message keeps tagged fields that its schema does not know: tag -> hex digits."""
Decoded = dict[str, Any]


class Field(NamedTuple):
    """One field of a message."""

    name: str
    type: str
    """A primitive's name; "[]" before it: an array of them; "?" behind it: may be null; "struct":
    of ``fields``."""
    since: int = 0
    """The first version that has it."""
    tag: int | None = None
    default: Any = None
    """Of a tagged field that is not there, or of one that the version does not have."""
    fields: tuple[Field, ...] = ()


class Schema(NamedTuple):
    """One kind of message."""

    name: str
    versions: int
    """The highest one that is known."""
    fields: tuple[Field, ...]


def decode(schema: Schema, version: int, reader: Reader) -> Decoded:
    """Read one message of a known version to its end. Raises MalformedRecordError."""
    message = _struct(schema.fields, version, reader)
    if reader.left:
        raise MalformedRecordError(f"{reader.left} bytes are left behind a {schema.name}")
    return message


def _struct(fields: Sequence[Field], version: int, reader: Reader) -> Decoded:
    message: Decoded = {}
    tagged: dict[int, Field] = {}
    for field in fields:
        if field.tag is not None:
            message[field.name] = field.default
            if field.since <= version:
                tagged[field.tag] = field
        elif field.since <= version:
            message[field.name] = _value(field, version, reader)
        else:
            message[field.name] = field.default
    _tagged_fields(tagged, version, reader, message)
    return message


def _tagged_fields(
    tagged: dict[int, Field], version: int, reader: Reader, message: Decoded
) -> None:
    for _ in range(reader.unsigned_varint()):
        tag, size = reader.unsigned_varint(), reader.unsigned_varint()
        content = Reader(reader.take(size))
        field = tagged.get(tag)
        if field is None:
            message.setdefault(UNKNOWN_TAGS, {})[str(tag)] = content.take(size).hex()
            continue
        message[field.name] = _value(field, version, content)
        if content.left:
            raise MalformedRecordError(f"{content.left} bytes are left behind {field.name}")


def _value(field: Field, version: int, reader: Reader) -> Any:
    kind = field.type
    if not kind.startswith("[]"):
        if kind == "struct":
            return _struct(field.fields, version, reader)
        return READERS[kind](reader)
    count, element = reader.count(), kind[2:].rstrip("?")
    if count is None:
        if kind.endswith("?"):
            return None
        raise MalformedRecordError(f"{field.name} is null where it must not be")
    if element == "struct":
        return [_struct(field.fields, version, reader) for _ in range(count)]
    read = READERS[element]
    return [read(reader) for _ in range(count)]
