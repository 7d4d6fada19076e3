"""Troubles of partitions: spells without a leader and spells with an incomplete ISR.

Spells are grouped by the time at which they began, so that fencing a broker with a hundred thousand
partitions takes only a few rows.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np

from replay.kernels.arrays import NEVER, Ints, some
from replay.kernels.facts import Facts
from replay.kernels.groups import Grouped
from replay.kernels.intervals import Intervals, SpellFinder, Spells
from replay.kernels.steps import Partitions, Steps
from replay.outages.service import Stretch


class Moments(NamedTuple):
    """Spells grouped by the time at which they began, one element per time, in order.

    ``ends_ms``: latest end of the group's spells; NEVER if one is still open. ``begins``: lowest
    offset at which one began. ``spells``: number of spells. ``key``: one of the affected
    partitions. ``lasted_ms``: total length of the closed spells. ``lasting``: number of open
    spells.
    """

    begins_ms: Ints
    ends_ms: Ints
    begins: Ints
    spells: Ints
    key: Ints
    lasted_ms: Ints
    lasting: Ints


class Condition:
    """Spells during which partitions were in one condition.

    ``lost``: per partition, the total length in ms of its spells within the stretch, their number,
    and the length of the longest in ms.
    """

    def __init__(self, stretch: Stretch) -> None:
        self._stretch = stretch
        self.lost = Grouped(np.add, np.add, np.maximum)
        self._changes = Grouped(np.add)
        self._moments = Grouped(np.maximum, np.minimum, np.add, np.minimum, np.add, np.add)

    def add(self, spells: Spells) -> None:
        """Add spells that have ended or are open at the end of the log."""
        begins_ms, ends_ms = spells.begins_ms, spells.ends_ms
        lasting = ends_ms == NEVER
        lasted_ms = np.where(lasting, 0, ends_ms - begins_ms)
        self._moments.add(begins_ms, ends_ms, spells.begins, 1, spells.key, lasted_ms, lasting)
        self._changes.add(begins_ms, 1)
        self._changes.add(ends_ms[~lasting], -1)
        inside = self._stretch.has(begins_ms, ends_ms)
        lost_ms = self._stretch.lengths(begins_ms, ends_ms)[inside]
        self.lost.add(spells.key[inside], lost_ms, 1, lost_ms)

    def merge(self, other: Condition) -> None:
        """Add the spells of another part."""
        self.lost.merge(other.lost)
        self._changes.merge(other._changes)
        self._moments.merge(other._moments)

    @cached_property
    def moments(self) -> Moments:
        """The spells, grouped by the time at which they began."""
        return Moments(*self._moments.rows())

    @cached_property
    def levels(self) -> tuple[Ints, Ints]:
        """The times at which the number of affected partitions changed, and the number from each
        time onwards.
        """
        at_ms, by = self._changes.rows()
        return at_ms[by != 0], np.cumsum(by[by != 0])

    def began(self, since_ms: int, until_ms: int) -> Moments:
        """Return the spells that began between two times, both inclusive."""
        first = np.searchsorted(self.moments.begins_ms, since_ms)
        last = np.searchsorted(self.moments.begins_ms, until_ms, side="right")
        return some(self.moments, np.arange(first, last))

    def extent(self, since_ms: int, until_ms: int, end_ms: int) -> tuple[int, int]:
        """Return (partitions, partition-time): the most partitions affected at once between two
        times (inclusive), beyond those affected before; and the total length in ms, up to the end
        of the log, of the spells that began in between.
        """
        at_ms, level = self.levels
        first = int(np.searchsorted(at_ms, since_ms))
        last = int(np.searchsorted(at_ms, until_ms, side="right"))
        before = int(level[first - 1]) if first else 0
        began = self.began(since_ms, until_ms)
        lost_ms = began.lasted_ms + began.lasting * (end_ms - began.begins_ms)
        return int(level[first:last].max(initial=before)) - before, int(lost_ms.sum())


class Troubled:
    """Troubles of partitions. ``life_ms``: total time in ms, over all partitions, for which they
    existed within the stretch.
    """

    def __init__(self, stretch: Stretch) -> None:
        self.leaderless, self.short = Condition(stretch), Condition(stretch)
        self.life_ms = 0

    def merge(self, other: Troubled) -> Troubled:
        """Add the troubles of another part."""
        self.leaderless.merge(other.leaderless)
        self.short.merge(other.short)
        self.life_ms += other.life_ms
        return self


class TroubleWatcher:
    """A watcher that collects the troubles of partitions within a stretch; ``found`` returns
    Troubled.
    """

    def __init__(self, stretch: Stretch, facts: Facts, partitions: Partitions) -> None:
        del facts, partitions
        self._stretch, self._found = stretch, Troubled(stretch)
        self._leaderless, self._short = SpellFinder(), SpellFinder()

    def take(self, steps: Steps, intervals: Intervals) -> None:
        """Process a slice."""
        del steps
        self._found.leaderless.add(self._leaderless.take(intervals, intervals.leaderless))
        self._found.short.add(self._short.take(intervals, intervals.short))
        lived_ms = self._stretch.lengths(intervals.begins_ms, intervals.ends_ms)
        self._found.life_ms += int(lived_ms.sum())

    last = take

    def found(self) -> Troubled:
        """Return the troubles of all watched partitions."""
        self._found.leaderless.add(self._leaderless.end())
        self._found.short.add(self._short.end())
        return self._found
