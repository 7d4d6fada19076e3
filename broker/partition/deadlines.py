"""A heap of timers, for everything that waits for time.

Cancelling a timer is free at first and costs a little later.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from raftlog.clock import NEVER

_COMPACT_ABOVE = 64


class Timer:
    """A call due once. ``run`` is None once it has run or was cancelled."""

    __slots__ = ("run", "when")

    def __init__(self, when: float, run: Callable[[], None]) -> None:
        self.when = when
        self.run: Callable[[], None] | None = run


class Deadlines:
    """Timers in order of time, then of creation."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._made = 0
        self._cancelled = 0

    def __len__(self) -> int:
        return len(self._heap) - self._cancelled

    def at(self, when: float, run: Callable[[], None]) -> Timer:
        """Call ``run`` once, at ``when`` or later."""
        timer = Timer(when, run)
        self._made += 1
        heapq.heappush(self._heap, (when, self._made, timer))
        return timer

    def cancel(self, timer: Timer | None) -> None:
        """Cancel a timer; does nothing if it has run, or if it is None."""
        if timer is None or timer.run is None:
            return
        timer.run = None
        self._cancelled += 1
        if self._cancelled > max(_COMPACT_ABOVE, len(self._heap) // 2):
            self._heap = [entry for entry in self._heap if entry[2].run is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def next(self) -> float:
        """Return when the next timer is due."""
        heap = self._heap
        while heap and heap[0][2].run is None:
            heapq.heappop(heap)
            self._cancelled -= 1
        return heap[0][0] if heap else NEVER

    def run_due(self, now: float) -> None:
        """Run the timers that are due, in order."""
        while self.next() <= now:
            timer = heapq.heappop(self._heap)[2]
            run, timer.run = timer.run, None
            assert run is not None
            run()
