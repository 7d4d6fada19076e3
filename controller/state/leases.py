"""Leases of the key-value store, and read leases of brokers for strict reads.

Soft state of one controller epoch; ``now`` is a monotonic clock in seconds.

Key-value leases: the remaining time of each lease unless it is kept alive.

Read leases: the time until which a broker may answer strict reads, and so must not be fenced. A
broker counts its lease from the moment it *sent* the heartbeat that requested it. The reply was
sent only after a confirmed read-index round that began after the heartbeat arrived. So no other
controller was elected before the heartbeat was sent, and one elected later waits a whole session
timeout before it fences any broker. (Otherwise a deposed controller could extend leases that the
new one does not know of.) A lease is shorter than the session timeout by a margin for clocks that
run at different speeds, so it has ended everywhere once a session timeout has passed here since the
decision.

No broker is fenced, replaced or unregistered while it may hold a lease. If its session is lost it
holds none, as every lease begins with a contact; a process that is proven gone, or reports that it
is stopping, serves no more reads. For all other causes the caller asks :meth:`ReadLeases.ends_at`
and stops renewals until then, as it does for a downgrade of ``metadata.version``, after which
builds without leases may take over. So a broker that is fenced in the log holds no lease, and
leases never hold LAO back.

Why: docs/decisions/027-key-values-and-leases.md, docs/decisions/011-read-leases.md
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from sortedcontainers import SortedList


class LeaseTracker:
    """Remaining times of the key-value store's leases.

    O(log leases) per call; extending all of them is O(1).
    """

    def __init__(self) -> None:
        self._extended_s = 0.0
        self._due: dict[int, float] = {}
        """Lease id -> due time, less the extensions granted before it was last kept alive."""
        self._by_due: SortedList[tuple[float, int]] = SortedList()

    def start(self, entries: Iterable[tuple[int, int]], now: float) -> None:
        """Start over with the given (lease id, TTL in ms) pairs; each lease gets its whole TTL from
        now on.
        """
        self._due.clear()
        self._by_due.clear()
        for lease_id, ttl_ms in entries:
            self.keep(lease_id, ttl_ms, now)

    def keep(self, lease_id: int, ttl_ms: int, now: float) -> None:
        """Begin or extend a lease by its whole TTL from now on. Never shortens it, even if a later
        call has an earlier ``now``.
        """
        due = now + ttl_ms / 1000 - self._extended_s
        old = self._due.get(lease_id)
        if old is not None:
            due = max(due, old)
            self._by_due.remove((old, lease_id))
        self._due[lease_id] = due
        self._by_due.add((due, lease_id))

    def end(self, lease_id: int) -> None:
        """Drop a lease."""
        due = self._due.pop(lease_id, None)
        if due is not None:
            self._by_due.remove((due, lease_id))

    def remaining_s(self, lease_id: int, now: float) -> float:
        """Return the seconds until a lease is due unless it is kept alive; 0 if it is due or
        unknown.
        """
        due = self._due.get(lease_id)
        return 0.0 if due is None else max(0.0, due + self._extended_s - now)

    def next_due(self) -> float:
        """Return when the first lease is due, or infinity if none."""
        return self._by_due[0][0] + self._extended_s if self._by_due else math.inf

    def expired(self, now: float) -> int | None:
        """Return the lease that has been due the longest, or None if none is due."""
        if self._by_due and self._by_due[0][0] + self._extended_s <= now:
            return int(self._by_due[0][1])
        return None

    def extend_all(self, gap_s: float) -> None:
        """Extend all leases by the time for which the event loop was blocked: keep-alives may wait
        in its queue.
        """
        self._extended_s += gap_s


TIME_TO_FENCE_S = 1.0
"""Time in seconds after the end of a broker's lease during which it gets no new one, so that a
pending fencing can take place.
"""
LEASE_SHARE = 0.75
"""Length of a read lease as a share of the session timeout. Safe as long as no clock runs more than
a third faster than another.
"""


class ReadLeases:
    """Read leases of brokers: soft state of one controller epoch; ``now`` is a monotonic clock in
    seconds.
    """

    def __init__(self, session_timeout_s: float, now: float) -> None:
        """``now``: time of the claim. Leases of earlier epochs, which are unknown here, began
        before it.
        """
        self._registered: set[int] = set()
        self._session_s = session_timeout_s
        self._claimed_at = now
        self._granted_at: dict[int, float] = {}
        self._withheld_until: dict[int, float] = {}

    @property
    def length_ms(self) -> int:
        """Length of each lease, in milliseconds."""
        return int(self._session_s * LEASE_SHARE * 1000)

    def registered(self, broker_id: int) -> None:
        """Record that a process has registered with this controller, so it holds no lease from an
        earlier one.

        A lease belongs to one registration. So this broker can be fenced without waiting, unlike
        one whose registration this controller has found in the log.
        """
        self._registered.add(broker_id)

    def granted(self, broker_id: int, now: float) -> None:
        """Record a lease that was decided, whether or not its reply arrives."""
        self._granted_at[broker_id] = now

    def ends_at(self, broker_id: int) -> float:
        """Return the time from which a broker's current incarnation certainly holds no lease,
        unless it is granted another.
        """
        if broker_id in self._registered:
            return self._granted_at.get(broker_id, -math.inf) + self._session_s
        return (
            max(self._granted_at.get(broker_id, self._claimed_at), self._claimed_at)
            + self._session_s
        )

    def stop(self, broker_id: int) -> None:
        """Stop renewals until the broker holds no lease and may be fenced, and TIME_TO_FENCE_S
        longer.
        """
        self._withheld_until[broker_id] = self.ends_at(broker_id) + TIME_TO_FENCE_S

    def is_withheld(self, broker_id: int, now: float) -> bool:
        """Return whether a broker's renewals are stopped."""
        return now < self._withheld_until.get(broker_id, now)

    def forget(self, broker_id: int) -> None:
        """Drop a broker that is fenced or whose id belongs to another process now."""
        self._registered.discard(broker_id)
        self._granted_at.pop(broker_id, None)
        self._withheld_until.pop(broker_id, None)
