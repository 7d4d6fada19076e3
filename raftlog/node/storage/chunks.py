"""Iterate over and split chunks, for RocksDB and the simulated stores."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import google_crc32c

from raftlog import batch
from raftlog.endpoint import VotersAt
from raftlog.errors import CorruptLogError
from raftlog.metadata.control_records import GenerationAt, generations_in, voters_in

_PEEK = struct.Struct(">IIBBHIqi")
"""Start of a batch up to its epoch: length, CRC32C, magic, attributes, principal length, count,
base offset, epoch.
"""
_LENGTH, _EPOCH = struct.Struct(">I"), struct.Struct(">24xi")


def walk(
    chunk: bytes, expected: int, *, verify_from: int = 0
) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield (base offset, end offset, epoch, position, end position) of each batch, checked; faster
    than ``batch.headers``.

    Contiguity from ``expected`` is always checked, CRC32C only for batches at or above
    ``verify_from``. Raises CorruptLogError.
    """
    unpack, crc32c = _PEEK.unpack_from, google_crc32c.value
    position, total = 0, len(chunk)
    while position < total:
        if total - position < batch.HEADER_BYTES:
            raise _damage(chunk, expected, position)
        length, crc, magic, _, _, count, base, epoch = unpack(chunk, position)
        behind = position + 4 + length
        if (
            base != expected
            or magic != batch.MAGIC
            or count < 1
            or behind > total
            or length + 4 < batch.HEADER_BYTES
            or (base >= verify_from and crc32c(chunk[position + 8 : behind]) != crc)
        ):
            raise _damage(chunk, expected, position)
        expected = base + count
        yield base, expected, epoch, position, behind
        position = behind


def _damage(chunk: bytes, expected: int, position: int) -> CorruptLogError:
    """Return the error for damage that ``walk`` has found: ``batch.headers`` makes the same checks
    and raises it.
    """
    try:
        for _ in batch.headers(chunk[position:], expect_offset=expected):
            pass
    except (CorruptLogError, UnicodeDecodeError) as error:
        return CorruptLogError(str(error), offset=expected)
    return CorruptLogError(f"batch at offset {expected} is damaged", offset=expected)


class LogScan(NamedTuple):
    """A whole checked log: its end (exclusive), epoch index, last timestamp, voter sets and
    generations.
    """

    end_offset: int
    epochs: tuple[tuple[int, int], ...]
    last_timestamp_ms: int
    voters: tuple[VotersAt, ...]
    generations: tuple[GenerationAt, ...] = ()


def scan_log(
    chunks: Iterable[tuple[int, bytes]],
    start_offset: int,
    start_epoch: int = 0,
    *,
    seen: Callable[[int, int, int, int], None] | None = None,
) -> LogScan:
    """Check a whole log from ``start_offset`` onwards, which may lie within the first chunk.

    Chunks that end at or below ``start_offset`` are skipped. ``seen`` is called with the base
    offset, end offset, last timestamp and size of each other chunk. Raises CorruptLogError with the
    first damaged offset.
    """
    end, timestamp_ms = start_offset, 0
    runs: list[tuple[int, int]] = []
    voters: list[VotersAt] = []
    generations: list[GenerationAt] = []
    source = iter(chunks)
    while (following := _next_chunk(source, end)) is not None:
        key, chunk = following
        if key < end == start_offset:
            chunk = batches_from(chunk, key, start_offset)
            if not chunk:
                continue
            key = start_offset
        if key != end or not chunk:
            raise _gap(end, key)
        found = batch.scan(chunk, expect_offset=key)
        for epoch, base in found.epochs:
            last = runs[-1][0] if runs else start_epoch
            if epoch < last:
                raise CorruptLogError(
                    f"the batch at offset {base} has epoch {epoch} after epoch {last}", offset=base
                )
            if not runs or epoch > last:
                runs.append((epoch, base))
        voters.extend(voters_in(chunk, found.control_at))
        generations.extend(generations_in(chunk, found.control_at))
        end, timestamp_ms = found.end_offset, found.last_timestamp_ms
        if seen is not None:
            seen(key, end, timestamp_ms, len(chunk))
    return LogScan(end, tuple(runs), timestamp_ms, tuple(voters), tuple(generations))


def _gap(offset: int, key: int) -> CorruptLogError:
    return CorruptLogError(
        f"the log has a gap: its next chunk begins at offset {key} instead of {offset}",
        offset=offset,
    )


def batch_before(chunks: Iterable[tuple[int, bytes]], end_offset: int) -> tuple[int, int] | None:
    """Return (base offset, CRC-32C) of the batch that ends at ``end_offset``, or None if no batch
    does.

    ``chunks`` must begin with the chunk that should contain the batch.
    """
    for key, chunk in chunks:
        if key >= end_offset:
            break
        for base, end, _, position, _ in walk(chunk, key, verify_from=2**63):
            if end == end_offset:
                return base, batch.crc_at(chunk, position)
    return None


