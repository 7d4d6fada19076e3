"""Reading of an export's Parquet files as Arrow slices: only the requested columns, with page
checksums verified.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raftlog.metadata.records import RecordType
from raftlog.segments.columns import SCHEMA, odd_columns
from raftlog.segments.files import open_place
from raftlog.segments.manifest import Segment
from raftlog.segments.parquet_files import ColumnStatistics
from raftlog.segments.raw import corrupt, reading, says_content
from replay.errors import ReplayError
from replay.export import Export
from replay.kernels.arrays import Bools, ints, order_of

SLICE_ROWS = 131_072
"""Approximate number of rows in a slice; large enough that the cost per slice is negligible. An
audit of ten million records needs 0.6 GB with this size, and 0.3 GB with a quarter of it.
"""
DICTIONARIES = ("topic_id", "principal", "topic_name")
"""Columns with few distinct values, read as dictionaries."""
_BOUNDS = ("offset", "batch_last_offset", "timestamp_ms")
Filter = Callable[[pa.Table], Bools]
"""Returns a mask of the rows to keep."""


def slices(
    export: Export,
    columns: Sequence[str],
    *,
    types: Collection[RecordType] | None = None,
    only: Filter | None = None,
    segments: Sequence[Segment] | None = None,
    bucket: int | None = None,
    coded: Collection[str] = DICTIONARIES,
) -> Iterator[pa.Table]:
    """Yield the rows in question as slices in log order, whole batches only, with the given
    columns.

    ``types``: only records of these types. ``only``: a further filter. ``segments``: read only
    these files. ``bucket``: read this bucket's files where they exist; elsewhere more rows are
    read, so ``only`` must filter them. A slice may be empty. Rows may be out of order within a
    slice; a file with rows further out of order is rejected as corrupt.
    """
    wanted = dict.fromkeys(columns)
    bounds = _BOUNDS if _bounded(export) else ()
    needed = wanted | dict.fromkeys(bounds) | ({"type": None} if types is not None else {})
    kept: list[pa.Table] = []
    rows, last = 0, -1
    files = list(_files(export, export.segments if segments is None else segments, bucket))
    for segment in files:
        for read in read_file(export, segment, list(needed), coded):
            table = _chosen(_within(export, read), types, only).select(list(wanted))
            kept.append(table)
            rows += table.num_rows
            if rows >= SLICE_ROWS:
                table, last = _in_order(pa.concat_tables(kept), last, files)
                yield table
                kept, rows = [], 0
    if kept:
        yield _in_order(pa.concat_tables(kept), last, files)[0]


def _in_order(table: pa.Table, last: int, files: list[Segment]) -> tuple[pa.Table, int]:
    """Return the rows sorted by offset, and the last offset. ``last``: the last offset of the
    previous rows. Without an offset column, the order is left unchanged.
    """
    if "offset" not in table.column_names or not table.num_rows:
        return table, last
    offset = ints(table["offset"])
    if (np.diff(offset) < 0).any():
        order = order_of(offset)
        table, offset = table.take(pa.array(order)), offset[order]
    first = int(offset[0])
    if first < last:
        wrong = next((one for one in reversed(files) if one.base_offset <= first), files[0])
        raise corrupt(wrong, f"offset {first} follows offset {last}")
    return table, int(offset[-1])


def _files(export: Export, segments: Sequence[Segment], bucket: int | None) -> Iterator[Segment]:
    if bucket is None:
        yield from segments
        return
    own = {one.base_offset: one for one in export.bucket_files(bucket)}
    for segment in segments:
        yield own.get(segment.base_offset, segment)


def _chosen(table: pa.Table, types: Collection[RecordType] | None, only: Filter | None) -> pa.Table:
    """Return the rows to keep; the filters run before any row is copied."""
    if types is None and only is None:
        return table
    rows = np.ones(table.num_rows, np.bool_)
    if types is not None:
        rows &= np.isin(ints(table["type"]), [int(each) for each in types])
    if only is not None:
        rows &= only(table)
    if rows.all():
        return table
    # Skip columns that are all null: filtering them would take long, especially lists.
    silent = [name for name in table.column_names if table[name].null_count == len(rows)]
    some = table.drop_columns(silent).filter(pa.array(rows))
    for name in silent:
        some = some.append_column(name, pa.nulls(some.num_rows, table.schema.field(name).type))
    return some.select(table.column_names)


def _bounded(export: Export) -> bool:
    return (export.at_offset, export.begin) != (None, None)


def _within(export: Export, table: pa.Table) -> pa.Table:
    """Return the rows after the checkpoint whose batch lies within the bounds as a whole."""
    if export.begin is not None:
        table = table.filter(pc.greater(table["offset"], export.begin.offset))
    if export.at_offset is not None:
        table = table.filter(pc.less_equal(table["batch_last_offset"], export.at_offset))
    return table


def read_file(
    export: Export,
    segment: Segment,
    columns: list[str],
    coded: Collection[str] = DICTIONARIES,
) -> Iterator[pa.Table]:
    """Yield the rows of one file that may be in question, with the given columns. Raises
    CorruptExportError.
    """
    place = open_place(export.target)
    with reading(place, segment), place.open(segment.file) as opened:
        try:
            file = pq.ParquetFile(
                opened,
                page_checksum_verification=True,
                pre_buffer=False,
                read_dictionary=[name for name in coded if name in columns],
            )
            if wrong := odd_columns(file.schema_arrow.names):
                raise corrupt(segment, wrong)
            told = ColumnStatistics(file.metadata, imported=bool(export.manifest.origin))
            for groups, names in told.runs(_groups(export, file.metadata), columns):
                for rows in file.iter_batches(
                    SLICE_ROWS, row_groups=groups, columns=names, use_threads=False
                ):
                    yield _complete(segment, rows, columns, coded)
        except (pa.ArrowException, OSError) as error:
            if not says_content(error):
                raise
            why = str(error).lower()
            what = (
                "the checksum of a page does not match"
                if "crc" in why or "checksum" in why
                else "it does not parse"
            )
            raise corrupt(segment, f"it can't be read, {what}") from error


def _groups(export: Export, metadata: pq.FileMetaData) -> list[int]:
    """Return the row groups that may contain records in question, by their offset bounds."""
    names = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    at, chosen = names.index("offset"), []
    for index in range(metadata.num_row_groups):
        known = metadata.row_group(index).column(at).statistics
        if known is not None and known.has_min_max:
            if known.max < export.begin_offset:
                continue
            if export.at_offset is not None and known.min > export.at_offset:
                continue
        chosen.append(index)
    return chosen


def _complete(
    segment: Segment, rows: pa.RecordBatch, columns: list[str], coded: Collection[str]
) -> pa.Table:
    """Add the columns that were not read, as nulls. Raises CorruptExportError for a wrong type."""
    found = {}
    for name in columns:
        kind = SCHEMA.field(name).type
        if name in coded:
            kind = pa.dictionary(pa.int32(), kind)
        if name not in rows.schema.names:
            found[name] = pa.nulls(rows.num_rows, kind)
            continue
        found[name] = rows.column(name)
        if found[name].type != kind:
            why = f"column {name} is of type {found[name].type}, not {kind}"
            raise corrupt(segment, why)
    return pa.table(found)


_END_COLUMNS = ("offset", "epoch", "timestamp_ms", "batch_last_offset")


class End(NamedTuple):
    """The end of the records: the last record's offset, epoch and time, and the number of
    records.
    """

    offset: int
    epoch: int
    timestamp_ms: int
    records: int


def ends_at(export: Export, *, until_offset: int | None = None) -> End | None:
    """Return the end of the records in whole batches up to an offset, or None. The manifest answers
    this for files that are entirely within the bounds.
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
        end = _joined(end, _claimed(segment)) if inside else _end_in(export, segment, end, offsets)
    return end if end.records else None


def _claimed(segment: Segment) -> End:
    return End(segment.last_offset, segment.last_epoch, segment.max_timestamp_ms, segment.records)


def _end_in(export: Export, segment: Segment, end: End, offsets: list[int]) -> End:
    for table in slices(export, _END_COLUMNS, segments=[segment]):
        part = table
        for until in offsets:
            part = part.filter(pc.less_equal(part["batch_last_offset"], until))
        if part.num_rows:
            end = _joined(end, _last_of(part))
    return end


def _last_of(rows: pa.Table) -> End:
    offsets = ints(rows["offset"])
    last = int(offsets.argmax())
    epoch, at_ms = (int(ints(rows[name])[last]) for name in ("epoch", "timestamp_ms"))
    return End(int(offsets[last]), epoch, at_ms, rows.num_rows)


def _joined(one: End, other: End) -> End:
    last = max(one, other)
    return last._replace(records=one.records + other.records)


def end_of(export: Export) -> End:
    """Return the end of the records in question. Raises ReplayError if there are none."""
    end = ends_at(export)
    if end is None:
        raise ReplayError("no whole batch lies within the requested offsets")
    return end
