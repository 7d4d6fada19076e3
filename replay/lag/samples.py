"""The progress records as samples of LAO.

A progress record is written once LAO has passed a record that is neither progress nor a no-op, at
most one per ``progress.interval.ms``. So a stall has no sample of its own but shows in the next
one: the oldest record that the next sample newly covers had been waiting since it was written. The
wait computed from that is too long by up to the interval; if controllers measured how long records
took, the longest measurement is exact.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raftlog.metadata.records import RecordType
from raftlog.metadata.sketch import percentile_us
from replay.kernels.arrays import MISSING, Ints, ints, joined, whole
from replay.kernels.passes import Accumulator, Pass, Rows, run_merged

TYPES = (RecordType.PROGRESS,)
COLUMNS = (
    "offset",
    "epoch",
    "timestamp_ms",
    "lowest_acknowledged_offset",
    "applied",
    "acknowledged_sketch",
    "told_sketch",
)


class Samples(NamedTuple):
    """Samples, one element per progress record, in order. MISSING stands for null.

    ``lao``: inclusive; MISSING if unknown. ``most_applied``: highest offset that a broker in the
    sample had applied. ``measured``, ``measured_us``: number of records that the controller has
    measured since the previous sample, and the longest of these durations.
    """

    offset: Ints
    epoch: Ints
    timestamp_ms: Ints
    lao: Ints
    most_applied: Ints
    measured: Ints
    measured_us: Ints


def samples(table: pa.Table) -> Samples:
    """Return the samples of progress records with the columns COLUMNS."""
    sketch = whole(table["acknowledged_sketch"])
    count, longest = (
        ints(pc.struct_field(sketch, [name]))
        if pa.types.is_struct(sketch.type)
        else np.full(table.num_rows, MISSING, np.int64)
        for name in ("count", "max_us")
    )
    where, _, applied = entries(table["applied"])
    most = np.full(table.num_rows, MISSING, np.int64)
    np.maximum.at(most, where, applied)
    offset, epoch, at_ms, lao = (ints(table[name]) for name in COLUMNS[:4])
    return Samples(offset, epoch, at_ms, np.where(lao < 0, MISSING, lao), most, count, longest)


def shifted(values: Ints) -> Ints:
    """Return each value's predecessor; MISSING for the first."""
    return np.concatenate([np.array([MISSING], np.int64), values[:-1]]) if len(values) else values


def entries(column: pa.ChunkedArray) -> tuple[Ints, Ints, Ints]:
    """Return the entries of the column ``applied``: index of the record, broker, and applied
    offset.
    """
    array = whole(column)
    if pa.types.is_null(array.type):
        nothing = np.zeros(0, np.int64)
        return nothing, nothing, nothing
    where = np.repeat(
        np.arange(len(array)), pc.fill_null(pc.list_value_length(array), 0).to_numpy()
    )
    flat = array.flatten()
    broker, applied = (
        ints(pc.struct_field(flat, [each])) for each in ("broker_id", "applied_offset")
    )
    return where, broker, applied


class Measured(msgspec.Struct, frozen=True):
    """Durations of ``records`` records, from their commit, as measured by controllers.

    Percentiles are up to 19 % too high; the longest duration is exact.
    """

    records: int
    p50_us: int
    p99_us: int
    max_us: int


@dataclass
class Sketches:
    """Sum of sketches. ``buckets``: bucket -> number of durations."""

    records: int = 0
    max_us: int = 0
    buckets: Counter[int] = field(default_factory=Counter)

    def add(self, column: Any) -> None:
        """Add all sketches of a column."""
        sketches = whole(column)
        if not pa.types.is_struct(sketches.type):
            return
        sketches = sketches.drop_null()
        if not len(sketches):
            return
        self.records += int(ints(pc.struct_field(sketches, ["count"])).sum())
        self.max_us = max(self.max_us, int(ints(pc.struct_field(sketches, ["max_us"])).max()))
        each = pc.struct_field(sketches, ["buckets"]).flatten()
        which, where = np.unique(ints(pc.struct_field(each, ["bucket"])), return_inverse=True)
        counts = np.zeros(len(which), np.int64)
        np.add.at(counts, where, ints(pc.struct_field(each, ["count"])))
        self.buckets.update(dict(zip(which.tolist(), counts.tolist(), strict=True)))

    def merge(self, other: Sketches) -> None:
        """Add the sums of another part."""
        self.records += other.records
        self.max_us = max(self.max_us, other.max_us)
        self.buckets.update(other.buckets)

    def measured(self) -> Measured | None:
        """Return the figures, or None if nothing was measured."""
        if not self.records:
            return None
        p50, p99 = (percentile_us(self.buckets, share, self.max_us) or 0 for share in (0.5, 0.99))
        return Measured(self.records, p50, p99, self.max_us)


class Sampling(Accumulator):
    """The samples of a log and the controllers' measurements from ``since_ms`` onwards; it is also
    the part of a pass that collects them.
    """

    def __init__(self, since_ms: int | None) -> None:
        self._since_ms = since_ms
        self._samples: list[Samples] = []
        self.acknowledged, self.told = Sketches(), Sketches()

    def take(self, table: pa.Table) -> None:
        """See ``Accumulator``."""
        self._samples.append(samples(table))
        if self._since_ms is not None:
            table = table.filter(pa.array(ints(table["timestamp_ms"]) >= self._since_ms))
        self.acknowledged.add(table["acknowledged_sketch"])
        self.told.add(table["told_sketch"])

    def merge(self, other: Sampling) -> None:
        """See ``Accumulator``."""
        self._samples += other._samples
        self.acknowledged.merge(other.acknowledged)
        self.told.merge(other.told)

    @property
    def samples(self) -> Samples:
        """All samples, in order."""
        return joined(Samples, self._samples)


def sample(log: Rows, since_ms: int | None = None) -> Sampling:
    """Return the samples and measurements of a log."""
    return run_merged(log, Pass(partial(Sampling, since_ms), COLUMNS, TYPES))
