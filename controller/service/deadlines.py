"""By when each of very many is due, without looking at all of them each time. Pure.

Most are done before anybody asks: they cost an append here. What is still there at a look goes into
a heap, once; what is done in it is passed over, and swept out when it is more than half of it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

SLACK = 1_024
"""So many that are done may stay in the heap, however few are not."""

NEW_A_LOOK = 8_192
"""So many are put into the heap at one look: more in a tenth of a second is a flood, and the rest
is a little late.
"""


class Awaited(Protocol):
    """Something with a deadline that may be done before it."""

    deadline: float
    done: bool


T = TypeVar("T", bound=Awaited)


class Deadlines(Generic[T]):
    """Those of one queue. O(1) to add; O(log n) for each that has waited through a look."""

    __slots__ = ("_count", "_heap", "_new", "add")

    def __init__(self) -> None:
        self._new: deque[T] = deque()
        self.add: Callable[[T], None] = self._new.append
        """From now on. It is on the way of every request."""
        self._heap: list[tuple[float, int, T]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._new) + len(self._heap)

    def late(self, now: float, waiting: int) -> Iterator[T]:
        """Take out one after the other whose time is up.

        Whoever stops in between goes on with the next call.

        ``waiting``: how many are not done. What is handed out is to be marked as done before the
        next one is asked for.
        """
        new = self._new
        for _ in range(min(len(new), NEW_A_LOOK)):
            one = new.popleft()
            if not one.done:
                self._count += 1
                heapq.heappush(self._heap, (one.deadline, self._count, one))
        if len(self._heap) > 2 * waiting + SLACK:
            self._heap = [entry for entry in self._heap if not entry[2].done]
            heapq.heapify(self._heap)
        while self._heap and self._heap[0][0] <= now:
            one = heapq.heappop(self._heap)[2]
            if not one.done:
                yield one
