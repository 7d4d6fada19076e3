"""Record batches of Kafka's log format v2, as they stand in ``.log`` and ``.checkpoint`` files.

Layout, big-endian: i64 base offset, i32 length of what follows, i32 leader epoch, i8 magic (2),
u32 CRC32C of all after it, i16 attributes, i32 last offset delta, i64 base timestamp, i64 maximum
timestamp, i64 producer id, i16 producer epoch, i32 base sequence, i32 record count, records.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import google_crc32c

from raftlog.clock import MAX_MS
from replay.kafka.errors import KafkaLogError, MalformedRecordError
from replay.kafka.primitives import Reader

_HEAD = struct.Struct(">qi")
_REST = struct.Struct(">ibIhiqqqhii")
_CRC_FROM = _HEAD.size + 9
HEADER_BYTES = _HEAD.size + _REST.size
"""Size of the header of a batch, in bytes: enough to recognize the batch."""
_COMPRESSION, _CONTROL = 0x07, 0x20
MAX_BATCH_BYTES = 16 << 20
"""Largest batch, in bytes: more than any of a metadata log, which Kafka bounds by 8 MiB."""
_NO_TIMESTAMP = -1
_CODECS = {1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}


class RawRecord(NamedTuple):
    """A record of a batch, not decoded."""

    offset: int
    key: bytes
    value: bytes


class KafkaBatch(NamedTuple):
    """One batch. ``bytes``: the whole of it, as it stands in the file."""

    base_offset: int
    last_offset: int
    epoch: int
    max_timestamp_ms: int
    control: bool
    records: tuple[RawRecord, ...]
    bytes: bytes


class Frame(NamedTuple):
    """A batch whose records are not decoded. ``bytes``: the whole of it."""

    base_offset: int
    last_offset: int
    epoch: int
    max_timestamp_ms: int
    attributes: int
    record_count: int
    crc32c: int
    bytes: bytes


def batches(data: bytes, *, position: int = 0) -> Iterator[tuple[int, KafkaBatch]]:
    """Return batches as ``frames`` does, with their records."""
    for end, frame in frames(data, position=position):
        yield end, opened(frame, position)
        position = end


def frames(data: bytes, *, position: int = 0, at: int = 0) -> Iterator[tuple[int, Frame]]:
    """Yield (the position behind it, the batch) for each whole batch from a position on.

    Ends silently before a batch that is cut off by the end of the data, and before zeros (a file
    that was allocated in advance). Raises KafkaLogError at one that is damaged; those before it are
    good. ``at``: where in its file the data begins, for that.
    """
    while len(data) - position >= _HEAD.size:
        base_offset, length = _HEAD.unpack_from(data, position)
        end = position + _HEAD.size + length
        if not base_offset and not length and not any(data[position : position + 64]):
            return
        if length < _REST.size or length > MAX_BATCH_BYTES:
            raise KafkaLogError(f"at byte {at + position}: a batch is said to have {length} bytes")
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
        raise KafkaLogError(f"{_where(base_offset, position)} does not have its CRC32C")
    if not 0 <= count <= delta + 1:
        raise KafkaLogError(
            f"{_where(base_offset, position)} is said to have {count} records and {delta + 1}"
            " offsets"
        )
    if epoch < 0:
        raise KafkaLogError(f"{_where(base_offset, position)} is said to be of epoch {epoch}")
    require_time(max_ms, _where(base_offset, position))
    return Frame(base_offset, base_offset + delta, epoch, max_ms, attributes, count, crc, data)


def require_time(timestamp_ms: int, where: str) -> None:
    """Raise KafkaLogError unless a time is Kafka's for none or in the years 1970 to 9999."""
    if not _NO_TIMESTAMP <= timestamp_ms <= MAX_MS:
        raise KafkaLogError(f"{where} has the timestamp {timestamp_ms} ms: no clock says that")


def is_head_of(data: bytes, base_offset: int, epoch: int, crc32c: int) -> bool:
    """Return whether these bytes begin a batch with this offset, epoch and checksum."""
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
        raise MalformedRecordError(f"{reader.left} bytes are left behind its records")
    return records


def _record(reader: Reader, base_offset: int) -> RawRecord:
    behind = reader.begin(reader.varlong())
    reader.take(1)
    # Its timestamp: a batch of raftlog's has one.
    reader.varlong()
    offset = base_offset + reader.varlong()
    key, value = _sized(reader), _sized(reader)
    for _ in range(reader.varlong()):
        _sized(reader)
        _sized(reader)
    if reader.left:
        raise MalformedRecordError(f"{reader.left} bytes are left behind the record at {offset}")
    reader.end = behind
    return RawRecord(offset, key, value)


def _sized(reader: Reader) -> bytes:
    length = reader.varlong()
    return b"" if length < 0 else reader.take(length)
