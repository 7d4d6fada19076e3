"""Measurements of controllers: the merged sketches of progress records."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raftlog.metadata.sketch import percentile_us
from replay.kernels.arrays import ints, whole
from replay.lag.model import Measured


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
