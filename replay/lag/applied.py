"""Applied offsets of each broker, by the samples: each holds until a sample names a newer one.

A sample names the brokers that changed since the last one, so there are as many spans as entries in
the log, not samples times brokers. Over a whole log they take one pass, which keeps figures, and
only the few spans that the caller asks for. A span may begin in one slice and end in another: each
slice keeps the first and the last entry of each broker, and the spans between slices are found from
these once all are there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from raftlog.metadata.records import RecordType
from replay.kernels.arrays import (
    MISSING,
    NEVER,
    Bools,
    Ints,
    carried,
    ints,
    joined,
    some,
    starts_of,
    stops_of,
)
from replay.kernels.facts import BrokerSpan
from replay.kernels.histogram import Histogram
from replay.kernels.passes import Pass, Rows
from replay.lag.samples import Samples, entries, shifted
from replay.lag.waits import QUIET, next_of


class AppliedSpans(NamedTuple):
    """Spans in which an applied offset of a member held, one place each: from the sample that names
    it (``begins``, its offset) to the next one that does, or to the member's leaving (``ends``,
    exclusive).

    ``ends``, ``ends_ms``: NEVER: still. ``applied`` is inclusive, ``lag_offsets`` from it to the
    last committed record at the beginning; ``known`` and ``known_ms``: what was committed at the
    end, as far as the log tells it, and when (MISSING: it does not).
    """

    broker_id: Ints
    epoch: Ints
    begins: Ints
    ends: Ints
    ends_ms: Ints
    applied: Ints
    lag_offsets: Ints
    known: Ints
    known_ms: Ints


class Entries(NamedTuple):
    """Applied offsets in samples: one place for each broker's entry, in order.

    ``high``: the sample's high watermark; ``known``, ``known_ms``: that of the sample before it,
    and its time. ``tells``: the span that begins with it is wanted.
    """

    broker: Ints
    offset: Ints
    ms: Ints
    epoch: Ints
    applied: Ints
    high: Ints
    known: Ints
    known_ms: Ints
    tells: Bools


def entries_beside(
    column: pa.ChunkedArray, offset: Ints, timestamp_ms: Ints, epoch: Ints, high_watermark: Ints
) -> Entries:
    """Return the entries of a column ``applied``, beside what else its samples say."""
    where, broker, _, applied = entries(column)
    return Entries(
        broker,
        offset[where],
        timestamp_ms[where],
        epoch[where],
        applied,
        high_watermark[where],
        shifted(high_watermark)[where],
        shifted(timestamp_ms)[where],
        np.ones(len(where), np.bool_),
    )


def applied_spans(sampled: Samples, brokers: Iterable[BrokerSpan]) -> AppliedSpans:
    """Return the spans in samples that were made of whole records."""
    numbers = sampled.offset, sampled.timestamp_ms, sampled.epoch, sampled.high_watermark
    return spans_of(entries_beside(sampled.table["applied"], *numbers), standings(brokers))


def spans_of(entry: Entries, standing: Ints) -> AppliedSpans:
    """Return the spans of the members, by broker and in order.

    A broker is a member while it is unfenced (the committed image's side of
    ``controller/visibility/lao.py``). A span is void under another controller: what that one says
    next proves nothing about how long the offset held.
    """
    count = len(standing)
    nothing, no = np.full(count, MISSING, np.int64), np.zeros(count, np.bool_)
    rows = {
        "broker": np.concatenate([entry.broker, standing[:, 0]]),
        "offset": np.concatenate([entry.offset, standing[:, 1]]),
        "ms": np.concatenate([entry.ms, standing[:, 2]]),
        "up": np.concatenate([np.full(len(entry.broker), MISSING, np.int64), standing[:, 3]]),
        "applied": np.concatenate([entry.applied, nothing]),
        "epoch": np.concatenate([entry.epoch, nothing]),
        "high": np.concatenate([entry.high, np.zeros(count, np.int64)]),
        # All below a change of a registration was committed before it, or with it.
        "known": np.concatenate([entry.known, standing[:, 1]]),
        "known_ms": np.concatenate([entry.known_ms, standing[:, 2]]),
        "tells": np.concatenate([entry.tells, no]),
    }
    order = np.lexsort([rows["offset"], rows["broker"]])
    rows = {name: values[order] for name, values in rows.items()}
    first = starts_of(rows["broker"])
    last = stops_of(first)

    def after(name: str, nothing: int) -> Ints:
        values = np.concatenate([rows[name][1:], [nothing]]) if len(order) else rows[name]
        return np.where(last, nothing, values)

    up = carried(rows["up"], first)
    next_epoch = after("epoch", MISSING)
    same = (next_epoch == MISSING) | (next_epoch == rows["epoch"])
    found = AppliedSpans(
        rows["broker"],
        rows["epoch"],
        rows["offset"],
        after("offset", NEVER),
        after("ms", NEVER),
        rows["applied"],
        np.maximum(rows["high"] - 1 - rows["applied"], 0),
        np.where(same, after("known", MISSING), MISSING),
        np.where(same, after("known_ms", MISSING), MISSING),
    )
    return some(found, rows["tells"] & (rows["applied"] != MISSING) & (up == 1))


def standings(brokers: Iterable[BrokerSpan]) -> Ints:
    """Return the log's changes of brokers, each of which ends its span: broker, offset, time,
    whether it counts from here on.
    """
    rows: list[tuple[int, int, int, int]] = []
    spans = sorted(brokers, key=lambda span: (span.broker_id, span.begins))
    for span, next_ in zip_longest(spans, spans[1:]):
        rows.append((span.broker_id, span.begins, span.begins_ms, int(not span.fenced)))
        followed = (
            next_ is not None and next_.broker_id == span.broker_id and next_.begins == span.ends
        )
        if span.ends_ms is not None and not followed:
            rows.append((span.broker_id, span.ends, span.ends_ms, 0))
    return np.array(rows, np.int64).reshape(len(rows), 4)


COLUMNS = ("offset", "type", "timestamp_ms", "epoch", "high_watermark", "applied")
_NOTHING = np.zeros(0, np.int64)


@dataclass(frozen=True)
class BrokerFigures:
    """Figures of one broker: how often samples named it, its last applied offset, and its lag.

    ``max_lag_ms``: the age of the oldest record that it had not applied.
    """

    broker_id: int
    reports: int
    last_applied_offset: int
    p50_lag_offsets: int
    max_lag_offsets: int
    max_lag_ms: int


class Asked(NamedTuple):
    """The question of the pass. ``standing``: the result of :func:`standings`. Figures are of spans
    that spans at ``since_ms`` or later. ``applied``: the question is about spans with one of these,
    ascending.
    """

    standing: Ints
    since_ms: int | None
    applied: Ints


class _Far(NamedTuple):
    """Spans whose next record is not near: the offset from which it is looked for."""

    broker: Ints
    behind: Ints
    known: Ints
    known_ms: Ints


class _Figures:
    """Figures of all brokers, up to where each span's next record is known."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, int]] = {}
        """Broker -> where its last span begins, and what it says."""
        self._most: dict[int, tuple[int, int]] = {}
        """Broker -> how far behind at the most, in offsets and in ms."""
        self._lags = Histogram()

    def add(self, spans: AppliedSpans, lag_ms: Ints) -> None:
        """Add spans, by broker and in order; ``lag_ms``: the age of the oldest unapplied record."""
        known = spans.known != MISSING
        ends = np.where(known, np.maximum(spans.known - 1 - spans.applied, 0), 0)
        most = np.maximum(spans.lag_offsets, ends)
        self._lags.add(spans.broker_id, spans.lag_offsets)
        brokers, starts = np.unique(spans.broker_id, return_index=True)
        stops = np.append(starts[1:], len(spans.broker_id)) - 1
        if not len(brokers):
            return
        for broker, last, offsets, ms in zip(
            brokers.tolist(),
            zip(spans.begins[stops].tolist(), spans.applied[stops].tolist(), strict=True),
            np.maximum.reduceat(most, starts).tolist(),
            np.maximum.reduceat(lag_ms, starts).tolist(),
            strict=True,
        ):
            self._raise(broker, last, (offsets, ms))

    def _raise(self, broker: int, last: tuple[int, int], most: tuple[int, int]) -> None:
        before = self._most.get(broker, (0, 0))
        self._most[broker] = max(before[0], most[0]), max(before[1], most[1])
        if last[0] >= self._last.get(broker, (-1, 0))[0]:
            self._last[broker] = last

    def merge(self, other: _Figures) -> None:
        """Add the findings of another part, which comes behind this one."""
        self._lags.merge(other._lags)
        for broker, last in other._last.items():
            self._raise(broker, last, other._most[broker])

    def max_lag_ms(self, brokers: Ints) -> Ints:
        """Return the highest lag so far of each broker, in ms."""
        return np.array([self._most[each][1] for each in brokers.tolist()], np.int64)

    def late(self, brokers: Ints, lag_ms: Ints) -> None:
        """Add lags that were not known at once."""
        for broker, ms in zip(brokers.tolist(), lag_ms.tolist(), strict=True):
            offsets, before = self._most[broker]
            self._most[broker] = offsets, max(before, ms)

    def of_brokers(self) -> list[BrokerFigures]:
        """Return the figures of each broker, by id."""
        figures = self._lags.figures()
        return [
            BrokerFigures(
                broker,
                figures[broker].durations,
                last[1],
                figures[broker].p50_ms or 0,
                *self._most[broker],
            )
            for broker, last in sorted(self._last.items())
        ]


