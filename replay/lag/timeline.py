"""LAO of a log that comes piece by piece: the memory of one piece for the next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from replay.engine.pool import prepare_worker
from replay.engine.reading import slices_of
from replay.kernels.arrays import MISSING, Ints
from replay.kernels.passes import TableRows
from replay.lag.model import LaoPoint
from replay.lag.samples import COLUMNS as SAMPLE_COLUMNS
from replay.lag.samples import TYPES, Samples, entries, samples
from replay.lag.waits import COLUMNS as WAIT_COLUMNS
from replay.lag.waits import QUIET, Points, Waited, points, waits

COLUMNS = tuple(dict.fromkeys((*SAMPLE_COLUMNS, *WAIT_COLUMNS)))
"""Columns of all records of a piece."""
_NOTHING = np.zeros(0, np.int64)


def look_at(rows: pa.Table) -> tuple[Points, Waited]:
    """Return a piece, behind what is remembered: COLUMNS, in order."""
    log = TableRows(rows, 0)
    sampled = samples(log.table(SAMPLE_COLUMNS, TYPES))
    known = sampled.lao[sampled.lao != MISSING] + 1
    asked, found = waits(log, sampled, known)
    return points(sampled, asked, found), found


def remember(rows: pa.Table, sampled: Samples) -> pa.Table:
    """Return the records that the next piece begins with: what LAO has not passed yet, and some
    progress records.

    Of these the last one, the one with the highest LAO, the one that says the most applied, and
    each broker's last word: another controller's counts no more.
    """
    reached = int(sampled.reached[-1]) if len(sampled) else MISSING
    waiting = pc.and_(
        pc.invert(pc.is_in(rows["type"], pa.array(QUIET, rows["type"].type))),
        pc.greater(rows["offset"], reached),
    )
    telling = pc.is_in(rows["offset"], pa.array(_telling(rows, sampled), pa.int64()))
    return rows.filter(pc.or_(waiting, telling))


def _telling(rows: pa.Table, sampled: Samples) -> Ints:
    if not len(sampled):
        return _NOTHING
    first_most = np.searchsorted(sampled.most_applied, sampled.most_applied[-1])
    highest = np.flatnonzero((sampled.lao == sampled.reached[-1]) & (sampled.lao != MISSING))
    where, broker, registered, _ = entries(sampled.table["applied"])
    current = sampled.epoch[where] == pc.max(rows["epoch"]).as_py()
    where, named = where[current], np.stack([broker[current], registered[current]])
    # From the end: the first of each is the last one.
    _, last = np.unique(named[:, ::-1], axis=1, return_index=True)
    places = np.concatenate([[len(sampled) - 1, first_most], highest[-1:], where[::-1][last]])
    return np.unique(sampled.offset[places.astype(np.int64)])


def points_of(pieces: Iterable[pa.Table]) -> Iterator[list[LaoPoint]]:
    """Yield the timeline of LAO of a whole log, piece by piece; memory is that of a piece, and of
    what LAO has not passed.
    """
    memory: pa.Table | None = None
    for piece in pieces:
        if not piece.num_rows:
            continue
        rows = piece if memory is None else pa.concat_tables([memory, piece])
        found, _ = look_at(rows)
        begins = piece["offset"][0].as_py()
        first = int(np.searchsorted(found.samples.offset, begins))
        yield found.rows(np.arange(first, len(found.samples)))
        memory = remember(rows, found.samples)


POINTS_DDL = (
    "offset long, epoch int, timestamp_ms long, lowest_acknowledged_offset long,"
    " high_watermark long, lag_offsets long, lag_ms long, covered long, waited_ms long"
)
"""The fields of LaoPoint."""
_SCHEMA = pa.schema(
    [(name, pa.int32() if name == "epoch" else pa.int64()) for name in LaoPoint.__struct_fields__]
)


def points_table(records: DataFrame) -> DataFrame:
    """Return the timeline of LAO from the records alone, as people ask for it: a LaoPoint a row.
    One task's work, piece by piece.
    """
    rows = records.select(*COLUMNS).repartition(1).sortWithinPartitions("offset")
    return rows.mapInArrow(_points, POINTS_DDL)


def _points(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    prepare_worker()
    for found in points_of(slices_of(batches)):
        yield pa.RecordBatch.from_pylist(
            [msgspec.structs.asdict(each) for each in found], schema=_SCHEMA
        )


def as_rows(found: Iterable[LaoPoint]) -> list[tuple[int | None, ...]]:
    """Return the points as rows of POINTS_DDL."""
    return [msgspec.structs.astuple(each) for each in found]
