"""Counts of durations by group, which keep their size however many durations there are."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from replay.kernels.arrays import Bools, Ints

EXACT_BITS = 10
"""Durations below 2 ** 10 ms have a bucket each; above, so do 2 ** 9 of each doubling: a bucket's
highest is at most 0.2 % above what is in it.
"""
HOW_EXACT = "up to 0.2 % too high from 1 s on"
"""Precision of a percentile, in words."""
COARSE_BITS = 7
"""Bits for many groups: 2 ** 6 buckets of each doubling."""
HOW_COARSE = "up to 1.6 % too high from 0.1 s on"
_GROUP = 16
"""Bits of a bucket."""
_BUCKETS = (1 << _GROUP) - 1


def bucket_of(values: Ints, bits: int = EXACT_BITS) -> Ints:
    """Return the bucket of each duration in ms."""
    values = np.maximum(values, 0)
    high = np.maximum(values, 1 << (bits - 1)).astype(np.float64)
    shift = np.maximum(np.frexp(high)[1].astype(np.int64) - bits, 0)
    return (shift << (bits - 1)) + (values >> shift)


def highest_of(buckets: Ints, bits: int = EXACT_BITS) -> Ints:
    """Return the longest duration of each bucket."""
    shift = np.maximum((buckets >> (bits - 1)) - 1, 0)
    return ((buckets - (shift << (bits - 1)) + 1) << shift) - 1


class Figures(NamedTuple):
    """Figures of one group: number of durations, percentiles, the longest; null without
    durations.
    """

    durations: int = 0
    p50_ms: int | None = None
    p90_ms: int | None = None
    p99_ms: int | None = None
    max_ms: int | None = None


class _Run(NamedTuple):
    """Some durations, counted. ``groups`` ascend, ``longest`` is of each; ``keys`` ascend, too: the
    place of the group, and below it the bucket, with ``counts`` beside them.
    """

    groups: Ints
    longest: Ints
    keys: Ints
    counts: Ints

    def of(self, chosen: Bools) -> _Run:
        """Return some of the groups."""
        place = np.cumsum(chosen) - 1
        owner = self.keys >> _GROUP
        kept = chosen[owner]
        keys = (place[owner[kept]] << _GROUP) | (self.keys[kept] & _BUCKETS)
        return _Run(self.groups[chosen], self.longest[chosen], keys, self.counts[kept])

    def whole(self) -> _Run:
        """Return all groups as one, 0."""
        if not len(self.groups):
            return self
        keys, counts = _added(self.keys & _BUCKETS, self.counts)
        return _Run(np.zeros(1, np.int64), self.longest.max(keepdims=True), keys, counts)


def _nothing() -> _Run:
    return _Run(*(np.zeros(0, np.int64) for _ in _Run._fields))


def _added(keys: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Return each key once, in order, with the sum of its counts."""
    order = np.argsort(keys, kind="stable")
    keys, counts = keys[order], counts[order]
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    return keys[starts], np.add.reduceat(counts, starts) if len(starts) else counts


def _both(one: _Run, other: _Run) -> _Run:
    groups = np.union1d(one.groups, other.groups)
    longest = np.full(len(groups), -1, np.int64)
    moved = []
    for run in (one, other):
        place = np.searchsorted(groups, run.groups)
        longest[place] = np.maximum(longest[place], run.longest)
        moved.append((place[run.keys >> _GROUP] << _GROUP) | (run.keys & _BUCKETS))
    counts = np.concatenate([one.counts, other.counts])
    return _Run(groups, longest, *_added(np.concatenate(moved), counts))


