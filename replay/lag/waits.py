"""Waits of the records for LAO: a pass over all records, in independent stretches, since all
samples are known before. Of a log that comes piece by piece, the memory of one for the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raftlog.metadata.records import RecordType
from replay.kernels.arrays import MISSING, NEVER, Ints, ints, typed
from replay.kernels.groups import Grouped
from replay.kernels.histogram import Figures, Histogram
from replay.kernels.passes import Accumulator, Pass, Rows, TableRows, gathered
from replay.lag.result import LaoPoint
from replay.lag.samples import COLUMNS as SAMPLE_COLUMNS
from replay.lag.samples import TYPES, Samples, entries, samples, shifted

COLUMNS = ("offset", "type", "timestamp_ms", "epoch")
HOUR_MS = 3_600_000
QUIET = (int(RecordType.PROGRESS), int(RecordType.NO_OP))
"""Record types that LAO is not waited for."""


class TimeSteps(NamedTuple):
    """Stretches of time of one length, counted from ``begins_ms``."""

    begins_ms: int
    length_ms: int


class Asked(NamedTuple):
    """The question of the pass.

    ``reached`` and ``seen_ms``: of the samples that raise LAO. ``offsets``: the pass finds for each
    the first record at or behind it that is waited for; ascending. Figures are of records written
    from ``since_ms`` on, by hour and, if given, by step.
    """

    reached: Ints
    seen_ms: Ints
    offsets: Ints
    since_ms: int | None
    steps: TimeSteps | None


class _Edge(NamedTuple):
    """A stretch's first record that is waited for."""

    offset: int
    timestamp_ms: int


class Waited(Accumulator):
    """Findings of the pass, and a part of it. By the samples that raise LAO, and one place more for
    the uncovered records: ``covered`` (records) and ``oldest_ms`` (NEVER: none). By the offsets of
    the question: ``next`` and ``next_ms`` (NEVER: no record follows).

    ``hours``, ``steps``: durations by the number of the hour or step; ``waiting_…``: how many of
    its records were not covered. ``end_ms`` and ``end_epoch``: of the last record.
    """

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        events, offsets = len(asked.reached) + 1, len(asked.offsets)
        self.covered = np.zeros(events, np.int64)
        self.oldest_ms = np.full(events, NEVER, np.int64)
        self.next, self.next_ms = (np.full(offsets, NEVER, np.int64) for _ in range(2))
        self.hours, self.steps = Histogram(), Histogram()
        self.waiting_hours, self.waiting_steps = Grouped(np.add), Grouped(np.add)
        self.end_ms = self.end_epoch = 0
        self._edges: list[_Edge] = []

    def merge(self, other: Waited) -> None:
        """Add the findings of another part."""
        self.covered += other.covered
        for mine, its in (
            (self.oldest_ms, other.oldest_ms),
            (self.next, other.next),
            (self.next_ms, other.next_ms),
        ):
            np.minimum(mine, its, out=mine)
        self.hours.merge(other.hours)
        self.steps.merge(other.steps)
        self.waiting_hours.merge(other.waiting_hours)
        self.waiting_steps.merge(other.waiting_steps)
        self._edges += other._edges
        self.end_ms = max(self.end_ms, other.end_ms)
        self.end_epoch = max(self.end_epoch, other.end_epoch)

    def look_on(self) -> None:
        """Resolve offsets behind which their stretch has no awaited record: by the next stretch's
        first.
        """
        edges = sorted(self._edges)
        firsts = np.array([*(each.offset for each in edges), NEVER], np.int64)
        times = np.array([*(each.timestamp_ms for each in edges), NEVER], np.int64)
        at = np.searchsorted(firsts, self._asked.offsets)
        self.next = np.minimum(self.next, firsts[at])
        self.next_ms = np.minimum(self.next_ms, times[at])

    def take(self, table: pa.Table) -> None:
        """Look at the next slice: COLUMNS."""
        if not table.num_rows:
            return
        offset, type_, written_ms, epoch = (ints(table[name]) for name in COLUMNS)
        begins = int(offset[0])
        self.end_ms = max(self.end_ms, int(written_ms.max()))
        self.end_epoch = max(self.end_epoch, int(epoch.max()))
        news = (type_ != QUIET[0]) & (type_ != QUIET[1])
        offset, written_ms = offset[news], written_ms[news]
        if not len(offset):
            return
        self._edges.append(_Edge(int(offset[0]), int(written_ms[0])))
        self._look_up(begins, offset, written_ms)
        event = np.searchsorted(self._asked.reached, offset)
        starts = np.flatnonzero(np.diff(event, prepend=-1))
        self.covered[event[starts]] += np.diff(starts, append=len(event))
        # The log's order is that of time.
        self.oldest_ms[event[starts]] = np.minimum(
            self.oldest_ms[event[starts]], written_ms[starts]
        )
        self._count(event, written_ms)

    def _look_up(self, begins: int, offset: Ints, written_ms: Ints) -> None:
        asked = self._asked.offsets
        first, last = np.searchsorted(asked, [begins, int(offset[-1]) + 1])
        at = np.searchsorted(offset, asked[first:last])
        self.next[first:last] = offset[at]
        self.next_ms[first:last] = written_ms[at]

    def _count(self, event: Ints, written_ms: Ints) -> None:
        asked = self._asked
        if asked.since_ms is not None:
            late = written_ms >= asked.since_ms
            event, written_ms = event[late], written_ms[late]
        covered = event < len(asked.reached)
        waited = asked.seen_ms[event[covered]] - written_ms[covered]
        for steps, histogram, waiting in (
            (TimeSteps(0, HOUR_MS), self.hours, self.waiting_hours),
            (asked.steps, self.steps, self.waiting_steps),
        ):
            if steps is not None:
                group = (written_ms - steps.begins_ms) // steps.length_ms
                histogram.add(group[covered], waited)
                waiting.add(group[~covered], 1)

    def of_groups(self, *, hours: bool) -> dict[int, tuple[Figures, int]]:
        """Return the figures of each hour or step with a record, and how many of its records were
        not covered.
        """
        histogram, waiting = (
            (self.hours, self.waiting_hours) if hours else (self.steps, self.waiting_steps)
        )
        figures, late = histogram.figures(), waiting.by_key()
        return {
            group: (figures.get(group, Figures()), late.get(group, [0])[0])
            for group in sorted({*figures, *late})
        }


