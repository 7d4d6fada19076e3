"""Kafka's log format v2, as in ``.log`` and ``.checkpoint`` files: primitive types and record
batches.

Layout of a batch, big-endian: i64 base offset, i32 length of the rest, i32 leader epoch, i8 magic
(2), u32 CRC32C of all that follows it, i16 attributes, i32 last offset delta, i64 base timestamp,
i64 maximum timestamp, i64 producer id, i16 producer epoch, i32 base sequence, i32 record count,
records.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c

from raftlog.clock import MAX_MS
from raftlog.errors import ConfigError, WrongDataError, is_disk_error
from replay.errors import DiskError, ReplayError


class KafkaLogError(ReplayError, WrongDataError):
    """A file is damaged or not what it should be. The message names the file and the offset."""


class NoKafkaLogError(ReplayError, ConfigError):
    """There is no log to import, or it does not fit the export."""


def unreadable(path: Path, error: OSError) -> ReplayError:
    """Return the error for a file that the operating system cannot read, which does not mean
    damage.
    """
    kind = DiskError if is_disk_error(error) else NoKafkaLogError
    return kind(f"cannot read {path}: {error.strerror}")


class MalformedRecordError(KafkaLogError):
    """The bytes of a batch or record do not follow Kafka's schema."""


_ZERO_UUID = bytes(16)
_UUIDS_KEPT = 10_000


class Reader:
    """Reads consecutive values from bytes. Its methods raise MalformedRecordError."""

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
        """Restrict reading to the next ``size`` bytes, and return the previous end."""
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
        return MalformedRecordError(f"expected {count} more bytes, found {self.left}")

    def unsigned_varint(self) -> int:
        """Read an unsigned varint of up to 32 bits."""
        position = self.position
        # Fast path: most varints are one byte, and reading spends most of its time here.
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
        """Read a value of fixed size."""
        position, size = self.position, layout.size
        if position + size > self.end:
            raise self._too_few(size)
        self.position = position + size
        return layout.unpack_from(self._data, position)[0]

    def boolean(self) -> bool:
        """Read one byte, 0 or 1."""
        return self.take(1) != b"\0"

    def uuid(self) -> str:
        """Read a UUID in Kafka's notation: base64url without padding."""
        return uuid_text(self.take(16))

    def nullable_bytes(self) -> bytes | None:
        """Read compact bytes, or None for null."""
        length = self.unsigned_varint()
        return self.take(length - 1) if length else None

    def nullable_string(self) -> str | None:
        """Read a compact string, or None for null."""
        data = self.nullable_bytes()
        if data is None:
            return None
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise MalformedRecordError(f"a string is not UTF-8: {error}") from None

    def count(self) -> int | None:
        """Read the number of elements of an array, or None for null."""
        length = self.unsigned_varint()
        if not length:
            return None
        # Each element takes at least one byte.
        if length - 1 > self.end - self.position:
            raise MalformedRecordError(
                f"an array claims {length - 1} elements, but only {self.left} bytes are left"
            )
        return length - 1


# The same few topics and directories occur in very many records.
@lru_cache(_UUIDS_KEPT)
def uuid_text(data: bytes) -> str:
    """Return a UUID in Kafka's notation."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


@lru_cache(_UUIDS_KEPT)
def uuid_bytes(text: str) -> bytes:
    """Return the 16 bytes of a UUID given in Kafka's notation."""
    return base64.urlsafe_b64decode(text + "==")


def is_zero_uuid(text: str) -> bool:
    """Return whether this is the UUID that stands for none."""
    return uuid_bytes(text) == _ZERO_UUID


def _fixed(layout: str) -> Callable[[Reader], Any]:
    made = struct.Struct(layout)
    return lambda reader: reader.unpack(made)


def _string(reader: Reader) -> str:
    value = reader.nullable_string()
    if value is None:
        raise MalformedRecordError("a string is null, but must not be")
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
"""Type name in Kafka's schemas -> reader; "?" marks nullable types."""


_HEAD = struct.Struct(">qi")
_REST = struct.Struct(">ibIhiqqqhii")
_CRC_FROM = _HEAD.size + 9
HEADER_BYTES = _HEAD.size + _REST.size
"""Size of a batch header in bytes: enough to recognize the batch."""
_COMPRESSION, _CONTROL = 0x07, 0x20
MAX_BATCH_BYTES = 16 << 20
"""Largest accepted batch, in bytes; Kafka limits batches of a metadata log to 8 MiB."""
_NO_TIMESTAMP = -1
_CODECS = {1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}


class RawRecord(NamedTuple):
    """An undecoded record of a batch."""

    offset: int
    key: bytes
    value: bytes


class KafkaBatch(NamedTuple):
    """A batch. ``bytes``: all of it, as stored in the file."""

    base_offset: int
    last_offset: int
    epoch: int
    max_timestamp_ms: int
    control: bool
    records: tuple[RawRecord, ...]
    bytes: bytes


