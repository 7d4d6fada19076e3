"""The diff by Spark: the changed groups are folded in its tasks."""

from __future__ import annotations

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from raftlog.metadata.words import field_changes, raw
from replay.based import base_rows
from replay.beginning import began, begin_offset, topic_there
from replay.changes import changes
from replay.jobs.diff import SAMPLES, Difference, DiffResult, require_order
from replay.jobs.state import Point
from replay.opened import Export, require_whole_history
from replay.request import JobRequest
from replay.selection import select
from replay.source import records
from replay.spark_jobs.state import find_point


def run(spark: SparkSession, export: Export, request: JobRequest) -> DiffResult:
    """Fold what was touched, once.

    Raises ReplayError for points that the log does not have, or in the wrong order.
    """
    require_whole_history(export)
    rows = records(spark, export)
    end = find_point(rows, export)
    begin = _begin(rows, export, request, end)
    differing = _differing(spark, export, rows, begin.offset if begin is not None else -1, request)
    differing.persist(StorageLevel.MEMORY_AND_DISK)
    kind = request.key[0] if request.key else ""
    kept = differing if kind else differing.where(~sf.col("kind").isin(*SAMPLES))
    try:
        # A few rows: kinds by three.
        by_kind = differing.groupBy("kind", "change").count().orderBy("kind", "change").collect()
        first = kept.orderBy("kind", "key").limit(request.limit).collect()
    finally:
        differing.unpersist()
    counts: dict[str, dict[str, int]] = {}
    left_out: dict[str, int] = {}
    for row in by_kind:
        if not kind and row.kind in SAMPLES:
            left_out[row.kind] = left_out.get(row.kind, 0) + row["count"]
        else:
            counts.setdefault(row.kind, {})[row.change] = row["count"]
    shown = [
        Difference(
            **row.asDict()
            | {
                "fields": field_changes(row.before, row.after),
                "before": raw(row.before),
                "after": raw(row.after),
            }
        )
        for row in first
    ]
    return DiffResult(begin, end, shown, counts, left_out, checkpoint=began(export))


def _begin(rows: DataFrame, export: Export, request: JobRequest, end: Point) -> Point | None:
    """Return the last whole batch at or before the first point; None if the question has no first
    point, or the log did not reach it.
    """
    require_order(request, end)
    until = begin_offset(export, request)
    if until is None:
        return None
    point = rows.where(sf.col("batch_last_offset") <= until)
    return None if export.begin is None and point.isEmpty() else find_point(point, export)


def _differing(
    spark: SparkSession, export: Export, rows: DataFrame, begin_offset: int, request: JobRequest
) -> DataFrame:
    """Return one row an entity whose value at the end differs from that behind ``begin_offset``."""
    meanwhile = sf.col("offset") > begin_offset
    only, entities, asked = None, None, None
    if request.key is not None:
        selection = select(*request.key)
        asked, only, entities = selection.asked, selection.groups, selection.entities
        rows = selection.narrow(rows, topic_there(export, asked.topic_name))
    changed = changes(
        rows,
        partitions=request.partitions,
        only=only,
        since=begin_offset if begin_offset >= 0 else None,
        base=base_rows(spark, export, asked),
        imported=bool(export.manifest.origin),
    ).where(meanwhile)
    if entities is not None:
        changed = changed.where(entities)
    of_each = changed.groupBy("kind", "key").agg(
        sf.min_by("before", "offset").alias("before"),
        sf.max_by("after", "offset").alias("after"),
        sf.count("*").alias("changes"),
        sf.max("offset").alias("last_offset"),
        sf.max("timestamp_ms").alias("last_timestamp_ms"),
        sf.max_by("principal", "offset").alias("last_principal"),
    )
    change = sf.when(sf.col("before").isNull(), "created").when(sf.col("after").isNull(), "deleted")
    return of_each.where(~sf.col("before").eqNullSafe(sf.col("after"))).withColumn(
        "change", change.otherwise("changed")
    )
