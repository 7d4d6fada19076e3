"""A clock for progress: finds the watcher that was sent nothing for its interval. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.watch.responses import response
from raftlog.wire.broker.v1 import broker_pb2 as pb

if TYPE_CHECKING:
    from broker.watch.hub import Watcher

LEAST_MS = 100
"""Shortest interval between two progress responses, in milliseconds."""
EARLY_S = 1.0
"""Shortest interval in seconds for a watcher whose last token is about to leave the history."""


class ProgressClock:
    """The time of each watcher's last response, for intervals that are rounded up to a power of two
    times LEAST_MS: those of one length share a queue, so that only its front is looked at.
    """

    def __init__(self) -> None:
        self._queues: dict[int, dict[Watcher, float]] = {}
        """Time of each watcher's last response, by interval, oldest first."""
        self._interval_of: dict[Watcher, int] = {}
        self._last = (b"", b"")

    def add(self, watcher: Watcher, interval_ms: int, now: float) -> None:
        """Add a watcher that received a response now."""
        interval = LEAST_MS
        while interval < interval_ms:
            interval *= 2
        self._interval_of[watcher] = interval
        self._queues.setdefault(interval, {})[watcher] = now

    def remove(self, watcher: Watcher) -> None:
        """Remove a watcher."""
        interval = self._interval_of.pop(watcher)
        queue = self._queues[interval]
        del queue[watcher]
        if not queue:
            del self._queues[interval]

    def told(self, watcher: Watcher, now: float) -> None:
        """Note a response to a watcher; one that is already removed is ignored."""
        interval = self._interval_of.get(watcher)
        if interval is not None:
            queue = self._queues[interval]
            del queue[watcher]
            queue[watcher] = now

    def due(self, now: float, stale_offset: int) -> Watcher | None:
        """Return a watcher that should get a response; None: none is due.

        ``stale_offset``: a watcher without news from behind it is due sooner.
        """
        for interval, queue in self._queues.items():
            watcher, told_at = next(iter(queue.items()))
            silent_s = now - told_at
            if silent_s * 1000 >= interval:
                return watcher
            position = watcher.position
            if position is not None and position.offset < stale_offset and silent_s >= EARLY_S:
                return watcher
        return None

    def bytes_of(self, token: pb.WatchToken) -> bytes:
        """Return a response with nothing but a token; many watchers get the same."""
        key = token.SerializeToString()
        if self._last[0] != key:
            self._last = (key, response(token))
        return self._last[1]
