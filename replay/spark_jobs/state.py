"""The state by Spark: groups are folded in its tasks."""

from __future__ import annotations

import msgspec
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

from raftlog.metadata.entities import format_hash
from replay.based import base_rows
from replay.beginning import began, topic_there
from replay.errors import ReplayError
from replay.fold import fold, totals
from replay.jobs.state import EntityRow, Point, StateResult
from replay.opened import Export, require_whole_history
from replay.request import JobRequest
from replay.selection import select
from replay.source import records


def find_point(rows: DataFrame, export: Export) -> Point:
    """Return the end of an export's rows. Raises ReplayError if it has none."""
    last = rows.select(
        sf.max("offset").alias("offset"),
        sf.max("epoch").alias("epoch"),
        sf.max_by("timestamp_ms", "offset").alias("timestamp_ms"),
        sf.count("*").alias("records"),
    ).collect()[0]
    begin, below = export.begin, export.begin_offset - export.manifest.history_begin
    if last.offset is not None:
        return Point(last.offset, last.epoch, last.timestamp_ms, below + last.records)
    if begin is None:
        raise ReplayError("no whole batch lies within the offsets asked for")
    return Point(begin.offset, begin.epoch, begin.timestamp_ms, below)


def run(spark: SparkSession, export: Export, request: JobRequest) -> StateResult:
    """Fold, once; show the first entities. Raises ReplayError for a key of no known form."""
    require_whole_history(export)
    rows = records(spark, export)
    point = find_point(rows, export)
    if request.key is not None:
        return _some(spark, export, rows, point, request, request.key)
    folded = fold(
        rows,
        partitions=request.partitions,
        with_entities=True,
        base=base_rows(spark, export),
        imported=bool(export.manifest.origin),
    ).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        total = totals(folded)
        first = (
            folded.where(sf.col("key").isNotNull())
            .orderBy("kind", "key")
            .limit(request.limit)
            .collect()
        )
    finally:
        folded.unpersist()
    state_hash = format_hash(total.state_hash)
    return StateResult(point, state_hash, total.entities, _shown(first), checkpoint=began(export))


def _some(
    spark: SparkSession,
    export: Export,
    rows: DataFrame,
    point: Point,
    request: JobRequest,
    asked: tuple[str, str],
) -> StateResult:
    """Fold only the groups in question."""
    selection = select(*asked)
    folded = fold(
        selection.narrow(rows, topic_there(export, selection.asked.topic_name)),
        partitions=request.partitions,
        with_entities=True,
        only=selection.groups,
        base=base_rows(spark, export, selection.asked),
        imported=bool(export.manifest.origin),
    )
    found = folded.where(sf.col("key").isNotNull() & selection.entities).persist(
        StorageLevel.MEMORY_AND_DISK
    )
    try:
        counts = {
            row.kind: row["count"]
            for row in found.groupBy("kind").count().orderBy("kind").collect()
        }
        first = found.orderBy("kind", "key").limit(request.limit).collect()
    finally:
        found.unpersist()
    return StateResult(point, "", counts, _shown(first), asked, began(export))


def _shown(rows: list[Row]) -> list[EntityRow]:
    return [EntityRow(row.kind, row.key, msgspec.Raw(row.value.encode())) for row in rows]
