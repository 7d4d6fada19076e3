"""Availability: outages of partitions, brokers and controllers, with duration and cause.

A partition has an outage when it has no leader (Kafka: offline); its ISR is incomplete when it has
fewer in-sync replicas than assigned. Times are differences between log timestamps.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial, reduce
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console

from raftlog.text import counted
from replay.engine.passes import ExportLog
from replay.export import Export
from replay.kernels.census import count_records
from replay.kernels.facts import Facts
from replay.kernels.intervals import Names, of_partitions
from replay.kernels.passes import facts_of
from replay.outages.partitions import Troubled, TroubleWatcher
from replay.outages.service import (
    Controller,
    Failover,
    Fencing,
    Stretch,
    broker_time,
    controllers,
    failovers,
    fencings,
    service,
)
from replay.request import JobRequest
from replay.text import (
    FIXED,
    TEXT,
    Field,
    Listing,
    between,
    duration,
    format_moment,
    format_time,
    listing,
    percent,
    print_listings,
)

if TYPE_CHECKING:
    from replay.engine.pool import Pool

PARTITION_TIME, BROKER_TIME, WALL_CLOCK = "partition-time", "broker-time", "wall-clock"


class Objective(msgspec.Struct, frozen=True):
    """A service level: ``lost_ms`` of ``total_ms`` of service time were lost.

    ``unknown_ms``: further time, not in the total, for which the log does not show whether it was
    lost. ``counted_in``: PARTITION_TIME or BROKER_TIME (an hour of ten partitions is ten hours), or
    WALL_CLOCK.
    """

    name: str
    total_ms: int
    lost_ms: int
    counted_in: str
    unknown_ms: int = 0

    @property
    def available_percent(self) -> float:
        """Percentage of the service time that was not lost."""
        return 100.0 if not self.total_ms else 100 * (1 - self.lost_ms / self.total_ms)


class PartitionOutage(msgspec.Struct, frozen=True):
    """Outages of a partition: for how long and how often it had no leader, the longest such time
    (``longest_ms``), and for how long and how often its ISR was incomplete.
    """

    topic_id: str
    topic_name: str
    partition_id: int
    leaderless_ms: int
    outages: int
    longest_ms: int
    short_ms: int
    shrinks: int


class AvailabilityResult(msgspec.Struct, frozen=True):
    """Result of the job for the period from ``since_ms`` to ``until_ms``.

    ``partitions``: worst first. ``fencings``, ``failovers``: latest first. Each list is cut at the
    request's limit; ``…_total`` counts all.
    """

    since_ms: int
    until_ms: int
    objectives: list[Objective]
    failovers_total: int
    failovers: list[Failover]
    fencings_total: int
    fencings: list[Fencing]
    partitions_total: int
    partitions: list[PartitionOutage]


def run(export: Export, request: JobRequest, pool: Pool) -> AvailabilityResult:
    """Compute the result in the tasks of a pool."""
    log = ExportLog(export, pool)
    facts, census = facts_of(log), count_records(log)
    stretch = Stretch.of(census.first_ms, census.last_ms, request.since_ms)
    parts = log.run(of_partitions(facts, partial(TroubleWatcher, stretch)))
    reigns = controllers(log, census, export.manifest.origin)
    troubled = merge_all([found for (found,) in parts])
    return summarize(facts, reigns, stretch, troubled, request.limit)


def merge_all(parts: Iterable[Troubled]) -> Troubled:
    """Merge the troubles of all parts."""
    return reduce(Troubled.merge, parts)


def summarize(
    facts: Facts, reigns: list[Controller], stretch: Stretch, troubled: Troubled, limit: int
) -> AvailabilityResult:
    """Return the result as figures and bounded lists."""
    fenced = [
        each
        for each in fencings(service(facts.brokers))
        if each.ends_ms is None or each.ends_ms >= stretch.since_ms
    ]
    changed = [each for each in failovers(reigns) if each.begins_ms >= stretch.since_ms]
    brokers_ms, out_ms = broker_time(facts.brokers, fenced, stretch)
    # Silence does not prove an absence: nothing is known about this time.
    unknown_ms = sum(each.silent_ms for each in changed if each.absent_most_ms is None)
    absent_ms = sum(each.absent_most_ms or 0 for each in changed)
    leaderless_ms, short_ms = (
        int(each.lost.rows()[1].sum()) for each in (troubled.leaderless, troubled.short)
    )
    partitions = _partitions(troubled, Names(facts))
    return AvailabilityResult(
        since_ms=stretch.since_ms,
        until_ms=stretch.until_ms,
        objectives=[
            Objective(name, total_ms, lost_ms, counted_in, unknown)
            for name, total_ms, lost_ms, counted_in, unknown in (
                ("partitions with a leader", troubled.life_ms, leaderless_ms, PARTITION_TIME, 0),
                (
                    "partitions with all replicas in sync",
                    troubled.life_ms,
                    short_ms,
                    PARTITION_TIME,
                    0,
                ),
                (
                    "brokers in service, except for planned stops",
                    brokers_ms,
                    out_ms,
                    BROKER_TIME,
                    0,
                ),
                (
                    "a controller present (lower bound)",
                    max(0, stretch.length_ms - unknown_ms),
                    absent_ms,
                    WALL_CLOCK,
                    unknown_ms,
                ),
            )
        ],
        failovers_total=len(changed),
        failovers=sorted(changed, key=lambda each: -each.begins)[:limit],
        fencings_total=len(fenced),
        fencings=sorted(fenced, key=lambda each: (-each.begins, each.broker_id))[:limit],
        partitions_total=len(partitions),
        partitions=partitions[:limit],
    )


def _partitions(troubled: Troubled, names: Names) -> list[PartitionOutage]:
    """Return the partitions with outages, worst first."""
    leaderless, short = troubled.leaderless.lost.by_key(), troubled.short.lost.by_key()
    nothing = [0, 0, 0]
    found = [
        PartitionOutage(
            names.id_of(key),
            names.topic(key),
            key & 0xFFFFFFFF,
            *leaderless.get(key, nothing),
            *short.get(key, nothing)[:2],
        )
        for key in leaderless | short
    ]
    return sorted(
        found,
        key=lambda each: (
            -each.leaderless_ms, -each.short_ms, each.topic_name, each.partition_id, each.topic_id
        ),
    )  # fmt: skip


def listings(result: AvailabilityResult) -> list[Listing]:
    """Return the tables: service levels, failovers, fenced brokers, affected partitions."""

    def length(each: Fencing) -> str:
        lasted = (result.until_ms if each.ends_ms is None else each.ends_ms) - each.begins_ms
        after = ", then unregistered" if each.unregistered else ""
        return duration(lasted) + (" so far" if each.ends_ms is None else after)

    unknown = any(each.unknown_ms for each in result.objectives)
    return [
        listing(
            "Service levels",
            result.objectives,
            Field("of", "name", kind=TEXT),
            Field("counted in", "counted_in", kind=TEXT),
            Field("available", "available_percent", percent),
            Field("lost", "lost_ms", duration),
            *((Field("unknown", "unknown_ms", duration),) if unknown else ()),
        ),
        listing(
            "Failovers",
            result.failovers,
            Field("at", "begins_ms", format_moment, FIXED),
            Field("offset", "begins"),
            Field("from", "previous_leader_id"),
            Field("to", "leader_id"),
            Field("epoch", "epoch"),
            Field("absent", lambda each: between(each.absent_least_ms, each.absent_most_ms)),
            Field("silent", "silent_ms", duration),
            total=result.failovers_total,
            note="absent: no controller led; silent: no record was written (a controller may lead)",
        ),
        listing(
            "Brokers out of service",
            result.fencings,
            Field("broker", "broker_id"),
            Field("from", "begins_ms", format_moment, FIXED),
            Field("offset", "begins"),
            Field("for", length, kind=FIXED),
            Field("why", "reason", kind=TEXT),
            Field("planned", "planned", lambda planned: "yes" if planned else "no", TEXT),
            total=result.fencings_total,
        ),
        listing(
            "Partitions",
            result.partitions,
            Field("partition", lambda each: f"{each.topic_name}-{each.partition_id}", kind=TEXT),
            Field("no leader", "leaderless_ms", duration),
            Field("times", "outages"),
            Field("longest", "longest_ms", duration),
            Field("ISR incomplete", "short_ms", duration),
            Field("shrinks", "shrinks"),
            total=result.partitions_total,
        ),
    ]  # fmt: skip


def sentences(result: AvailabilityResult) -> list[str]:
    """Return sentences about the result as a whole."""
    impaired, what = (
        "without a leader or with an incomplete ISR",
        "of a broker being out of service",
    )
    counts = (
        counted(result.failovers_total, "failover"),
        counted(result.fencings_total, f"case {what}", f"cases {what}"),
        counted(result.partitions_total, f"partition {impaired}", f"partitions {impaired}"),
    )
    return ["; ".join(counts)]


def render(result: AvailabilityResult, console: Console) -> None:
    """Print the result as text."""
    console.print(
        f"From {format_time(result.since_ms)} to {format_time(result.until_ms)},"
        f" {duration(result.until_ms - result.since_ms)}"
    )
    print_listings(listings(result), console)
    for each in sentences(result):
        console.print(each)
