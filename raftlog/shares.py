"""Fairness among peers that may be greedy: shares of something bounded, and a queue in which they
take turns. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar


class Shares:
    """Divides a bounded total among holders: none may have more than is left for the others.

    One greedy holder gets half of the total, and n of them 1/(n+1) each: a newcomer always finds as
    much as anybody has. A fixed quota would either be too small for one honest holder alone, or too
    large for many. O(1).
    """

    __slots__ = ("_held", "_max_total", "total")

    def __init__(self, max_total: int) -> None:
        self._max_total = max_total
        self._held: dict[Hashable, int] = {}
        self.total = 0

    def held(self, holder: Hashable) -> int:
        """Return the amount that a holder has."""
        return self._held.get(holder, 0)

    def has_room(self, holder: Hashable, amount: int = 1) -> bool:
        """Return whether a holder may take ``amount``."""
        held = self._held.get(holder, 0)
        # A holder that has nothing may have the rest: nothing is wasted on the rule.
        return held + amount <= self._max_total - self.total - (amount if held else 0)

    def take(self, holder: Hashable, amount: int = 1) -> bool:
        """Take ``amount`` for a holder; False: it is not free, and nothing was taken."""
        # As ``has_room``: this is on the way of every request.
        held = self._held.get(holder, 0)
        total = self.total + amount
        if held + total > self._max_total - (amount if held else 0):
            return False
        self._held[holder] = held + amount
        self.total = total
        return True

    def give_back(self, holder: Hashable, amount: int = 1) -> None:
        """Return ``amount`` of what a holder has."""
        left = self._held[holder] - amount
        self.total -= amount
        if left:
            self._held[holder] = left
        else:
            del self._held[holder]


T = TypeVar("T")


class FairQueue(Generic[T]):
    """A queue in which holders take turns: a holder with ten thousand items delays only itself.
    O(1) for each item.
    """

    __slots__ = ("_queues", "length")

    def __init__(self) -> None:
        # In the order of their turns; never with an empty queue.
        self._queues: dict[Hashable, deque[T]] = {}
        self.length = 0
        """Number of items; read only, where a call of ``len`` would cost too much."""

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[T]:
        for queue in self._queues.values():
            yield from queue

    def length_of(self, holder: Hashable) -> int:
        """Return the number of items of a holder."""
        queue = self._queues.get(holder)
        return 0 if queue is None else len(queue)

    def push(self, holder: Hashable, item: T) -> None:
        """Append an item of a holder."""
        queue = self._queues.get(holder)
        if queue is None:
            self._queues[holder] = deque((item,))
        else:
            queue.append(item)
        self.length += 1

    def pop(self) -> T | None:
        """Remove and return the next item; None: the queue is empty."""
        for holder, queue in self._queues.items():
            item = queue.popleft()
            self.length -= 1
            if len(self._queues) > 1 or not queue:
                del self._queues[holder]
                if queue:
                    self._queues[holder] = queue
            return item
        return None

    def remove(self, unwanted: Callable[[T], bool]) -> list[T]:
        """Remove and return all unwanted items. O(n)."""
        removed: list[T] = []
        kept: dict[Hashable, deque[T]] = {}
        for holder, queue in self._queues.items():
            wanted: deque[T] = deque()
            for item in queue:
                (removed if unwanted(item) else wanted).append(item)
            if wanted:
                kept[holder] = wanted
        self._queues = kept
        self.length -= len(removed)
        return removed
