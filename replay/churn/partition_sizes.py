"""Sizes of partitions, without a fold: most records are about them, and their states are known from
the steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np

from replay.churn.packed import packed_ints, packed_list
from replay.churn.state_size import Grown, grow_many, in_snapshots
from replay.kernels.arrays import NEVER, Ints
from replay.kernels.facts import Facts
from replay.kernels.intervals import Intervals, Removals
from replay.kernels.lists import Lists
from replay.kernels.steps import Partitions, Steps

_HEADS = 1 + 1
"""Size of the heads of the entity and of the partition: arrays of fewer than 16 elements."""
_ID = 2 + 16
"""The topic's."""


class _ListSizes:
    """Sizes of the different lists; each is computed once."""

    def __init__(self, lists: Lists) -> None:
        self._lists = lists
        self._sizes = np.array([packed_list(())], np.int64)
        """Sizes by list number; the first is that of no list, which a state has as an empty one."""

    def of(self, numbers: Ints) -> Ints:
        """Return the sizes of lists by their numbers; NOTHING: no list."""
        new = self._lists.members[len(self._sizes) - 1 :]
        if new:
            more = np.array([packed_list(each) for each in new], np.int64)
            self._sizes = np.concatenate([self._sizes, more])
        return self._sizes[np.maximum(numbers, -1) + 1]


@dataclass
class SizeWatcher:
    """Watcher of partitions; ``found`` gives the growth in each period: for each step the
    difference to the state before, so that only the last one of a period counts.
    """

    period_ms: int
    facts: Facts
    partitions: Partitions
    _grown: Grown = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Prepare the removals once."""
        self._removals = Removals(self.facts)
        self._lists = _ListSizes(self.partitions.lists)

    def take(self, steps: Steps, intervals: Intervals) -> None:
        """A slice."""
        del intervals
        if not len(steps.key):
            return
        gone = np.zeros(len(steps.key), np.bool_)
        gone[1:] = ~steps.first[1:] & (steps.removed[:-1] <= steps.begins[1:])
        size = self._sizes(steps)
        before = np.concatenate([[0], size[:-1]])
        before[steps.first | gone] = 0
        came = (before == 0).astype(np.int64)
        real = steps.real
        self._grow(steps.begins_ms[real], came[real], (size - before)[real])
        self._remove(steps, size, np.flatnonzero(gone) - 1)

    def _sizes(self, steps: Steps) -> Ints:
        """Return the size of each state as an entity in a snapshot, in bytes."""
        length = np.full(len(steps.key), _HEADS + _ID, np.int64)
        for numbers in (steps.key & 0xFFFFFFFF, steps.leader):
            length += packed_ints(numbers)
        for numbers in (steps.recovery, steps.leader_epoch, steps.partition_epoch):
            length += packed_ints(np.maximum(numbers, 0))
        for lists in (steps.replicas, steps.isr, steps.removing, steps.adding):
            length += self._lists.of(lists)
        return in_snapshots(length)

    def _remove(self, steps: Steps, size: Ints, rows: Ints) -> None:
        gone = np.full(len(rows), -1, np.int64)
        self._grow(self._removals.times(steps.removed[rows]), gone, -size[rows])

    def _grow(self, at_ms: Ints, entities: Ints, sizes: Ints) -> None:
        grow_many(self._grown, at_ms - at_ms % self.period_ms, entities, sizes)

    def last(self, steps: Steps, intervals: Intervals) -> None:
        """Process the last states of partitions: one that ended was deleted with its topic."""
        self._remove(steps, self._sizes(steps), np.flatnonzero(intervals.ends != NEVER))

    def found(self) -> Grown:
        """Return the growth by all watched partitions."""
        return self._grown


def size_watcher(period_ms: int) -> partial[SizeWatcher]:
    """Return a factory of watchers that can be pickled."""
    return partial(SizeWatcher, period_ms)
