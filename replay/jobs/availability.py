"""Availability: outages of partitions, topics, brokers and controllers with their duration and
cause, and an SLO table.

A partition is *leaderless* while it has no leader (offline, as Kafka counts), *under min ISR* while
fewer replicas are in sync than the ``min.insync.replicas`` then in force, *unwritable* (for
acks=all) while it is either. Times are differences of log timestamps.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from replay.engine.passes import ExportLog
from replay.export import Export
from replay.kernels.census import Census, count_records
from replay.kernels.facts import BrokerSpan, Facts
from replay.kernels.intervals import Names, of_partitions
from replay.kernels.passes import facts_of
from replay.outages.partitions import OutageWatcher, PartitionTables, min_isr, together
from replay.outages.result import (
    BROKER_TIME,
    PARTITION_TIME,
    WALL_CLOCK,
    AvailabilityResult,
    BrokerOutage,
    Failover,
    Fencing,
    Objective,
    PeriodOutage,
    Stretch,
    render,
)
from replay.outages.service import Controller, by_broker, controllers, failovers, fencings, service
from replay.request import JobRequest

if TYPE_CHECKING:
    from replay.engine.pool import Pool

__all__ = ["Availability", "look", "render", "run", "summarize"]


class Availability(NamedTuple):
    """Raw material of the result, unordered and unbounded."""

    stretch: Stretch
    partitions: PartitionTables
    brokers: list[BrokerOutage]
    fencings: list[Fencing]
    failovers: list[Failover]


def run(export: Export, request: JobRequest, pool: Pool) -> AvailabilityResult:
    """Answer by the tasks of a pool."""
    log, origin = ExportLog(export, pool), export.manifest.origin
    facts, census = facts_of(log), count_records(log)
    stretch = Stretch.of(census.first_ms, census.last_ms, request.since_ms)
    parts = log.run(of_partitions(facts, partial(OutageWatcher, stretch, min_isr(log))))
    tables = together([found for (found,) in parts], Names(facts))
    reigns = controllers(log, census, origin)
    return summarize(look(facts, reigns, census, stretch, tables), request)


def look(
    facts: Facts,
    reigns: list[Controller],
    counted: Census,
    stretch: Stretch,
    partitions: PartitionTables,
) -> Availability:
    """Combine the facts of a log's rare records with the findings about its partitions."""
    brokers: list[BrokerSpan] = facts.brokers
    fenced = [
        each
        for each in fencings(service(brokers))
        if each.ends_ms is None or each.ends_ms >= stretch.since_ms
    ]
    return Availability(
        stretch,
        partitions,
        by_broker(brokers, fenced, stretch),
        fenced,
        [each for each in failovers(reigns, counted) if each.begins_ms >= stretch.since_ms],
    )


def summarize(found: Availability, request: JobRequest) -> AvailabilityResult:
    """Return the result as figures and bounded lists."""
    limit, tables = request.limit, found.partitions
    topics = sorted(
        tables.topics,
        key=lambda each: (
            -each.leaderless_ms, -each.unwritable_ms, each.topic_name, each.topic_id
        ),
    )  # fmt: skip
    partitions = sorted(
        tables.partitions,
        key=lambda each: (
            -each.leaderless_ms,
            -each.unwritable_ms,
            each.topic_name,
            each.partition_id,
            each.topic_id,
        ),
    )
    brokers = sorted(
        found.brokers,
        key=lambda each: (each.planned_ms - each.out_ms, -each.out_ms, each.broker_id),
    )
    fenced = sorted(found.fencings, key=lambda each: (-each.begins, each.broker_id))
    changed = sorted(found.failovers, key=lambda each: -each.begins)
    return AvailabilityResult(
        since_ms=found.stretch.since_ms,
        until_ms=found.stretch.until_ms,
        target_percent=request.target_percent,
        objectives=_objectives(found, request.target_percent),
        topics_total=len(topics),
        topics=topics[:limit],
        partitions_total=len(partitions),
        partitions=partitions[:limit],
        brokers_total=len(brokers),
        brokers=brokers[:limit],
        fencings_total=len(fenced),
        fencings=fenced[:limit],
        failovers_total=len(changed),
        failovers=changed[:limit],
        period_length_ms=found.stretch.period_ms,
        periods=_periods(found)[-limit:],
    )


def _periods(found: Availability) -> list[PeriodOutage]:
    tables = found.partitions
    sums = (tables.life_ms, tables.leaderless_ms, tables.unwritable_ms)
    return [
        PeriodOutage(period_ms, *values)
        for period_ms, *values in zip(
            found.stretch.periods, *(each.tolist() for each in sums), strict=True
        )
    ]


def _objectives(found: Availability, target: float | None) -> list[Objective]:
    topics, brokers = found.partitions.topics, found.brokers
    life_ms = sum(each.life_ms for each in topics)
    # Silence is not an absence: of this time nothing is known.
    unknown_ms = sum(each.silent_ms for each in found.failovers if each.absent_most_ms is None)
    return [
        _objective(
            "partitions with a leader",
            life_ms,
            sum(each.leaderless_ms for each in topics),
            target,
            counted_in=PARTITION_TIME,
        ),
        _objective(
            "partitions open to acks=all",
            life_ms,
            sum(each.unwritable_ms for each in topics),
            target,
            counted_in=PARTITION_TIME,
        ),
        _objective(
            "brokers in service, but for planned stops",
            sum(each.life_ms for each in brokers),
            sum(each.out_ms - each.planned_ms for each in brokers),
            target,
            counted_in=BROKER_TIME,
        ),
        _objective(
            "a controller, at the least",
            max(0, found.stretch.length_ms - unknown_ms),
            sum(each.absent_most_ms or 0 for each in found.failovers),
            target,
            unknown_ms=unknown_ms,
        ),
    ]


def _objective(
    name: str,
    total_ms: int,
    lost_ms: int,
    target: float | None,
    *,
    unknown_ms: int = 0,
    counted_in: str = WALL_CLOCK,
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
        counted_in,
    )
