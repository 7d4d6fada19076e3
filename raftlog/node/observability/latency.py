"""Durations as a histogram, independent of the metrics library."""

from __future__ import annotations

from bisect import bisect_left

LATENCY_BOUNDS_S = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    10.0,
)
"""Upper bounds of latency buckets in seconds: fine around a commit, coarse above."""


class Latency:
    """A histogram of seconds that costs one bisection an observation and no lock: one thread
    observes.
    """

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self.total_s = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        """Add a duration to its bucket, to the sum and to the count; ``count`` equal ones."""
        self.counts[bisect_left(LATENCY_BOUNDS_S, seconds)] += count
        self.total_s += seconds * count

    def buckets(self) -> list[tuple[str, float]]:
        """Return the cumulative counts by upper bound, in Prometheus's form."""
        result, cumulated = [], 0
        for bound, count in zip((*map(str, LATENCY_BOUNDS_S), "+Inf"), self.counts, strict=True):
            cumulated += count
            result.append((bound, float(cumulated)))
        return result
