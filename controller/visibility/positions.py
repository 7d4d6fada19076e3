"""How far brokers are, in order: whoever is behind, and how far the last one is.

Brokers move together, from one offset to the next. So they are kept by offset: most moves are a
few steps in two sets, however many brokers there are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

Position = tuple[int, int, int]
"""(offset, broker id, broker epoch): how far a broker is known to be."""
NOWHERE = 1 << 63
"""In the place of an offset where there is no broker: above each."""


class Positions:
    """A sorted set of positions. Pure; O(log different offsets) a change, and as many steps as
    there are offsets between.
    """

    __slots__ = ("_at", "_offsets", "count", "lowest")

    def __init__(self) -> None:
        self._at: dict[int, set[tuple[int, int]]] = {}
        """Offset -> who is there, by broker id and epoch."""
        self._offsets: list[int] = []
        """The keys of ``_at``, ascending."""
        self.count = 0
        """How many there are. An attribute, as the next: each report of a broker asks for both."""
        self.lowest = NOWHERE
        """The lowest offset; NOWHERE if there is none."""

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Position]:
        """Ascending."""
        return self.until(self._offsets[-1]) if self._offsets else iter(())

    def until(self, offset: int) -> Iterator[Position]:
        """Those at ``offset`` and below, ascending."""
        for each in self._offsets[: bisect_right(self._offsets, offset)]:
            for broker_id, epoch in sorted(self._at[each]):
                yield each, broker_id, epoch

    def add(self, position: Position) -> None:
        """A broker that is not there."""
        offset, broker_id, epoch = position
        there = self._at.get(offset)
        if there is None:
            there = self._at[offset] = set()
            offsets = self._offsets
            if offsets and offset < offsets[-1]:
                offsets.insert(bisect_left(offsets, offset), offset)
            else:
                offsets.append(offset)
            self.lowest = offsets[0]
        there.add((broker_id, epoch))
        self.count += 1

    def remove(self, position: Position) -> None:
        """Raises KeyError if it is not there."""
        offset, broker_id, epoch = position
        there = self._at[offset]
        there.remove((broker_id, epoch))
        self.count -= 1
        if not there:
            del self._at[offset]
            offsets = self._offsets
            del offsets[bisect_left(offsets, offset)]
            self.lowest = offsets[0] if offsets else NOWHERE

    def move(self, position: Position, offset: int) -> None:
        """A broker goes on to where others are, or ahead of all. Raises KeyError if it is not
        there.
        """
        before, broker_id, epoch = position
        to, there = self._at.get(offset), self._at[before]
        if to is None or len(there) == 1:
            self.remove(position)
            self.add((offset, broker_id, epoch))
            return
        broker = (broker_id, epoch)
        there.remove(broker)
        to.add(broker)
