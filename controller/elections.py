"""Who leads a partition, and the records that change its leader or its ISR.

Without eligible leader replicas (KIP-966) the ISR never becomes empty: the last member stays in it though it is gone, and the
partition has no leader until that member is back, because nobody else is known to hold every committed record.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from raftlog.metadata.entities import Partition
from raftlog.metadata.image import ImageView, PartitionKey
from raftlog.metadata.records import Record, record
from raftlog.wire.records.v1 import records_pb2 as pb

NO_LEADER = -1


def is_active(view: ImageView, broker_id: int) -> bool:
    """Whether a broker may lead and be in an ISR: registered, unfenced, not shutting down."""
    broker = view.brokers.get(broker_id)
    return broker is not None and broker.active


def choose_leader(view: ImageView, replicas: Sequence[int], isr: Container[int], *, joining: int = -1) -> int:
    """The first replica, in replica order, that is in the ISR and active; ``joining`` counts as active. Or NO_LEADER."""
    for broker_id in replicas:
        if broker_id in isr and (broker_id == joining or is_active(view, broker_id)):
            return broker_id
    return NO_LEADER


def change_record(partition: Partition, *, isr: Sequence[int] | None = None, leader: int | None = None) -> Record:
    """A partition's next state. Naming a leader, even the same one, begins a leader epoch: pass it only if it changes."""
    return record(
        pb.PartitionChangeRecord(
            partition_id=partition.index,
            topic_id=partition.topic_id,
            isr=None if isr is None else pb.IdList(ids=isr),
            leader=leader,
        )
    )


def partitions_of(view: ImageView, broker_id: int) -> Iterable[Partition]:
    """The partitions with a replica on a broker, in a fixed order. Costs what the broker holds, not what the cluster does."""
    held: Iterable[PartitionKey] = view.replicas_of.get(broker_id) or ()
    partitions = view.partitions
    return (partitions[key] for key in sorted(held))


def leads_any(view: ImageView, broker_id: int) -> bool:
    """Whether a broker leads a partition."""
    partitions = view.partitions
    return any(partitions[key].leader == broker_id for key in view.replicas_of.get(broker_id) or ())


def removals(view: ImageView, broker_id: int) -> list[Record]:
    """Take a broker out of every ISR and leadership: one record for each partition that changes."""
    records: list[Record] = []
    for partition in partitions_of(view, broker_id):
        if broker_id not in partition.isr:
            continue
        isr = tuple(member for member in partition.isr if member != broker_id)
        if not isr:
            if partition.leader != NO_LEADER:
                records.append(change_record(partition, leader=NO_LEADER))
        elif partition.leader in isr:
            records.append(change_record(partition, isr=isr))
        else:
            leader = choose_leader(view, partition.replicas, isr)
            records.append(change_record(partition, isr=isr, leader=None if leader == partition.leader else leader))
    return records


def elections_on_join(view: ImageView, broker_id: int) -> list[Record]:
    """Give leaders to the leaderless partitions that a broker, about to be unfenced, is in the ISR of."""
    records: list[Record] = []
    for partition in partitions_of(view, broker_id):
        if partition.leader == NO_LEADER and broker_id in partition.isr:
            leader = choose_leader(view, partition.replicas, partition.isr, joining=broker_id)
            records.append(change_record(partition, leader=leader))
    return records
