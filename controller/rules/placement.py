"""The placement of new partitions: round robin over the unfenced brokers from a random start, and
over their racks if they have any.

Leaderships rotate over the brokers. The distance from a leader to its followers grows each time
around, so that one broker's partitions have followers on different brokers, and its load spreads
when it fails. With racks, two replicas share a rack only if every rack has one. Brokers without a
rack together count as one rack.

The module also validates requested assignments and makes the first state of new partitions.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import zip_longest

from controller.decision import refuse
from raftlog.errors import ErrorCode
from raftlog.metadata.config_keys import is_cordoned
from raftlog.metadata.image import ImageView
from raftlog.metadata.records import Record, record
from raftlog.wire.records.v1 import records_pb2 as pb

MAX_REPLICAS = 1_000_000
"""Maximum number of replicas placed by one call."""


def active_brokers(view: ImageView) -> list[int]:
    """Return the ids of the brokers that may be assigned partitions, sorted: unfenced and not
    stopping.
    """
    return sorted(
        broker_id for broker_id, broker in view.snapshot().brokers.items() if broker.active
    )


def uncordoned(view: ImageView, broker_ids: Iterable[int]) -> list[int]:
    """Return the brokers that may receive new replicas, in the same order."""
    return [broker_id for broker_id in broker_ids if not is_cordoned(view, broker_id)]


def spread(
    view: ImageView,
    live: Sequence[int],
    partitions: int,
    replication_factor: int,
    rng: random.Random,
) -> list[tuple[int, ...]]:
    """Return replicas for new partitions, spread over the racks of the unfenced brokers.

    Raises POLICY_VIOLATION for more than MAX_REPLICAS.
    """
    if partitions * replication_factor > MAX_REPLICAS:
        raise refuse(
            ErrorCode.POLICY_VIOLATION,
            f"{partitions} partitions with {replication_factor} replicas each exceed the limit of"
            f" {MAX_REPLICAS} replicas per topic and request",
        )
    racks = {broker_id: view.brokers[broker_id].rack for broker_id in live}
    return place(live, partitions, replication_factor, rng, racks)


def wrong_replicas(view: ImageView, broker_ids: Sequence[int]) -> str:
    """Return why a replica list is invalid, or "" if it is valid."""
    if not broker_ids or len(set(broker_ids)) < len(broker_ids):
        return f"{list(broker_ids)} must name at least one broker, and each only once"
    for broker_id in broker_ids:
        if broker_id not in view.brokers:
            return f"broker {broker_id} is not registered"
    return ""


def cordoned_among(view: ImageView, broker_ids: Iterable[int]) -> str:
    """Return an error if a new replica would be on a cordoned broker, or ""."""
    cordoned = [broker_id for broker_id in broker_ids if is_cordoned(view, broker_id)]
    return f"broker {cordoned[0]} is cordoned and must not receive new replicas" if cordoned else ""


def wrong_new_replicas(
    view: ImageView, broker_ids: Sequence[int], live: Collection[int], width: int
) -> str:
    """Return why a new partition's replicas are invalid, or "" if they are valid.

    They must be as many as ``width``, include a live broker and no cordoned one.
    """
    wrong = wrong_replicas(view, broker_ids) or cordoned_among(view, broker_ids)
    if not wrong and len(broker_ids) != width:
        wrong = f"{len(broker_ids)} replicas given, but the topic's other partitions have {width}"
    if not wrong and not any(broker_id in live for broker_id in broker_ids):
        wrong = f"none of the brokers {list(broker_ids)} is live"
    return wrong


def new_partition(
    topic_id: bytes,
    index: int,
    replicas: Sequence[int],
    live: Collection[int],
    leader_epoch: int = 0,
) -> Record:
    """Return a new partition whose ISR is all live replicas, led by the first of them.

    ``leader_epoch``: the first one of the log's generation.
    """
    isr = [replica for replica in replicas if replica in live]
    return record(
        pb.PartitionRecord(
            partition_id=index,
            topic_id=topic_id,
            replicas=replicas,
            isr=isr,
            leader=isr[0],
            leader_epoch=leader_epoch,
        )
    )


_NO_RACKS: Mapping[int, str] = {}


def place(
    brokers: Sequence[int],
    num_partitions: int,
    replication_factor: int,
    rng: random.Random,
    racks: Mapping[int, str] = _NO_RACKS,
) -> list[tuple[int, ...]]:
    """Return the replicas of each partition, the preferred leader first.

    ``brokers``: sorted, at least ``replication_factor``. ``racks``: broker id -> rack; empty if
    there are no racks.
    """
    groups = _groups(brokers, racks)
    if 1 < len(groups) < len(brokers):
        return _Racks(groups, rng).place(num_partitions, replication_factor)
    number = len(brokers)
    start = rng.randrange(number)
    shift = rng.randrange(number)
    # The pattern repeats after (number - 1) rounds: compute the needed part of one period.
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
    """Return the brokers of each rack, ordered by the name of the rack."""
    by_rack: dict[str, list[int]] = {}
    for broker_id in brokers:
        by_rack.setdefault(racks.get(broker_id, ""), []).append(broker_id)
    return [by_rack[rack] for rack in sorted(by_rack)]


class _Racks:
    """Placement over racks.

    Followers are computed from the leader and the round, not counted: over several rounds each
    broker follows every other one.
    """

    def __init__(self, groups: list[list[int]], rng: random.Random) -> None:
        self._groups = groups
        # (rack, index in it), alternating between racks until the smaller ones run out. All brokers
        # lead equally often.
        self._leaders = [
            (rack, place)
            for place, turn in enumerate(zip_longest(*groups))
            for rack, broker_id in enumerate(turn)
            if broker_id is not None
        ]
        self._start = rng.randrange(len(self._leaders))
        self._shift = rng.randrange(len(self._leaders))

    def place(self, num_partitions: int, replication_factor: int) -> list[tuple[int, ...]]:
        """Return the replicas of each partition, like the function ``place``."""
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
        """Return one partition's replicas.

        The order of the other racks, and the index in each, change from round to round; the
        leader's own rack comes last.
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
