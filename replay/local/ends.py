"""End of the records of an export, as the manifest has it and, in a cut file, its rows."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from raftlog.segments.manifest import Segment
from replay.errors import ReplayError
from replay.kernels.arrays import ints
from replay.local.reading import slices
from replay.opened import Export

_COLUMNS = ("offset", "epoch", "timestamp_ms", "batch_last_offset")


class End(NamedTuple):
    """End of the records: the last one's offset, epoch and time, and their number."""

    offset: int
    epoch: int
    timestamp_ms: int
    records: int


def ends_at(export: Export, *, until_offset: int | None = None) -> End | None:
    """Return the end of the records, of whole batches up to an offset; None: no records.

    The manifest says it of a file that lies within the bounds as a whole.
    """
    offsets = [each for each in (export.at_offset, until_offset) if each is not None]
    end = End(-1, 0, 0, 0)
    if (begin := export.begin) is not None:
        count = begin.offset + 1 - export.manifest.history_begin
        end = End(begin.offset, begin.epoch, begin.timestamp_ms, count)
    for segment in export.segments:
        if any(segment.base_offset > each for each in offsets):
            continue
        inside = segment.base_offset >= export.begin_offset and all(
            segment.last_offset <= each for each in offsets
        )
        end = _later(end, _said(segment)) if inside else _read(export, segment, end, offsets)
    return end if end.records else None


def _said(segment: Segment) -> End:
    return End(segment.last_offset, segment.last_epoch, segment.max_timestamp_ms, segment.records)


def _read(export: Export, segment: Segment, end: End, offsets: list[int]) -> End:
    for table in slices(export, _COLUMNS, segments=[segment]):
        part = table
        for until in offsets:
            part = part.filter(pc.less_equal(part["batch_last_offset"], until))
        if part.num_rows:
            end = _later(end, _last(part))
    return end


def _last(rows: pa.Table) -> End:
    offsets = ints(rows["offset"])
    last = int(offsets.argmax())
    epoch, at_ms = (int(ints(rows[name])[last]) for name in ("epoch", "timestamp_ms"))
    return End(int(offsets[last]), epoch, at_ms, rows.num_rows)


def _later(one: End, other: End) -> End:
    last = max(one, other)
    return last._replace(records=one.records + other.records)


def end_of(export: Export) -> End:
    """Return the end of the records in question. Raises ReplayError if the log has none."""
    end = ends_at(export)
    if end is None:
        raise ReplayError("no whole batch lies within the offsets asked for")
    return end
