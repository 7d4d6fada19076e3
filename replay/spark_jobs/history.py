"""The history by Spark: the groups in question are folded in its tasks."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from raftlog.metadata.words import field_changes, raw
from replay.based import base_rows
from replay.beginning import began, since_of, topic_there
from replay.changes import changes
from replay.jobs.history import Change, HistoryResult
from replay.opened import Export, require_whole_history
from replay.request import JobRequest
from replay.selection import select
from replay.source import records


def run(spark: SparkSession, export: Export, request: JobRequest) -> HistoryResult:
    """Fold the groups that the key is in, and keep what changed.

    Raises ReplayError for a key of no known form.
    """
    require_whole_history(export)
    kind, key = request.key or ("", "")
    selection = select(kind, key)
    there = topic_there(export, selection.asked.topic_name)
    changed = changes(
        selection.narrow(records(spark, export), there),
        partitions=request.partitions,
        only=selection.groups,
        base=base_rows(spark, export, selection.asked),
        imported=bool(export.manifest.origin),
    ).where(selection.entities)
    if (since := since_of(request)) is not None:
        changed = changed.where(sf.col("offset") > since)
    if request.since_ms is not None:
        changed = changed.where(sf.col("timestamp_ms") >= request.since_ms)
    # A history that fits the limit, as most do, costs one fold; a longer one another, to be
    # counted.
    first = changed.orderBy("offset", "kind", "key").limit(request.limit + 1).collect()
    total = len(first) if len(first) <= request.limit else changed.count()
    shown = [
        Change(
            **row.asDict()
            | {
                "before": raw(row.before),
                "after": raw(row.after),
                "fields": field_changes(row.before, row.after),
            }
        )
        for row in first[: request.limit]
    ]
    return HistoryResult(kind, key, shown, total, checkpoint=began(export))