def raising(sampled: Samples) -> Ints:
    """Return the places of the samples that raise LAO."""
    return np.flatnonzero(
        (sampled.reached != MISSING) & (sampled.reached > np.maximum(sampled.reached_before, -1))
    )


def waits(
    log: Rows,
    sampled: Samples,
    offsets: Ints,
    *,
    since_ms: int | None = None,
    steps: TimeSteps | None = None,
) -> tuple[Asked, Waited]:
    """Run the pass over a log. ``offsets``: see Asked."""
    rising = raising(sampled)
    asked = Asked(
        sampled.reached[rising], sampled.timestamp_ms[rising], np.unique(offsets), since_ms, steps
    )
    found = gathered(log, Pass(partial(Waited, asked), COLUMNS))
    found.look_on()
    return asked, found


@dataclass(frozen=True)
class Points:
    """Points of the timeline, one place a sample.

    ``lag_offsets``: from LAO to the last committed record; ``lag_ms``: the age of the oldest record
    above LAO that was waited for then, 0 if there was none (MISSING: LAO is unknown). ``covered``:
    how many such records the sample newly covers, ``oldest_ms``: when the oldest of them was
    written (NEVER: none), ``waited_ms``: how long it had waited, as controllers have measured it or
    else up to the sample.
    """

    samples: Samples
    lag_offsets: Ints
    lag_ms: Ints
    covered: Ints
    oldest_ms: Ints
    waited_ms: Ints

    def rows(self, places: Ints) -> list[LaoPoint]:
        """Return some of them."""
        sampled = self.samples

        def known(values: Ints, place: int) -> int | None:
            return None if values[place] == MISSING else int(values[place])

        return [
            LaoPoint(
                int(sampled.offset[place]),
                int(sampled.epoch[place]),
                int(sampled.timestamp_ms[place]),
                known(sampled.lao, place),
                int(sampled.high_watermark[place]),
                known(self.lag_offsets, place),
                known(self.lag_ms, place),
                int(self.covered[place]),
                None if self.oldest_ms[place] == NEVER else int(self.waited_ms[place]),
            )
            for place in places.tolist()
        ]


