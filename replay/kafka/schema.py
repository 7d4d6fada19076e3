"""Kafka's message schemas as data, and the decoder that goes by them.

A schema says of each field since which version it is there; a tagged field carries its tag.
Numbers, names, types, versions, tags and defaults are those of the message definitions that Kafka
publishes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from replay.kafka.errors import MalformedRecordError
from replay.kafka.primitives import READERS, Reader

UNKNOWN_TAGS = "unknown_tags"
"""Key in a decoded message of the tagged fields that its schema does not know: tag -> hex
digits.
"""
Decoded = dict[str, Any]


class Field(NamedTuple):
    """One field of a message."""

    name: str
    type: str
    """A primitive's name; "[]" before it: an array of them; "?" behind it: may be null; "struct":
    of ``fields``.
    """
    since: int = 0
    """The first version that has it."""
    tag: int | None = None
    default: Any = None
    """Value of an absent tagged field, or of a field that the version does not have."""
    fields: tuple[Field, ...] = ()


class Schema(NamedTuple):
    """One kind of message."""

    name: str
    versions: int
    """The highest one that is known."""
    fields: tuple[Field, ...]


Read = Callable[[Reader], Any]


def decoder(schema: Schema, version: int) -> Callable[[Reader], Decoded]:
    """Return the function that reads one message of a known version to its end; it raises
    MalformedRecordError. The function is worth keeping: it has compiled the schema.
    """
    read_fields = _struct(schema.fields, version)

    def read(reader: Reader) -> Decoded:
        message: Decoded = read_fields(reader)
        if reader.left:
            raise MalformedRecordError(f"{reader.left} bytes are left behind a {schema.name}")
        return message

    return read


def _struct(fields: tuple[Field, ...], version: int) -> Read:
    defaults = {field.name: field.default for field in fields}
    there = [field for field in fields if field.since <= version]
    plain = [(field.name, _value(field, version)) for field in there if field.tag is None]
    tagged = {
        field.tag: (field.name, _value(field, version)) for field in there if field.tag is not None
    }

    def read(reader: Reader) -> Decoded:
        message = defaults.copy()
        for name, value in plain:
            message[name] = value(reader)
        for _ in range(reader.unsigned_varint()):
            _tagged_field(tagged, reader, message)
        return message

    return read


def _tagged_field(tagged: dict[int, tuple[str, Read]], reader: Reader, message: Decoded) -> None:
    tag, size = reader.unsigned_varint(), reader.unsigned_varint()
    if tag not in tagged:
        message.setdefault(UNKNOWN_TAGS, {})[str(tag)] = reader.take(size).hex()
        return
    name, value = tagged[tag]
    end = reader.begin(size)
    message[name] = value(reader)
    if reader.left:
        raise MalformedRecordError(f"{reader.left} bytes are left behind {name}")
    reader.end = end


def _value(field: Field, version: int) -> Read:
    kind = field.type
    if kind == "struct":
        return _struct(field.fields, version)
    if not kind.startswith("[]"):
        return READERS[kind]
    element = kind[2:].rstrip("?")
    each = _struct(field.fields, version) if element == "struct" else READERS[element]
    nullable, name = kind.endswith("?"), field.name

    def read(reader: Reader) -> list[Any] | None:
        count = reader.count()
        if count is not None:
            return [each(reader) for _ in range(count)]
        if nullable:
            return None
        raise MalformedRecordError(f"{name} is null where it must not be")

    return read
