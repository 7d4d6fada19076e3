"""The summary by Spark."""

from __future__ import annotations

from pyspark.sql import SparkSession

from raftlog.metadata.entities import format_hash
from replay.based import base_rows
from replay.beginning import began, begun
from replay.fold import fold, totals
from replay.jobs import audit
from replay.jobs.summary import SummaryResult
from replay.opened import Export, require_whole_history
from replay.request import JobRequest
from replay.source import records
from replay.spark_jobs.state import find_point


def run(spark: SparkSession, export: Export, request: JobRequest) -> SummaryResult:
    """Scan, fold, audit."""
    require_whole_history(export)
    late = begun(export, request)
    rows = records(spark, late)
    point = find_point(rows, late)
    base = base_rows(spark, late)
    total = totals(fold(rows, partitions=request.partitions, with_entities=False, base=base))
    return SummaryResult(
        cluster_id=export.manifest.cluster_id,
        generation=export.manifest.generation,
        first_offset=export.manifest.history_begin,
        point=point,
        first_epoch=export.segments[0].first_epoch,
        entities=total.entities,
        state_hash=format_hash(total.state_hash),
        audit=audit.run(spark, export, request),
        checkpoint=began(late),
    )
