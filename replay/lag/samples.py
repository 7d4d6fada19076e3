"""The progress records as samples of LAO.

A progress record is written when LAO has passed a record that is neither progress nor a no-op, at
most one in ``progress.interval.ms``. So while LAO stands still there is no sample, and a stall
shows in what the sample after it says: the oldest record that it newly covers had waited since it
was written. That time is right but for the interval, by which it may be too long; where controllers
have measured how long records took, the longest of these is the true one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raftlog.metadata.records import RecordType
from replay.kernels.arrays import MISSING, Ints, ints, whole

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

    def before(self, values: Ints) -> Ints:
        """Return the value of the sample before; MISSING at the first."""
        return shifted(values)


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
