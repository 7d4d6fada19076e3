"""When no broker was in service: LAO is of those that are, so until the first one is unfenced there
is none.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from replay.order import BUCKETS, Order, Running

AT_THE_END = (1 << 63) - 1
"""In the place of an offset: behind the last one."""


def returns(served: DataFrame, order: Order = BUCKETS) -> DataFrame:
    """One row for each end of a time in which no broker was in service, from the rows of
    :func:`replay.outages.fencings.service`.

    offset, timestamp_ms: of the record that unfenced the first one; AT_THE_END both, if it goes on.
    Such a time is before the first broker.
    """
    up = served.where(~sf.col("fenced"))
    come = up.select(
        sf.col("begins").alias("offset"),
        sf.col("begins_ms").alias("timestamp_ms"),
        sf.lit(1).alias("by"),
    )
    gone = up.where(sf.col("ends").isNotNull()).select("ends", "ends_ms", sf.lit(-1))
    # One batch may do both: its records have offsets of their own, but one that replaces a
    # registration does both at one.
    steps = (
        come.union(gone)
        .groupBy("offset")
        .agg(sf.max("timestamp_ms").alias("timestamp_ms"), sf.sum("by").alias("by"))
    )
    counted = order.so_far(steps, before=Running(sf.col("by"), "sum", including=False))
    ended = counted.where((sf.coalesce("before", sf.lit(0)) == 0) & (sf.col("by") > 0)).select(
        "offset", "timestamp_ms"
    )
    serving = up.agg(sf.count_if(sf.col("ends").isNull()).alias("serving")).where(
        sf.col("serving") == 0
    )
    end = sf.lit(AT_THE_END).cast("long")
    return ended.unionByName(serving.select(end.alias("offset"), end.alias("timestamp_ms")))
