"""Findings of the audit as events, so that an incident tells of the rule that was broken in it."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from replay.kernels.finding import Finding
from replay.report.events import event_columns
from replay.report.model import CRITICAL

_ROWS = "begins long, begins_ms long, ends_ms long, text string"


def offence_events(spark: SparkSession, findings: Iterable[Finding]) -> DataFrame:
    """One event a finding; those whose time is not known are left to the audit's table."""
    rows = [
        (
            each.offset,
            each.timestamp_ms,
            each.timestamp_ms,
            f"rule broken: {each.rule}, {each.subject}: {each.found}",
        )
        for each in findings
        if each.timestamp_ms is not None
    ]
    return spark.createDataFrame(rows, _ROWS).select(
        *event_columns("offence", CRITICAL, sf.col("text"))
    )
