"""Where the replicas of a new topic go: round robin over the live brokers, from a random start, as Kafka does without racks.

The first replicas take turns, so that leaderships spread; the distance to the others grows each time around, so that the
partitions of one broker have their followers on different brokers, and its load spreads when it fails.
"""

from __future__ import annotations

import random
from collections.abc import Sequence


def place(
    brokers: Sequence[int], num_partitions: int, replication_factor: int, rng: random.Random
) -> list[tuple[int, ...]]:
    """Replicas for each partition, the preferred leader first. ``brokers``: sorted, at least ``replication_factor`` of them."""
    count = len(brokers)
    start = rng.randrange(count)
    shift = rng.randrange(count)
    # The pattern repeats after count turns of count partitions: lay out what is needed of one period.
    period = count * max(count - 1, 1)
    pattern = [
        _replicas(brokers, (start + index) % count, shift + (start + index) // count, replication_factor)
        for index in range(min(num_partitions, period))
    ]
    return [pattern[index % period] for index in range(num_partitions)]


def _replicas(brokers: Sequence[int], first: int, shift: int, replication_factor: int) -> tuple[int, ...]:
    count = len(brokers)
    return (
        brokers[first],
        *(
            brokers[(first + 1 + (shift + follower) % (count - 1)) % count]
            for follower in range(replication_factor - 1)
        ),
    )