class _Found(NamedTuple):
    figures: _Figures
    far: list[_Far]
    edges: list[Entries]
    spans: list[AppliedSpans]


class _AppliedPass:
    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._found = _Found(_Figures(), [], [], [])
        self._near: list[tuple[Ints, Ints, int]] = []
        """Offsets of this slice and the one before: the awaited ones, and their begin."""

    def take(self, table: pa.Table) -> None:
        if not table.num_rows:
            return
        offset, type_, at_ms = (ints(table[name]) for name in COLUMNS[:3])
        news = (type_ != QUIET[0]) & (type_ != QUIET[1])
        self._near = [*self._near[-1:], (offset[news], at_ms[news], int(offset[0]))]
        few = table.filter(pa.array(type_ == RecordType.PROGRESS))
        entry = entries_beside(
            few["applied"], *(ints(few[name]) for name in ("offset", *COLUMNS[2:5]))
        )
        if not len(entry.broker):
            return
        first, last = _ends(entry.broker)
        edge = first | last
        self._found.edges.append(some(entry, edge)._replace(tells=last[edge]))
        inside = entry._replace(tells=~last)
        standing = _standing(self._asked.standing, int(offset[0]), int(offset[-1]))
        self._keep(spans_of(inside, standing), int(offset[-1]))

    def _keep(self, spans: AppliedSpans, end: int) -> None:
        found = self._found
        found.spans.append(_with_applied(spans, self._asked.applied))
        spans = _recent(spans, self._asked.since_ms)
        offset, at_ms = (np.concatenate([each[place] for each in self._near]) for place in (0, 1))
        behind = spans.applied + 1
        at = np.searchsorted(offset, behind)
        next_ = np.append(offset, NEVER)[at]
        near = (behind >= self._near[0][2]) & ((next_ != NEVER) | (spans.known <= end + 1))
        known = (spans.known != MISSING) & (behind < spans.known)
        late = known & near & (next_ < spans.known)
        lag_ms = np.where(late, spans.known_ms - np.append(at_ms, 0)[at], 0)
        found.figures.add(spans, lag_ms)
        found.far.append(_far(some(spans, known & ~near)))

    def end(self) -> _Found:
        return self._found


