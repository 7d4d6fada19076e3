"""The progress records as samples of LAO.

A progress record is written when LAO has passed a record that is neither progress nor a no-op, at
most one in ``progress.interval.ms``. So while LAO stands still there is no sample, and a stall
shows in what the sample after it says: the oldest record that it newly covers had waited since it
was written. That time is right but for the interval, by which it may be too long; where controllers
have measured how long records took, the longest of these is the true one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raftlog.metadata.records import RecordType
from raftlog.metadata.sketch import percentile_us
from replay.kernels.arrays import MISSING, Ints, ints, typed, whole
from replay.kernels.passes import Accumulator, Pass, Rows, gathered
from replay.lag.result import Measured

TYPES = (RecordType.PROGRESS,)
COLUMNS = (
    "offset",
    "epoch",
    "timestamp_ms",
    "lowest_acknowledged_offset",
    "high_watermark",
    "applied",
    "acknowledged_sketch",
    "told_sketch",
)
"""Columns of the records of TYPES."""


MOST, COUNT, LONGEST = "most_applied", "measured", "measured_us"
"""Columns of what is kept of a progress record, beside its numbers: see :func:`kept`."""
_NUMBERS = COLUMNS[:5]


@dataclass(frozen=True)
class Samples:
    """Samples, one place a progress record, in order; MISSING: null.

    ``lao`` (inclusive; MISSING: unknown), ``high_watermark`` (exclusive). ``reached``: the highest
    LAO up to here, ``reached_before`` without this one; ``most_applied``: the highest offset that
    any broker had applied. ``measured`` and ``measured_us``: how many records the controller has
    measured since the sample before, and what the longest of them took.
    """

    table: pa.Table
    offset: Ints
    epoch: Ints
    timestamp_ms: Ints
    lao: Ints
    high_watermark: Ints
    reached: Ints
    reached_before: Ints
    most_applied: Ints
    measured: Ints
    measured_us: Ints

    def __len__(self) -> int:
        return len(self.offset)


def shifted(values: Ints) -> Ints:
    """Return the value before each; MISSING at the first."""
    return np.concatenate([np.array([MISSING], np.int64), values[:-1]]) if len(values) else values


def samples(table: pa.Table) -> Samples:
    """Return the samples of progress records in order: COLUMNS, or the kept ones."""
    few = table if MOST in table.column_names else kept(table)
    lao = ints(few["lowest_acknowledged_offset"])
    lao = np.where(lao < 0, MISSING, lao)
    reached = np.maximum.accumulate(lao) if len(lao) else lao
    most = ints(few[MOST])
    return Samples(
        table,
        ints(few["offset"]),
        ints(few["epoch"]),
        ints(few["timestamp_ms"]),
        lao,
        ints(few["high_watermark"]),
        reached,
        shifted(reached),
        np.maximum.accumulate(most) if len(most) else most,
        ints(few[COUNT]),
        ints(few[LONGEST]),
    )


def kept(table: pa.Table) -> pa.Table:
    """Return the numbers of progress records, COLUMNS, without the entries of brokers and without
    sketches, which are most of their bytes.
    """
    sketch = whole(table["acknowledged_sketch"])
    count, longest = (
        ints(pc.struct_field(sketch, [name]))
        if pa.types.is_struct(sketch.type)
        else np.full(table.num_rows, MISSING, np.int64)
        for name in ("count", "max_us")
    )
    where, _, _, applied = entries(table["applied"])
    most = np.full(table.num_rows, MISSING, np.int64)
    np.maximum.at(most, where, applied)
    numbers = {name: pa.array(ints(table[name])) for name in _NUMBERS}
    more = {MOST: most, COUNT: count, LONGEST: longest}
    return pa.table(numbers | {name: pa.array(values) for name, values in more.items()})


def entries(column: pa.ChunkedArray) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the entries of a column ``applied``: place of the record, broker, its epoch, what it
    had applied.
    """
    array = whole(column)
    if pa.types.is_null(array.type):
        nothing = np.zeros(0, np.int64)
        return nothing, nothing, nothing, nothing
    where = np.repeat(
        np.arange(len(array)), pc.fill_null(pc.list_value_length(array), 0).to_numpy()
    )
    flat = array.flatten()
    names = ("broker_id", "broker_epoch", "applied_offset")
    broker, epoch, applied = (ints(pc.struct_field(flat, [name])) for name in names)
    return where, broker, epoch, applied


@dataclass
class Sketches:
    """The sum of sketches. ``buckets``: bucket -> durations in it."""

    records: int = 0
    sum_us: int = 0
    max_us: int = 0
    buckets: Counter[int] = field(default_factory=Counter)

    def add(self, column: Any) -> None:
        """Add all sketches in a column."""
        sketches = whole(column)
        if not pa.types.is_struct(sketches.type):
            return
        sketches = sketches.drop_null()
        if not len(sketches):
            return
        count, sum_us, max_us = (
            ints(pc.struct_field(sketches, [name])) for name in ("count", "sum_us", "max_us")
        )
        self.records += int(count.sum())
        self.sum_us += int(sum_us.sum())
        self.max_us = max(self.max_us, int(max_us.max()))
        each = pc.struct_field(sketches, ["buckets"]).flatten()
        which, where = np.unique(ints(pc.struct_field(each, ["bucket"])), return_inverse=True)
        counts = np.zeros(len(which), np.int64)
        np.add.at(counts, where, ints(pc.struct_field(each, ["count"])))
        self.buckets.update(dict(zip(which.tolist(), counts.tolist(), strict=True)))

    def merge(self, other: Sketches) -> None:
        """Add the sums of another part."""
        self.records += other.records
        self.sum_us += other.sum_us
        self.max_us = max(self.max_us, other.max_us)
        self.buckets.update(other.buckets)

    def measured(self) -> Measured | None:
        """Their figures; None if nothing was measured."""
        if not self.records:
            return None
        p50, p90, p99 = (
            percentile_us(self.buckets, share, self.max_us) or 0 for share in (0.5, 0.9, 0.99)
        )
        mean = round(self.sum_us / self.records)
        return Measured(self.records, mean, p50, p90, p99, self.max_us)


class Sampling(Accumulator):
    """Samples of a log, and what controllers have measured from ``since_ms`` on; a part of the pass
    that finds them.
    """

    def __init__(self, since_ms: int | None) -> None:
        self._since_ms = since_ms
        self._kept: list[pa.Table] = [kept(typed(*COLUMNS).empty_table())]
        self.acknowledged, self.told = Sketches(), Sketches()

    def take(self, table: pa.Table) -> None:
        """Look at the next slice: COLUMNS."""
        self._kept.append(kept(table))
        if self._since_ms is not None:
            table = table.filter(pa.array(ints(table["timestamp_ms"]) >= self._since_ms))
        self.acknowledged.add(table["acknowledged_sketch"])
        self.told.add(table["told_sketch"])

    def merge(self, other: Sampling) -> None:
        """Add the findings of another part, which comes behind this one."""
        self._kept += other._kept
        self.acknowledged.merge(other.acknowledged)
        self.told.merge(other.told)

    @property
    def samples(self) -> Samples:
        """All samples, in order."""
        return samples(pa.concat_tables(self._kept))


def sample(log: Rows, since_ms: int | None = None) -> Sampling:
    """Return the samples of a log, and its measurements."""
    return gathered(log, Pass(partial(Sampling, since_ms), COLUMNS, TYPES))
