"""Record batches of Kafka's log format v2, as they stand in ``.log`` and ``.checkpoint`` files.

Layout, big-endian: i64 base offset, i32 length of what follows, i32 leader epoch, i8 magic (2),
u32 CRC32C of all after it, i16 attributes, i32 last offset delta, i64 base timestamp, i64 maximum
timestamp, i64 producer id, i16 producer epoch, i32 base sequence, i32 record count, records.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import google_crc32c

from replay.kafka.errors import KafkaLogError, MalformedRecordError
from replay.kafka.primitives import Reader

_HEAD = struct.Struct(">qi")
_REST = struct.Struct(">ibIhiqqqhii")
_CRC_FROM = _HEAD.size + 9
HEADER_BYTES = _HEAD.size + _REST.size
"""What a batch begins with: enough to know it again."""
_COMPRESSION, _CONTROL = 0x07, 0x20
MAX_BATCH_BYTES = 16 << 20
"""More than any batch of a metadata log: Kafka bounds them by 8 MiB."""
_MAX_EXPANDED_BYTES = 32 << 20
_FIRST_EXPANDED_BYTES = 64 << 10


class RawRecord(NamedTuple):
    """A record of a batch, not decoded."""

    offset: int
    timestamp_ms: int
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
    """A batch whose records nobody has looked at. ``bytes``: the whole of it."""

    base_offset: int
    last_offset: int
    epoch: int
    max_timestamp_ms: int
    attributes: int
    base_timestamp_ms: int
    record_count: int
    crc32c: int
    bytes: bytes


def batches(data: bytes, *, position: int = 0) -> Iterator[tuple[int, KafkaBatch]]:
    """As ``frames``, with their records."""
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
    epoch, magic, crc, attributes, delta, base_ms, max_ms, _, _, _, count = _REST.unpack_from(
        data, _HEAD.size
    )
    if magic != 2:
        raise KafkaLogError(f"{_where(base_offset, position)} has magic {magic}, not 2")
    if google_crc32c.value(data[_CRC_FROM:]) != crc:
        raise KafkaLogError(f"{_where(base_offset, position)} does not have its CRC32C")
    if not 0 <= count <= delta + 1:
        raise KafkaLogError(
            f"{_where(base_offset, position)} is said to have {count} records and {delta + 1}"
            " offsets"
        )
    return Frame(
        base_offset, base_offset + delta, epoch, max_ms, attributes, base_ms, count, crc, data
    )


def is_head_of(data: bytes, base_offset: int, epoch: int, crc32c: int) -> bool:
    """Whether a batch begins with these bytes that has this offset, epoch and checksum."""
    if len(data) < HEADER_BYTES:
        return False
    there, _, checksum, *_ = _REST.unpack_from(data, _HEAD.size)
    return (_HEAD.unpack_from(data)[0], there, checksum) == (base_offset, epoch, crc32c)


def _where(base_offset: int, position: int) -> str:
    return f"at byte {position}: the batch at offset {base_offset}"


def opened(frame: Frame, position: int) -> KafkaBatch:
    """A batch with its records. ``position``: in its file. Raises KafkaLogError."""
    try:
        content = _expanded(frame.bytes[_HEAD.size + _REST.size :], frame.attributes & _COMPRESSION)
        records = _records(content, frame.record_count, frame.base_offset, frame.base_timestamp_ms)
    except MalformedRecordError as error:
        where = _where(frame.base_offset, position)
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


def _records(content: bytes, count: int, base_offset: int, base_ms: int) -> tuple[RawRecord, ...]:
    reader = Reader(content)
    records = tuple([_record(reader, base_offset, base_ms) for _ in range(count)])
    if reader.left:
        raise MalformedRecordError(f"{reader.left} bytes are left behind its records")
    return records


def _record(reader: Reader, base_offset: int, base_ms: int) -> RawRecord:
    behind = reader.begin(reader.varlong())
    reader.take(1)
    timestamp_ms, offset = base_ms + reader.varlong(), base_offset + reader.varlong()
    key, value = _sized(reader), _sized(reader)
    for _ in range(reader.varlong()):
        _sized(reader)
        _sized(reader)
    if reader.left:
        raise MalformedRecordError(f"{reader.left} bytes are left behind the record at {offset}")
    reader.end = behind
    return RawRecord(offset, timestamp_ms, key, value)


def _sized(reader: Reader) -> bytes:
    length = reader.varlong()
    return b"" if length < 0 else reader.take(length)


def _expanded(data: bytes, compression: int) -> bytes:
    """The records of a batch, whatever it is compressed with (gzip 1, snappy 2, lz4 3, zstd 4)."""
    if not compression:
        return data
    try:
        import cramjam
    except ImportError:
        raise KafkaLogError(
            "a batch is compressed: install what reads it, `pip install 'raftlog[kafka]'`"
        ) from None
    codecs: dict[int, Any] = {1: cramjam.gzip, 3: cramjam.lz4, 4: cramjam.zstd}
    try:
        if compression == 2:
            content = _snappy(cramjam.snappy, data)
        elif compression in codecs:
            content = _decompressed(codecs[compression], data, cramjam.DecompressionError)
        else:
            raise MalformedRecordError(f"it has the unknown compression {compression}")
    except cramjam.DecompressionError as error:
        raise MalformedRecordError(
            f"it cannot be decompressed into {_MAX_EXPANDED_BYTES >> 20} MiB: {error}"
        ) from None
    return content


def _decompressed(codec: Any, data: bytes, failed: type[Exception]) -> bytes:
    """Into a buffer of a size that nothing in the data decides, so that a few bytes can't ask for
    all memory.
    """
    size = max(_FIRST_EXPANDED_BYTES, len(data))
    while True:
        size = min(8 * size, _MAX_EXPANDED_BYTES)
        buffer = bytearray(size)
        try:
            return bytes(memoryview(buffer)[: codec.decompress_into(data, buffer)])
        except failed:
            if size == _MAX_EXPANDED_BYTES:
                raise


_XERIAL = b"\x82SNAPPY\0"


def _snappy(snappy: Any, data: bytes) -> bytes:
    """Raw snappy, or the blocks that Kafka's Java clients frame in their own way."""
    if not data.startswith(_XERIAL):
        return _raw_snappy(snappy, data, _MAX_EXPANDED_BYTES)
    reader, parts, left = Reader(data, 16), list[bytes](), _MAX_EXPANDED_BYTES
    while reader.left:
        block = reader.take(int.from_bytes(reader.take(4), "big"))
        parts.append(_raw_snappy(snappy, block, left))
        left -= len(parts[-1])
    return b"".join(parts)


def _raw_snappy(snappy: Any, data: bytes, most: int) -> bytes:
    """A block, which says how large it is."""
    size = snappy.decompress_raw_len(data)
    if size > most:
        raise MalformedRecordError(f"it is said to have {size} bytes decompressed")
    return bytes(snappy.decompress_raw(data))
