"""The schedule of a generated history: actions by time, and events that recur at random."""

import heapq
import random
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

Action = Callable[[int], None]
"""Done at its time, in ms since 1970."""

_BUSY_HOURS = range(8, 19)
_SATURDAY = 5


class Schedule:
    """Schedule of actions by time, and then by the order in which they were planned."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._heap: list[tuple[int, int, Action]] = []
        self._planned = 0

    def at(self, at_ms: int, action: Action) -> None:
        self._planned += 1
        heapq.heappush(self._heap, (at_ms, self._planned, action))

    def pop(self) -> tuple[int, Action]:
        at_ms, _, action = heapq.heappop(self._heap)
        return at_ms, action

    def every(
        self, per_day: float, begin_ms: int, action: Action, *, by_people: bool = False
    ) -> None:
        """Repeat an action randomly ``per_day`` times; people are rarer at night and weekends."""
        if per_day <= 0:
            return
        # People's busiest hours have about twice the mean; the others are thinned out.
        rate = per_day * (2.0 if by_people else 1.0) / DAY_MS

        def happen(at_ms: int) -> None:
            self.at(at_ms + 1 + int(self._rng.expovariate(rate)), happen)
            if not by_people or self._rng.random() < _busy(at_ms):
                action(at_ms)

        self.at(begin_ms + 1 + int(self._rng.expovariate(rate)), happen)


def _busy(at_ms: int) -> float:
    moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    if moment.weekday() >= _SATURDAY:
        return 0.2
    return 0.9 if moment.hour in _BUSY_HOURS else 0.25


DAY_MS = 86_400_000
SKEWS = ("none", "broker", "topic")


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Profile of a generated cluster. ``partitions``: mean per topic; ``begin_ms``: first record.
    ``skew``: ``broker`` has one broker in half of the incidents; ``topic`` has half of all
    partitions in one topic.
    """

    seed: int = 1
    brokers: int = 12
    racks: int = 3
    topics: int = 250
    partitions: int = 8
    replication_factor: int = 3
    controllers: int = 3
    begin_ms: int = 1_767_225_600_000
    skew: str = "none"


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Mean rates per day. Operations of people happen by day, failures at any hour."""

    rolling_restarts: float = 0.7
    crashes: float = 2.0
    rack_outages: float = 0.05
    site_outages: float = 0.03
    slow_disks: float = 6.0
    stalls: float = 10.0
    failovers: float = 3.0
    hand_overs: float = 1.0
    reassignments: float = 1.0
    deployments: float = 200.0
    alterations: float = 600.0
    temporary_topics: float = 120.0
    clients: float = 60.0


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """A generated incident, to compare with a job's answer: records ``first_offset`` to
    ``last_offset``, none if the last is below the first.
    """

    kind: str
    begins_ms: int
    ends_ms: int
    first_offset: int
    last_offset: int
    brokers: tuple[int, ...] = ()


TOPIC_CONFIGS: dict[str, tuple[str | None, ...]] = {
    "retention.ms": ("3600000", "86400000", "259200000", "604800000", None),
    "retention.bytes": ("1073741824", "10737418240", "-1", None),
    "segment.bytes": ("104857600", "536870912", "1073741824", None),
    "max.message.bytes": ("1048588", "5242880", "10485760", None),
    "compression.type": ("zstd", "lz4", "producer", None),
    "cleanup.policy": ("delete", "compact", "delete,compact", None),
    "min.compaction.lag.ms": ("0", "60000", "3600000", None),
}
"""Values of each altered topic config; None: back to the default."""
BROKER_CONFIGS: dict[str, tuple[str | None, ...]] = {
    "log.cleaner.threads": ("1", "2", "4", None),
    "num.io.threads": ("8", "16", "32", None),
    "leader.replication.throttled.rate": ("10000000", "50000000", None),
}
_USERS = ("platform", "deployer", "alice", "bob", "streams-orders", "streams-billing")
PRINCIPALS = tuple(f"User:{name}" for name in _USERS)
