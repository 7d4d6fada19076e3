"""What controllers have measured: the sketches of progress records put together."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from raftlog.metadata.sketch import percentile_us
from replay.lag.model import Measured


def measured(rows: DataFrame, column: str) -> Measured | None:
    """Of all sketches in a column; None if there is none."""
    sketches = rows.where(sf.col(column).isNotNull()).select(sf.col(column).alias("sketch"))
    total = sketches.agg(
        sf.sum("sketch.count").alias("records"),
        sf.sum("sketch.sum_us").alias("sum_us"),
        sf.max("sketch.max_us").alias("max_us"),
    ).collect()[0]
    if not total.records:
        return None
    each = sketches.select(sf.explode("sketch.buckets").alias("one"))
    counted = each.groupBy("one.bucket").agg(sf.sum("one.count").alias("count")).collect()
    buckets = {row["bucket"]: row["count"] for row in counted}
    p50, p90, p99 = (percentile_us(buckets, share, total.max_us) or 0 for share in (0.5, 0.9, 0.99))
    return Measured(total.records, round(total.sum_us / total.records), p50, p90, p99, total.max_us)
