"""The LowestAcknowledgedOffset over time: how far behind the log it was, and which broker held it back.

From the progress records, which are a rate-limited sample: LAO and the high watermark as the controller knew them, and for each broker
that changed what it had applied. A broker counts while its registration in the log is unfenced. Lag in offsets is up to the last
committed record; lag in milliseconds is the age of the oldest record that was not acknowledged (not applied) yet.
"""

from __future__ import annotations

import sys

import msgspec
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sf
from rich.console import Console
from rich.table import Column, Table

from raftlog.metadata.records import RecordType
from replay.request import JobRequest, format_time
from replay.source import Export, records, require_whole_history


class LaoPoint(msgspec.Struct, frozen=True):
    """One progress record. Null: LAO was unknown, or the record that it waited for is not in the log any more."""

    offset: int
    epoch: int
    timestamp_ms: int
    lowest_acknowledged_offset: int | None
    high_watermark: int
    lag_offsets: int | None
    lag_ms: int | None


class BrokerLag(msgspec.Struct, frozen=True):
    """One broker over all samples in which it was unfenced and had reported.

    ``held_back``: samples in which it was the one, or one of those, that LAO waited for.
    """

    broker_id: int
    samples: int
    last_applied_offset: int
    held_back: int
    p50_lag_offsets: int
    max_lag_offsets: int
    max_lag_ms: int | None


class LaoResult(msgspec.Struct, frozen=True):
    """``timeline`` holds the last samples, oldest first, of ``samples``."""

    samples: int
    unknown: int
    p50_lag_offsets: int | None
    p99_lag_offsets: int | None
    max_lag_offsets: int | None
    max_lag_ms: int | None
    brokers: list[BrokerLag]
    timeline: list[LaoPoint]


def run(spark: SparkSession, export: Export, request: JobRequest) -> LaoResult:
    """Timeline and brokers."""
    require_whole_history(export)
    rows = records(spark, export)
    points = timeline(rows).cache()
    try:
        total = points.select(
            sf.count("*").alias("samples"),
            sf.count_if(sf.col("lowest_acknowledged_offset").isNull()).alias("unknown"),
            sf.percentile_approx("lag_offsets", 0.5).alias("p50_lag_offsets"),
            sf.percentile_approx("lag_offsets", 0.99).alias("p99_lag_offsets"),
            sf.max("lag_offsets").alias("max_lag_offsets"),
            sf.max("lag_ms").alias("max_lag_ms"),
        ).collect()[0]
        last = points.orderBy(sf.desc("offset")).limit(request.limit).collect()
        brokers = broker_lags(broker_timeline(rows)).orderBy("broker_id").limit(request.limit).collect()
    finally:
        points.unpersist()
    return LaoResult(
        **total.asDict(),
        brokers=[BrokerLag(**row.asDict()) for row in brokers],
        timeline=[LaoPoint(**row.asDict()) for row in reversed(last)],
    )


def _progress(rows: DataFrame) -> DataFrame:
    known = sf.when(sf.col("lowest_acknowledged_offset") >= 0, sf.col("lowest_acknowledged_offset"))
    return rows.where(sf.col("type") == int(RecordType.PROGRESS)).select(
        "offset", "epoch", "timestamp_ms", known.alias("lowest_acknowledged_offset"), "high_watermark", "applied"
    )


def _with_lag(samples: DataFrame, rows: DataFrame, reached: str) -> DataFrame:
    """Add lag_offsets and lag_ms of the inclusive offset in the column ``reached``."""
    waiting = rows.select((sf.col("offset") - 1).alias(reached), sf.col("timestamp_ms").alias("waiting_since_ms"))
    # greatest() alone would pass over a null: unknown is not zero.
    behind = sf.greatest(sf.col("high_watermark") - 1 - sf.col(reached), sf.lit(0))
    lag = sf.when(sf.col(reached).isNotNull(), behind)
    aged = sf.when(lag == 0, sf.lit(0)).otherwise(sf.col("timestamp_ms") - sf.col("waiting_since_ms"))
    joined = samples.join(waiting, reached, "left")
    return joined.withColumn("lag_offsets", lag).withColumn("lag_ms", aged.cast("long")).drop("waiting_since_ms")


def timeline(rows: DataFrame) -> DataFrame:
    """One row a progress record: LAO, high watermark, lag_offsets, lag_ms."""
    return _with_lag(_progress(rows).drop("applied"), rows, "lowest_acknowledged_offset").select(
        *LaoPoint.__struct_fields__
    )