def _ends(broker: Ints) -> tuple[Bools, Bools]:
    """Return the masks of the first and the last entry of each broker."""
    order = np.argsort(broker, kind="stable")
    changes = np.diff(broker[order]) != 0
    first, last = (np.zeros(len(broker), np.bool_) for _ in range(2))
    first[order[np.concatenate([[True], changes])]] = True
    last[order[np.concatenate([changes, [True]])]] = True
    return first, last


def _standing(standing: Ints, begins: int, last: int) -> Ints:
    """Return the entries that count within a stretch of the log: its own, and those that held
    before.
    """
    broker, offset = standing[:, 0], standing[:, 1]
    next_ = np.full(len(standing), NEVER, np.int64)
    next_[:-1] = np.where(broker[1:] == broker[:-1], offset[1:], NEVER)
    return standing[(offset <= last) & (next_ >= begins)]


def _with_applied(spans: AppliedSpans, applied: Ints) -> AppliedSpans:
    return some(spans, np.isin(spans.applied, applied))


def _recent(spans: AppliedSpans, since_ms: int | None) -> AppliedSpans:
    return spans if since_ms is None else some(spans, spans.ends_ms >= since_ms)


def _far(spans: AppliedSpans) -> _Far:
    return _Far(spans.broker_id, spans.applied + 1, spans.known, spans.known_ms)


