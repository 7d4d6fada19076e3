"""What the coming and going of one broker means for the partitions that it holds, and for no
others.
"""

from __future__ import annotations

from collections.abc import Iterable

from controller.rules.partition_change import NO_LEADER, Brokers, Election, next_state
from raftlog.metadata.config_layers import unclean_election_enabled
from raftlog.metadata.entities import Partition
from raftlog.metadata.image import ImageView, PartitionKey
from raftlog.metadata.records import Record, record

MAX_REMOVALS = 5_000
"""Partitions that one batch takes a broker out of, where it need not be one batch: well below a
fetch timeout.
"""


def partitions_of(view: ImageView, broker_id: int) -> Iterable[Partition]:
    """The partitions with a replica on a broker, in a fixed order.

    Costs what the broker holds, not what the cluster does.
    """
    held: Iterable[PartitionKey] = view.replicas_of.get(broker_id) or ()
    partitions = view.partitions
    return (partitions[key] for key in sorted(held))


def leads_any(view: ImageView, broker_id: int) -> bool:
    """Whether a broker leads a partition."""
    partitions = view.partitions
    return any(partitions[key].leader == broker_id for key in view.replicas_of.get(broker_id) or ())


def waits_for_members(partition: Partition) -> bool:
    """Whether nobody leads and several are in sync: so in a log that was taken back, until one of
    them is there. See ``epoch_floor``.
    """
    return partition.leader == NO_LEADER and len(partition.isr) > 1


def removals(
    view: ImageView,
    broker_id: int,
    *,
    on_purpose: bool = False,
    same_disk: bool = False,
    limit: int | None = None,
) -> list[Record]:
    """Take a broker out of every ISR and leadership: one record for each partition that changes,
    ``limit`` at the most.

    A topic that allows it gets an unclean leader where nobody else is left, but not for a broker
    that goes ``on_purpose``: whoever stops the last member of an ISR may be about to start it
    again. A broker that registers with the ``same_disk`` stays in the ISRs that wait for any of
    their members.
    """
    records: list[Record] = []
    for partition in partitions_of(view, broker_id):
        if broker_id in partition.isr and not (same_disk and waits_for_members(partition)):
            if len(records) == limit:
                break
            records.extend(removal(view, partition, broker_id, on_purpose=on_purpose))
    return records


def removal(
    view: ImageView, partition: Partition, broker_id: int, *, on_purpose: bool
) -> list[Record]:
    """The record that takes a broker out of one ISR that it is in; none if it is the last member,
    and leads no more.
    """
    isr = tuple(member for member in partition.isr if member != broker_id)
    unclean = not isr and not on_purpose and unclean_election_enabled(view, partition.topic_id)
    election = Election.UNCLEAN if unclean else Election.ONLINE
    change = next_state(Brokers(view, leaving=broker_id), partition, isr=isr, election=election)
    return [] if change is None else [record(change)]


def elections_on_join(view: ImageView, broker_id: int) -> list[Record]:
    """Give leaders to the leaderless partitions that a broker, about to be unfenced, can lead.

    That is where it is in the ISR, and in topics that allow unclean leaders. Where several members
    were waited for, those that are not there leave the ISR, and nobody is elected from outside yet.
    """
    brokers = Brokers(view, joining=broker_id)
    records: list[Record] = []
    for partition in partitions_of(view, broker_id):
        if partition.leader != NO_LEADER:
            continue
        waits = waits_for_members(partition)
        unclean = not waits and unclean_election_enabled(view, partition.topic_id)
        election = Election.UNCLEAN if unclean else Election.ONLINE
        isr = tuple(filter(brokers.active, partition.isr)) if waits else None
        change = next_state(brokers, partition, isr=isr, election=election)
        if change is not None:
            records.append(record(change))
    return records
