"""The broker's side of the lease for strict reads (``controller.state.leases`` has the
other). Pure.

It runs from when the heartbeat that got it was *sent*, by this broker's clock: the reply may be
late, and says what was so when the heartbeat arrived [a reply is held up for longer than the
margin: counted from its arrival, the lease outlives the session]. It is of one broker epoch. A
controller that is elected later knows nothing of it and respects it all the same, so it survives
failovers.

It is asked for only while somebody reads strictly: heartbeats are then a third of a lease apart at
the most.

Why: docs/decisions/011-read-leases.md
"""

from __future__ import annotations

import math
from collections.abc import Callable

from raftlog.errors import ApiError, ErrorCode

WANTED_FOR_S = 30.0
"""How long after the last strict reader a lease is still kept up."""
RENEWALS_PER_LEASE = 3
RETRY_S = 0.25
"""The least time between heartbeats that are sent because a strict read waits."""


class ReadLease:
    """Whether this broker may answer strict reads now.

    ``broker_epoch``: of its present registration, -1 if it has none.
    """

    def __init__(self, broker_epoch: Callable[[], int], on_wanted: Callable[[], None]) -> None:
        """``on_wanted``: a reader waits for a lease; a heartbeat should leave at once."""
        self._broker_epoch = broker_epoch
        self._on_wanted = on_wanted
        self._last_reader_at = self._hastened_at = -math.inf
        self._ends_at = -math.inf
        self._of_epoch = -1
        self._renounced = False
        self._refusal = ""

    def reader(self, now: float) -> None:
        """Somebody reads strictly. Raises NO_READ_LEASE if this process stops."""
        if self._renounced:
            raise ApiError(
                ErrorCode.NO_READ_LEASE, "this broker is shutting down", field="read.mode"
            )
        self._last_reader_at = now
        if not self.held(now) and now - self._hastened_at >= RETRY_S:
            self._hastened_at = now
            self._on_wanted()

    def wanted(self, now: float) -> bool:
        """Whether to ask for it."""
        return not self._renounced and now - self._last_reader_at < WANTED_FOR_S

    def held(self, now: float) -> bool:
        """Whether it is in force."""
        return (
            now < self._ends_at and self._of_epoch == self._broker_epoch() and not self._renounced
        )

    def answered(self, sent_at: float, lease_ms: int, refusal: str) -> None:
        """The controller has answered a heartbeat that was sent at ``sent_at``.

        0 ms: no lease, which takes no earlier one back.
        """
        self._refusal = refusal
        epoch = self._broker_epoch()
        if lease_ms <= 0 or epoch < 0 or self._renounced:
            return
        if epoch != self._of_epoch:
            self._of_epoch, self._ends_at = epoch, -math.inf
        self._ends_at = max(self._ends_at, sent_at + lease_ms / 1000)

    def refusal(self) -> str:
        """Why the controller gave none the last time; empty if it did, or was not asked."""
        return self._refusal

    def next_heartbeat_s(self, now: float, lease_ms: int) -> float:
        """By when the next heartbeat is due for the lease's sake, given the length of the one just
        got.
        """
        if not self.wanted(now):
            return math.inf
        return lease_ms / 1000 / RENEWALS_PER_LEASE if lease_ms > 0 else RETRY_S

    def remaining_ms(self, now: float) -> int:
        """How long it is still in force; 0: it is not."""
        return max(0, int((self._ends_at - now) * 1000)) if self.held(now) else 0

    def renounce(self) -> None:
        """For good: this process stops and says so, and from then on may be fenced at any time."""
        self._renounced = True
