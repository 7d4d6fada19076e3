"""The schedule of a generated history: actions by time, and events that recur at random."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from datetime import UTC, datetime

from simulation.generate.profile import DAY_MS

Action = Callable[[int], None]
"""Done at its time, in ms since 1970."""

_BUSY_HOURS = range(8, 19)
_SATURDAY = 5


class Schedule:
    """Schedule of actions by time, and then by the order in which they were planned."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._heap: list[tuple[int, int, Action]] = []
        self._planned = 0

    def at(self, at_ms: int, action: Action) -> None:
        """Plan an action."""
        self._planned += 1
        heapq.heappush(self._heap, (at_ms, self._planned, action))

    def pop(self) -> tuple[int, Action]:
        """Return the next one and its time. There must be one."""
        at_ms, _, action = heapq.heappop(self._heap)
        return at_ms, action

    def every(
        self, per_day: float, begin_ms: int, action: Action, *, by_people: bool = False
    ) -> None:
        """Repeat an action at random, ``per_day`` times on average; what is done by people is rare
        at night and on weekends.
        """
        if per_day <= 0:
            return
        # People's busiest hours have about twice the mean; the others are thinned out.
        rate = per_day * (2.0 if by_people else 1.0) / DAY_MS

        def happen(at_ms: int) -> None:
            self.at(at_ms + 1 + int(self._rng.expovariate(rate)), happen)
            if not by_people or self._rng.random() < _busy(at_ms):
                action(at_ms)

        self.at(begin_ms + 1 + int(self._rng.expovariate(rate)), happen)


def _busy(at_ms: int) -> float:
    """Return the activity at a time as a share of the highest."""
    moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    if moment.weekday() >= _SATURDAY:
        return 0.2
    return 0.9 if moment.hour in _BUSY_HOURS else 0.25
