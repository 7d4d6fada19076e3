"""Brokers in and out of service: when one was fenced, why, and until when."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from raftlog.metadata.causes import PLANNED
from replay.causes import is_one_of

REGISTERED_ANEW, UNREGISTERED = "registered anew", "unregistered"
"""Reasons that no record gives: another process took the place of one that had not been fenced; the
registration was removed.
"""


def service(brokers: DataFrame) -> DataFrame:
    """Intervals of ``timelines.brokers`` put together to those in which a broker was ``fenced``, or
    was not: two neighbours differ.

    broker_id, fenced, begins, ends (offsets, exclusive; null: still), begins_ms, ends_ms, reason
    and cause (of its beginning), follows (it begins where the one before ended; else the broker was
    not registered meanwhile), followed.
    """
    of_broker = Window.partitionBy("broker_id").orderBy("begins")
    follows = sf.coalesce(sf.lag("ends").over(of_broker) == sf.col("begins"), sf.lit(False))
    same = sf.coalesce(sf.lag("fenced").over(of_broker) == sf.col("fenced"), sf.lit(False))
    reason = sf.when(sf.col("registration"), REGISTERED_ANEW).otherwise(sf.col("reason"))
    cut = brokers.withColumns({"follows": follows, "same": same, "why": reason})
    numbered = cut.withColumn(
        "run", sf.count_if(~(sf.col("follows") & sf.col("same"))).over(of_broker)
    )
    runs = numbered.groupBy("broker_id", "run").agg(
        sf.first("fenced").alias("fenced"),
        sf.min("begins").alias("begins"),
        sf.min("begins_ms").alias("begins_ms"),
        sf.max_by("ends", "begins").alias("ends"),
        sf.max_by("ends_ms", "begins").alias("ends_ms"),
        sf.min_by("why", "begins").alias("reason"),
        sf.min_by("cause", "begins").alias("cause"),
        sf.min_by("follows", "begins").alias("follows"),
    )
    followed = sf.coalesce(sf.lead("begins").over(of_broker) == sf.col("ends"), sf.lit(False))
    return runs.withColumn("followed", followed).drop("run")


def fencings(served: DataFrame) -> DataFrame:
    """One row for each time that a broker fell out of service, from the rows of :func:`service`.

    To be fenced at first is none.

    broker_id, begins, ends (null: it still is out), begins_ms, ends_ms, reason, cause, ``planned``
    (it shut down in order, or was asked to be fenced), ``unregistered`` (that is how it ended).
    """
    out = served.where(sf.col("fenced") & sf.col("follows"))
    return out.select(
        "broker_id",
        "begins",
        "ends",
        "begins_ms",
        "ends_ms",
        "reason",
        "cause",
        is_one_of(PLANNED).alias("planned"),
        (sf.col("ends").isNotNull() & ~sf.col("followed")).alias("unregistered"),
    )


def departures(served: DataFrame) -> DataFrame:
    """When brokers ceased to be in service, for whatever reason: broker_id, offset, timestamp_ms,
    reason, cause (null: unregistered).
    """
    of_broker = Window.partitionBy("broker_id").orderBy("begins")
    next_cause = sf.when(sf.col("followed"), sf.lead("cause").over(of_broker))
    next_reason = sf.when(sf.col("followed"), sf.lead("reason").over(of_broker)).otherwise(
        UNREGISTERED
    )
    next_ = {"next_reason": next_reason, "next_cause": next_cause}
    told = served.withColumns(next_).where(~sf.col("fenced") & sf.col("ends").isNotNull())
    return told.select(
        "broker_id",
        sf.col("ends").alias("offset"),
        sf.col("ends_ms").alias("timestamp_ms"),
        sf.col("next_reason").alias("reason"),
        sf.col("next_cause").alias("cause"),
    )
