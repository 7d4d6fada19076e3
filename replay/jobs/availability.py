"""What was not available, for how long, and why: partitions, topics, brokers, controllers, and an
SLO table.

A partition is *leaderless* while nobody leads it (offline, as Kafka counts), *under min ISR* while
fewer are in sync than ``min.insync.replicas`` as it was in force then, *unwritable* (for acks=all)
while either is so. Times are differences of log timestamps.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from replay import timelines
from replay.opened import Export, require_whole_history
from replay.outages import brokers as of_brokers
from replay.outages import partitions as of_partitions
from replay.outages.failovers import failovers
from replay.outages.fencings import fencings, service
from replay.outages.model import (
    AvailabilityResult,
    BrokerOutage,
    Failover,
    Fencing,
    Objective,
    PartitionOutage,
    PeriodOutage,
    TopicOutage,
)
from replay.outages.show import render
from replay.outages.stretch import Stretch
from replay.request import JobRequest
from replay.rows import first, keeper
from replay.source import records
from replay.timelines_of import BrokerTimelines, timelines_of

__all__ = [
    "AvailabilityResult",
    "AvailabilityTables",
    "BrokerOutage",
    "Failover",
    "Fencing",
    "Objective",
    "PartitionOutage",
    "PeriodOutage",
    "TopicOutage",
    "render",
    "run",
    "summarize",
    "tables",
]


class AvailabilityTables(NamedTuple):
    """The tables behind the result, unordered and unbounded: columns as of the structs above.

    ``impaired``: of :func:`replay.outages.partitions.impaired`, each interval in which a partition
    could not be used.
    """

    stretch: Stretch
    impaired: DataFrame
    topics: DataFrame
    partitions: DataFrame
    brokers: DataFrame
    fencings: DataFrame
    failovers: DataFrame
    periods: DataFrame


def tables(
    rows: DataFrame,
    lives: BrokerTimelines | None = None,
    *,
    since_ms: int | None = None,
    keep: ExitStack | None = None,
) -> AvailabilityTables:
    """The tables over the records ``rows``, of the time from ``since_ms`` on.

    ``lives``: of these records, where they have been made.

    ``keep``: what several of them need is kept until it is closed, instead of being made again.
    """
    kept = keeper(keep)
    brokers, partitions = lives or timelines_of(rows, kept)

    stretch = Stretch.of(rows, since_ms)
    impaired = kept(of_partitions.impaired(partitions, rows))
    lived = kept(of_partitions.lives(partitions, stretch))
    fenced = kept(_within(fencings(service(brokers)), stretch))
    changed = failovers(timelines.controllers(rows), rows).where(
        sf.col("begins_ms") >= stretch.since_ms
    )
    leaderless, either = sf.col("leaderless"), sf.col("leaderless") | sf.col("under_min_isr")
    life = stretch.by_period(lived, life_ms=sf.lit(True))
    lost = stretch.by_period(stretch.clip(impaired), leaderless_ms=leaderless, unwritable_ms=either)
    return AvailabilityTables(
        stretch,
        impaired,
        kept(of_partitions.by_topic(lived, impaired, stretch)),
        kept(of_partitions.by_partition(impaired, stretch)),
        kept(of_brokers.by_broker(of_brokers.lives(brokers, stretch), fenced, stretch)),
        fenced,
        kept(changed),
        life.join(lost, "period_ms"),
    )


def _within(intervals: DataFrame, stretch: Stretch) -> DataFrame:
    """Those that last into the stretch, whole."""
    return intervals.where(sf.col("ends_ms").isNull() | (sf.col("ends_ms") >= stretch.since_ms))


def run(spark: SparkSession, export: Export, request: JobRequest) -> AvailabilityResult:
    """All of it, bounded."""
    require_whole_history(export)
    with ExitStack() as keep:
        return summarize(
            tables(records(spark, export), since_ms=request.since_ms, keep=keep), request
        )


def summarize(found: AvailabilityTables, request: JobRequest) -> AvailabilityResult:
    """The tables as figures and bounded lists."""
    limit = request.limit
    worst = [sf.desc(name) for name in ("leaderless_ms", "unwritable_ms")]
    topics, topics_total = first(found.topics, limit, *worst, "topic_name", "topic_id")
    partitions, partitions_total = first(
        found.partitions, limit, *worst, "topic_name", "partition_id", "topic_id"
    )
    unplanned = sf.desc(sf.col("out_ms") - sf.col("planned_ms"))
    brokers, brokers_total = first(found.brokers, limit, unplanned, sf.desc("out_ms"), "broker_id")
    fenced, fencings_total = first(found.fencings, limit, sf.desc("begins"))
    changed, failovers_total = first(found.failovers, limit, sf.desc("begins"))
    periods = found.periods.orderBy(sf.desc("period_ms")).limit(limit).collect()
    return AvailabilityResult(
        since_ms=found.stretch.since_ms,
        until_ms=found.stretch.until_ms,
        target_percent=request.target_percent,
        objectives=_objectives(found, request.target_percent),
        topics_total=topics_total,
        topics=[TopicOutage(**row.asDict()) for row in topics],
        partitions_total=partitions_total,
        partitions=[PartitionOutage(**row.asDict()) for row in partitions],
        brokers_total=brokers_total,
        brokers=[BrokerOutage(**row.asDict()) for row in brokers],
        fencings_total=fencings_total,
        fencings=[Fencing(**row.asDict()) for row in fenced],
        failovers_total=failovers_total,
        failovers=[Failover(**row.asDict()) for row in changed],
        period_length_ms=found.stretch.period_ms,
        periods=[PeriodOutage(**row.asDict()) for row in reversed(periods)],
    )


def _objectives(found: AvailabilityTables, target: float | None) -> list[Objective]:
    names = ("life_ms", "leaderless_ms", "unwritable_ms")
    of_partitions_ = found.topics.agg(
        *(sf.coalesce(sf.sum(name), sf.lit(0)).alias(name) for name in names)
    )
    unplanned = sf.sum(sf.col("out_ms") - sf.col("planned_ms")).alias("unplanned_ms")
    of_brokers_ = found.brokers.agg(sf.sum("life_ms").alias("registered_ms"), unplanned)
    gaps = [
        sf.coalesce(sf.sum("absent_most_ms"), sf.lit(0)).alias("absent_ms"),
        # Silence is no absence: of this time nothing is known.
        sf.coalesce(
            sf.sum(sf.when(sf.col("absent_most_ms").isNull(), sf.col("silent_ms"))), sf.lit(0)
        ).alias("unknown_ms"),
    ]
    # One row each.
    row = of_partitions_.crossJoin(of_brokers_).crossJoin(found.failovers.agg(*gaps)).collect()[0]
    return [
        _objective("partitions with a leader", row.life_ms, row.leaderless_ms, target),
        _objective("partitions open to acks=all", row.life_ms, row.unwritable_ms, target),
        _objective(
            "brokers in service, but for planned stops",
            row.registered_ms or 0,
            row.unplanned_ms or 0,
            target,
        ),
        _objective(
            "a controller, at the least",
            max(0, found.stretch.length_ms - row.unknown_ms),
            row.absent_ms,
            target,
            unknown_ms=row.unknown_ms,
        ),
    ]


def _objective(
    name: str, total_ms: int, lost_ms: int, target: float | None, *, unknown_ms: int = 0
) -> Objective:
    share = 100.0 if not total_ms else 100 * (1 - lost_ms / total_ms)
    allowed = None if target is None else round(total_ms * (1 - target / 100))
    return Objective(
        name,
        total_ms,
        lost_ms,
        share,
        allowed,
        None if allowed is None else lost_ms <= allowed,
        unknown_ms,
    )


if __name__ == "__main__":
    from replay.submit import main

    sys.exit(main("availability"))
