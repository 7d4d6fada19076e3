"""The samples of a whole log: of each progress record its numbers, of all of them what controllers
have measured.

What each broker says in them is most of their bytes, and is not kept: see
:mod:`replay.lag.word_pass`.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import pyarrow as pa

from raftlog.segments.columns import SCHEMA
from replay.kernels.arrays import ints
from replay.kernels.passes import Pass, Rows
from replay.lag.measured import Sketches
from replay.lag.samples import COLUMNS, TYPES, Samples, kept, samples


class Sampled(NamedTuple):
    """Samples of a log. ``acknowledged``, ``told``: of the time in question."""

    samples: Samples
    acknowledged: Sketches
    told: Sketches


class _Sampling:
    def __init__(self, since_ms: int | None) -> None:
        self._since_ms = since_ms
        self._kept: list[pa.Table] = []
        self._acknowledged, self._told = Sketches(), Sketches()

    def take(self, table: pa.Table) -> None:
        self._kept.append(kept(table))
        recent = table
        if self._since_ms is not None:
            recent = table.filter(pa.array(ints(table["timestamp_ms"]) >= self._since_ms))
        self._acknowledged.add(recent["acknowledged_sketch"])
        self._told.add(recent["told_sketch"])

    def end(self) -> tuple[list[pa.Table], Sketches, Sketches]:
        return self._kept, self._acknowledged, self._told


def sample(log: Rows, since_ms: int | None = None) -> Sampled:
    """Return the samples of a log. Measurements count from ``since_ms`` on."""
    tables = [kept(pa.schema([SCHEMA.field(name) for name in COLUMNS]).empty_table())]
    acknowledged, told = Sketches(), Sketches()
    for some, its_acknowledged, its_told in log.run(
        Pass(partial(_Sampling, since_ms), COLUMNS, TYPES)
    ):
        tables += some
        acknowledged.merge(its_acknowledged)
        told.merge(its_told)
    return Sampled(samples(pa.concat_tables(tables)), acknowledged, told)
