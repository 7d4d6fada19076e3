"""Assignments of replicas to brokers: what is wrong with one that was asked for, and what a new
partition begins with.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

from controller.decision import refuse
from controller.rules.placement import place
from raftlog.errors import ErrorCode
from raftlog.metadata.image import ImageView
from raftlog.metadata.records import Record, record
from raftlog.wire.records.v1 import records_pb2 as pb

MAX_REPLICAS = 1_000_000
"""Placed in one go."""


def active_brokers(view: ImageView) -> list[int]:
    """The brokers that may be given partitions, by id: unfenced, and not shutting down."""
    return sorted(
        broker_id for broker_id, broker in view.snapshot().brokers.items() if broker.active
    )


def spread(
    view: ImageView,
    live: Sequence[int],
    partitions: int,
    replication_factor: int,
    rng: random.Random,
) -> list[tuple[int, ...]]:
    """Replicas for new partitions, over the racks of the live brokers.

    Raises POLICY_VIOLATION for more than MAX_REPLICAS.
    """
    if partitions * replication_factor > MAX_REPLICAS:
        raise refuse(
            ErrorCode.POLICY_VIOLATION,
            f"{partitions} partitions of {replication_factor} replicas are more than the"
            f" {MAX_REPLICAS} replicas of one topic and request",
        )
    racks = {broker_id: view.brokers[broker_id].rack for broker_id in live}
    return place(live, partitions, replication_factor, rng, racks)


def wrong_replicas(view: ImageView, broker_ids: Sequence[int]) -> str:
    """What makes a set of replicas none, empty if nothing does."""
    if not broker_ids or len(set(broker_ids)) < len(broker_ids):
        return f"{list(broker_ids)} is empty or names a broker twice"
    for broker_id in broker_ids:
        if broker_id not in view.brokers:
            return f"broker {broker_id} is not registered"
    return ""


def wrong_new_replicas(
    view: ImageView, broker_ids: Sequence[int], live: Collection[int], width: int
) -> str:
    """What is wrong with the replicas of a new partition: besides, they are as many as those of the
    others, and one lives.
    """
    wrong = wrong_replicas(view, broker_ids)
    if not wrong and len(broker_ids) != width:
        wrong = f"{len(broker_ids)} replicas, other partitions have {width}"
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
    """A new partition: all live replicas are in sync, and the first of them leads.

    ``leader_epoch``: the first of the log's generation.
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
