"""Applied offsets of each broker, by the samples: each holds until a sample names a newer one.

A sample names the brokers that changed since the last one, so there are as many spans as entries in
the log, not samples times brokers. Over a whole log they take one pass in order, which keeps
figures, the last entry of each broker, and only the few spans that the caller asks for.
"""

from __future__ import annotations

from collections.abc import Iterable
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
from replay.kernels.groups import Grouped
from replay.kernels.histogram import Histogram
from replay.kernels.passes import IN_ORDER, Pass, Rows
from replay.lag.samples import Samples, entries


class AppliedSpans(NamedTuple):
    """Spans in which an applied offset of a member held, one place each: from the sample that names
    it (``begins``, its offset) to the next one that does, or to the member's leaving (``ends``,
    exclusive).

    ``ends``, ``ends_ms``: NEVER: still. ``applied`` is inclusive; ``lag_offsets`` and
    ``most_offsets``: from it to the last committed record at the beginning, and at the end, as far
    as the log tells it.
    """

    broker_id: Ints
    epoch: Ints
    begins: Ints
    ends: Ints
    ends_ms: Ints
    applied: Ints
    lag_offsets: Ints
    most_offsets: Ints


class Entries(NamedTuple):
    """Applied offsets in samples: one place for each broker's entry, in order.

    ``high``: the sample's high watermark; ``known``: that of the sample before it. ``tells``: the
    span that begins with it is wanted.
    """

    broker: Ints
    offset: Ints
    ms: Ints
    epoch: Ints
    applied: Ints
    high: Ints
    known: Ints
    tells: Bools


def entries_beside(
    column: pa.ChunkedArray,
    offset: Ints,
    timestamp_ms: Ints,
    epoch: Ints,
    high_watermark: Ints,
    known: int = MISSING,
) -> Entries:
    """Return the entries of a column ``applied``, beside what else its samples say. ``known``: the
    high watermark of the sample before them.
    """
    where, broker, _, applied = entries(column)
    before = np.append(known, high_watermark)[:-1]
    return Entries(
        broker,
        offset[where],
        timestamp_ms[where],
        epoch[where],
        applied,
        high_watermark[where],
        before[where],
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
    lag = np.maximum(rows["high"] - 1 - rows["applied"], 0)
    at_the_end = np.where(same, after("known", MISSING), MISSING) - 1 - rows["applied"]
    found = AppliedSpans(
        rows["broker"],
        rows["epoch"],
        rows["offset"],
        after("offset", NEVER),
        after("ms", NEVER),
        rows["applied"],
        lag,
        np.maximum(lag, at_the_end),
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


COLUMNS = ("offset", "timestamp_ms", "epoch", "high_watermark", "applied")
_NOTHING = np.zeros(0, np.int64)


class BrokerFigures(NamedTuple):
    """Figures of one broker: how often samples named it, its last applied offset, and its lag."""

    broker_id: int
    reports: int
    last_applied_offset: int
    p50_lag_offsets: int
    max_lag_offsets: int


class _Applied:
    """The part of the pass. ``standing``: the result of :func:`standings`. Figures are of spans
    that end at ``since_ms`` or later; spans with one of ``applied`` are kept.
    """

    def __init__(self, standing: Ints, since_ms: int | None, applied: Ints) -> None:
        self._standing, self._since_ms, self._asked = standing, since_ms, applied
        self._open, self._high = joined(Entries, []), MISSING
        """The last entry of each broker, and the last high watermark."""
        self._lags, self._most = Histogram(), Grouped(np.maximum)
        self._last: dict[int, int] = {}
        self._kept: list[AppliedSpans] = []

    def take(self, table: pa.Table) -> None:
        if not table.num_rows:
            return
        offset, at_ms, epoch, high = (ints(table[name]) for name in COLUMNS[:4])
        new = entries_beside(table["applied"], offset, at_ms, epoch, high, self._high)
        entry = joined(Entries, [self._open, new])
        last = _last(entry.broker)
        self._keep(entry._replace(tells=~last), int(offset[-1]))
        self._open, self._high = some(entry, last), int(high[-1])

    def _keep(self, entry: Entries, end: int) -> None:
        begins = int(entry.offset.min()) if len(entry.offset) else 0
        spans = spans_of(entry, _standing(self._standing, begins, end))
        self._kept.append(some(spans, np.isin(spans.applied, self._asked)))
        if self._since_ms is not None:
            spans = some(spans, spans.ends_ms >= self._since_ms)
        self._lags.add(spans.broker_id, spans.lag_offsets)
        self._most.add(spans.broker_id, spans.most_offsets)
        self._last |= dict(zip(spans.broker_id.tolist(), spans.applied.tolist(), strict=True))

    def end(self) -> tuple[list[BrokerFigures], AppliedSpans]:
        self._keep(self._open._replace(tells=np.ones(len(self._open.broker), np.bool_)), NEVER)
        most, every = self._most.by_key(), joined(AppliedSpans, self._kept)
        figures = [
            BrokerFigures(
                broker, lag.durations, self._last[broker], lag.p50_ms or 0, most[broker][0]
            )
            for broker, lag in self._lags.figures().items()
        ]
        return figures, some(every, np.lexsort([every.begins, every.broker_id]))


def _last(broker: Ints) -> Bools:
    """Return the mask of the last entry of each broker."""
    order = np.argsort(broker, kind="stable")
    last = np.zeros(len(broker), np.bool_)
    last[order[stops_of(starts_of(broker[order]))]] = True
    return last


def _standing(standing: Ints, begins: int, last: int) -> Ints:
    """Return the entries that count within a stretch of the log: its own, and those that held
    before.
    """
    broker, offset = standing[:, 0], standing[:, 1]
    next_ = np.full(len(standing), NEVER, np.int64)
    next_[:-1] = np.where(broker[1:] == broker[:-1], offset[1:], NEVER)
    return standing[(offset <= last) & (next_ >= begins)]


def broker_figures(
    log: Rows,
    brokers: Iterable[BrokerSpan],
    *,
    since_ms: int | None = None,
    applied: Ints = _NOTHING,
) -> tuple[list[BrokerFigures], AppliedSpans]:
    """Figures of each broker's spans, and the spans that say one of ``applied``, by broker and in
    order.
    """
    begin = partial(_Applied, standings(brokers), since_ms, np.unique(applied))
    (found,) = log.run(Pass(begin, COLUMNS, (RecordType.PROGRESS,), IN_ORDER))
    return found
