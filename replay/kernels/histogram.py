"""Histograms of durations by group, whose size does not depend on the number of durations."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from replay.kernels.arrays import Ints
from replay.kernels.groups import Grouped

EXACT_BITS = 10
"""Durations below 2 ** 10 ms have a bucket each; above that, each doubling has 2 ** 9 buckets. So a
bucket's highest value is at most 0.2 % above any value in it.
"""
HOW_EXACT = "up to 0.2 % too high from 1 s on"
"""Text about the precision of percentiles."""
_GROUP = 16
"""Number of bits of a bucket number."""
_BUCKETS = (1 << _GROUP) - 1


def bucket_of(values: Ints) -> Ints:
    """Return the bucket of each duration in ms."""
    high = np.maximum(values, 1 << (EXACT_BITS - 1)).astype(np.float64)
    shift = np.maximum(np.frexp(high)[1].astype(np.int64) - EXACT_BITS, 0)
    return (shift << (EXACT_BITS - 1)) + (values >> shift)


def highest_of(buckets: Ints) -> Ints:
    """Return the longest duration of each bucket."""
    shift = np.maximum((buckets >> (EXACT_BITS - 1)) - 1, 0)
    return ((buckets - (shift << (EXACT_BITS - 1)) + 1) << shift) - 1


class Figures(NamedTuple):
    """Figures of one group: number of durations, percentiles and the longest one; null without
    durations.
    """

    durations: int = 0
    p50_ms: int | None = None
    p99_ms: int | None = None
    max_ms: int | None = None


class Histogram:
    """Durations in ms by group; groups are non-negative numbers."""

    def __init__(self) -> None:
        self._counts, self._longest = Grouped(np.add), Grouped(np.maximum)

    def add(self, groups: Ints, values: Ints) -> None:
        """Add a duration to each group; a negative one counts as 0."""
        values = np.maximum(values, 0)
        self._counts.add((groups << _GROUP) | bucket_of(values), 1)
        self._longest.add(groups, values)

    def merge(self, other: Histogram) -> None:
        """Add the counts of another part."""
        self._counts.merge(other._counts)
        self._longest.merge(other._longest)

    def figures(self) -> dict[int, Figures]:
        """Return group -> figures."""
        keys, counts = self._counts.rows()
        groups, longest = self._longest.rows()
        edges = np.searchsorted(keys, np.append(groups, groups[-1:] + 1) << _GROUP).tolist()
        return {
            group: _figures(keys[start:end], counts[start:end], most)
            for group, most, start, end in zip(
                groups.tolist(), longest.tolist(), edges[:-1], edges[1:], strict=True
            )
        }

    def whole(self) -> Figures:
        """Return the figures of all groups together."""
        keys, counts = self._counts.rows()
        together = Grouped(np.add)
        together.add(keys & _BUCKETS, counts)
        longest = self._longest.rows()[1]
        if not len(longest):
            return Figures()
        keys, counts = together.rows()
        return _figures(keys, counts, int(longest.max()))


def _figures(keys: Ints, counts: Ints, most: int) -> Figures:
    running = np.cumsum(counts)
    total = int(running[-1])
    wanted = [math.ceil(total * share / 100) for share in (50, 99)]
    buckets = keys[np.searchsorted(running, wanted)] & _BUCKETS
    p50, p99 = np.minimum(highest_of(buckets), most).tolist()
    return Figures(total, p50, p99, most)
