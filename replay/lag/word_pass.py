"""Statements of brokers in a whole log, in one pass: only figures are kept of the words of a slice,
and the few words in question.

A word may begin in one slice and end in another. So each slice keeps the first and the last entry
of each broker: the words between slices are found from these, once all are there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from raftlog.metadata.records import RecordType
from replay.kernels.arrays import MISSING, NEVER, Bools, Ints, ints
from replay.kernels.facts import BrokerSpan
from replay.kernels.passes import Pass, Rows
from replay.lag.samples import Samples, shifted
from replay.lag.tally import Tally
from replay.lag.waits import QUIET, next_of
from replay.lag.words import Entries, Words, said, standings, words_of

COLUMNS = ("offset", "type", "timestamp_ms", "epoch", "high_watermark", "applied")
_NOTHING = np.zeros(0, np.int64)


@dataclass(frozen=True)
class BrokerWords:
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
    """The question of the pass. ``standing``: the result of :func:`standings`. Figures are of words
    that stood at ``since_ms`` or later. ``applied``: the question is about words with one of these,
    ascending.
    """

    standing: Ints
    since_ms: int | None
    applied: Ints


class _Far(NamedTuple):
    """Words whose next record is not near: the offset from which it is looked for."""

    broker: Ints
    behind: Ints
    known: Ints
    known_ms: Ints


class _Figures:
    """Figures of all brokers, up to where each word's next record is known."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, int]] = {}
        """Broker -> where its last word begins, and what it says."""
        self._most: dict[int, tuple[int, int]] = {}
        """Broker -> how far behind at the most, in offsets and in ms."""
        self._lags = Tally()

    def add(self, stood: Words, lag_ms: Ints) -> None:
        """Words by broker and in order, and the age of what each had not applied at its end."""
        known = stood.known != MISSING
        ends = np.where(known, np.maximum(stood.known - 1 - stood.applied, 0), 0)
        most = np.maximum(stood.lag_offsets, ends)
        self._lags.add(stood.broker_id, stood.lag_offsets)
        brokers, starts = np.unique(stood.broker_id, return_index=True)
        stops = np.append(starts[1:], len(stood.broker_id)) - 1
        if not len(brokers):
            return
        for broker, last, offsets, ms in zip(
            brokers.tolist(),
            zip(stood.begins[stops].tolist(), stood.applied[stops].tolist(), strict=True),
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

    def told(self) -> list[BrokerWords]:
        """Return the figures of each broker, by id."""
        medians = self._lags.percentiles(50)
        reports = self._lags.totals()
        return [
            BrokerWords(broker, reports[broker], last[1], medians[broker], *self._most[broker])
            for broker, last in sorted(self._last.items())
        ]


class _Found(NamedTuple):
    figures: _Figures
    far: list[_Far]
    edges: list[Entries]
    words: list[Words]


class _Saying:
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
        entry = said(few["applied"], *(ints(few[name]) for name in ("offset", *COLUMNS[2:5])))
        if not len(entry.broker):
            return
        first, last = _ends(entry.broker)
        edge = first | last
        self._found.edges.append(entry.of(edge)._replace(tells=last[edge]))
        inside = entry._replace(tells=~last)
        standing = _standing(self._asked.standing, int(offset[0]), int(offset[-1]))
        self._keep(words_of(inside, standing), int(offset[-1]))

    def _keep(self, stood: Words, end: int) -> None:
        found = self._found
        found.words.append(_saying(stood, self._asked.applied))
        stood = _recent(stood, self._asked.since_ms)
        offset, at_ms = (np.concatenate([each[place] for each in self._near]) for place in (0, 1))
        behind = stood.applied + 1
        at = np.searchsorted(offset, behind)
        next_ = np.append(offset, NEVER)[at]
        near = (behind >= self._near[0][2]) & ((next_ != NEVER) | (stood.known <= end + 1))
        known = (stood.known != MISSING) & (behind < stood.known)
        late = known & near & (next_ < stood.known)
        lag_ms = np.where(late, stood.known_ms - np.append(at_ms, 0)[at], 0)
        found.figures.add(stood, lag_ms)
        found.far.append(_far(stood.of(known & ~near)))

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


def _saying(stood: Words, applied: Ints) -> Words:
    return stood.of(np.isin(stood.applied, applied))


def _recent(stood: Words, since_ms: int | None) -> Words:
    return stood if since_ms is None else stood.of(stood.ends_ms >= since_ms)


def _far(stood: Words) -> _Far:
    return _Far(stood.broker_id, stood.applied + 1, stood.known, stood.known_ms)


def broker_words(
    log: Rows,
    sampled: Samples,
    brokers: Iterable[BrokerSpan],
    *,
    since_ms: int | None = None,
    applied: Ints = _NOTHING,
) -> tuple[list[BrokerWords], Words]:
    """Figures of each broker's words, and the words that say one of ``applied``, by broker and in
    order.
    """
    asked = Asked(standings(brokers), since_ms, np.unique(applied))
    figures, far, words = _Figures(), [], []
    edges: list[Entries] = [said(pa.chunked_array([pa.array([])]), *(_NOTHING,) * 4)]
    for part in log.run(Pass(partial(_Saying, asked), COLUMNS)):
        figures.merge(part.figures)
        far += part.far
        words += part.words
        edges += part.edges
    between = words_of(_between(edges, sampled), asked.standing)
    words.append(_saying(between, asked.applied))
    between = _recent(between, since_ms)
    figures.add(between, np.zeros(len(between.broker_id), np.int64))
    behind = (between.known != MISSING) & (between.applied + 1 < between.known)
    far.append(_far(between.of(behind)))
    _look_far(
        log, sampled, figures, _Far(*(np.concatenate(each) for each in zip(*far, strict=True)))
    )
    every = Words(
        **{name: np.concatenate([getattr(each, name) for each in words]) for name in vars(between)}
    )
    return figures.told(), every.of(np.lexsort([every.begins, every.broker_id]))


def _between(edges: list[Entries], sampled: Samples) -> Entries:
    """Return the edges of all slices; what was known before the first sample of a slice, the slice
    did not know.
    """
    every = Entries(*(np.concatenate(each) for each in zip(*edges, strict=True)))
    at = np.searchsorted(sampled.offset, every.offset)
    return every._replace(
        known=shifted(sampled.high_watermark)[at], known_ms=shifted(sampled.timestamp_ms)[at]
    )


def _look_far(log: Rows, sampled: Samples, figures: _Figures, far: _Far) -> None:
    """Look for the next records of words only where they may be the oldest of all: a record is no
    older than the sample before it.
    """
    at = np.searchsorted(sampled.offset, far.behind, side="right")
    earliest_ms = np.concatenate([[-NEVER // 2], sampled.timestamp_ms])[at]
    may = far.known_ms - earliest_ms > figures.max_lag_ms(far.broker)
    if not may.any():
        return
    far = _Far(*(values[may] for values in far))
    offsets, where = np.unique(far.behind, return_inverse=True)
    next_, next_ms = (values[where] for values in next_of(log, offsets))
    figures.late(far.broker, np.where(next_ < far.known, far.known_ms - next_ms, 0))
