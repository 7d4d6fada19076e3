"""The broker ids whose brokers are absent, and since when.

An id that is absent for long enough is *missing* (KIP-426).

Soft state of one controller epoch. After a failover every absence counts from zero, and only after
a full session timeout, so that an id is given away too late rather than too early: a fenced broker
may be alive and about to reach this controller [the leadership moves; a fenced broker that lags
reaches the new controller just after its id was given away]. Absences are found in the image by
broker (registrations, ``replicas_of``), never by topic. ``now`` is a monotonic clock in seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from raftlog.metadata.image import Image

CHECKS_PER_PERIOD = 20
"""How many checks fall into the time after which an id is missing.

An absence seems shorter by at most one interval: the safe side.
"""
CHECK_MAX_S = 10.0


class Absent(NamedTuple):
    """An absent broker id that holds replicas.

    ``missing_in_s``: seconds until it is missing, so may be given away; 0: it is missing.
    """

    broker_id: int
    absent_for_s: float
    replica_count: int
    missing_in_s: float

    @property
    def missing(self) -> bool:
        """Whether the id has been absent for so long that it may be given away."""
        return self.missing_in_s <= 0


class AbsentIds:
    """When the present absence of each absent broker began, as far as this controller has seen."""

    def __init__(self, adopt_after_s: float, session_timeout_s: float, now: float) -> None:
        self._adopt_after_s = adopt_after_s
        self._first_session_ends = now + session_timeout_s
        self._since: dict[int, float] = {}
        self.next_check = now

    def first_session(self, now: float) -> bool:
        """Whether this controller has led for so short a time that a live broker may not have
        reached it yet.
        """
        return now < self._first_session_ends

    def has_noted(self, broker_id: int) -> bool:
        """Whether this broker counts as absent. O(1)."""
        return broker_id in self._since

    def present(self, broker_id: int) -> None:
        """Note that a broker was heard from or registered: any absence of it is over. O(1)."""
        self._since.pop(broker_id, None)

    def extend_all(self, gap_s: float) -> None:
        """Do not count the last ``gap_s``: the controller itself was paused and could not hear any
        broker.
        """
        self._first_session_ends += gap_s
        for broker_id in self._since:
            self._since[broker_id] += gap_s

    def look(self, image: Image, is_alive: Callable[[int, float], bool], now: float) -> None:
        """Note which brokers are absent: unregistered or fenced, and without a session.

        O(brokers).
        """
        self.next_check = now + min(CHECK_MAX_S, self._adopt_after_s / CHECKS_PER_PERIOD)
        self._since = {
            broker_id: self._begun(broker_id, now)
            for broker_id in sorted({*image.brokers, *image.replicas_of})
            if _is_absent(image, broker_id, is_alive, now)
        }

    def absent(
        self, image: Image, is_alive: Callable[[int, float], bool], now: float
    ) -> list[Absent]:
        """The absent brokers that hold replicas, by id, including those that ``look`` has not noted
        yet. Changes nothing. O(brokers).
        """
        found = []
        for broker_id in sorted(image.replicas_of):
            count = len(image.replicas_of.get(broker_id) or ())
            if count and _is_absent(image, broker_id, is_alive, now):
                absent_for_s = now - self._begun(broker_id, now)
                missing_in_s = max(0.0, self._adopt_after_s - absent_for_s)
                found.append(Absent(broker_id, max(0.0, absent_for_s), count, missing_in_s))
        return found

    def _begun(self, broker_id: int, now: float) -> float:
        """When an absence begins to count: at the end of this controller's first session timeout,
        or later.
        """
        return self._since.get(broker_id, max(now, self._first_session_ends))


def _is_absent(
    image: Image, broker_id: int, is_alive: Callable[[int, float], bool], now: float
) -> bool:
    """Whether a broker is unregistered or fenced, and has no session.

    A fenced broker that still heartbeats is not absent.
    """
    broker = image.brokers.get(broker_id)
    return (broker is None or broker.fenced) and not is_alive(broker_id, now)
