"""The buckets of a DurationSketch: four per doubling, in microseconds."""

from __future__ import annotations

import math
from collections.abc import Mapping

PER_DOUBLING = 4
BUCKETS_MAX = 200
"""Number of buckets: more than any duration needs."""


def bucket_of(took_us: int) -> int:
    """Return the bucket of a duration in microseconds; 0 below 2 microseconds."""
    if took_us < 2:
        return 0
    return min(BUCKETS_MAX - 1, int(math.log2(took_us) * PER_DOUBLING))


def upper_us(bucket: int) -> float:
    """Return the upper bound (exclusive) of a bucket's durations, at most 19 % above them, in
    microseconds.
    """
    return float(2 ** ((bucket + 1) / PER_DOUBLING))


def percentile_us(buckets: Mapping[int, int], share: float, max_us: int) -> int | None:
    """Return the duration, in microseconds, that a ``share`` of all durations did not exceed (up to
    19 % too high), or None if there are no durations.
    """
    total = sum(buckets.values())
    if not total:
        return None
    wanted, seen = math.ceil(total * share), 0
    for bucket in sorted(buckets):
        seen += buckets[bucket]
        if seen >= wanted:
            return min(max_us, round(upper_us(bucket)))
    return max_us
