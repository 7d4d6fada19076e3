"""Growth of the log: records and bytes by type, records by period and by step of an axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from replay.kernels.arrays import Ints, ints
from replay.kernels.passes import Pass, Rows
from replay.lag.waits import Steps

_COLUMNS = ("type", "type_name", "timestamp_ms", "body")


@dataclass
class Growth:
    """Growth of a log. ``records`` and ``bytes``: type name -> sums from a time on; ``periods``:
    beginning -> records; ``steps``: (number of the step, type name) -> records.
    """

    records: dict[str, int] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    periods: dict[int, int] = field(default_factory=dict)
    steps: dict[tuple[int, str], int] = field(default_factory=dict)

    def merge(self, other: Growth) -> None:
        """Add the counts of another part."""
        for name in ("records", "bytes", "periods", "steps"):
            mine = getattr(self, name)
            for key, count in getattr(other, name).items():
                mine[key] = mine.get(key, 0) + count


class _Growing:
    def __init__(self, since_ms: int, period_ms: int, steps: Steps | None) -> None:
        self._since_ms, self._period_ms, self._steps = since_ms, period_ms, steps
        self._found = Growth()

    def take(self, table: pa.Table) -> None:
        if not table.num_rows:
            return
        type_, at_ms = ints(table["type"]), ints(table["timestamp_ms"])
        which, first, where = np.unique(type_, return_index=True, return_inverse=True)
        names = [table["type_name"][int(at)].as_py() for at in first]
        length = ints(pc.binary_length(table["body"]))
        recent = at_ms >= self._since_ms
        count = len(which)
        found = Growth(
            _named(names, np.bincount(where[recent], minlength=count)),
            _named(names, np.bincount(where[recent], length[recent], count).astype(np.int64)),
        )
        periods, counts = np.unique(at_ms - at_ms % self._period_ms, return_counts=True)
        found.periods = dict(zip(periods.tolist(), counts.tolist(), strict=True))
        if self._steps is not None:
            step = (at_ms - self._steps.begins_ms) // self._steps.length_ms
            pairs, counts = np.unique(step * count + where, return_counts=True)
            found.steps = {
                (pair // count, names[pair % count]): times
                for pair, times in zip(pairs.tolist(), counts.tolist(), strict=True)
            }
        self._found.merge(found)

    def end(self) -> Growth:
        return self._found


def _named(names: list[str], counts: Ints) -> dict[str, int]:
    return {name: each for name, each in zip(names, counts.tolist(), strict=True) if each}


def growth(log: Rows, since_ms: int, period_ms: int, steps: Steps | None = None) -> Growth:
    """Return the growth of a log; the types are counted from ``since_ms`` on."""
    found = Growth()
    for part in log.run(Pass(partial(_Growing, since_ms, period_ms, steps), _COLUMNS)):
        found.merge(part)
    return found


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
