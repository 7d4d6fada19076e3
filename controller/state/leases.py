"""Leases: those of the key-value store, and the read leases of brokers for strict reads.

Soft state of one controller epoch; ``now`` is a monotonic clock in seconds.

Leases of the key-value store: the remaining time of each, unless it is kept alive.

Leases for strict reads: the time until which a broker may answer them, and so must not be fenced.

A broker counts its lease from when it *sent* the heartbeat that requested it; the reply was sent
only after a confirmed read-index round begun after the heartbeat arrived. So no other controller
was elected before the heartbeat was sent, and one elected later waits a whole session timeout
before it fences any broker [a deposed controller that answers heartbeats extends leases that are
unknown to the new one]. A lease is shorter than the session timeout by a margin for clocks that run
at different speeds: it has ended everywhere when a session timeout has passed here since it was
decided.

No broker is fenced, replaced or unregistered while a lease may be in force: a lost session implies
that none is, as every lease begins with a contact; a process that is proven gone, or reports that
it stops, reads no more; all other causes ask :meth:`ReadLeases.ends_at`, and stop renewals until
then. So does a lower ``metadata.version``, under which builds that have no leases may take over. A
broker that is fenced in the log therefore holds none, and leases never hold LAO back.

Why: docs/decisions/027-key-values-and-leases.md, docs/decisions/011-read-leases.md
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from sortedcontainers import SortedList


class LeaseTracker:
    """The remaining times of the key-value store's leases. O(log leases) each, extending all of
    them O(1).
    """

    def __init__(self) -> None:
        self._extended_s = 0.0
        self._due: dict[int, float] = {}
        """Lease id -> when it is due, less the extensions granted until it was last kept alive."""
        self._by_due: SortedList[tuple[float, int]] = SortedList()

    def start(self, entries: Iterable[tuple[int, int]], now: float) -> None:
        """Begin afresh with (lease id, ttl in ms), each with its whole TTL from now on."""
        self._due.clear()
        self._by_due.clear()
        for lease_id, ttl_ms in entries:
            self.keep(lease_id, ttl_ms, now)

    def keep(self, lease_id: int, ttl_ms: int, now: float) -> None:
        """Begin or extend a lease by its whole TTL from now on. Never shorter than before [an
        answer that was decided later has a clock that stood still].
        """
        due = now + ttl_ms / 1000 - self._extended_s
        old = self._due.get(lease_id)
        if old is not None:
            due = max(due, old)
            self._by_due.remove((old, lease_id))
        self._due[lease_id] = due
        self._by_due.add((due, lease_id))

    def end(self, lease_id: int) -> None:
        """Forget a lease."""
        due = self._due.pop(lease_id, None)
        if due is not None:
            self._by_due.remove((due, lease_id))

    def remaining_s(self, lease_id: int, now: float) -> float:
        """Return the remaining seconds of a lease, unless it is kept alive; 0 if it is due, or
        unknown.
        """
        due = self._due.get(lease_id)
        return 0.0 if due is None else max(0.0, due + self._extended_s - now)

    def next_due(self) -> float:
        """Return when the first lease is due, or infinity."""
        return self._by_due[0][0] + self._extended_s if self._by_due else math.inf

    def expired(self, now: float) -> int | None:
        """Return the lease that has been due the longest; None: none is due."""
        if self._by_due and self._by_due[0][0] + self._extended_s <= now:
            return int(self._by_due[0][1])
        return None

    def extend_all(self, gap_s: float) -> None:
        """Extend all leases by the time that the loop stood still: keep-alives may wait in its own
        queue.
        """
        self._extended_s += gap_s


TIME_TO_FENCE_S = 1.0
"""Time in seconds after its last lease for which a broker gets no other, so that a pending fencing
can take place.
"""
LEASE_SHARE = 0.75
"""Length of a lease as a share of the session timeout. Safe as long as no clock runs more than a
third faster than another.
"""


class ReadLeases:
    """The read leases of brokers: soft state of one controller epoch; ``now`` is a monotonic clock
    in seconds.
    """

    def __init__(self, session_timeout_s: float, now: float) -> None:
        """``now``: time of the claim.

        Leases of earlier epochs are not known here; they began before it.
        """
        self._registered: set[int] = set()
        self._session_s = session_timeout_s
        self._claimed_at = now
        self._granted_at: dict[int, float] = {}
        self._withheld_until: dict[int, float] = {}

    @property
    def length_ms(self) -> int:
        """Length of each lease, in ms."""
        return int(self._session_s * LEASE_SHARE * 1000)

    def registered(self, broker_id: int) -> None:
        """Record that a process has registered with this controller: it holds no lease of an
        earlier one.

        A lease belongs to one registration [so fencing a killed broker of a new cluster need not
        wait, unlike one whose registration this controller has found in the log].
        """
        self._registered.add(broker_id)

    def granted(self, broker_id: int, now: float) -> None:
        """Record a lease that was decided, whether its reply arrives or not."""
        self._granted_at[broker_id] = now

    def ends_at(self, broker_id: int) -> float:
        """Return the time from which the present incarnation of a broker certainly holds no lease,
        unless it gets another.
        """
        if broker_id in self._registered:
            return self._granted_at.get(broker_id, -math.inf) + self._session_s
        return (
            max(self._granted_at.get(broker_id, self._claimed_at), self._claimed_at)
            + self._session_s
        )

    def stop(self, broker_id: int) -> None:
        """Stop renewals until the broker holds no lease and may be fenced, and a moment longer."""
        self._withheld_until[broker_id] = self.ends_at(broker_id) + TIME_TO_FENCE_S

    def is_withheld(self, broker_id: int, now: float) -> bool:
        """Return whether renewals are stopped."""
        return now < self._withheld_until.get(broker_id, now)

    def forget(self, broker_id: int) -> None:
        """Forget a broker: it is fenced, or is another process."""
        self._registered.discard(broker_id)
        self._granted_at.pop(broker_id, None)
        self._withheld_until.pop(broker_id, None)
