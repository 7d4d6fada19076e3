"""How long records waited for LAO: one pass over all records, in independent stretches, as the
samples are already known.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from raftlog.metadata.records import RecordType
from replay.kernels.arrays import MISSING, NEVER, Bools, Ints, ints
from replay.kernels.groups import Grouped
from replay.kernels.histogram import Figures, Histogram
from replay.kernels.passes import Accumulator, Pass, Rows, run_merged
from replay.lag.samples import Samples, shifted

COLUMNS = ("offset", "type", "timestamp_ms", "epoch")
QUIET = (int(RecordType.PROGRESS), int(RecordType.NO_OP))
"""Record types that do not wait for LAO."""


class TimeSteps(NamedTuple):
    """Time steps of equal length, starting at ``begins_ms``; by default a single step for all
    time.
    """

    begins_ms: int = 0
    length_ms: int = NEVER


class Asked(NamedTuple):
    """Input of the pass: offset (``reached``) and time (``seen_ms``) of the samples that raise LAO,
    and the time steps in which the waits of records written from ``since_ms`` onwards are counted.
    """

    reached: Ints
    seen_ms: Ints
    since_ms: int | None
    steps: TimeSteps


class Waited(Accumulator):
    """Result of the pass, and also a part of it.

    ``covered`` (records), ``oldest_ms`` (NEVER if none): per sample that raises LAO, plus a last
    element for the uncovered records. ``durations``, ``waiting``: per time step, the waits, and the
    number of uncovered records. ``end_ms``, ``end_epoch``: the last record's.
    """

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        events = len(asked.reached) + 1
        self.covered = np.zeros(events, np.int64)
        self.oldest_ms = np.full(events, NEVER, np.int64)
        self.durations, self.waiting = Histogram(), Grouped(np.add)
        self.end_ms = self.end_epoch = 0

    def merge(self, other: Waited) -> None:
        """Add the result of another part."""
        self.covered += other.covered
        np.minimum(self.oldest_ms, other.oldest_ms, out=self.oldest_ms)
        self.durations.merge(other.durations)
        self.waiting.merge(other.waiting)
        self.end_ms = max(self.end_ms, other.end_ms)
        self.end_epoch = max(self.end_epoch, other.end_epoch)

    def take(self, table: pa.Table) -> None:
        """See ``Accumulator``."""
        if not table.num_rows:
            return
        offset, type_, written_ms, epoch = (ints(table[name]) for name in COLUMNS)
        self.end_ms = max(self.end_ms, int(written_ms.max()))
        self.end_epoch = max(self.end_epoch, int(epoch.max()))
        news = (type_ != QUIET[0]) & (type_ != QUIET[1])
        offset, written_ms = offset[news], written_ms[news]
        if not len(offset):
            return
        event = np.searchsorted(self._asked.reached, offset)
        starts = np.flatnonzero(np.diff(event, prepend=-1))
        self.covered[event[starts]] += np.diff(starts, append=len(event))
        # Records are in order of time.
        self.oldest_ms[event[starts]] = np.minimum(
            self.oldest_ms[event[starts]], written_ms[starts]
        )
        self._count(event, written_ms)

    def _count(self, event: Ints, written_ms: Ints) -> None:
        asked = self._asked
        if asked.since_ms is not None:
            late = written_ms >= asked.since_ms
            event, written_ms = event[late], written_ms[late]
        covered = event < len(asked.reached)
        step = (written_ms - asked.steps.begins_ms) // asked.steps.length_ms
        waited_ms = asked.seen_ms[event[covered]] - written_ms[covered]
        self.durations.add(step[covered], waited_ms)
        self.waiting.add(step[~covered], 1)

    def by_step(self) -> dict[int, tuple[Figures, int]]:
        """Return, for each time step with a record, the figures and the number of uncovered
        records.
        """
        figures, late = self.durations.figures(), self.waiting.by_key()
        return {
            step: (figures.get(step, Figures()), late.get(step, [0])[0])
            for step in sorted({*figures, *late})
        }


@dataclass(frozen=True)
class Points:
    """Samples with the waits that they end, one element per sample.

    ``covered``: number of records newly covered. ``oldest_ms``: time at which the oldest of these
    was written; NEVER if none. ``waited_ms``: the wait of that record as measured by controllers,
    or else until the sample. ``lag_ms``: age of the oldest record still waiting after the sample; 0
    if none. ``waited``: the complete result of the pass.
    """

    samples: Samples
    covered: Ints
    oldest_ms: Ints
    waited_ms: Ints
    lag_ms: Ints
    waited: Waited


def waits(
    log: Rows, sampled: Samples, *, since_ms: int | None = None, steps: TimeSteps | None = None
) -> Points:
    """Run the pass over a log."""
    rising = raising(sampled)
    asked = Asked(sampled.lao[rising], sampled.timestamp_ms[rising], since_ms, steps or TimeSteps())
    found = run_merged(log, Pass(partial(Waited, asked), COLUMNS))
    covered = np.zeros(len(rising), np.int64)
    oldest_ms = np.full(len(rising), NEVER, np.int64)
    covered[rising], oldest_ms[rising] = found.covered[:-1], found.oldest_ms[:-1]
    # A record that waits after a sample is covered by a later sample, or by none.
    next_ms = np.append(oldest_ms, found.oldest_ms[-1:])
    next_ms = np.minimum.accumulate(next_ms[::-1])[::-1][1:]
    return Points(
        sampled,
        covered,
        oldest_ms,
        _waited_ms(sampled, covered, oldest_ms),
        np.maximum(sampled.timestamp_ms - next_ms, 0),
        found,
    )


def raising(sampled: Samples) -> Bools:
    """Return a mask of the samples that raise LAO."""
    reached = np.maximum.accumulate(np.append(-1, sampled.lao))
    return sampled.lao > reached[:-1]


def _waited_ms(sampled: Samples, covered: Ints, oldest_ms: Ints) -> Ints:
    """Return how long each sample's oldest record had waited: until the sample or, if the
    controller has measured all records that the sample covers, the longest measured wait.

    A controller does not measure its predecessor's records; the epoch shows whether the controller
    is the same.
    """
    most = np.where(oldest_ms == NEVER, 0, sampled.timestamp_ms - oldest_ms)
    own = (shifted(sampled.epoch) == sampled.epoch) & (shifted(sampled.lao) != MISSING)
    measured = own & (sampled.measured != MISSING) & (sampled.measured >= covered)
    return np.where(measured, np.minimum(most, -(-sampled.measured_us // 1000)), most)
