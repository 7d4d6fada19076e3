"""Result of the job availability: bounded, typed, ready for JSON."""

from __future__ import annotations

import msgspec

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
    nobody wrote for ``silent_ms``; see :mod:`replay.outages.failovers`.
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
    """From ``since_ms`` to ``until_ms``.

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
