"""The LowestAcknowledgedOffset over time: how long writes took to be visible everywhere, and which
broker held them up.

From the progress records, which are a sample of LAO's progress: see :mod:`replay.lag.samples` for
what they can and cannot say, and :mod:`replay.lag.holders` for how a stall is laid to a broker. A
broker counts while its registration in the log is unfenced. Lag in offsets is up to the last
committed record; times are differences of the log's timestamps, up to ``progress.interval.ms`` too
long.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from raftlog.metadata.records import RecordType
from replay import timelines
from replay.lag import holders
from replay.lag.absence import returns
from replay.lag.measured import measured
from replay.lag.model import BrokerLag, Hour, LaoPoint, LaoResult, LaoStall, Measured
from replay.lag.samples import POINT_COLUMNS, hourly, samples, timeline, wait_figures, waits
from replay.lag.show import render
from replay.lag.words import lags, words
from replay.opened import Export, require_whole_history
from replay.order import order_for
from replay.outages.fencings import departures, service
from replay.request import JobRequest
from replay.rows import first, keeper
from replay.source import records

__all__ = [
    "BrokerLag",
    "Hour",
    "LaoPoint",
    "LaoResult",
    "LaoStall",
    "LaoTables",
    "render",
    "run",
    "summarize",
    "tables",
]


class LaoTables(NamedTuple):
    """The tables behind the result, unordered and unbounded, and the time of the last record.

    points: :func:`replay.lag.samples.timeline`; waits: :func:`replay.lag.samples.waits`; words:
    :func:`replay.lag.words.words`; stalls and hold_ups: :mod:`replay.lag.holders`.
    """

    end_ms: int
    points: DataFrame
    waits: DataFrame
    words: DataFrame
    stalls: DataFrame
    hold_ups: DataFrame
    acknowledged: Measured | None
    told: Measured | None


def tables(
    rows: DataFrame,
    brokers: DataFrame | None = None,
    *,
    stall_ms: int,
    since_ms: int | None = None,
    keep: ExitStack | None = None,
) -> LaoTables:
    """The tables over the records ``rows``; of what came before ``since_ms`` only what lasts until
    then.

    ``brokers``: of :func:`replay.timelines.brokers` over these records, where it has been made.
    ``keep``: what several of them need is kept until it is closed, instead of being made again.
    """
    kept = keeper(keep)

    end = rows.agg(
        sf.max("timestamp_ms").alias("ms"),
        sf.max("epoch").alias("epoch"),
        sf.count("*").alias("records"),
    ).collect()[0]
    order = order_for(end.records)
    brokers = kept(timelines.brokers(rows)) if brokers is None else brokers
    sampled = kept(samples(rows, order))
    waited = kept(waits(rows, sampled, order))
    points = kept(timeline(rows, sampled, waited, order))
    stood = kept(words(rows, sampled, brokers, order))
    stalled = holders.stalls(points, waited, least_ms=stall_ms, end_ms=end.ms, end_epoch=end.epoch)
    if since_ms is not None:
        points, waited = (
            frame.where(sf.col("timestamp_ms") >= since_ms) for frame in (points, waited)
        )
        stalled = stalled.where(sf.col("ended_ms") >= since_ms)
    stalled = kept(stalled)
    served = service(brokers)
    laid = holders.blamed(
        stalled, sampled, stood, departures(served), returns(served, order), order
    )
    recorded = rows.where(sf.col("type") == int(RecordType.PROGRESS))
    if since_ms is not None:
        recorded = recorded.where(sf.col("timestamp_ms") >= since_ms)
        stood = stood.where(sf.col("ends_ms").isNull() | (sf.col("ends_ms") >= since_ms))
    return LaoTables(
        end.ms,
        points,
        waited,
        stood,
        stalled,
        kept(holders.hold_ups(laid)),
        measured(recorded, "acknowledged_sketch"),
        measured(recorded, "told_sketch"),
    )


def run(spark: SparkSession, export: Export, request: JobRequest) -> LaoResult:
    """Hold-ups, brokers, hours and timeline."""
    require_whole_history(export)
    with ExitStack() as keep:
        found = tables(
            records(spark, export), stall_ms=request.stall_ms, since_ms=request.since_ms, keep=keep
        )
        return summarize(found, request)


def summarize(found: LaoTables, request: JobRequest) -> LaoResult:
    """The tables as figures and bounded lists."""
    waited = found.waits.agg(*wait_figures()).collect()[0]
    lag = found.points.agg(
        sf.count("*").alias("samples"),
        sf.count_if(sf.col("lowest_acknowledged_offset").isNull()).alias("unknown"),
        sf.percentile_approx("lag_offsets", 0.5).alias("p50_lag_offsets"),
        sf.percentile_approx("lag_offsets", 0.99).alias("p99_lag_offsets"),
        sf.max("lag_offsets").alias("max_lag_offsets"),
        sf.max("lag_ms").alias("max_lag_ms"),
    ).collect()[0]
    held = found.stalls.agg(sf.coalesce(sf.sum("held_ms"), sf.lit(0)).alias("held_ms")).collect()[0]
    longest, hold_ups = first(
        found.hold_ups, request.limit, sf.desc("held_ms"), "began_ms", "broker_id"
    )
    slowest, brokers = first(
        broker_lags(found), request.limit, sf.desc("held_ms"), sf.desc("max_lag_ms"), "broker_id"
    )
    last_hours, hours = first(hourly(found.waits), request.limit, sf.desc("hour_ms"))
    last = (
        found.points.select(*POINT_COLUMNS)
        .orderBy(sf.desc("offset"))
        .limit(request.limit)
        .collect()
    )
    return LaoResult(
        end_ms=found.end_ms,
        stall_ms=request.stall_ms,
        **waited.asDict(),
        hold_ups_total=hold_ups,
        **held.asDict(),
        hold_ups=[LaoStall(**row.asDict()) for row in longest],
        brokers_total=brokers,
        brokers=[BrokerLag(**row.asDict()) for row in slowest],
        hours_total=hours,
        hours=[Hour(**row.asDict()) for row in reversed(last_hours)],
        **lag.asDict(),
        timeline=[LaoPoint(**row.asDict()) for row in reversed(last)],
        acknowledged=found.acknowledged,
        told=found.told,
    )


def broker_lags(found: LaoTables) -> DataFrame:
    """One row a broker: the columns of BrokerLag."""
    held = found.hold_ups.groupBy("broker_id").agg(
        sf.count("*").alias("hold_ups"),
        sf.sum("held_ms").alias("held_ms"),
        sf.max("waited_ms").alias("longest_ms"),
    )
    figures = ("hold_ups", "held_ms", "longest_ms")
    joined = lags(found.words).join(held, "broker_id", "left").fillna(0, list(figures))
    return joined.select(*BrokerLag.__struct_fields__)


if __name__ == "__main__":
    from replay.submit import main

    sys.exit(main("lao"))
