"""The broker's side of the lease for strict reads (``controller.state.leases`` has the other).
Pure.

The lease runs from the *sending* of the heartbeat that got it, by this broker's clock: the reply
may be late, and describes the moment when the heartbeat arrived [a reply is held up for longer than
the margin: counted from its arrival, the lease outlives the session]. It belongs to one broker
epoch. A controller that is elected later does not know the lease and respects it all the same, so
it survives failovers.

It is requested only while there are strict readers: heartbeats are then at most a third of a lease
apart.

Why: docs/decisions/011-read-leases.md
"""

from __future__ import annotations

import math
from collections.abc import Callable

from raftlog.errors import ApiError, ErrorCode

WANTED_FOR_S = 30.0
"""Time after the last strict read for which the lease is still renewed, in seconds."""
RENEWALS_PER_LEASE = 3
RETRY_S = 0.25
"""Shortest interval between heartbeats sent for a waiting strict read, in seconds."""


class ReadLease:
    """The lease that lets this broker answer strict reads.

    ``broker_epoch``: of its present registration, -1 if it has none.
    """

    def __init__(self, broker_epoch: Callable[[], int], on_wanted: Callable[[], None]) -> None:
        """``on_wanted``: a read waits for a lease; a heartbeat should be sent at once."""
        self._broker_epoch = broker_epoch
        self._on_wanted = on_wanted
        self._last_reader_at = self._hastened_at = -math.inf
        self._ends_at = -math.inf
        self._of_epoch = -1
        self._renounced = False
        self._refusal = ""

    def reader(self, now: float) -> None:
        """Note a strict read. Raises NO_READ_LEASE if this process stops."""
        if self._renounced:
            raise ApiError(
                ErrorCode.NO_READ_LEASE, "this broker is shutting down", field="read.mode"
            )
        self._last_reader_at = now
        if not self.held(now) and now - self._hastened_at >= RETRY_S:
            self._hastened_at = now
            self._on_wanted()

    def wanted(self, now: float) -> bool:
        """Return whether heartbeats should ask for the lease."""
        return not self._renounced and now - self._last_reader_at < WANTED_FOR_S

    def held(self, now: float) -> bool:
        """Return whether the lease is in force."""
        return (
            now < self._ends_at and self._of_epoch == self._broker_epoch() and not self._renounced
        )

    def answered(self, sent_at: float, lease_ms: int, refusal: str) -> None:
        """Process the controller's answer to a heartbeat that was sent at ``sent_at``.

        0 ms: no lease, which revokes no earlier one.
        """
        self._refusal = refusal
        epoch = self._broker_epoch()
        if lease_ms <= 0 or epoch < 0 or self._renounced:
            return
        if epoch != self._of_epoch:
            self._of_epoch, self._ends_at = epoch, -math.inf
        self._ends_at = max(self._ends_at, sent_at + lease_ms / 1000)

    def refusal(self) -> str:
        """Return why the controller last refused the lease; empty: it did not, or was not asked."""
        return self._refusal

    def next_heartbeat_s(self, now: float, lease_ms: int) -> float:
        """Return the time until the next heartbeat is due for the lease, given the length of the
        one just received.
        """
        if not self.wanted(now):
            return math.inf
        return lease_ms / 1000 / RENEWALS_PER_LEASE if lease_ms > 0 else RETRY_S

    def remaining_ms(self, now: float) -> int:
        """Return how long the lease is still in force; 0: it is not."""
        return max(0, int((self._ends_at - now) * 1000)) if self.held(now) else 0

    def renounce(self) -> None:
        """Give the lease up for good: this process stops, and may be fenced at any time."""
        self._renounced = True
