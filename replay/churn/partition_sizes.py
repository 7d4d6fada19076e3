"""How large partitions were, without a fold: most records are about them, and their states are
known from the steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np

from raftlog.metadata.entities import Partition, entity_bytes
from replay.churn.state_size import Grown, grow, in_snapshot
from replay.kernels.arrays import NEVER, Ints
from replay.kernels.facts import Facts
from replay.kernels.intervals import Intervals, Removals
from replay.kernels.lists import Lists
from replay.kernels.steps import Partitions, Steps


@dataclass
class SizeWatcher:
    """Watches partitions; ``found`` gives what each period brought. A partition is looked at once a
    period, however often it changed.
    """

    period_ms: int
    facts: Facts
    partitions: Partitions
    _sizes: dict[int, int] = field(default_factory=dict)
    """Of each partition that is there."""
    _grown: Grown = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Look removals up once."""
        self._removals = Removals(self.facts)

    def take(self, steps: Steps, intervals: Intervals) -> None:
        """A slice."""
        del intervals
        if not len(steps.key):
            return
        gone = np.zeros(len(steps.key), np.bool_)
        gone[1:] = ~steps.first[1:] & (steps.removed[:-1] <= steps.begins[1:])
        for row in np.flatnonzero(gone).tolist():
            self._remove(int(steps.key[row]), steps.removed[row - 1 : row])
        period = steps.begins_ms // self.period_ms
        last = np.ones(len(steps.key), np.bool_)
        last[:-1] = steps.first[1:] | (period[1:] != period[:-1]) | gone[1:]
        for row in np.flatnonzero(last & steps.real).tolist():
            key, size = int(steps.key[row]), in_snapshot(len(self._entity(steps, row)))
            before = self._sizes.get(key, 0)
            self._sizes[key] = size
            at_ms = int(period[row]) * self.period_ms
            grow(self._grown, at_ms, int(not before), size - before)

    def _remove(self, key: int, removed: Ints) -> None:
        size = self._sizes.pop(key, 0)
        if size:
            at_ms = int(self._removals.times(removed)[0])
            grow(self._grown, at_ms - at_ms % self.period_ms, -1, -size)

    def _entity(self, steps: Steps, row: int) -> bytes:
        def members(numbers: Ints, lists: Lists) -> tuple[int, ...]:
            number = int(numbers[row])
            return lists.members[number] if number >= 0 else ()

        key, lists = int(steps.key[row]), steps.lists
        return entity_bytes(
            (
                Partition(
                    bytes.fromhex(self.partitions.topic_of(key)),
                    key & 0xFFFFFFFF,
                    members(steps.replicas, lists),
                    members(steps.isr, lists),
                    members(steps.removing, lists),
                    members(steps.adding, lists),
                    int(steps.leader[row]),
                    max(0, int(steps.recovery[row])),
                    max(0, int(steps.leader_epoch[row])),
                    max(0, int(steps.partition_epoch[row])),
                ),
            )
        )

    def last(self, intervals: Intervals) -> None:
        """Those that nothing follows: if they ended, their topic went."""
        for place in np.flatnonzero(intervals.ends != NEVER).tolist():
            self._remove(int(intervals.key[place]), intervals.ends[place : place + 1])

    def found(self) -> Grown:
        """Of all partitions watched."""
        return self._grown


def size_watcher(period_ms: int) -> partial[SizeWatcher]:
    """What makes one; to be pickled."""
    return partial(SizeWatcher, period_ms)
