"""Leases of the key-value store: how long each still lives, unless it is kept alive.

Soft state of one controller epoch; ``now`` is a monotonic clock in seconds. The log says which
leases there are; nothing in it renews one, so a new controller gives each its whole time again: a
lease expires late, never early [it counts on from what the log knows: the lease was kept alive a
moment ago by the controller before, and expires at once].

Why: docs/decisions/027-key-values-and-leases.md
"""

from __future__ import annotations

from collections.abc import Iterable

from sortedcontainers import SortedList


class LeaseTracker:
    """O(log leases) each, giving all of them more time O(1)."""

    def __init__(self) -> None:
        self._extended_s = 0.0
        self._due: dict[int, float] = {}
        """Lease id -> when it is due, less the extensions granted until it was last kept alive."""
        self._by_due: SortedList[tuple[float, int]] = SortedList()

    def start(self, entries: Iterable[tuple[int, int]], now: float) -> None:
        """Begin afresh with (lease id, ttl in ms), each with its whole time from now on."""
        self._due.clear()
        self._by_due.clear()
        for lease_id, ttl_ms in entries:
            self.keep(lease_id, ttl_ms, now)

    def keep(self, lease_id: int, ttl_ms: int, now: float) -> None:
        """It lives its whole time from now on; it begins, if it is new. Never shorter than before
        [an answer that was decided later has a clock that stood still].
        """
        due = now + ttl_ms / 1000 - self._extended_s
        old = self._due.get(lease_id)
        if old is not None:
            due = max(due, old)
            self._by_due.remove((old, lease_id))
        self._due[lease_id] = due
        self._by_due.add((due, lease_id))

    def end(self, lease_id: int) -> None:
        """Forget it."""
        due = self._due.pop(lease_id, None)
        if due is not None:
            self._by_due.remove((due, lease_id))

    def remaining_s(self, lease_id: int, now: float) -> float:
        """How long it lives, unless it is kept alive; 0: it is due, or not known."""
        due = self._due.get(lease_id)
        return 0.0 if due is None else max(0.0, due + self._extended_s - now)

    def next_due(self) -> float | None:
        """When the first one is due."""
        return self._by_due[0][0] + self._extended_s if self._by_due else None

    def expired(self, now: float) -> int | None:
        """The lease that has been due the longest."""
        if self._by_due and self._by_due[0][0] + self._extended_s <= now:
            return int(self._by_due[0][1])
        return None

    def extend_all(self, gap_s: float) -> None:
        """The loop stood still for so long: what keeps leases alive may wait in its own queue."""
        self._extended_s += gap_s
