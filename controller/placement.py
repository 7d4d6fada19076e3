"""Where the replicas of new partitions go: round robin over the live brokers, from a random start, and over their racks if they have any.

The first replicas take turns, so that leaderships spread; the distance to the others grows each time around, so that the
partitions of one broker have their followers on different brokers, and its load spreads when it fails. With racks, a partition has
no two replicas in one rack while another rack has none. Brokers without a rack count as one rack of their own.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import zip_longest

_NO_RACKS: Mapping[int, str] = {}


def place(
    brokers: Sequence[int],
    num_partitions: int,
    replication_factor: int,
    rng: random.Random,
    racks: Mapping[int, str] = _NO_RACKS,
) -> list[tuple[int, ...]]:
    """Replicas for each partition, the preferred leader first.

    ``brokers``: sorted, at least ``replication_factor`` of them. ``racks``: broker id -> its rack, empty for none.
    """
    groups = _groups(brokers, racks)
    if 1 < len(groups) < len(brokers):
        return _Racks(groups, rng).place(num_partitions, replication_factor)
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


def _groups(brokers: Sequence[int], racks: Mapping[int, str]) -> list[list[int]]:
    """The brokers of each rack, racks by name."""
    by_rack: dict[str, list[int]] = {}
    for broker_id in brokers:
        by_rack.setdefault(racks.get(broker_id, ""), []).append(broker_id)
    return [by_rack[rack] for rack in sorted(by_rack)]


class _Racks:
    """Brokers by rack, and in each rack whose turn it is to follow."""

    def __init__(self, groups: list[list[int]], rng: random.Random) -> None:
        self._groups = groups
        # One of each rack in turn; the larger racks have the last turns to themselves. All lead equally often.
        self._leaders = [
            (broker_id, rack)
            for turn in zip_longest(*groups)
            for rack, broker_id in enumerate(turn)
            if broker_id is not None
        ]
        self._next = [rng.randrange(len(group)) for group in groups]
        self._start = rng.randrange(len(self._leaders))
        self._shift = rng.randrange(len(groups))

    def place(self, num_partitions: int, replication_factor: int) -> list[tuple[int, ...]]:
        """As the function of that name."""
        count = len(self._leaders)
        placed = []
        for index in range(self._start, self._start + num_partitions):
            if index % count == 0:
                self._next = [turn + 1 for turn in self._next]
            leader, rack = self._leaders[index % count]
            placed.append(self._replicas(leader, rack, index, replication_factor))
        return placed

    def _replicas(self, leader: int, rack: int, index: int, replication_factor: int) -> tuple[int, ...]:
        count = len(self._groups)
        distance = self._shift + index // count + index // len(self._leaders)
        order = [(rack + 1 + (distance + step) % (count - 1)) % count for step in range(count - 1)]
        chosen = [leader]
        while len(chosen) < replication_factor:
            for other in order:
                if len(chosen) < replication_factor:
                    self._take(other, chosen)
            # Every rack has one, or no more: from here on the leader's own takes turns with the others.
            order = [rack, *(other for other in order if other != rack)]
        return tuple(chosen)

    def _take(self, rack: int, chosen: list[int]) -> None:
        """The next of a rack that is not chosen yet, if it has one."""
        group, turn = self._groups[rack], self._next[rack]
        for step in range(len(group)):
            broker_id = group[(turn + step) % len(group)]
            if broker_id not in chosen:
                chosen.append(broker_id)
                self._next[rack] = turn + step + 1
                return
