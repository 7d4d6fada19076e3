"""The throttle of replication to replicas that are being added (KIP-73): the bytes per second that
this broker sends to them as a leader, and fetches for them as a follower.

The metadata shows which replicas are being added, so throttled replicas need not be listed in a
config that could be left over. A replica that is, or was, in the ISR is never throttled.

Why: docs/decisions/040-moves-are-throttled-by-bytes.md
"""

from __future__ import annotations

import math
from collections.abc import Collection

from raftlog.metadata.config_keys import broker_value
from raftlog.metadata.entities import Partition
from raftlog.metadata.image import Image

BURST_S, PAUSE_S = 1.0, 0.1
"""Budget, in seconds at the full rate, that an idle throttle saves up, and that an exhausted one
waits for.
"""
LOOK_AGAIN_S = 1.0
"""Longest pause of a throttled replica, in seconds; by then the rate may have changed, or the
replica may be in sync.
"""


def rate_of(image: Image, broker_id: int, key: str) -> float:
    """Return the bytes per second that a broker's configs allow, or math.inf if there is no
    throttle.
    """
    value = broker_value(image, broker_id, key)
    return math.inf if value is None else max(1.0, float(value))


def is_being_added(partition: Partition | None, replica_id: int, isr: Collection[int]) -> bool:
    """Return whether a replica is being added, and is not in sync yet."""
    adding = () if partition is None else partition.adding_replicas
    return replica_id in adding and replica_id not in isr


class Throttle:
    """A budget of bytes.

    A batch of any size passes while some bytes are left, and the excess is owed: so a low rate
    makes a move slow, but never stops it.
    """

    def __init__(self) -> None:
        self._rate = self._left = math.inf
        self._at = 0.0

    def set_rate(self, rate: float, now: float) -> None:
        """Set the rate to ``rate`` bytes per second from now on."""
        if rate != self._rate:
            left = self.left(now)
            self._rate, self._left = rate, min(left, rate * BURST_S)
            if rate == math.inf:
                self._left = rate

    def left(self, now: float) -> float:
        """Return the bytes that may pass now; negative if bytes are owed."""
        if self._rate < math.inf:
            gained = max(0.0, now - self._at) * self._rate
            self._left = min(self._left + gained, self._rate * BURST_S)
        self._at = now
        return self._left

    def spend(self, size_bytes: int, now: float) -> None:
        """Subtract bytes that pass."""
        self._left = self.left(now) - size_bytes

    def ready_at(self, now: float) -> float:
        """Return when bytes may pass: now, or soon."""
        left = self.left(now)
        if left > 0:
            return now
        return now + min(LOOK_AGAIN_S, PAUSE_S - left / self._rate)
