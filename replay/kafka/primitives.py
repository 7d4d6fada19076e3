"""The primitive types of Kafka's protocol, in the flexible form of metadata records (KIP-482).

Every length is checked against the remaining bytes before it is used.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from replay.kafka.errors import MalformedRecordError

_ZERO_UUID = bytes(16)
_UUIDS_KEPT = 10_000


class Reader:
    """Reader of successive values in bytes. Each method raises MalformedRecordError."""

    __slots__ = ("_data", "end", "position")

    def __init__(self, data: bytes, position: int = 0, end: int | None = None) -> None:
        self._data = data
        self.end = len(data) if end is None else end
        """End of the readable bytes, exclusive."""
        self.position = position

    @property
    def left(self) -> int:
        """Number of unread bytes."""
        return self.end - self.position

    def begin(self, size: int) -> int:
        """End behind the next bytes; returns where the end was before."""
        before, end = self.end, self.position + size
        if not self.position <= end <= before:
            raise self._too_few(size)
        self.end = end
        return before

    def take(self, count: int) -> bytes:
        """Read the next bytes."""
        start = self.position
        end = start + count
        if not start <= end <= self.end:
            raise self._too_few(count)
        self.position = end
        return self._data[start:end]

    def _too_few(self, count: int) -> MalformedRecordError:
        return MalformedRecordError(f"{count} bytes are said to follow, {self.left} are there")

    def unsigned_varint(self) -> int:
        """Read an unsigned varint of up to 32 bits."""
        position = self.position
        # One byte, as most have: this is where the time goes.
        if position < self.end and (byte := self._data[position]) < 0x80:
            self.position = position + 1
            return byte
        return self._varint(32)

    def varlong(self) -> int:
        """Read a signed (zigzag) varint of up to 64 bits."""
        position = self.position
        if position < self.end and (byte := self._data[position]) < 0x80:
            self.position = position + 1
            return (byte >> 1) ^ -(byte & 1)
        value = self._varint(64)
        return (value >> 1) ^ -(value & 1)

    def _varint(self, bits: int) -> int:
        value = 0
        for shift in range(0, bits, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if value >> bits:
                break
            if byte < 0x80:
                return value
        raise MalformedRecordError(f"a varint has more than {bits} bits")

    def unpack(self, layout: struct.Struct) -> Any:
        """Read one value of a fixed size."""
        position, size = self.position, layout.size
        if position + size > self.end:
            raise self._too_few(size)
        self.position = position + size
        return layout.unpack_from(self._data, position)[0]

    def boolean(self) -> bool:
        """Read one byte, 0 or 1."""
        return self.take(1) != b"\0"

    def uuid(self) -> str:
        """Read a UUID as Kafka prints it: base64url without padding."""
        return uuid_text(self.take(16))

    def nullable_bytes(self) -> bytes | None:
        """Compact bytes; None: null."""
        length = self.unsigned_varint()
        return self.take(length - 1) if length else None

    def nullable_string(self) -> str | None:
        """Read a compact string; None: null."""
        data = self.nullable_bytes()
        if data is None:
            return None
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise MalformedRecordError(f"a string is not UTF-8: {error}") from None

    def count(self) -> int | None:
        """Read the number of elements of an array; None: null."""
        length = self.unsigned_varint()
        if not length:
            return None
        # Each takes a byte at least.
        if length - 1 > self.end - self.position:
            raise MalformedRecordError(
                f"an array is said to have {length - 1} elements, {self.left} bytes are there"
            )
        return length - 1


# Few topics and directories are in very many records.
@lru_cache(_UUIDS_KEPT)
def uuid_text(data: bytes) -> str:
    """Return a UUID as Kafka prints it."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


@lru_cache(_UUIDS_KEPT)
def uuid_bytes(text: str) -> bytes:
    """Return the 16 bytes of a UUID as Kafka prints it."""
    return base64.urlsafe_b64decode(text + "==")


def is_zero_uuid(text: str) -> bool:
    """Return whether it is the UUID that stands for none."""
    return uuid_bytes(text) == _ZERO_UUID


def _fixed(layout: str) -> Callable[[Reader], Any]:
    made = struct.Struct(layout)
    return lambda reader: reader.unpack(made)


def _string(reader: Reader) -> str:
    value = reader.nullable_string()
    if value is None:
        raise MalformedRecordError("a string is null where it must not be")
    return value


def _bytes(reader: Reader) -> bytes:
    value = reader.nullable_bytes()
    if value is None:
        raise MalformedRecordError("bytes are null where they must not be")
    return value


READERS: dict[str, Callable[[Reader], Any]] = {
    "bool": Reader.boolean,
    "int8": _fixed(">b"),
    "int16": _fixed(">h"),
    "uint16": _fixed(">H"),
    "int32": _fixed(">i"),
    "int64": _fixed(">q"),
    "float64": _fixed(">d"),
    "uuid": Reader.uuid,
    "string": _string,
    "string?": Reader.nullable_string,
    "bytes": _bytes,
    "bytes?": Reader.nullable_bytes,
}
"""Reader of each type, by its name in Kafka's schemas; with "?": may be null."""