class Histogram:
    """Durations in ms by group, a number.

    ``newest``: number of groups that keep their buckets, those with the highest numbers; the others
    count in the whole alone. ``bits``: EXACT_BITS, or COARSE_BITS.
    """

    def __init__(self, newest: int | None = None, bits: int = EXACT_BITS) -> None:
        self._newest, self._bits = newest, bits
        self._runs: list[_Run] = []
        """Each more than half as large as the one before it has been: so what is counted is moved
        a few times, not once for each slice of the log.
        """
        self._old = _nothing()
        """Durations of the groups without buckets of their own, as group 0."""
        self._old_groups: set[int] = set()

    def add(self, groups: Ints, values: Ints) -> None:
        """One duration beside each group."""
        if not len(values):
            return
        named, where = np.unique(groups, return_inverse=True)
        keys, counts = np.unique(
            (where << _GROUP) | bucket_of(values, self._bits), return_counts=True
        )
        longest = np.full(len(named), -1, np.int64)
        np.maximum.at(longest, where, values)
        self._push(_Run(named, longest, keys, counts))

    def merge(self, other: Histogram) -> None:
        """Add the counts of another part."""
        newest = other._together()
        self._old = _both(self._old, other._old)
        self._old_groups |= other._old_groups
        self._push(newest)

    def named(self, name: Callable[[Ints], Ints]) -> Histogram:
        """Return the same with other numbers of the groups, which are different ones, too."""
        run = self._together()
        groups = name(run.groups)
        order = np.argsort(groups)
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        keys, counts = _added(
            (place[run.keys >> _GROUP] << _GROUP) | (run.keys & _BUCKETS), run.counts
        )
        named = Histogram(bits=self._bits)
        named._push(_Run(groups[order], run.longest[order], keys, counts))
        return named

    def drop(self, groups: Ints) -> None:
        """Forget some groups."""
        run = self._together()
        self._runs = [run.of(~np.isin(run.groups, groups))]

    def of(self, groups: Ints) -> dict[int, Figures]:
        """Return the figures of some groups, as far as they have durations."""
        run = self._together()
        return _figures(run.of(np.isin(run.groups, groups)), self._bits)

    def _push(self, run: _Run) -> None:
        self._runs.append(run)
        while len(self._runs) > 1 and len(self._runs[-2].keys) <= 2 * len(self._runs[-1].keys):
            last = self._runs.pop()
            self._runs[-1] = self._cut(_both(self._runs[-1], last))

    def _together(self) -> _Run:
        run = _nothing()
        while self._runs:
            run = _both(self._runs.pop(), run)
        self._runs = [self._cut(run)]
        return self._runs[0]

    def _cut(self, run: _Run) -> _Run:
        if self._newest is None or len(run.groups) <= self._newest:
            return run
        old = np.arange(len(run.groups)) < len(run.groups) - self._newest
        self._old = _both(self._old, run.of(old).whole())
        self._old_groups |= set(run.groups[old].tolist())
        return run.of(~old)

    def figures(self) -> dict[int, Figures]:
        """Return the figures of each group that has durations, and has kept its buckets."""
        return _figures(self._together(), self._bits)

    def whole(self) -> Figures:
        """Return the figures of all groups together."""
        newest = self._together().whole()
        together = _both(self._old, newest)
        return _figures(together, self._bits).get(0, Figures())

    @property
    def groups(self) -> set[int]:
        """Return all groups."""
        newest = self._together().groups.tolist()
        return self._old_groups | set(newest)


def _figures(run: _Run, bits: int) -> dict[int, Figures]:
    places = np.arange(len(run.groups))
    starts = np.searchsorted(run.keys, places << _GROUP)
    ends = np.searchsorted(run.keys, (places + 1) << _GROUP)
    return {
        group: _of(run.keys[start:end], run.counts[start:end], most, bits)
        for group, start, end, most in zip(
            run.groups.tolist(), starts.tolist(), ends.tolist(), run.longest.tolist(), strict=True
        )
    }


def _of(keys: Ints, counts: Ints, most: int, bits: int) -> Figures:
    running = np.cumsum(counts)
    total = int(running[-1])
    wanted = [math.ceil(total * share / 100) for share in (50, 90, 99)]
    buckets = keys[np.searchsorted(running, wanted)] & _BUCKETS
    p50, p90, p99 = np.minimum(highest_of(buckets, bits), most).tolist()
    return Figures(total, p50, p90, p99, most)


def percentile(values: Ints, share: int) -> int | None:
    """Return the value that ``share`` percent of the values do not exceed, exactly; None without
    values.
    """
    if not len(values):
        return None
    at = max(0, math.ceil(len(values) * share / 100) - 1)
    return int(np.partition(values, at)[at])
