"""Where the replicas of new partitions go: round robin over the live brokers, from a random start,
and over their racks if they have any.

The first replicas take turns, so that leaderships spread; the distance to the others grows each
time around, so that the partitions of one broker have their followers on different brokers, and its
load spreads when it fails. With racks, a partition has no two replicas in one rack while another
rack has none. Brokers without a rack count as one rack of their own.
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

    ``brokers``: sorted, at least ``replication_factor`` of them. ``racks``: broker id -> its rack,
    empty for none.
    """
    groups = _groups(brokers, racks)
    if 1 < len(groups) < len(brokers):
        return _Racks(groups, rng).place(num_partitions, replication_factor)
    number = len(brokers)
    start = rng.randrange(number)
    shift = rng.randrange(number)
    # The pattern repeats after so many turns as there are brokers, less one: lay out what is needed
    # of one period.
    period = number * max(number - 1, 1)
    pattern = [
        _replicas(
            brokers, (start + index) % number, shift + (start + index) // number, replication_factor
        )
        for index in range(min(num_partitions, period))
    ]
    return [pattern[index % period] for index in range(num_partitions)]


def _replicas(
    brokers: Sequence[int], first: int, shift: int, replication_factor: int
) -> tuple[int, ...]:
    number = len(brokers)
    return (
        brokers[first],
        *(
            brokers[(first + 1 + (shift + follower) % (number - 1)) % number]
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
    """Brokers by rack.

    Who follows whom is computed, not counted: leader and turn say it, and over some turns everybody
    meets everybody.
    """

    def __init__(self, groups: list[list[int]], rng: random.Random) -> None:
        self._groups = groups
        # (rack, place in it), one of each rack in turn; the larger racks have the last turns to
        # themselves. All lead equally often.
        self._leaders = [
            (rack, place)
            for place, turn in enumerate(zip_longest(*groups))
            for rack, broker_id in enumerate(turn)
            if broker_id is not None
        ]
        self._start = rng.randrange(len(self._leaders))
        self._shift = rng.randrange(len(self._leaders))

    def place(self, num_partitions: int, replication_factor: int) -> list[tuple[int, ...]]:
        """As the function of that name."""
        number = len(self._leaders)
        return [
            self._replicas(
                *self._leaders[index % number], self._shift + index // number, replication_factor
            )
            for index in range(self._start, self._start + num_partitions)
        ]

    def _replicas(
        self, rack: int, place: int, turn: int, replication_factor: int
    ) -> tuple[int, ...]:
        """The other racks from another one on each turn, and then from another place in them; the
        leader's own comes last.
        """
        groups, others = self._groups, len(self._groups) - 1
        order = [
            (rack + 1 + (turn + place + step) % others) % len(groups) for step in range(others)
        ]
        shift = turn // others
        chosen = [groups[rack][place]]
        lap = 0
        while len(chosen) < replication_factor:
            chosen += [
                groups[other][(place + shift + lap) % len(groups[other])]
                for other in order
                if lap < len(groups[other])
            ]
            own = groups[rack]
            if lap < len(own) - 1:
                chosen.append(own[(place + 1 + (shift + lap) % (len(own) - 1)) % len(own)])
            lap += 1
        return tuple(chosen[:replication_factor])
