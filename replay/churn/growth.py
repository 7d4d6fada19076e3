"""Growth of the log and of the state: records and bytes by type, records by period and by step of
an axis, the sizes of checkpoints, and lines through such points.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raftlog.metadata.records import RecordType
from replay.engine.fold import snapshot_bytes
from replay.engine.pool import Pool
from replay.engine.reading import end_of
from replay.export import Export
from replay.kernels.arrays import ints
from replay.kernels.groups import Grouped
from replay.kernels.passes import Accumulator, Pass, Rows, gathered
from replay.lag.waits import TimeSteps

_COLUMNS = ("type", "timestamp_ms", "body")


class Growth(Accumulator):
    """Growth of a log, and part of the pass that measures it; the types are counted from
    ``since_ms`` on.
    """

    def __init__(self, since_ms: int, period_ms: int, steps: TimeSteps | None) -> None:
        self._since_ms, self._period_ms, self._steps = since_ms, period_ms, steps
        self._types, self._periods = Grouped(np.add, np.add), Grouped(np.add)
        self._of_steps = Grouped(np.add)

    def take(self, table: pa.Table) -> None:
        """Count the next slice."""
        type_, at_ms = (ints(table[name]) for name in _COLUMNS[:2])
        recent = at_ms >= self._since_ms
        self._types.add(type_[recent], 1, ints(pc.binary_length(table["body"]))[recent])
        self._periods.add(at_ms - at_ms % self._period_ms, 1)
        if self._steps is not None:
            step = (at_ms - self._steps.begins_ms) // self._steps.length_ms
            self._of_steps.add((step << _TYPE_BITS) | type_, 1)

    def merge(self, other: Growth) -> None:
        """Add the counts of another part."""
        self._types.merge(other._types)
        self._periods.merge(other._periods)
        self._of_steps.merge(other._of_steps)

    @property
    def types(self) -> dict[str, tuple[int, int]]:
        """Records of each type, and the bytes of their bodies."""
        rows = self._types.by_key().items()
        return {RecordType(type_).name: (count, size) for type_, (count, size) in rows}

    @property
    def periods(self) -> dict[int, int]:
        """Beginning of a period -> records."""
        return {period: count for period, (count,) in self._periods.by_key().items()}

    @property
    def steps(self) -> dict[tuple[int, str], int]:
        """Number of a step, and type -> records."""
        return {
            (key >> _TYPE_BITS, RecordType(key & _TYPES).name): count
            for key, (count,) in self._of_steps.by_key().items()
        }


_TYPE_BITS = 16
_TYPES = (1 << _TYPE_BITS) - 1


def growth(log: Rows, since_ms: int, period_ms: int, steps: TimeSteps | None = None) -> Growth:
    """Return the growth of a log; the types are counted from ``since_ms`` on."""
    return gathered(log, Pass(partial(Growth, since_ms, period_ms, steps), _COLUMNS))


DAY_MS = 86_400_000


class Trend(NamedTuple):
    """A linear trend: ``per_day`` more each day, ``now`` at the time of the last point."""

    now: float
    per_day: float

    def after(self, days: float) -> int:
        """Return the value ``days`` after the last point.

        A falling line is not extrapolated: a value that shrinks for a while does not vanish.
        """
        return round(self.now + max(0.0, self.per_day) * days)


def trend(points: Sequence[tuple[int, float]]) -> Trend | None:
    """Return the line of least squares through (time in ms, value), moved so that it goes through
    the last one. None for fewer than two.
    """
    if len(points) < 2:
        return None
    days = [(at - points[-1][0]) / DAY_MS for at, _ in points]
    values = [value for _, value in points]
    middle, mean = sum(days) / len(days), sum(values) / len(values)
    spread = sum((day - middle) ** 2 for day in days)
    slope = (
        sum((day - middle) * (value - mean) for day, value in zip(days, values, strict=True))
        / spread
    )
    return Trend(values[-1], slope)


class StateSize(NamedTuple):
    """The size of a snapshot of the state at a time, in bytes."""

    at_ms: int
    bytes: int


def state_sizes(export: Export, pool: Pool) -> list[StateSize]:
    """Return the size of the state at each checkpoint of the export, in order; without a
    checkpoint, its size at the end, from a fold.
    """
    found = [
        StateSize(one.timestamp_ms, one.bytes)
        for one in export.manifest.checkpoints
        if one.offset <= export.last_offset
    ]
    return found or [StateSize(end_of(export).timestamp_ms, snapshot_bytes(export, pool))]