def broker_timeline(rows: DataFrame) -> DataFrame:
    """One row a progress record and broker that was unfenced then: what it had applied, and its lag.

    A progress record names only who changed since the last one of its epoch, so the last word of each broker is carried on, within
    the epoch and the broker's registration.
    """
    samples = _progress(rows)
    registered = rows.where(sf.col("group_kind") == "broker")
    brokers = registered.select("broker_id").distinct()
    reports = samples.select("offset", sf.inline("applied")).select("offset", "broker_id", "applied_offset")
    ticks = samples.drop("applied").crossJoin(sf.broadcast(brokers)).join(reports, ["offset", "broker_id"], "left")
    merged = ticks.unionByName(_broker_events(registered), allowMissingColumns=True)
    of_broker = Window.partitionBy("broker_id").orderBy("offset")
    stated = (
        merged.withColumn("unfenced", sf.last("unfenced", ignorenulls=True).over(of_broker))
        .withColumn("broker_epoch", sf.last("broker_epoch", ignorenulls=True).over(of_broker))
        .where(sf.col("high_watermark").isNotNull())
    )
    of_incarnation = Window.partitionBy("broker_id", "epoch", "broker_epoch").orderBy("offset")
    carried = stated.withColumn("applied_offset", sf.last("applied_offset", ignorenulls=True).over(of_incarnation))
    counted = carried.where(sf.col("unfenced") & sf.col("applied_offset").isNotNull())
    return _with_lag(counted, rows, "applied_offset")


def _broker_events(registered: DataFrame) -> DataFrame:
    """What each record says of a broker; null: nothing new."""
    gone = sf.col("type") == int(RecordType.UNREGISTER_BROKER)
    began = sf.col("type") == int(RecordType.REGISTER_BROKER)
    return registered.select(
        "offset",
        "broker_id",
        sf.when(gone, sf.lit(False)).otherwise(~sf.col("fenced")).alias("unfenced"),
        sf.when(began, sf.col("broker_epoch")).alias("broker_epoch"),
    )


def broker_lags(samples: DataFrame) -> DataFrame:
    """One row a broker."""
    holds = (sf.col("applied_offset") <= sf.col("lowest_acknowledged_offset")) & (sf.col("lag_offsets") > 0)
    return samples.groupBy("broker_id").agg(
        sf.count("*").alias("samples"),
        sf.max_by("applied_offset", "offset").alias("last_applied_offset"),
        sf.count_if(sf.coalesce(holds, sf.lit(False))).alias("held_back"),
        sf.percentile_approx("lag_offsets", 0.5).alias("p50_lag_offsets"),
        sf.max("lag_offsets").alias("max_lag_offsets"),
        sf.max("lag_ms").alias("max_lag_ms"),
    )


def _show(value: int | None) -> str:
    return "unknown" if value is None else str(value)


def render(result: LaoResult, console: Console) -> None:
    """For people."""
    table = Table("offset", Column("time", no_wrap=True), "epoch", "LAO", "high watermark", "lag (offsets)", "lag (ms)")
    for point in result.timeline:
        table.add_row(
            str(point.offset),
            format_time(point.timestamp_ms),
            str(point.epoch),
            _show(point.lowest_acknowledged_offset),
            str(point.high_watermark),
            _show(point.lag_offsets),
            _show(point.lag_ms),
        )
    console.print(table)
    lags = Table("broker", "samples", "applied last", "held LAO back", "lag p50", "lag max", "lag max (ms)")
    for lag in result.brokers:
        lags.add_row(
            str(lag.broker_id),
            str(lag.samples),
            str(lag.last_applied_offset),
            str(lag.held_back),
            str(lag.p50_lag_offsets),
            str(lag.max_lag_offsets),
            _show(lag.max_lag_ms),
        )
    console.print(lags)
    shown = f" ({len(result.timeline)} shown: raise --limit for more)" if len(result.timeline) < result.samples else ""
    console.print(
        f"{result.samples} samples{shown}, LAO unknown in {result.unknown}; lag in offsets p50 {_show(result.p50_lag_offsets)}, "
        f"p99 {_show(result.p99_lag_offsets)}, max {_show(result.max_lag_offsets)}; max {_show(result.max_lag_ms)} ms"
    )


if __name__ == "__main__":
    from replay.submit import main

    sys.exit(main("lao"))
