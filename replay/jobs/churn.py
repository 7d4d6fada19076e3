"""What changed over and over, and what grew: ISRs, leaderships, configs, the log by record type,
and the state with a forecast.

A replica that leaves an ISR because its leader says so lagged; one that the controller takes out
was fenced, shut down or moved. The size of the state is by the fold, entity by entity; the
forecasts are straight lines through the last periods.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from raftlog.segments.manifest import RAW
from replay.churn.configs import config_churn
from replay.churn.forecast import DAY_MS, Trend, load_bytes_per_s, trend
from replay.churn.model import (
    BrokerChurn,
    ChurnResult,
    ConfigChurn,
    Forecast,
    PartitionChurn,
    PeriodGrowth,
    TypeGrowth,
)
from replay.churn.moves import KEY, flapping, isr_moves, leader_moves, leaderships
from replay.churn.show import render
from replay.churn.state_size import state_growth, state_sizes
from replay.opened import Export, require_whole_history
from replay.outages.stretch import Stretch
from replay.request import JobRequest
from replay.rows import first, keeper
from replay.source import records
from replay.timelines_of import BrokerTimelines, timelines_of

AHEAD_DAYS = (7, 30, 90, 365)
_TREND_PERIODS = 30

__all__ = [
    "BrokerChurn",
    "ChurnResult",
    "ChurnTables",
    "ConfigChurn",
    "Forecast",
    "PartitionChurn",
    "PeriodGrowth",
    "TypeGrowth",
    "render",
    "run",
    "summarize",
    "tables",
]


class ChurnTables(NamedTuple):
    """The tables behind the result, unordered and unbounded.

    isr_moves, leader_moves: :mod:`replay.churn.moves`; the others: columns as of the structs above.
    """

    stretch: Stretch
    isr_moves: DataFrame
    leader_moves: DataFrame
    brokers: DataFrame
    partitions: DataFrame
    configs: DataFrame
    types: DataFrame
    periods: DataFrame


_COUNTS = [
    "leaves",
    "leaves_by_leader",
    "joins",
    "returns",
]


def tables(
    rows: DataFrame,
    lives: BrokerTimelines | None = None,
    *,
    since_ms: int | None = None,
    partitions: int | None = None,
    keep: ExitStack | None = None,
) -> ChurnTables:
    """The tables over the records ``rows``, of the time from ``since_ms`` on.

    ``lives``: of these records, where they have been made; ``partitions``: tasks of the fold.
    ``keep``: what several of them need is kept until it is closed, instead of being made again.
    """
    kept = keeper(keep)
    lived = (lives or timelines_of(rows, kept)).partitions

    stretch = Stretch.of(rows, since_ms)
    late = sf.col("begins_ms") >= stretch.since_ms
    moved, led = kept(isr_moves(lived).where(late)), kept(leader_moves(lived).where(late))
    by_broker = flapping(moved, "broker_id").join(leaderships(led), "broker_id", "full")
    led_of = led.groupBy(*KEY).agg(sf.count("*").alias("leader_moves"))
    by_partition = flapping(moved, *KEY).join(led_of, KEY, "full")
    recent = rows.where(sf.col("timestamp_ms") >= stretch.since_ms)
    days = max(stretch.length_ms, 1) / DAY_MS
    types = recent.groupBy("type_name").agg(
        sf.count("*").alias("records"),
        sf.sum(sf.octet_length("body")).cast("long").alias("bytes"),
        (sf.count("*") / days).alias("per_day"),
    )
    return ChurnTables(
        stretch,
        moved,
        led,
        kept(by_broker.fillna(0, [*_COUNTS, "leaderships_lost", "leaderships_gained"])),
        kept(by_partition.fillna(0, [*_COUNTS, "leader_moves"])),
        kept(config_churn(rows, stretch.since_ms)),
        types,
        kept(_periods(rows, stretch, partitions)),
    )


def _periods(rows: DataFrame, stretch: Stretch, partitions: int | None) -> DataFrame:
    length = stretch.period_ms
    written = rows.groupBy(
        (sf.col("timestamp_ms") - sf.col("timestamp_ms") % length).alias("period_ms")
    )
    # In a period with records something was written: every record's group is in the state, or was.
    sizes = state_sizes(state_growth(rows, length, partitions=partitions))
    joined = written.agg(sf.count("*").alias("records")).join(sizes, "period_ms", "left")
    return joined.where(sf.col("period_ms") + length > stretch.since_ms)


def run(spark: SparkSession, export: Export, request: JobRequest) -> ChurnResult:
    """All of it, bounded."""
    require_whole_history(export)
    with ExitStack() as keep:
        found = tables(
            records(spark, export),
            since_ms=request.since_ms,
            partitions=request.partitions,
            keep=keep,
        )
        return summarize(found, export, request)


def summarize(found: ChurnTables, export: Export, request: JobRequest) -> ChurnResult:
    """The tables as figures and bounded lists."""
    limit = request.limit
    raw = [each for each in export.manifest.segments if each.kind == RAW]
    bytes_per_record = sum(each.bytes for each in raw) / max(1, sum(each.records for each in raw))
    brokers, brokers_total = first(
        found.brokers, limit, sf.desc("leaves_by_leader"), sf.desc("leaves"), "broker_id"
    )
    flaps = [sf.desc(name) for name in ("returns", "leader_moves", "leaves")]
    partitions, partitions_total = first(found.partitions, limit, *flaps, *KEY)
    resource = ("resource_type", "resource_name", "config_name")
    configs, configs_total = first(found.configs, limit, sf.desc("changes"), *resource)
    types = found.types.orderBy(sf.desc("bytes"), "type_name").collect()
    periods = [
        row.asDict() for row in found.periods.orderBy(sf.desc("period_ms")).limit(limit).collect()
    ]
    grown = [PeriodGrowth(**row) for row in reversed(periods)]
    rate = load_bytes_per_s()
    now = grown[-1].snapshot_bytes
    log_bytes = round(bytes_per_record * sum(row.records for row in types))
    return ChurnResult(
        since_ms=found.stretch.since_ms,
        until_ms=found.stretch.until_ms,
        brokers_total=brokers_total,
        brokers=[BrokerChurn(**row.asDict()) for row in brokers],
        partitions_total=partitions_total,
        partitions=[PartitionChurn(**row.asDict()) for row in partitions],
        configs_total=configs_total,
        configs=[ConfigChurn(**row.asDict()) for row in configs],
        types=[TypeGrowth(**row.asDict()) for row in types],
        period_length_ms=found.stretch.period_ms,
        periods=grown,
        log_bytes=log_bytes,
        snapshot_bytes=now,
        load_ms=round(1000 * now / rate),
        load_bytes_per_s=rate,
        forecasts=_forecasts(
            grown[-_TREND_PERIODS:], bytes_per_record, log_bytes, rate, found.stretch.until_ms
        ),
    )


def _forecasts(
    grown: list[PeriodGrowth], bytes_per_record: float, log_bytes: int, rate: float, until_ms: int
) -> list[Forecast]:
    snapshot = trend([(each.period_ms, each.snapshot_bytes) for each in grown])
    if snapshot is None:
        return []
    # The last period is not over: it says how far the log has come, not how fast it grows.
    days = max(until_ms - grown[0].period_ms, 1) / DAY_MS
    pace = bytes_per_record * sum(each.records for each in grown) / days
    log = Trend(log_bytes, pace)
    sizes = [(ahead, log.after(ahead), snapshot.after(ahead)) for ahead in AHEAD_DAYS]
    return [
        Forecast(ahead, logged, held, round(1000 * held / rate)) for ahead, logged, held in sizes
    ]


if __name__ == "__main__":
    from replay.submit import main

    sys.exit(main("churn"))
