"""The bytes of the log: batches of records, encoded once by the leader and never changed
afterwards.

A batch is the atom of the log: it is appended, replicated, committed and applied as a whole.
Layout, big-endian::

    u32 length of all that follows this field u32 crc32c (Castagnoli) of all that follows this field
    u8 magic 1 u8 attributes bit 0: control batch (written by the quorum itself) u16 principal
    length u32 record count, at least 1; each record takes one offset i64 base offset i32 epoch i64
    timestamp_ms by the clocks of a majority of the voters; may very rarely decrease i64 client id
    0: none (the offset of the client's OpenClient record) i64 sequence 0: none i64 all below done
    principal, UTF-8 records, each: u16 type, u8 version, u8 zero, u32 length, body (protobuf, see
    proto/raftlog/wire/records)

A *chunk* is one or more whole batches with contiguous offsets, back to back: the unit that is
stored under one key, sent in one message, and exported in one piece. Records are not decoded on the
way from the leader to their reader.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import google_crc32c

from raftlog.errors import CorruptLogError

MAGIC = 1
CONTROL = 1

_PREFIX = struct.Struct(">II")
_HEADER = struct.Struct(">BBHIqiqqqq")
_RECORD = struct.Struct(">HBxI")
HEADER_BYTES = _PREFIX.size + _HEADER.size
"""Size of a batch before its principal, in bytes."""
RECORD_OVERHEAD_BYTES = _RECORD.size
"""Size of a record before its body, in bytes."""


class RecordData(NamedTuple):
    """A record as stored in the log: its type (see ``records.proto``), and its body's version and
    bytes.
    """

    type: int
    version: int
    body: bytes


Body = tuple[int, int, bytes]
"""A record as a plain tuple: (type, version, body)."""


class BatchHeader(NamedTuple):
    """A batch's header. ``end_offset`` is exclusive; ``position`` and ``size`` are in bytes, in the
    chunk that was read.
    """

    base_offset: int
    record_count: int
    epoch: int
    timestamp_ms: int
    control: bool
    client_id: int
    sequence: int
    all_below_done: int
    principal: str
    position: int
    size: int

    @property
    def end_offset(self) -> int:
        """The offset after the last record."""
        return self.base_offset + self.record_count

    @property
    def last_offset(self) -> int:
        """The offset of the last record."""
        return self.base_offset + self.record_count - 1


def encode(
    records: Iterable[tuple[Any, ...]],
    *,
    base_offset: int,
    epoch: int,
    timestamp_ms: int,
    control: bool = False,
    principal: str = "",
    client_id: int = 0,
    sequence: int = 0,
    all_below_done: int = 0,
) -> bytes:
    """Encode one batch from (type, version, body, ...) tuples, such as RecordData. Raises
    ValueError if there is no record.
    """
    parts: list[bytes] = []
    count = 0
    pack = _RECORD.pack
    for record in records:
        body = record[2]
        parts.append(pack(record[0], record[1], len(body)))
        parts.append(body)
        count += 1
    return encode_framed(
        parts,
        count,
        base_offset=base_offset,
        epoch=epoch,
        timestamp_ms=timestamp_ms,
        control=control,
        principal=principal,
        client_id=client_id,
        sequence=sequence,
        all_below_done=all_below_done,
    )


def encode_framed(
    parts: Iterable[bytes],
    count: int,
    *,
    base_offset: int,
    epoch: int,
    timestamp_ms: int,
    control: bool = False,
    principal: str = "",
    client_id: int = 0,
    sequence: int = 0,
    all_below_done: int = 0,
) -> bytes:
    """Encode one batch from ``count`` encoded records, each after its ``record_head``. Raises
    ValueError if there is no record.
    """
    if not count:
        raise ValueError("a batch needs at least one record")
    name = principal.encode()
    header = _HEADER.pack(
        MAGIC,
        CONTROL if control else 0,
        len(name),
        count,
        base_offset,
        epoch,
        timestamp_ms,
        client_id,
        sequence,
        all_below_done,
    )
    content = b"".join((header, name, *parts))
    return _PREFIX.pack(len(content) + 4, google_crc32c.value(content)) + content


def record_head(type_: int, version: int, length: int) -> bytes:
    """Return the head of a record whose body is ``length`` bytes long."""
    return _RECORD.pack(type_, version, length)


def records_position(chunk: bytes, header: BatchHeader) -> int:
    """Return the position in the chunk at which a batch's records begin."""
    name_length = int.from_bytes(chunk[header.position + 10 : header.position + 12], "big")
    return header.position + HEADER_BYTES + name_length


def headers(
    chunk: bytes, *, verify: bool = True, expect_offset: int | None = None
) -> Iterator[BatchHeader]:
    """Yield the header of each batch of a chunk, checking lengths, contiguity, and, with
    ``verify``, CRC32C.

    ``expect_offset``: base offset that the first batch must have. Raises CorruptLogError, which
    names the first offset that cannot be trusted; batches yielded before it are valid.
    """
    position, expected = 0, expect_offset
    total = len(chunk)
    while position < total:
        at = -1 if expected is None else expected
        if total - position < HEADER_BYTES:
            raise CorruptLogError(
                f"batch at offset {at}: {total - position} bytes left, too few for a header",
                offset=at,
            )
        length, crc = _PREFIX.unpack_from(chunk, position)
        size = length + 4
        if size < HEADER_BYTES or position + size > total:
            raise CorruptLogError(
                f"batch at offset {at}: its length, {size} bytes, is too small or exceeds "
                "the chunk",
                offset=at,
            )
        if verify and google_crc32c.value(chunk[position + _PREFIX.size : position + size]) != crc:
            raise CorruptLogError(f"batch at offset {at}: CRC32C does not match", offset=at)
        (
            magic,
            attributes,
            name_length,
            count,
            base,
            epoch,
            timestamp_ms,
            client_id,
            sequence,
            done,
        ) = _HEADER.unpack_from(chunk, position + _PREFIX.size)
        if magic != MAGIC:
            raise CorruptLogError(f"batch at offset {at}: unknown magic {magic}", offset=at)
        if count < 1 or (expected is not None and base != expected):
            raise CorruptLogError(
                f"batch at offset {at}: invalid header: base offset {base}, {count} records",
                offset=at,
            )
        name_at = position + HEADER_BYTES
        yield BatchHeader(
            base,
            count,
            epoch,
            timestamp_ms,
            bool(attributes & CONTROL),
            client_id,
            sequence,
            done,
            chunk[name_at : name_at + name_length].decode() if name_length else "",
            position,
            size,
        )
        expected = base + count
        position += size


