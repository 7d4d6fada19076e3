"""What each broker said of itself: the offset it had applied, for as long as nothing newer was
said.

A sample names the brokers that changed since the last one, so the rows are as many as the log's
entries, not samples times brokers.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from replay.lag.samples import news
from replay.order import BUCKETS, Order


def words(
    records: DataFrame, sampled: DataFrame, brokers: DataFrame, order: Order = BUCKETS
) -> DataFrame:
    """One row for each time a member's word stood: from the sample that names it to the next one
    that does, or to its leaving.

    broker_id, broker_epoch, epoch, begins (offset of the sample), ends (exclusive; null: still),
    begins_ms, ends_ms, applied (inclusive), lag_offsets (from it to the last committed record, at
    the beginning), and the same just before the end, as far as the log tells it: ends_lag_offsets,
    ends_lag_ms (the age of the oldest record that was not applied then). A word is void under
    another controller.

    ``brokers``: of :func:`replay.timelines.brokers`. A broker is a member while it is unfenced
    (the committed image's side of ``controller/visibility/lao.py``).
    """
    of_broker = Window.partitionBy("broker_id").orderBy("offset")
    merged = _named(sampled).unionByName(_standings(brokers), allowMissingColumns=True)
    carried = merged.withColumns(
        {
            "up": sf.last("up", ignorenulls=True).over(of_broker),
            "ends": sf.lead("offset").over(of_broker),
            "ends_ms": sf.lead("timestamp_ms").over(of_broker),
            "next_epoch": sf.lead("epoch").over(of_broker),
            "known_before": sf.lead("known_before").over(of_broker),
            "known_before_ms": sf.lead("known_before_ms").over(of_broker),
        }
    )
    stood = carried.where(sf.col("applied").isNotNull() & sf.col("up")).withColumn(
        "next", sf.col("applied") + 1
    )
    found = order.next_event(stood, news(records), at="next", key="offset", name="oldest")
    # What another controller says next proves nothing about how long this word was true.
    known = sf.when(
        sf.coalesce(sf.col("next_epoch") == sf.col("epoch"), sf.lit(True)), sf.col("known_before")
    )
    aged = sf.when(
        sf.col("oldest.offset") < known, sf.col("known_before_ms") - sf.col("oldest.timestamp_ms")
    )
    return found.select(
        "broker_id",
        "broker_epoch",
        "epoch",
        sf.col("offset").alias("begins"),
        "ends",
        sf.col("timestamp_ms").alias("begins_ms"),
        "ends_ms",
        "applied",
        sf.greatest(sf.col("high_watermark") - 1 - sf.col("applied"), sf.lit(0)).alias(
            "lag_offsets"
        ),
        sf.greatest(known - 1 - sf.col("applied"), sf.when(known.isNotNull(), 0)).alias(
            "ends_lag_offsets"
        ),
        sf.coalesce(aged, sf.when(known.isNotNull(), 0)).alias("ends_lag_ms"),
    )


def _named(sampled: DataFrame) -> DataFrame:
    """One row for each broker that a sample names; ``known_before``: what was committed at the
    sample before it.
    """
    return sampled.select(
        "offset",
        "epoch",
        "timestamp_ms",
        "high_watermark",
        sf.col("previous_high_watermark").alias("known_before"),
        sf.col("previous_ms").alias("known_before_ms"),
        sf.inline("applied"),
    ).withColumnRenamed("applied_offset", "applied")


def _standings(brokers: DataFrame) -> DataFrame:
    """What the log says of a broker itself: whether it counts from here on; each such record ends
    its word.
    """
    of_broker = Window.partitionBy("broker_id").orderBy("begins")
    followed = sf.coalesce(sf.lead("begins").over(of_broker) == sf.col("ends"), sf.lit(False))
    begun = brokers.select(
        "broker_id",
        sf.col("begins").alias("offset"),
        sf.col("begins_ms").alias("timestamp_ms"),
        (~sf.col("fenced")).alias("up"),
    )
    ended = brokers.withColumn("followed", followed).where(
        ~sf.col("followed") & sf.col("ends").isNotNull()
    )
    gone = ended.select(
        "broker_id",
        sf.col("ends").alias("offset"),
        sf.col("ends_ms").alias("timestamp_ms"),
        sf.lit(False).alias("up"),
    )
    # All below such a record was committed before it, or with it.
    return begun.unionByName(gone).withColumns(
        {"known_before": sf.col("offset"), "known_before_ms": sf.col("timestamp_ms")}
    )


def lags(stood: DataFrame) -> DataFrame:
    """One row a broker: broker_id, reports (how often it was named), last_applied_offset,
    p50_lag_offsets, max_lag_offsets, max_lag_ms.
    """
    most = sf.greatest(sf.col("lag_offsets"), sf.coalesce("ends_lag_offsets", sf.lit(0)))
    return stood.groupBy("broker_id").agg(
        sf.count("*").alias("reports"),
        sf.max_by("applied", "begins").alias("last_applied_offset"),
        sf.percentile_approx("lag_offsets", 0.5).alias("p50_lag_offsets"),
        sf.max(most).alias("max_lag_offsets"),
        sf.max(sf.coalesce("ends_lag_ms", sf.lit(0))).alias("max_lag_ms"),
    )
