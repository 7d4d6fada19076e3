"""What controllers have measured: the sketches of progress records put together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raftlog.metadata.sketch import percentile_us
from replay.kernels.arrays import ints, whole
from replay.lag.model import Measured


def measured(column: Any) -> Measured | None:
    """Of all sketches in a column; None if there is none."""
    sketches = whole(column)
    if not pa.types.is_struct(sketches.type):
        return None
    sketches = sketches.drop_null()
    count, sum_us, max_us = (
        ints(pc.struct_field(sketches, [name])) for name in ("count", "sum_us", "max_us")
    )
    records = int(count.sum())
    if not records:
        return None
    each = pc.struct_field(sketches, ["buckets"]).flatten()
    which, where = np.unique(ints(pc.struct_field(each, ["bucket"])), return_inverse=True)
    counts = np.zeros(len(which), np.int64)
    np.add.at(counts, where, ints(pc.struct_field(each, ["count"])))
    buckets = dict(zip(which.tolist(), counts.tolist(), strict=True))
    longest = int(max_us.max())
    p50, p90, p99 = (percentile_us(buckets, share, longest) or 0 for share in (0.5, 0.9, 0.99))
    return Measured(records, round(int(sum_us.sum()) / records), p50, p90, p99, longest)
