"""Sizes of the entities of LAO's progress and of the brokers' applied offsets, without a fold: few
entities, which very many records change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa

from raftlog.metadata.records import RecordType
from replay.churn.packed import packed_ints
from replay.churn.state_size import Grown, grow_many, in_snapshots
from replay.kernels.arrays import Ints, ints
from replay.kernels.passes import Pass, Rows
from replay.lag.samples import entries

_COLUMNS = ("timestamp_ms", "offset", "lowest_acknowledged_offset", "high_watermark", "applied")
_HEADS = 1 + 1
"""Size of the heads of the entity and of its value: arrays of fewer than 16 elements."""
_PROGRESS = -1
"""Key of the progress entity, which is no broker's, in the place of a broker id."""
Last = tuple[int, int]
"""Offset of the record, and size from there on."""


@dataclass
class _Said:
    """Last sizes: beginning of a period and broker -> the last one in it."""

    period_ms: int
    found: dict[tuple[int, int], Last] = field(default_factory=dict)

    def take(self, table: pa.Table) -> None:
        at_ms, offset, lao, end = (ints(table[name]) for name in _COLUMNS[:4])
        period = at_ms - at_ms % self.period_ms
        own = np.full(len(offset), _PROGRESS, np.int64)
        self._keep(period, own, offset, packed_ints(lao) + packed_ints(end))
        where, broker, epoch, applied = entries(table["applied"])
        size = packed_ints(broker) + packed_ints(epoch) + packed_ints(applied)
        self._keep(period[where], broker, offset[where], size)

    def _keep(self, period: Ints, broker: Ints, offset: Ints, size: Ints) -> None:
        if not len(period):
            return
        order = np.lexsort([np.arange(len(period)), broker, period])
        last = np.ones(len(order), np.bool_)
        last[:-1] = (np.diff(period[order]) != 0) | (np.diff(broker[order]) != 0)
        rows = order[last]
        for at, one, place, bytes_ in zip(
            period[rows].tolist(),
            broker[rows].tolist(),
            offset[rows].tolist(),
            in_snapshots(_HEADS + size[rows]).tolist(),
            strict=True,
        ):
            self._said((at, one), (place, bytes_))

    def _said(self, key: tuple[int, int], last: Last) -> None:
        if last >= self.found.get(key, (-1, 0)):
            self.found[key] = last

    def merge(self, other: _Said) -> None:
        """Add the findings of another part."""
        for key, last in other.found.items():
            self._said(key, last)

    def end(self) -> _Said:
        return self


def progress_sizes(log: Rows, period_ms: int) -> Grown:
    """Return the growth by progress records in each period."""
    said = _Said(period_ms)
    for part in log.run(Pass(partial(_Said, period_ms), _COLUMNS, (RecordType.PROGRESS,))):
        said.merge(part)
    periods, brokers, sizes = (
        np.array(each, np.int64).reshape(-1)
        for each in (
            [period for period, _ in said.found],
            [broker for _, broker in said.found],
            [size for _, size in said.found.values()],
        )
    )
    order = np.lexsort([periods, brokers])
    period, broker, size = periods[order], brokers[order], sizes[order]
    first = np.diff(broker, prepend=_PROGRESS - 1) != 0
    before = np.where(first, 0, np.concatenate([[0], size[:-1]])[: len(size)])
    grown: Grown = {}
    grow_many(grown, period, first.astype(np.int64), size - before)
    return grown
