"""The summary by Spark."""

from __future__ import annotations

from pyspark.sql import SparkSession

from replay.based import base_rows
from replay.beginning import begun
from replay.fold import fold, totals
from replay.jobs import audit
from replay.jobs.summary import SummaryResult, summed_up
from replay.opened import Export, require_whole_history
from replay.request import JobRequest
from replay.source import records
from replay.spark_jobs.state import find_point


def run(spark: SparkSession, export: Export, request: JobRequest) -> SummaryResult:
    """Fold to the end, from a checkpoint if there is one, and audit the whole history."""
    require_whole_history(export)
    late = begun(export, request)
    rows = records(spark, late)
    point = find_point(rows, late)
    base = base_rows(spark, late)
    folded = fold(
        rows,
        partitions=request.partitions,
        with_entities=False,
        base=base,
        imported=bool(export.manifest.origin),
    )
    total = totals(folded)
    audited = audit.run(spark, export, request)
    return summed_up(export, late, point, total.entities, total.state_hash, audited)
