"""A census of all records: their range, by epoch and by type."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from raftlog.metadata.records import RecordType
from replay.kernels.arrays import ints
from replay.kernels.idle import Idle, idle
from replay.kernels.passes import Pass, Rows
from replay.kernels.rules.quorum import Epoch, epochs_of, together

COLUMNS = ("offset", "epoch", "timestamp_ms", "type")


@dataclass
class Census:
    """Census of a log. ``known_ms``: epoch -> time of its first progress record; ``idle``: epoch ->
    its NoOp records.
    """

    types: Counter[int] = field(default_factory=Counter)
    epochs: list[Epoch] = field(default_factory=list)
    known_ms: dict[int, int] = field(default_factory=dict)
    idle: dict[int, Idle] = field(default_factory=dict)

    @property
    def records(self) -> int:
        """Number of records."""
        return self.types.total()

    @property
    def first_ms(self) -> int:
        """Time of the first record, in ms."""
        return min(each.first_ms for each in self.epochs)

    @property
    def last_ms(self) -> int:
        """Time of the last record, in ms."""
        return max(each.last_ms for each in self.epochs)

    def merge(self, other: Census) -> None:
        """Add the counts of another part, which comes behind this one."""
        self.types += other.types
        self.epochs = together([*self.epochs, *other.epochs])
        for epoch, at_ms in other.known_ms.items():
            self.known_ms[epoch] = min(at_ms, self.known_ms.get(epoch, at_ms))
        for epoch, later in other.idle.items():
            before = self.idle.get(epoch)
            self.idle[epoch] = later if before is None else before.followed_by(later)


class Counting:
    """Part of a pass that counts COLUMNS of all records."""

    def __init__(self) -> None:
        self._found = Census()

    def take(self, table: pa.Table) -> None:
        """The next slice."""
        if not table.num_rows:
            return
        type_, epoch, at_ms = (ints(table[name]) for name in ("type", "epoch", "timestamp_ms"))
        numbers, counts = np.unique(type_, return_counts=True)
        of_progress = type_ == RecordType.PROGRESS
        of_idle = type_ == RecordType.NO_OP
        known: dict[int, int] = {}
        which, first = np.unique(epoch[of_progress], return_index=True)
        for each, place in zip(which.tolist(), first.tolist(), strict=True):
            known[each] = int(at_ms[of_progress][place])
        self._found.merge(
            Census(
                Counter(dict(zip(numbers.tolist(), counts.tolist(), strict=True))),
                list(epochs_of(table)),
                known,
            )
        )
        for each, found in idle(epoch[of_idle], at_ms[of_idle]):
            self._found.merge(Census(idle={each: found}))

    def end(self) -> Census:
        """Return the counts."""
        return self._found


def census(log: Rows) -> Census:
    """Return the census of a log."""
    found = Census()
    for part in log.run(Pass(Counting, COLUMNS)):
        found.merge(part)
    return found