def epoch_at(chunks: Iterable[tuple[int, bytes]], offset: int) -> int | None:
    """Return the epoch of the record at ``offset``, or None if the record does not exist.

    ``chunks`` must begin with the chunk that should contain the record.
    """
    for key, chunk in chunks:
        if key > offset:
            break
        for _, end, epoch, _, _ in walk(chunk, key, verify_from=2**63):
            if end > offset:
                return epoch
    return None


def batches_from(chunk: bytes, base_offset: int, offset: int) -> bytes:
    """Return the batches of a chunk from ``offset`` onwards, unverified; empty if the chunk ends at
    or below it.

    Raises ValueError if ``offset`` is not a batch boundary.
    """
    position = 0
    for base, end, _, _, next_position in walk(chunk, base_offset, verify_from=2**63):
        if base == offset:
            return chunk[position:]
        if base < offset < end:
            raise ValueError(f"offset {offset} is not a batch boundary")
        position = next_position
    return b""


def _next_chunk(source: Iterator[tuple[int, bytes]], end: int) -> tuple[int, bytes] | None:
    """Return the next chunk, or None at the end.

    RocksDB reports damage without an offset; the error raised here has the offset of the expected
    chunk.
    """
    try:
        return next(source, None)
    except CorruptLogError as error:
        if error.offset >= 0:
            raise
        raise CorruptLogError(
            f"the log cannot be read at offset {end}: {error}", offset=end
        ) from error


def read_span(
    chunks: Iterable[tuple[int, bytes]],
    offset: int,
    until: int,
    max_bytes: int,
    *,
    inside: bool = False,
) -> bytes:
    """Return whole batches of [offset, until): at least one, then as many as fit ``max_bytes``.

    ``chunks`` must begin with the chunk that contains ``offset``. Raises CorruptLogError for
    damage, and if the chunks begin above ``offset``, as a reader that continued there would miss
    the gap. Raises ValueError if ``until`` or ``offset`` is not a batch boundary; with ``inside``,
    ``offset`` may lie within a batch, which is then returned whole.
    """
    parts: list[bytes] = []
    size, expected = 0, -1
    source = iter(chunks)
    while (following := _next_chunk(source, max(expected, offset))) is not None:
        key, chunk = following
        if key > offset if expected < 0 else key != expected:
            raise _gap(max(expected, offset), key)
        begin = finish = -1
        for base, behind, _, position, next_position in walk(chunk, key, verify_from=offset):
            expected = behind
            if base < offset:
                if behind <= offset:
                    continue
                if not inside:
                    raise ValueError(f"offset {offset} is not a batch boundary")
                # The walk has not verified this batch, as it begins below ``offset``.
                list(walk(chunk[position:next_position], base))
            if behind > until:
                raise ValueError(f"end offset {until} is not a batch boundary")
            if size and size + next_position - position > max_bytes:
                return _joined(parts, chunk, begin, finish)
            begin, finish = position if begin < 0 else begin, next_position
            size += next_position - position
            if behind == until:
                return _joined(parts, chunk, begin, finish)
        if begin >= 0:
            parts.append(chunk[begin:finish])
    at = max(expected, offset)
    raise CorruptLogError(f"the log ends at offset {at}, but had records up to {until}", offset=at)


def _joined(parts: list[bytes], chunk: bytes, begin: int, finish: int) -> bytes:
    if begin >= 0:
        parts.append(chunk[begin:finish])
    return b"".join(parts)


def last_epoch(chunk: bytes) -> int:
    """Return the epoch of the last batch of a non-empty chunk, unverified."""
    begin, behind, total, length_at = 0, 0, len(chunk), _LENGTH.unpack_from
    while behind < total:
        begin = behind
        behind += 4 + length_at(chunk, begin)[0]
    epoch: int = _EPOCH.unpack_from(chunk, begin)[0]
    return epoch


def end_of(chunk: bytes, base_offset: int) -> int:
    """Return the end offset of a non-empty chunk. Raises CorruptLogError."""
    *_, (_, end, *_) = walk(chunk, base_offset)
    return end


def batches_below(chunk: bytes, base_offset: int, end_offset: int) -> bytes:
    """Return the batches of a chunk below ``end_offset``, or the chunk itself if it ends there.

    Raises ValueError if ``end_offset`` is not a batch boundary.
    """
    for _, behind, _, _, position in walk(chunk, base_offset):
        if behind == end_offset:
            return chunk[:position]
        if behind > end_offset:
            break
    raise ValueError(f"offset {end_offset} is not a batch boundary")


def shortened(
    chunks: Iterable[tuple[int, bytes]], end_offset: int, *, may_be_empty: bool = False
) -> tuple[int, bytes] | None:
    """Return (base offset, batches below ``end_offset``) of the chunk that has ``end_offset`` in
    its interior, or None if no chunk does.

    ``chunks`` must begin with the chunk of offset ``end_offset - 1``. Raises CorruptLogError if no
    such chunk exists, unless the log ``may_be_empty`` below ``end_offset``.
    """
    for base, chunk in chunks:
        if base >= end_offset:
            break
        kept = batches_below(chunk, base, end_offset)
        return None if len(kept) == len(chunk) else (base, kept)
    if may_be_empty:
        return None
    raise CorruptLogError(
        f"the log has no record at offset {end_offset - 1}", offset=end_offset - 1
    )
