"""A census of all records: their range, by epoch and by type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from raftlog.metadata.records import RecordType
from replay.errors import ReplayError
from replay.kernels.arrays import Ints, ints
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


def count_records(log: Rows) -> Census:
    """Return the census of a log. Raises ReplayError if the log is empty."""
    found = Census()
    for part in log.run(Pass(Counting, COLUMNS)):
        found.merge(part)
    return require_records(found)


_ENOUGH = 3
"""Least number of records from which the interval is known. One may have another's time, at the end
of a transaction.
"""


class Idle(NamedTuple):
    """Idle records (NO_OP) of one epoch. ``longest_ms``: the longest interval between two that
    follow each other.
    """

    records: int
    first_ms: int
    last_ms: int
    longest_ms: int

    def followed_by(self, later: Idle) -> Idle:
        """Both, in the order of the log."""
        between_ms = later.first_ms - self.last_ms
        longest_ms = max(self.longest_ms, between_ms, later.longest_ms)
        return Idle(self.records + later.records, self.first_ms, later.last_ms, longest_ms)

    @property
    def due_ms(self) -> int | None:
        """Return the latest time at which the next record was due, by the intervals before it: a
        controller that had not written by then was not active any more. None: too few records to
        tell.
        """
        if self.records < _ENOUGH or not self.longest_ms:
            return None
        return self.last_ms + self.longest_ms


def idle(epoch: Ints, timestamp_ms: Ints) -> Iterator[tuple[int, Idle]]:
    """Yield the intervals of NoOp records in order, epoch by epoch; an epoch may come several
    times.
    """
    if not len(epoch):
        return
    starts = np.flatnonzero(np.diff(epoch, prepend=epoch[0] - 1))
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(epoch)], strict=True):
        at_ms = timestamp_ms[start:end]
        longest_ms = int(np.diff(at_ms).max(initial=0))
        yield int(epoch[start]), Idle(end - start, int(at_ms[0]), int(at_ms[-1]), longest_ms)


def require_records(found: Census) -> Census:
    """Return a census of records. Raises ReplayError if there are none."""
    if not found.records:
        raise ReplayError("no whole batch lies within the offsets asked for")
    return found