def broker_figures(
    log: Rows,
    sampled: Samples,
    brokers: Iterable[BrokerSpan],
    *,
    since_ms: int | None = None,
    applied: Ints = _NOTHING,
) -> tuple[list[BrokerFigures], AppliedSpans]:
    """Figures of each broker's spans, and the spans that say one of ``applied``, by broker and in
    order.
    """
    asked = Asked(standings(brokers), since_ms, np.unique(applied))
    figures, far, spans = _Figures(), [], []
    edges: list[Entries] = [entries_beside(pa.chunked_array([pa.array([])]), *(_NOTHING,) * 4)]
    for part in log.run(Pass(partial(_AppliedPass, asked), COLUMNS)):
        figures.merge(part.figures)
        far += part.far
        spans += part.spans
        edges += part.edges
    between = spans_of(_between(edges, sampled), asked.standing)
    spans.append(_with_applied(between, asked.applied))
    between = _recent(between, since_ms)
    figures.add(between, np.zeros(len(between.broker_id), np.int64))
    behind = (between.known != MISSING) & (between.applied + 1 < between.known)
    far.append(_far(some(between, behind)))
    _look_far(log, sampled, figures, joined(_Far, far))
    every = joined(AppliedSpans, spans)
    return figures.of_brokers(), some(every, np.lexsort([every.begins, every.broker_id]))


def _between(edges: list[Entries], sampled: Samples) -> Entries:
    """Return the edges of all slices; what was known before the first sample of a slice, the slice
    did not know.
    """
    every = joined(Entries, edges)
    at = np.searchsorted(sampled.offset, every.offset)
    return every._replace(
        known=shifted(sampled.high_watermark)[at], known_ms=shifted(sampled.timestamp_ms)[at]
    )


def _look_far(log: Rows, sampled: Samples, figures: _Figures, far: _Far) -> None:
    """Look for the next records of spans only where they may be the oldest of all: a record is no
    older than the sample before it.
    """
    at = np.searchsorted(sampled.offset, far.behind, side="right")
    earliest_ms = np.concatenate([[-NEVER // 2], sampled.timestamp_ms])[at]
    may = far.known_ms - earliest_ms > figures.max_lag_ms(far.broker)
    if not may.any():
        return
    far = some(far, may)
    offsets, where = np.unique(far.behind, return_inverse=True)
    next_, next_ms = (values[where] for values in next_of(log, offsets))
    figures.late(far.broker, np.where(next_ < far.known, far.known_ms - next_ms, 0))
