"""A census of all records: their range, and counts by epoch and type."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from raftlog.metadata.records import RecordType
from replay.errors import ReplayError
from replay.kernels.arrays import Ints, ints, starts_of
from replay.kernels.groups import Grouped
from replay.kernels.passes import Accumulator, Pass, Rows, run_merged

COLUMNS = ("offset", "epoch", "timestamp_ms", "type")


class Epoch(NamedTuple):
    """The offsets and times of one epoch's records, both inclusive."""

    epoch: int
    first: int
    last: int
    first_ms: int
    last_ms: int


class Census(Accumulator):
    """The census of a log, which is also the part of a pass that takes it. ``idle``: epoch -> its
    NO_OP records.
    """

    def __init__(self) -> None:
        self.idle: dict[int, Idle] = {}
        self._types = Grouped(np.add)
        self._epochs = Grouped(np.minimum, np.maximum, np.minimum, np.maximum)

    @property
    def types(self) -> dict[int, int]:
        """Number of records per type."""
        return {type_: count for type_, (count,) in self._types.by_key().items()}

    @property
    def epochs(self) -> list[Epoch]:
        """All epochs, in order."""
        return [Epoch(*row) for row in self._epochs.rows().T.tolist()]

    @property
    def records(self) -> int:
        """Number of records."""
        return sum(self.types.values())

    @property
    def first_ms(self) -> int:
        """Time of the first record, in ms."""
        return min(each.first_ms for each in self.epochs)

    @property
    def last_ms(self) -> int:
        """Time of the last record, in ms."""
        return max(each.last_ms for each in self.epochs)

    def take(self, table: pa.Table) -> None:
        """Count the next slice, with the columns COLUMNS."""
        offset, epoch, at_ms, type_ = (ints(table[name]) for name in COLUMNS)
        self._types.add(type_, 1)
        starts = np.flatnonzero(starts_of(epoch))
        if len(starts):
            ranges = [
                bound.reduceat(values, starts)
                for values in (offset, at_ms)
                for bound in (np.minimum, np.maximum)
            ]
            self._epochs.add(epoch[starts], *ranges)
        none = type_ == RecordType.NO_OP
        for number, found in idle(epoch[none], at_ms[none]):
            self._add_idle(number, found)

    def merge(self, other: Census) -> None:
        """Add the counts of another part, which follows this one."""
        self._types.merge(other._types)
        self._epochs.merge(other._epochs)
        for epoch, later in other.idle.items():
            self._add_idle(epoch, later)

    def _add_idle(self, epoch: int, later: Idle) -> None:
        before = self.idle.get(epoch)
        self.idle[epoch] = later if before is None else before.followed_by(later)


def count_records(log: Rows) -> Census:
    """Return the census of a log. Raises ReplayError if the log is empty."""
    return require_records(run_merged(log, Pass(Census, COLUMNS)))


_ENOUGH = 3
"""Minimum number of records that show the interval, as a record at the end of a transaction may
have another one's time.
"""


class Idle(NamedTuple):
    """The NO_OP records of one epoch. ``longest_ms``: longest interval between consecutive ones."""

    records: int
    first_ms: int
    last_ms: int
    longest_ms: int

    def followed_by(self, later: Idle) -> Idle:
        """Return the statistics of this run of records and a later one together."""
        between_ms = later.first_ms - self.last_ms
        longest_ms = max(self.longest_ms, between_ms, later.longest_ms)
        return Idle(self.records + later.records, self.first_ms, later.last_ms, longest_ms)

    @property
    def due_ms(self) -> int | None:
        """The latest time at which the next record was due, judging by the earlier intervals; None
        if there are too few records. A controller that had not written by then was no longer
        active.
        """
        if self.records < _ENOUGH or not self.longest_ms:
            return None
        return self.last_ms + self.longest_ms


def idle(epoch: Ints, timestamp_ms: Ints) -> Iterator[tuple[int, Idle]]:
    """Yield the NO_OP records per run of an epoch; an epoch may occur several times."""
    for start, end in pairwise([*np.flatnonzero(starts_of(epoch)).tolist(), len(epoch)]):
        at_ms = timestamp_ms[start:end]
        longest_ms = int(np.diff(at_ms).max(initial=0))
        yield int(epoch[start]), Idle(end - start, int(at_ms[0]), int(at_ms[-1]), longest_ms)


def require_records(found: Census) -> Census:
    """Return the census. Raises ReplayError if it contains no records."""
    if not found.records:
        raise ReplayError("no whole batch lies within the requested offsets")
    return found
