"""The timeline of LAO as a table of Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame

from replay.lag.model import LaoPoint
from replay.lag.pieces import COLUMNS, points_of
from replay.workers import prepare_worker, slices_of

POINTS_DDL = (
    "offset long, epoch int, timestamp_ms long, lowest_acknowledged_offset long,"
    " high_watermark long, lag_offsets long, lag_ms long, covered long, waited_ms long"
)
"""The fields of LaoPoint."""
_SCHEMA = pa.schema(
    [(name, pa.int32() if name == "epoch" else pa.int64()) for name in LaoPoint.__struct_fields__]
)


def points(records: DataFrame) -> DataFrame:
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
