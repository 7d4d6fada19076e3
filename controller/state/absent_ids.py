"""Broker ids whose brokers are away, and since when: what makes an id missing (KIP-426).

Soft state of one controller epoch: after a failover every absence begins afresh, and not before a session is over, so that an id is
given away too late rather than too early: whoever is fenced may be alive, and on its way to this controller [the leadership moves; a
fenced broker that lags reaches the new controller when its id has just been given away]. It is read off the image by broker
(registrations, ``replicas_of``), never off topics. ``now`` is a monotonic clock in seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from raftlog.metadata.image import Image

CHECKS_PER_PERIOD = 20
"""How often absences are looked for in the time that makes one count: so much less exact, to the safe side, the age is."""
CHECK_MAX_S = 10.0


class Absent(NamedTuple):
    """An id that holds replicas, and is not there. ``missing_in_s``: until it is missing, that is may be given away; 0: it is."""

    broker_id: int
    absent_for_s: float
    replica_count: int
    missing_in_s: float

    @property
    def missing(self) -> bool:
        """Whether it has been absent for so long that it may be given away."""
        return self.missing_in_s <= 0


class AbsentIds:
    """Since when each absent broker has been absent without a break, as far as this controller has seen."""

    def __init__(self, adopt_after_s: float, session_timeout_s: float, now: float) -> None:
        self._adopt_after_s = adopt_after_s
        self._first_session_ends = now + session_timeout_s
        self._since: dict[int, float] = {}
        self.next_check = now

    def first_session(self, now: float) -> bool:
        """Whether this controller is so new that a living broker may not have reached it yet."""
        return now < self._first_session_ends

    def present(self, broker_id: int) -> None:
        """A broker was heard from, or registered: its absence, if it was absent, is over. O(1)."""
        self._since.pop(broker_id, None)

    def extend_all(self, gap_s: float) -> None:
        """The controller itself was away for ``gap_s``, and could not have heard anybody."""
        self._first_session_ends += gap_s
        for broker_id in self._since:
            self._since[broker_id] += gap_s

    def look(self, image: Image, is_alive: Callable[[int, float], bool], now: float) -> None:
        """Note who is absent: unregistered or fenced, and without a session. O(brokers)."""
        self.next_check = now + min(CHECK_MAX_S, self._adopt_after_s / CHECKS_PER_PERIOD)
        self._since = {
            broker_id: self._begun(broker_id, now)
            for broker_id in sorted({*image.brokers, *image.replicas_of})
            if _is_absent(image, broker_id, is_alive, now)
        }

    def absent(self, image: Image, is_alive: Callable[[int, float], bool], now: float) -> list[Absent]:
        """Those that hold replicas, by id, whether a look has seen them to be absent yet or not. Changes nothing. O(brokers)."""
        found = []
        for broker_id in sorted(image.replicas_of):
            count = len(image.replicas_of.get(broker_id) or ())
            if count and _is_absent(image, broker_id, is_alive, now):
                absent_for_s = now - self._begun(broker_id, now)
                missing_in_s = max(0.0, self._adopt_after_s - absent_for_s)
                found.append(Absent(broker_id, max(0.0, absent_for_s), count, missing_in_s))
        return found

    def _begun(self, broker_id: int, now: float) -> float:
        """From when on an absence counts: the end of this controller's first session, or later."""
        return self._since.get(broker_id, max(now, self._first_session_ends))


def _is_absent(image: Image, broker_id: int, is_alive: Callable[[int, float], bool], now: float) -> bool:
    """A broker that is fenced and heard from is no broker that is gone."""
    broker = image.brokers.get(broker_id)
    return (broker is None or broker.fenced) and not is_alive(broker_id, now)
