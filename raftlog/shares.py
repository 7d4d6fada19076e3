"""Dividing something bounded among holders that may be greedy. Pure."""

from __future__ import annotations

from collections.abc import Hashable


class Shares:
    """A holder may have no more than what is left for the others.

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
        """What a holder has."""
        return self._held.get(holder, 0)

    def has_room(self, holder: Hashable, amount: int = 1) -> bool:
        """Whether a holder may take so much."""
        held = self._held.get(holder, 0)
        # Whoever has nothing may have the rest: what is left is never wasted on the rule.
        return held + amount <= self._max_total - self.total - (amount if held else 0)

    def take(self, holder: Hashable, amount: int = 1) -> bool:
        """Take so much for a holder; False: it is not to be had, and nothing was taken."""
        # As ``has_room``: this is on the way of every request.
        held = self._held.get(holder, 0)
        total = self.total + amount
        if held + total > self._max_total - (amount if held else 0):
            return False
        self._held[holder] = held + amount
        self.total = total
        return True

    def give_back(self, holder: Hashable, amount: int = 1) -> None:
        """Return what was taken."""
        left = self._held[holder] - amount
        self.total -= amount
        if left:
            self._held[holder] = left
        else:
            del self._held[holder]
