"""Broker sessions: who has been heard from lately.

Soft state of one controller epoch; ``now`` is a monotonic clock in seconds.

Why: docs/decisions/012-sessions-and-fencing.md
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sortedcontainers import SortedList

LOOP_GAP_TOLERATED_S = 0.1
"""A longer gap in the controller's own loop (a pause, a collection, swapping) is not held against
the brokers.
"""


@dataclass(frozen=True, slots=True)
class _Session:
    epoch: int
    last_contact: float
    key: float
    """Last contact less the extensions granted until then: order and expiry follow from it."""


class SessionTracker:
    """Sessions of the registered brokers. O(log brokers) each, extending all of them O(1)."""

    def __init__(self, session_timeout_s: float) -> None:
        self._timeout_s = session_timeout_s
        self._extended_s = 0.0
        self._sessions: dict[int, _Session] = {}
        self._by_contact: SortedList[tuple[float, int]] = SortedList()
        """(key, broker id)."""

    def start(self, entries: Iterable[tuple[int, int]], now: float) -> None:
        """Begin afresh with (broker id, broker epoch) of every unfenced broker, all heard from just
        now.

        A new controller knows nothing of earlier contacts and leases: a whole session from now on
        covers them.
        """
        self._sessions.clear()
        self._by_contact.clear()
        for broker_id, epoch in entries:
            self.touch(broker_id, epoch, now)

    def touch(self, broker_id: int, epoch: int, now: float) -> None:
        """A broker was heard from.

        Begins its session if it has none; a contact under an older broker epoch changes nothing.
        """
        old = self._sessions.get(broker_id)
        key = now - self._extended_s
        if old is not None:
            if epoch < old.epoch:
                return
            if epoch == old.epoch:
                now, key = max(now, old.last_contact), max(key, old.key)
            self._by_contact.remove((old.key, broker_id))
        self._sessions[broker_id] = _Session(epoch, now, key)
        self._by_contact.add((key, broker_id))

    def end(self, broker_id: int) -> None:
        """Forget a session: the broker is fenced, replaced or gone.

        Nothing happens if it has none.
        """
        session = self._sessions.pop(broker_id, None)
        if session is not None:
            self._by_contact.remove((session.key, broker_id))

    def is_alive(self, broker_id: int, now: float) -> bool:
        """Whether it has a session that has not run out."""
        session = self._sessions.get(broker_id)
        return session is not None and now < self._expiry(session.key)

    def last_contact(self, broker_id: int) -> float | None:
        """When it was last heard from in this session."""
        session = self._sessions.get(broker_id)
        return None if session is None else session.last_contact

    def next_expiry(self) -> tuple[float, int] | None:
        """(when, broker id) of the session that runs out first; of equals the lowest id."""
        if not self._by_contact:
            return None
        key, broker_id = self._by_contact[0]
        return self._expiry(key), broker_id

    def expired(self, now: float) -> int | None:
        """The broker whose session ran out the longest ago.

        One at a time, so that each fencing sees the effect of the last.
        """
        first = self.next_expiry()
        return first[1] if first is not None and first[0] <= now else None

    def extend_all(self, gap_s: float, now: float) -> None:
        """The loop stood still for ``gap_s``, until now: above 100 ms every session lasts that much
        longer.

        Otherwise a controller that slept would fence everybody whose heartbeats wait in its own
        queue. But none lasts longer than one that begins now: what waited may have been heard
        before this.
        """
        if gap_s <= LOOP_GAP_TOLERATED_S:
            return
        self._extended_s += gap_s
        newest = now - self._extended_s
        while self._by_contact and self._by_contact[-1][0] > newest:
            _, broker_id = self._by_contact.pop()
            self._sessions[broker_id] = replace(self._sessions[broker_id], key=newest)
            self._by_contact.add((newest, broker_id))

    def _expiry(self, key: float) -> float:
        return key + self._extended_s + self._timeout_s
