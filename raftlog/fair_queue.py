"""A queue in which nobody waits for more than one item of each other holder. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """In order for each holder, and one holder after the other: whoever sends ten thousand at once
    delays itself. O(1).
    """

    __slots__ = ("_queues", "length")

    def __init__(self) -> None:
        # In the order of their turns; never with an empty queue.
        self._queues: dict[Hashable, deque[T]] = {}
        self.length = 0
        """How many wait.

        To be read only; asked for each item, where a call of ``len`` would be felt.
        """

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[T]:
        for queue in self._queues.values():
            yield from queue

    def length_of(self, holder: Hashable) -> int:
        """How many of a holder wait."""
        queue = self._queues.get(holder)
        return 0 if queue is None else len(queue)

    def push(self, holder: Hashable, item: T) -> None:
        """Append."""
        queue = self._queues.get(holder)
        if queue is None:
            self._queues[holder] = deque((item,))
        else:
            queue.append(item)
        self.length += 1

    def pop(self) -> T | None:
        """The next one; None if there is none."""
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
        """Take out all that are unwanted. O(n)."""
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
