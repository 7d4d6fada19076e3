"""A stretch of time: the part of an interval in it, and the share of each of its hours or days."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from replay.kernels.arrays import Bools, Ints

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
_HOURS_UP_TO_DAYS = 3


class Stretch(NamedTuple):
    """A stretch of time: ``since_ms`` to ``until_ms``."""

    since_ms: int
    until_ms: int

    @classmethod
    def of(cls, first_ms: int, last_ms: int, since_ms: int | None) -> Stretch:
        """Return the stretch of the records, from ``since_ms`` on if it is within them; None: all
        of it.
        """
        return cls(first_ms if since_ms is None else min(max(since_ms, first_ms), last_ms), last_ms)

    @property
    def length_ms(self) -> int:
        """Length of the stretch in ms."""
        return max(0, self.until_ms - self.since_ms)

    @property
    def period_ms(self) -> int:
        """Length of its periods in ms: hours, or days if it has more than three."""
        return HOUR_MS if self.length_ms <= _HOURS_UP_TO_DAYS * DAY_MS else DAY_MS

    @property
    def periods(self) -> range:
        """Begin of each of its hours or days."""
        return range(
            self.since_ms - self.since_ms % self.period_ms, self.until_ms + 1, self.period_ms
        )

    def has(self, begins_ms: Ints, ends_ms: Ints) -> Bools:
        """Return whether each interval overlaps the stretch; an open one ends at NEVER."""
        return (begins_ms <= self.until_ms) & (ends_ms >= self.since_ms)

    def clip(self, begins_ms: Ints, ends_ms: Ints) -> tuple[Ints, Ints]:
        """Return the part of each interval in the stretch, of those that overlap it."""
        return np.maximum(begins_ms, self.since_ms), np.minimum(ends_ms, self.until_ms)

    def clip_one(self, begins_ms: int, ends_ms: int | None) -> tuple[int, int] | None:
        """Return the same of one interval (None: it lasts); None: nothing lies in it."""
        ends = self.until_ms if ends_ms is None else ends_ms
        if begins_ms > self.until_ms or ends < self.since_ms:
            return None
        return max(begins_ms, self.since_ms), min(ends, self.until_ms)

    def by_period(self, begins_ms: Ints, ends_ms: Ints) -> Ints:
        """Return how long clipped intervals lasted in each period, added up.

        The cost is that of their ends, however many periods an interval spans.
        """
        first, length, count = self.periods.start, self.period_ms, len(self.periods)
        net, inside = np.zeros(count, np.int64), np.zeros(count, np.int64)
        for at_ms, sign in ((begins_ms, 1), (ends_ms, -1)):
            period = (at_ms - first) // length
            np.add.at(net, period, sign)
            np.add.at(inside, period, sign * (first + (period + 1) * length - at_ms))
        return (np.cumsum(net) - net) * length + inside
