"""LAO on the time axis: how long writes waited to be visible everywhere, and who held it back."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from replay.lag import holders
from replay.lag.samples import wait_figures
from replay.report.axis import bucket_of, start_of
from replay.report.events import event_columns
from replay.report.model import NOTICE, WARNING, Axis, Wait

HOLDING = "holding"
"""A broker's state, beside the others: LAO waited for it."""
_LONG_MS = 10_000
"""From so long on, a hold-up is a warning: what else waits a second or two is seen in the curve."""


def waits_by_step(waits: DataFrame, axis: Axis) -> list[Wait]:
    """From commit to visible everywhere, for what was written in each step of the axis; steps
    without a write are left out.
    """
    steps = (
        waits.groupBy(bucket_of(axis, "timestamp_ms").alias("bucket"))
        .agg(*wait_figures())
        .orderBy("bucket")
    )
    return [
        Wait(
            start_of(axis, row.bucket), row.records, row.p50_ms, row.p99_ms, row.max_ms, row.waiting
        )
        for row in steps.collect()
    ]


def hold_up_events(hold_ups: DataFrame) -> DataFrame:
    """As :mod:`replay.report.events` tells them."""
    by = sf.when(
        sf.col("broker_id").isNotNull(),
        sf.concat(sf.lit("LAO held back by broker "), sf.col("broker_id").cast("string")),
    ).otherwise(_nobody())
    severity = sf.when(sf.col("waited_ms") >= _LONG_MS, WARNING).otherwise(NOTICE)
    ended = sf.when(sf.col("last_offset").isNotNull(), sf.col("ended_ms"))
    return (
        hold_ups.withColumn("begins_ms", sf.col("began_ms"))
        .withColumn("ends_ms", ended)
        .withColumn("begins", sf.coalesce("first_offset", "last_offset", sf.lit(0)))
        .select(*event_columns("held_back", severity, by, sf.col("records")))
    )


def _nobody() -> Column:
    cause = sf.col("cause")
    return (
        sf.when(cause == holders.FAILOVER, "LAO unknown while brokers reported to a new controller")
        .when(cause == holders.NO_BROKER, "LAO unknown, no broker was in service")
        .otherwise("LAO held back, the log does not say by whom")
    )


def holding_spans(hold_ups: DataFrame) -> DataFrame:
    """As intervals of brokers, for their lanes."""
    known = hold_ups.where(sf.col("broker_id").isNotNull())
    return known.select(
        "broker_id",
        sf.coalesce("first_offset", "last_offset", sf.lit(0)).alias("begins"),
        sf.col("began_ms").alias("begins_ms"),
        sf.col("ended_ms").alias("ends_ms"),
        sf.lit(HOLDING).alias("state"),
        sf.coalesce("reason", sf.lit("")).alias("reason"),
    )
