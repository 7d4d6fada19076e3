"""Result of the job availability: bounded, typed, ready for JSON; the stretch of time that it is
about; and its tables and sentences.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
from rich.console import Console

from raftlog.text import counted
from replay.kernels.arrays import Bools, Ints
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

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
_HOURS_UP_TO_DAYS = 3
PARTITION_TIME, BROKER_TIME, WALL_CLOCK = "partition-time", "broker-time", "wall-clock"


class Objective(msgspec.Struct, frozen=True):
    """One line of the SLO table: of ``total_ms`` of service time ``lost_ms`` were lost.

    ``unknown_ms``: of this time the log does not say whether it was lost; it is not in the total.
    ``allowed_ms``, ``met``: None without a target. ``counted_in``: PARTITION_TIME, BROKER_TIME (an
    hour of ten partitions is ten hours) or WALL_CLOCK.
    """

    name: str
    total_ms: int
    lost_ms: int
    available_percent: float
    allowed_ms: int | None
    met: bool | None
    unknown_ms: int = 0
    counted_in: str = WALL_CLOCK


class TopicOutage(msgspec.Struct, frozen=True):
    """One topic.

    Times are sums over its partitions, but ``offline_ms``: how long at least one of them had no
    leader.
    """

    topic_id: str
    topic_name: str
    partitions: int
    life_ms: int
    leaderless_ms: int
    under_min_isr_ms: int
    unwritable_ms: int
    offline_ms: int


class PartitionOutage(msgspec.Struct, frozen=True):
    """One partition that was impaired.

    ``outages``: how often it had no leader; ``longest_ms``: for how long at the most.
    """

    topic_id: str
    topic_name: str
    partition_id: int
    leaderless_ms: int
    under_min_isr_ms: int
    unwritable_ms: int
    outages: int
    longest_ms: int


class BrokerOutage(msgspec.Struct, frozen=True):
    """One broker.

    ``life_ms``: registered; ``out_ms`` of it fenced, ``planned_ms`` of that on purpose; ``out``: it
    is fenced at the end.
    """

    broker_id: int
    life_ms: int
    fencings: int
    out_ms: int
    planned_ms: int
    longest_ms: int
    out: bool


class Fencing(msgspec.Struct, frozen=True):
    """One time that a broker was out of service.

    ``ends`` None: it still is; ``unregistered``: it ended by that.

    ``cause``: the name of a ``BrokerCause``, for programs, as ``reason`` is for people; None: of a
    text that no build has written.
    """

    broker_id: int
    begins: int
    ends: int | None
    begins_ms: int
    ends_ms: int | None
    reason: str
    cause: str | None
    planned: bool
    unregistered: bool


class Failover(msgspec.Struct, frozen=True):
    """One change of the controller.

    There was none for ``absent_least_ms`` to ``absent_most_ms`` (None: the log does not say), and
    nobody wrote for ``silent_ms``; see :mod:`replay.outages.service`.
    """

    epoch: int
    leader_id: int
    begins: int
    begins_ms: int
    previous_leader_id: int
    silent_since_ms: int
    silent_ms: int
    absent_least_ms: int
    absent_most_ms: int | None
    epochs_without_leader: int
    lao_known_ms: int | None


class PeriodOutage(msgspec.Struct, frozen=True):
    """One hour or day, which begins at ``period_ms``: service time of all partitions, and what of
    it was lost.
    """

    period_ms: int
    life_ms: int
    leaderless_ms: int
    unwritable_ms: int


class AvailabilityResult(msgspec.Struct, frozen=True):
    """Result of the job for a stretch of time, ``since_ms`` to ``until_ms``.

    Lists of topics, partitions and brokers: the worst first; fencings and failovers: the last
    first.

    ``periods``: the last ones, oldest first, each of ``period_length_ms``. Each list is cut at the
    request's limit, of ``…_total``.
    """

    since_ms: int
    until_ms: int
    target_percent: float | None
    objectives: list[Objective]
    topics_total: int
    topics: list[TopicOutage]
    partitions_total: int
    partitions: list[PartitionOutage]
    brokers_total: int
    brokers: list[BrokerOutage]
    fencings_total: int
    fencings: list[Fencing]
    failovers_total: int
    failovers: list[Failover]
    period_length_ms: int
    periods: list[PeriodOutage]

    @property
    def passed(self) -> bool:
        """True if each objective was met, or no target was given."""
        return all(objective.met is not False for objective in self.objectives)


class Stretch(NamedTuple):
    """A stretch of time: ``since_ms`` to ``until_ms``."""

    since_ms: int
    until_ms: int

    @classmethod
    def of(cls, first_ms: int, last_ms: int, since_ms: int | None) -> Stretch:
        """Return the stretch of the records, from ``since_ms`` on if it is within them; None: all
        of it.
        """
        return cls(first_ms if since_ms is None else min(max(since_ms, first_ms), last_ms), last_ms)

    @property
    def length_ms(self) -> int:
        """Length of the stretch in ms."""
        return max(0, self.until_ms - self.since_ms)

    @property
    def period_ms(self) -> int:
        """Length of its periods in ms: hours, or days if it has more than three."""
        return HOUR_MS if self.length_ms <= _HOURS_UP_TO_DAYS * DAY_MS else DAY_MS

    @property
    def periods(self) -> range:
        """Begin of each of its hours or days."""
        return range(
            self.since_ms - self.since_ms % self.period_ms, self.until_ms + 1, self.period_ms
        )

    def has(self, begins_ms: Ints, ends_ms: Ints) -> Bools:
        """Return whether each interval overlaps the stretch; an open one ends at NEVER."""
        return (begins_ms <= self.until_ms) & (ends_ms >= self.since_ms)

    def clip(self, begins_ms: Ints, ends_ms: Ints) -> tuple[Ints, Ints]:
        """Return the part of each interval in the stretch, of those that overlap it."""
        return np.maximum(begins_ms, self.since_ms), np.minimum(ends_ms, self.until_ms)

    def clip_one(self, begins_ms: int, ends_ms: int | None) -> tuple[int, int] | None:
        """Return the same of one interval (None: it lasts); None: nothing lies in it."""
        ends = self.until_ms if ends_ms is None else ends_ms
        if begins_ms > self.until_ms or ends < self.since_ms:
            return None
        return max(begins_ms, self.since_ms), min(ends, self.until_ms)

    def by_period(self, begins_ms: Ints, ends_ms: Ints) -> Ints:
        """Return how long clipped intervals lasted in each period, added up.

        The cost is that of their ends, however many periods an interval spans.
        """
        first, length, count = self.periods.start, self.period_ms, len(self.periods)
        net, inside = np.zeros(count, np.int64), np.zeros(count, np.int64)
        for at_ms, sign in ((begins_ms, 1), (ends_ms, -1)):
            period = (at_ms - first) // length
            np.add.at(net, period, sign)
            np.add.at(inside, period, sign * (first + (period + 1) * length - at_ms))
        return (np.cumsum(net) - net) * length + inside


def _objectives(result: AvailabilityResult) -> Listing:
    unknown = any(each.unknown_ms for each in result.objectives)
    target = result.target_percent
    judged = (
        ()
        if target is None
        else (
            Field(f"allowed for {target:g} %", "allowed_ms", duration),
            Field("met", "met", lambda met: "yes" if met else "NO"),
        )
    )
    return listing(
        "Service levels",
        result.objectives,
        Field("of", "name", kind=TEXT),
        Field("counted in", "counted_in", kind=TEXT),
        Field("available", "available_percent", percent),
        Field("lost", "lost_ms", duration),
        *((Field("unknown", "unknown_ms", duration),) if unknown else ()),
        *judged,
    )


def _failovers(result: AvailabilityResult) -> Listing:
    without = any(each.epochs_without_leader for each in result.failovers)
    known = any(each.lao_known_ms is not None for each in result.failovers)
    return listing(
        "Failovers",
        result.failovers,
        Field(
            "at", lambda each: f"{format_moment(each.begins_ms)}\noffset {each.begins}", kind=FIXED
        ),
        Field(
            "controller", lambda each: f"{each.previous_leader_id} → {each.leader_id}", kind=FIXED
        ),
        Field("epoch", "epoch"),
        Field("absent", lambda each: between(each.absent_least_ms, each.absent_most_ms)),
        Field("silent", "silent_ms", duration),
        *((Field("elections without a leader", "epochs_without_leader"),) if without else ()),
        *((Field("LAO known after", "lao_known_ms", duration),) if known else ()),
        total=result.failovers_total,
        note="absent: no controller led; silent: no record was written, which proves no absence",
    )


def _fencings(result: AvailabilityResult) -> Listing:
    def length(each: Fencing) -> str:
        lasted = (result.until_ms if each.ends_ms is None else each.ends_ms) - each.begins_ms
        after = ", then unregistered" if each.unregistered else ""
        return duration(lasted) + (" so far" if each.ends_ms is None else after)

    return listing(
        "Brokers out of service",
        result.fencings,
        Field("broker", "broker_id"),
        Field("from", "begins_ms", format_moment, FIXED),
        Field("offset", "begins"),
        Field("for", length, kind=FIXED),
        Field("why", lambda each: each.reason + (" (planned)" if each.planned else ""), kind=TEXT),
        total=result.fencings_total,
    )


def listings(result: AvailabilityResult) -> list[Listing]:
    """Return the tables: service levels, the absent controllers and brokers, the effects."""
    partitions = listing(
        "Partitions",
        result.partitions,
        Field("partition", lambda each: f"{each.topic_name}-{each.partition_id}", kind=TEXT),
        Field("leaderless", "leaderless_ms", duration),
        Field("times", "outages"),
        Field("longest", "longest_ms", duration),
        Field("under min ISR", "under_min_isr_ms", duration),
        total=result.partitions_total,
    )
    topics = listing(
        "Topics",
        result.topics,
        Field("topic", "topic_name", kind=TEXT),
        Field("partitions", "partitions"),
        Field(
            "had a leader",
            lambda each: 100 * (1 - each.leaderless_ms / each.life_ms) if each.life_ms else 100.0,
            percent,
        ),
        Field("some leaderless", "offline_ms", duration),
        Field("leaderless", "leaderless_ms", duration),
        Field("under min ISR", "under_min_isr_ms", duration),
        total=result.topics_total,
        note="some leaderless: wall-clock; the others: partition-time, summed over partitions",
    )
    brokers = listing(
        "Brokers",
        result.brokers,
        Field("broker", "broker_id"),
        Field("out of service", "out_ms", duration),
        Field("of it planned", "planned_ms", duration),
        Field("times", "fencings"),
        Field("longest", "longest_ms", duration),
        Field("now", "out", lambda out: "out" if out else "in", TEXT),
        total=result.brokers_total,
    )
    return [
        *(_objectives(result), _failovers(result), _fencings(result)),
        *(partitions, topics, brokers),
    ]


def sentences(result: AvailabilityResult) -> list[str]:
    """Return the result as a whole in words."""
    impaired, away = "without a leader or under min ISR", "a broker was out of service"
    counts = (
        counted(result.failovers_total, "failover"),
        counted(result.fencings_total, f"time {away}", f"times {away}"),
        counted(result.partitions_total, f"partition {impaired}", f"partitions {impaired}"),
    )
    said = ["; ".join(counts)]
    missed = [each.name for each in result.objectives if each.met is False]
    if missed:
        said.append(f"Target of {result.target_percent:g} % missed: {', '.join(missed)}")
    return said


def render(result: AvailabilityResult, console: Console) -> None:
    """Print the result."""
    console.print(
        f"From {format_time(result.since_ms)} to {format_time(result.until_ms)},"
        f" {duration(result.until_ms - result.since_ms)}"
    )
    print_listings(listings(result), console)
    for each in sentences(result):
        console.print(each)