def size_at(chunk: bytes, position: int) -> int | None:
    """Return the size of the batch at ``position`` from its length field, in bytes, or None if the
    bytes end before that field. Raises CorruptLogError.
    """
    if len(chunk) - position < _PREFIX.size:
        return None
    size: int = _PREFIX.unpack_from(chunk, position)[0] + 4
    if size < HEADER_BYTES:
        raise CorruptLogError(f"a batch's length field has the impossible value {size}")
    return size


def header_at(chunk: bytes, position: int) -> BatchHeader:
    """Return the header of the batch at ``position`` in a chunk that has been checked."""
    size = size_at(chunk, position)
    (header,) = headers(chunk[position : position + (size or 0)], verify=False)
    return header._replace(position=position)


class Scan(NamedTuple):
    """The result of checking a chunk: its end offset (exclusive), the runs of equal epochs, and the
    last batch's timestamp.
    """

    end_offset: int
    epochs: tuple[tuple[int, int], ...]
    last_timestamp_ms: int
    control_at: tuple[int, ...] = ()
    """Positions of the control batches in the chunk, in bytes."""


def crc_at(chunk: bytes, position: int) -> int:
    """Return the CRC-32C stored in the batch at ``position``."""
    crc: int = _PREFIX.unpack_from(chunk, position)[1]
    return crc


def scan(chunk: bytes, *, expect_offset: int) -> Scan:
    """Check a whole chunk as ``headers`` does, without creating an object per batch. Raises
    CorruptLogError.
    """
    position, expected, total = 0, expect_offset, len(chunk)
    runs: list[tuple[int, int]] = []
    control_at: list[int] = []
    last_epoch, timestamp_ms = -1, 0
    value, header_at, unpack, unpack_prefix = (
        google_crc32c.value,
        _PREFIX.size,
        _HEADER.unpack_from,
        _PREFIX.unpack_from,
    )
    while position < total:
        if total - position < HEADER_BYTES:
            raise CorruptLogError(
                f"batch at offset {expected}: too few bytes for a header", offset=expected
            )
        length, crc = unpack_prefix(chunk, position)
        end = position + length + 4
        if end - position < HEADER_BYTES or end > total:
            raise CorruptLogError(
                f"batch at offset {expected}: its length field is too short or exceeds the chunk",
                offset=expected,
            )
        if value(chunk[position + header_at : end]) != crc:
            raise CorruptLogError(
                f"batch at offset {expected}: CRC32C does not match", offset=expected
            )
        magic, attributes, _, count, base, epoch, timestamp_ms, _, _, _ = unpack(
            chunk, position + header_at
        )
        if attributes & CONTROL:
            control_at.append(position)
        if magic != MAGIC or count < 1 or base != expected or epoch < last_epoch:
            raise CorruptLogError(
                f"batch at offset {expected}: invalid header: base offset {base}, epoch {epoch}, "
                f"magic {magic}",
                offset=expected,
            )
        if epoch != last_epoch:
            runs.append((epoch, base))
            last_epoch = epoch
        expected += count
        position = end
    return Scan(expected, tuple(runs), timestamp_ms, tuple(control_at))


def bodies(chunk: bytes, header: BatchHeader) -> Iterator[Body]:
    """Yield (type, version, body) of each record in a batch. Raises CorruptLogError unless the
    records exactly fill the batch.
    """
    position = records_position(chunk, header)
    end = header.position + header.size
    unpack = _RECORD.unpack_from
    for _ in range(header.record_count):
        if position + RECORD_OVERHEAD_BYTES > end:
            raise CorruptLogError(
                f"batch at offset {header.base_offset}: its records extend beyond it",
                offset=header.base_offset,
            )
        type_, version, length = unpack(chunk, position)
        position += RECORD_OVERHEAD_BYTES
        yield type_, version, chunk[position : position + length]
        position += length
    if position != end:
        raise CorruptLogError(
            f"batch at offset {header.base_offset}: its records do not end where the batch ends",
            offset=header.base_offset,
        )


def records(chunk: bytes, header: BatchHeader) -> list[RecordData]:
    """Return the records of a batch, with their bodies as bytes. Raises CorruptLogError."""
    return [RecordData(*body) for body in bodies(chunk, header)]


def epoch_runs(chunk_headers: Iterable[BatchHeader]) -> tuple[tuple[int, int], ...]:
    """Return (epoch, first offset) for each run of equal epochs."""
    runs: list[tuple[int, int]] = []
    for header in chunk_headers:
        if not runs or runs[-1][0] != header.epoch:
            runs.append((header.epoch, header.base_offset))
    return tuple(runs)
