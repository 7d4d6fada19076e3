"""When a watcher has heard nothing for so long that it is told how far it has come. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.watch.responses import response
from raftlog.wire.broker.v1 import broker_pb2 as pb

if TYPE_CHECKING:
    from broker.watch.hub import Watcher

LEAST_MS = 100
"""The shortest interval between two tellings of progress."""
EARLY_S = 1.0
"""A watcher whose last token is about to leave the history is told at most so often."""


class ProgressClock:
    """Who was told something when, for intervals that are rounded up to a power of two times
    LEAST_MS: those of one length stand in one queue, so that only its front is looked at.
    """

    def __init__(self) -> None:
        self._queues: dict[int, dict[Watcher, float]] = {}
        """By interval: when each was told something, the one that waits longest first."""
        self._interval_of: dict[Watcher, int] = {}
        self._last = (b"", b"")

    def add(self, watcher: Watcher, interval_ms: int, now: float) -> None:
        """A watcher that was told something now."""
        interval = LEAST_MS
        while interval < interval_ms:
            interval *= 2
        self._interval_of[watcher] = interval
        self._queues.setdefault(interval, {})[watcher] = now

    def remove(self, watcher: Watcher) -> None:
        """A watcher is gone."""
        interval = self._interval_of.pop(watcher)
        queue = self._queues[interval]
        del queue[watcher]
        if not queue:
            del self._queues[interval]

    def told(self, watcher: Watcher, now: float) -> None:
        """A watcher was told something; one that is gone by now is nobody's business."""
        interval = self._interval_of.get(watcher)
        if interval is not None:
            queue = self._queues[interval]
            del queue[watcher]
            queue[watcher] = now

    def due(self, now: float, stale_offset: int) -> Watcher | None:
        """One who should be told something; None: nobody yet.

        ``stale_offset``: who knows of nothing behind it is told sooner.
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
        """A response with nothing but a token; many want the same."""
        key = token.SerializeToString()
        if self._last[0] != key:
            self._last = (key, response(token))
        return self._last[1]
