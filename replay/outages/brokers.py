"""Brokers' time in service and out of it."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from replay.outages.stretch import Stretch


def lives(brokers: DataFrame, stretch: Stretch) -> DataFrame:
    """The intervals in which a broker was registered: broker_id, begins_ms, ends_ms."""
    return stretch.clip(brokers.select("broker_id", "begins_ms", "ends_ms"))


def by_broker(lived: DataFrame, fenced: DataFrame, stretch: Stretch) -> DataFrame:
    """One row a broker: broker_id, life_ms (registered), fencings, out_ms (fenced), planned_ms (of
    it), longest_ms, ``out``: it is now.

    ``fenced``: of :func:`replay.outages.fencings.fencings`. The time before a broker was unfenced
    for the first time is no outage.
    """
    length = sf.col("ends_ms") - sf.col("begins_ms")
    life = lived.groupBy("broker_id").agg(sf.sum(length).alias("life_ms"))
    times = stretch.clip(fenced.withColumn("out", sf.col("ends").isNull()))
    out = times.groupBy("broker_id").agg(
        sf.count("*").alias("fencings"),
        sf.sum(length).alias("out_ms"),
        sf.sum(sf.when(sf.col("planned"), length).otherwise(0)).alias("planned_ms"),
        sf.max(length).alias("longest_ms"),
        sf.bool_or("out").alias("out"),
    )
    joined = life.join(out, "broker_id", "left").fillna(
        0, ["fencings", "out_ms", "planned_ms", "longest_ms"]
    )
    return joined.fillna({"out": False})