class Frame(NamedTuple):
    """A batch with undecoded records. ``bytes``: all of it."""

    base_offset: int
    last_offset: int
    epoch: int
    max_timestamp_ms: int
    attributes: int
    record_count: int
    crc32c: int
    bytes: bytes


def batches(data: bytes, *, position: int = 0) -> Iterator[tuple[int, KafkaBatch]]:
    """Yield batches like ``frames``, with their records."""
    for end, frame in frames(data, position=position):
        yield end, opened(frame, position)
        position = end


def frames(data: bytes, *, position: int = 0, at: int = 0) -> Iterator[tuple[int, Frame]]:
    """Yield, for each complete batch from a position onwards, the position after it and the batch.

    Stops silently before a batch that the end of the data truncates, and before zeros (the rest of
    a preallocated file). Raises KafkaLogError at a damaged batch; those already yielded are intact.
    ``at``: the file position of the data, for that message.
    """
    while len(data) - position >= _HEAD.size:
        base_offset, length = _HEAD.unpack_from(data, position)
        end = position + _HEAD.size + length
        if not base_offset and not length and not any(data[position : position + 64]):
            return
        if length < _REST.size or length > MAX_BATCH_BYTES:
            raise KafkaLogError(f"at byte {at + position}: invalid batch size: {length} bytes")
        if end > len(data):
            return
        yield end, _frame(data[position:end], at + position)
        position = end


def _frame(data: bytes, position: int) -> Frame:
    base_offset, _ = _HEAD.unpack_from(data)
    epoch, magic, crc, attributes, delta, _, max_ms, *_, count = _REST.unpack_from(data, _HEAD.size)
    if magic != 2:
        raise KafkaLogError(f"{_where(base_offset, position)} has magic {magic}, not 2")
    if google_crc32c.value(data[_CRC_FROM:]) != crc:
        raise KafkaLogError(f"{_where(base_offset, position)} does not match its CRC32C")
    if not 0 <= count <= delta + 1:
        raise KafkaLogError(
            f"{_where(base_offset, position)} claims {count} records for {delta + 1} offsets"
        )
    if epoch < 0:
        raise KafkaLogError(f"{_where(base_offset, position)} claims epoch {epoch}")
    require_time(max_ms, _where(base_offset, position))
    return Frame(base_offset, base_offset + delta, epoch, max_ms, attributes, count, crc, data)


def require_time(timestamp_ms: int, where: str) -> None:
    """Raise KafkaLogError unless a time is Kafka's placeholder for none, or within the years 1970
    to 9999.
    """
    if not _NO_TIMESTAMP <= timestamp_ms <= MAX_MS:
        raise KafkaLogError(
            f"{where} has timestamp {timestamp_ms} ms: outside the years 1970 to 9999"
        )


def is_head_of(data: bytes, base_offset: int, epoch: int, crc32c: int) -> bool:
    """Return whether these bytes start a batch with this offset, epoch and checksum."""
    if len(data) < HEADER_BYTES:
        return False
    there, _, checksum, *_ = _REST.unpack_from(data, _HEAD.size)
    return (_HEAD.unpack_from(data)[0], there, checksum) == (base_offset, epoch, crc32c)


def _where(base_offset: int, position: int) -> str:
    return f"at byte {position}: the batch at offset {base_offset}"


def opened(frame: Frame, position: int) -> KafkaBatch:
    """Return a batch with its records. ``position``: in its file. Raises KafkaLogError."""
    where = _where(frame.base_offset, position)
    if codec := frame.attributes & _COMPRESSION:
        raise KafkaLogError(
            f"{where} is compressed with {_CODECS.get(codec, f'codec {codec}')}: Kafka never"
            " compresses its metadata log"
        )
    try:
        records = _records(frame.bytes[HEADER_BYTES:], frame.record_count, frame.base_offset)
    except MalformedRecordError as error:
        raise KafkaLogError(f"{where} is malformed: {error}") from None
    return KafkaBatch(
        frame.base_offset,
        frame.last_offset,
        frame.epoch,
        frame.max_timestamp_ms,
        bool(frame.attributes & _CONTROL),
        records,
        frame.bytes,
    )


def _records(content: bytes, count: int, base_offset: int) -> tuple[RawRecord, ...]:
    reader = Reader(content)
    records = tuple([_record(reader, base_offset) for _ in range(count)])
    if reader.left:
        raise MalformedRecordError(f"{reader.left} trailing bytes after its records")
    return records


def _record(reader: Reader, base_offset: int) -> RawRecord:
    outer_end = reader.begin(reader.varlong())
    reader.take(1)
    # Skip the record's timestamp: raftlog stores one per batch.
    reader.varlong()
    offset = base_offset + reader.varlong()
    key, value = _sized(reader), _sized(reader)
    for _ in range(reader.varlong()):
        _sized(reader)
        _sized(reader)
    if reader.left:
        raise MalformedRecordError(f"{reader.left} trailing bytes after the record at {offset}")
    reader.end = outer_end
    return RawRecord(offset, key, value)


def _sized(reader: Reader) -> bytes:
    length = reader.varlong()
    return b"" if length < 0 else reader.take(length)
