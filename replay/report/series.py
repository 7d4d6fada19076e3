"""Curves of the timeline, a value for each step of the axis: impaired partitions, and how the log
grew.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from replay.report.axis import bucket_of, start_of
from replay.report.model import MAX_TYPES, Axis, Growth, Level
from replay.spells import highest_levels

OTHER = "other"


def impaired(partitions: DataFrame, axis: Axis) -> list[Level]:
    """How many partitions had no leader, and how many fewer members in the ISR than replicas: the
    most within each step.
    """
    flagged = partitions.select(
        "begins_ms",
        "ends_ms",
        (sf.col("leader") < 0).cast("int").alias("leaderless"),
        (sf.size("isr") < sf.size("replicas")).cast("int").alias("short"),
    ).where("leaderless + short > 0")
    changed = highest_levels(flagged, ["leaderless", "short"], bucket_of(axis, "at_ms")).collect()
    by_bucket = {row.bucket: row for row in changed}
    levels: list[Level] = []
    leaderless = short = 0
    for bucket in range(axis.buckets):
        row = by_bucket.get(bucket)
        # A step begins at the level at which the last one ended: the highest is that, or one
        # within.
        high = (0, 0) if row is None else (row.leaderless_high, row.short_high)
        levels.append(
            Level(start_of(axis, bucket), leaderless + max(0, high[0]), short + max(0, high[1]))
        )
        if row is not None:
            leaderless, short = leaderless + row.leaderless_net, short + row.short_net
    return levels


def growth(records: DataFrame, axis: Axis) -> list[Growth]:
    """Records by step and type; the rarer types as one."""
    counts = records.groupBy(bucket_of(axis, "timestamp_ms").alias("bucket"), "type_name").agg(
        sf.count("*").alias("records")
    )
    rows = counts.orderBy("bucket", "type_name").collect()
    totals: dict[str, int] = {}
    for row in rows:
        totals[row.type_name] = totals.get(row.type_name, 0) + row.records
    told = set(sorted(totals, key=lambda name: (-totals[name], name))[:MAX_TYPES])
    summed: dict[tuple[int, str], int] = {}
    for row in rows:
        key = row.bucket, row.type_name if row.type_name in told else OTHER
        summed[key] = summed.get(key, 0) + row.records
    return [Growth(start_of(axis, bucket), name, count) for (bucket, name), count in summed.items()]
