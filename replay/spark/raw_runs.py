"""Raw segments as Arrow: runs of records from files, with every batch verified, in the columns of
the Parquet form.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import BinaryIO

import pyarrow as pa

from raftlog import batch
from raftlog.batch import BatchHeader
from raftlog.errors import CorruptLogError
from raftlog.metadata.records import UnknownRecordError
from raftlog.segments.columns import RowBuffer
from raftlog.segments.errors import CorruptExportError, ExportMismatchError, UnsupportedExportError
from raftlog.segments.files import open_place
from raftlog.segments.manifest import Manifest, Segment
from raftlog.segments.raw import read_header, reading

_LENGTH = struct.Struct(">I")
_READ_BYTES = 1 << 20
_ROWS = 16_384
_ROW_BYTES = 8 << 20
"""Size in bytes, as an alternative to the number of rows, at which buffered rows are yielded."""


@dataclass(frozen=True, slots=True)
class RawRun:
    """The wanted records of one file that a task reads."""

    target: str
    segment: Segment
    cluster_id: str
    generation: int
    wanted: Span


def plan(
    target: str, manifest: Manifest, segments: Iterable[Segment], wanted: Span, max_records: int
) -> list[RawRun]:
    """Plan the reading of the wanted records in runs of at most ``max_records`` each. ``target``:
    location of the export.
    """
    found: list[RawRun] = []
    for segment in segments:
        span = of_segment(segment)
        if not span.meets(wanted):
            continue
        first, last = wanted.within(offset=span.offset).offset
        for begin in range(first, last + 1, max_records):
            part = wanted.within(offset=(begin, min(begin + max_records - 1, last)))
            found.append(RawRun(target, segment, manifest.cluster_id, manifest.generation, part))
    return found


def read(run: RawRun) -> Iterator[pa.Table]:
    """Yield the wanted records in order, in tables of bounded size.

    Earlier records in the file are skipped by their frames. Each batch that is read is checked
    (CRC32C, offset, form), as are the file's size and owner. Raises CorruptExportError with the
    first offset that cannot be trusted, ExportMismatchError, UnsupportedExportError or ExportError.
    """
    rows, low, high = RowBuffer(), *run.wanted.offset
    for chunk, header in _batches(run):
        try:
            rows.add(chunk, header)
        except UnknownRecordError as error:
            raise UnsupportedExportError(f"{run.segment.describe()}, {error}") from error
        except CorruptLogError as error:
            raise _corrupt(run, header.base_offset, str(error)) from error
        if rows.rows >= _ROWS or rows.bytes >= _ROW_BYTES:
            yield _between(run, rows, low, high)
    if rows.rows:
        yield _between(run, rows, low, high)


def _between(run: RawRun, rows: RowBuffer, low: int, high: int) -> pa.Table:
    """Return the buffered rows that are wanted; batches are whole, but a span may start and end
    inside one.
    """
    try:
        table = rows.take()
    except UnknownRecordError as error:
        raise UnsupportedExportError(f"{run.segment.describe()}, {error}") from error
    first = table.column("offset")[0].as_py()
    skip = max(low - first, 0)
    return table.slice(skip, max(high + 1 - first - skip, 0))


def _batches(run: RawRun) -> Iterator[tuple[bytes, batch.BatchHeader]]:
    """Yield the verified batches that may contain wanted records, each with the chunk that contains
    it.
    """
    segment, expected = run.segment, run.segment.base_offset
    place = open_place(run.target)
    with reading(place, segment), place.open(segment.file) as file:
        _check_file(run, file, place.size(segment.file))
        for chunk, last_at in _chunks(run, file):
            # Check a header before skipping anything because of it.
            first, *_ = _verified(run, chunk[: batch.size_at(chunk, 0)], expected)
            last, *_ = _verified(run, chunk[last_at:], None)
            span = of_batches(first, last)
            if run.wanted.before(span):
                return
            if not span.before(run.wanted):
                for header in _verified(run, chunk, expected):
                    if of_batches(header, header).meets(run.wanted):
                        yield chunk, header
            expected = last.end_offset
        if expected != segment.last_offset + 1:
            raise _corrupt(run, expected, f"it ends before offset {expected}")


def _check_file(run: RawRun, file: BinaryIO, size: int) -> None:
    """Check a file's owner, then its size: the owner is the more helpful error."""
    segment = run.segment
    header = read_header(file, segment.file)
    if (header.cluster_id, header.generation) != (run.cluster_id, run.generation):
        raise ExportMismatchError(
            f"{segment.describe()} belongs to cluster {header.cluster_id} generation"
            f" {header.generation}, but the export belongs to cluster {run.cluster_id} generation"
            f" {run.generation}"
        )
    if size != segment.bytes:
        raise _corrupt(run, segment.base_offset, f"expected {segment.bytes} bytes, found {size}")


def _chunks(run: RawRun, file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Yield whole batches, about one MiB at a time, found by their frames alone, and the position
    of the last batch in each chunk.
    """
    buffer = b""
    while data := file.read(_READ_BYTES):
        buffer += data
        position, last_at, end = 0, -1, False
        while position + _LENGTH.size <= len(buffer):
            (length,) = _LENGTH.unpack_from(buffer, position)
            end = not length
            if end or position + _LENGTH.size + length > len(buffer):
                break
            last_at, position = position, position + _LENGTH.size + length
        if last_at >= 0:
            yield buffer[:position], last_at
        if end:
            return
        buffer = buffer[position:]
    raise _corrupt(run, run.segment.base_offset, "it ends without a footer")


def _verified(run: RawRun, chunk: bytes, expected: int | None) -> Iterator[batch.BatchHeader]:
    try:
        yield from batch.headers(chunk, expect_offset=expected)
    except CorruptLogError as error:
        raise _corrupt(run, error.offset, str(error)) from error


def _corrupt(run: RawRun, offset: int, why: str) -> CorruptExportError:
    segment = run.segment
    return CorruptExportError(
        f"{segment.describe()} is corrupt from offset {offset} on: {why}",
        file=segment.file,
        base_offset=offset,
        last_offset=segment.last_offset,
    )


_MAX = 2**63 - 1

Range = tuple[int, int]
"""Lowest and highest value, both inclusive; empty if the highest is below the lowest."""
_ANY: Range = (-_MAX, _MAX)


@dataclass(frozen=True, slots=True)
class Span:
    """A range of the log, by offset and time."""

    offset: Range = _ANY
    timestamp_ms: Range = _ANY

    def before(self, other: Span) -> bool:
        """Return whether this span ends before the other begins."""
        return any(
            mine[1] < its[0] for mine, its in zip(self._ranges(), other._ranges(), strict=True)
        )

    def meets(self, other: Span) -> bool:
        """Return whether the spans may have a record in common."""
        return not self.before(other) and not other.before(self)

    def within(self, **ranges: Range) -> Span:
        """Return the part of the span within these ranges."""
        cut = {
            name: (max(low, getattr(self, name)[0]), min(high, getattr(self, name)[1]))
            for name, (low, high) in ranges.items()
        }
        return replace(self, **cut)

    def _ranges(self) -> tuple[Range, Range]:
        return self.offset, self.timestamp_ms


def of_segment(segment: Segment) -> Span:
    """Return the span of a file."""
    return Span(
        (segment.base_offset, segment.last_offset),
        (segment.min_timestamp_ms, segment.max_timestamp_ms),
    )


def of_batches(first: BatchHeader, last: BatchHeader) -> Span:
    """Return the span from one batch to another, inclusive."""
    return Span(
        (first.base_offset, last.last_offset),
        (first.timestamp_ms, last.timestamp_ms),
    )