def points(sampled: Samples, asked: Asked, found: Waited) -> Points:
    """Return the points of a pass that looked for the record behind each sample's LAO."""
    known = sampled.lao != MISSING
    at = np.searchsorted(asked.offsets, np.where(known, sampled.lao + 1, 0))
    at = np.minimum(at, max(len(asked.offsets) - 1, 0))
    nothing = np.full(len(sampled), NEVER, np.int64)
    next_, next_ms = (
        (found.next[at], found.next_ms[at]) if len(asked.offsets) else (nothing, nothing)
    )
    lag_ms = np.where(next_ < sampled.high_watermark, sampled.timestamp_ms - next_ms, 0)
    rising = raising(sampled)
    covered, oldest_ms = np.zeros(len(sampled), np.int64), nothing.copy()
    covered[rising], oldest_ms[rising] = found.covered[:-1], found.oldest_ms[:-1]
    return Points(
        sampled,
        np.where(known, np.maximum(sampled.high_watermark - 1 - sampled.lao, 0), MISSING),
        np.where(known, lag_ms, MISSING),
        covered,
        oldest_ms,
        _waited_ms(sampled, covered, oldest_ms),
    )


def _waited_ms(sampled: Samples, covered: Ints, oldest_ms: Ints) -> Ints:
    """Return how long the oldest record had waited: up to the sample at the most. If the controller
    has measured all records that the sample covers, this is the longest measured wait.

    A controller measures no record of the one before it; whether it is the same shows in the epoch.
    """
    most = np.where(oldest_ms == NEVER, 0, sampled.timestamp_ms - oldest_ms)
    own = (shifted(sampled.epoch) == sampled.epoch) & (shifted(sampled.lao) != MISSING)
    measured = own & (sampled.measured != MISSING) & (sampled.measured >= covered)
    return np.where(measured, np.minimum(most, -(-sampled.measured_us // 1000)), most)


PIECE_COLUMNS = tuple(dict.fromkeys((*SAMPLE_COLUMNS, *COLUMNS)))
"""Columns of all records of a piece."""
_NOTHING = np.zeros(0, np.int64)


def look_at(rows: pa.Table) -> tuple[Points, Waited]:
    """Return a piece, behind what is remembered: PIECE_COLUMNS, in order."""
    log = TableRows(rows, 0)
    sampled = samples(log.table(SAMPLE_COLUMNS, TYPES))
    known = sampled.lao[sampled.lao != MISSING] + 1
    asked, found = waits(log, sampled, known)
    return points(sampled, asked, found), found


def remember(rows: pa.Table, sampled: Samples) -> pa.Table:
    """Return the records that the next piece begins with: what LAO has not passed yet, and some
    progress records.

    Of these the last one, the one with the highest LAO, the one that says the most applied, and
    each broker's last word: another controller's counts no more.
    """
    reached = int(sampled.reached[-1]) if len(sampled) else MISSING
    waiting = pc.and_(
        pc.invert(pc.is_in(rows["type"], pa.array(QUIET, rows["type"].type))),
        pc.greater(rows["offset"], reached),
    )
    telling = pc.is_in(rows["offset"], pa.array(_telling(rows, sampled), pa.int64()))
    return rows.filter(pc.or_(waiting, telling))


def _telling(rows: pa.Table, sampled: Samples) -> Ints:
    if not len(sampled):
        return _NOTHING
    first_most = np.searchsorted(sampled.most_applied, sampled.most_applied[-1])
    highest = np.flatnonzero((sampled.lao == sampled.reached[-1]) & (sampled.lao != MISSING))
    where, broker, registered, _ = entries(sampled.table["applied"])
    current = sampled.epoch[where] == pc.max(rows["epoch"]).as_py()
    where, named = where[current], np.stack([broker[current], registered[current]])
    # From the end: the first of each is the last one.
    _, last = np.unique(named[:, ::-1], axis=1, return_index=True)
    places = np.concatenate([[len(sampled) - 1, first_most], highest[-1:], where[::-1][last]])
    return np.unique(sampled.offset[places.astype(np.int64)])


POINTS = typed(*LaoPoint.__struct_fields__)
"""Points as rows: the fields of LaoPoint."""


def table_of(found: Iterable[LaoPoint]) -> pa.Table:
    """Return points as rows of POINTS."""
    return pa.Table.from_pylist([msgspec.structs.asdict(each) for each in found], POINTS)


def points_of(pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the timeline of LAO of a whole log, piece by piece: POINTS. Memory is that of a piece,
    and of what LAO has not passed.
    """
    memory: pa.Table | None = None
    for piece in pieces:
        if not piece.num_rows:
            continue
        rows = piece if memory is None else pa.concat_tables([memory, piece])
        found, _ = look_at(rows)
        begins = piece["offset"][0].as_py()
        first = int(np.searchsorted(found.samples.offset, begins))
        yield table_of(found.rows(np.arange(first, len(found.samples))))
        memory = remember(rows, found.samples)
