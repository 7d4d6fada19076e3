"""The buckets of a DurationSketch: four to each doubling of microseconds."""

from __future__ import annotations

import math
from collections.abc import Mapping

PER_DOUBLING = 4
BUCKETS_MAX = 200
"""More than any duration needs."""


def bucket_of(took_us: int) -> int:
    """The bucket of a duration; below 2 microseconds: 0."""
    if took_us < 2:
        return 0
    return min(BUCKETS_MAX - 1, int(math.log2(took_us) * PER_DOUBLING))


def upper_us(bucket: int) -> float:
    """What every duration of a bucket is below; at most 19 % above it."""
    return float(2 ** ((bucket + 1) / PER_DOUBLING))


def percentile_us(buckets: Mapping[int, int], share: float, max_us: int) -> int | None:
    """What ``share`` of the durations did not exceed, up to 19 % above the true one; None: none."""
    total = sum(buckets.values())
    if not total:
        return None
    wanted, seen = math.ceil(total * share), 0
    for bucket in sorted(buckets):
        seen += buckets[bucket]
        if seen >= wanted:
            return min(max_us, round(upper_us(bucket)))
    return max_us
