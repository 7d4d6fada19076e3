"""Counts of durations by group, which keep their size however many durations there are."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from replay.kernels.arrays import Ints

EXACT_BITS = 10
"""Durations below 2 ** 10 ms have a bucket each; above, so do 2 ** 9 of each doubling: a bucket's
highest is at most 0.2 % above what is in it."""
HOW_EXACT = "up to 0.2 % too high from 1 s on"
"""In words, of a percentile."""
_GROUP = 16
"""Bits of a bucket."""
_BUCKETS = (1 << _GROUP) - 1


def bucket_of(values: Ints) -> Ints:
    """The bucket of each duration in ms."""
    values = np.maximum(values, 0)
    high = np.maximum(values, 1 << (EXACT_BITS - 1)).astype(np.float64)
    shift = np.maximum(np.frexp(high)[1].astype(np.int64) - EXACT_BITS, 0)
    return (shift << (EXACT_BITS - 1)) + (values >> shift)


def highest_of(buckets: Ints) -> Ints:
    """The longest duration of each bucket."""
    shift = np.maximum((buckets >> (EXACT_BITS - 1)) - 1, 0)
    return ((buckets - (shift << (EXACT_BITS - 1)) + 1) << shift) - 1


class Figures(NamedTuple):
    """Of one group: how many durations, percentiles, the longest; null of none."""

    durations: int = 0
    p50_ms: int | None = None
    p90_ms: int | None = None
    p99_ms: int | None = None
    max_ms: int | None = None


class Histogram:
    """Durations in ms by group, a number."""

    def __init__(self) -> None:
        self._groups = np.zeros(0, np.int64)
        """Ascending."""
        self._longest = np.zeros(0, np.int64)
        self._keys = np.zeros(0, np.int64)
        """The place of the group, and below it the bucket."""
        self._counts = np.zeros(0, np.int64)

    def add(self, groups: Ints, values: Ints) -> None:
        """One duration beside each group."""
        if not len(values):
            return
        named, where = np.unique(groups, return_inverse=True)
        keys, counts = np.unique((where << _GROUP) | bucket_of(values), return_counts=True)
        longest = np.full(len(named), -1, np.int64)
        np.maximum.at(longest, where, values)
        self._merge(named, longest, keys, counts)

    def merge(self, other: Histogram) -> None:
        """What another part counted."""
        self._merge(other._groups, other._longest, other._keys, other._counts)

    def named(self, name: Callable[[Ints], Ints]) -> Histogram:
        """The same with other numbers of the groups, which are different ones, too."""
        groups = name(self._groups)
        order = np.argsort(groups)
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        named = Histogram()
        named._merge(
            groups[order],
            self._longest[order],
            (place[self._keys >> _GROUP] << _GROUP) | (self._keys & _BUCKETS),
            self._counts,
        )
        return named

    def _merge(self, groups: Ints, longest: Ints, keys: Ints, counts: Ints) -> None:
        every = np.union1d(self._groups, groups)
        most = np.full(len(every), -1, np.int64)
        moved = []
        for its_groups, its_longest, its_keys in (
            (self._groups, self._longest, self._keys),
            (groups, longest, keys),
        ):
            place = np.searchsorted(every, its_groups)
            np.maximum.at(most, place, its_longest)
            moved.append((place[its_keys >> _GROUP] << _GROUP) | (its_keys & _BUCKETS))
        self._groups, self._longest = every, most
        self._keys, where = np.unique(np.concatenate(moved), return_inverse=True)
        total = np.zeros(len(self._keys), np.int64)
        np.add.at(total, where, np.concatenate([self._counts, counts]))
        self._counts = total

    def figures(self) -> dict[int, Figures]:
        """Of each group that has durations."""
        places = np.arange(len(self._groups))
        starts = np.searchsorted(self._keys, places << _GROUP)
        ends = np.searchsorted(self._keys, (places + 1) << _GROUP)
        return {
            int(group): self._of(int(start), int(end), int(most))
            for group, start, end, most in zip(
                self._groups, starts, ends, self._longest, strict=True
            )
        }

    def whole(self) -> Figures:
        """Of all groups together."""
        together = Histogram()
        if len(self._groups):
            longest = self._longest.max(keepdims=True)
            keys, counts = self._keys & _BUCKETS, self._counts
            together._merge(np.zeros(1, np.int64), longest, keys, counts)
        return together.figures().get(0, Figures())

    def _of(self, start: int, end: int, most: int) -> Figures:
        running = np.cumsum(self._counts[start:end])
        total = int(running[-1])
        wanted = [math.ceil(total * share / 100) for share in (50, 90, 99)]
        buckets = self._keys[start:end][np.searchsorted(running, wanted)] & _BUCKETS
        p50, p90, p99 = np.minimum(highest_of(buckets), most).tolist()
        return Figures(total, p50, p90, p99, most)


def percentile(values: Ints, share: int) -> int | None:
    """What ``share`` percent of the values do not exceed, exactly; None of none."""
    if not len(values):
        return None
    at = max(0, math.ceil(len(values) * share / 100) - 1)
    return int(np.partition(values, at)[at])
