"""A partition's next state: who leads it, who is in its ISR, and whether its reassignment is
complete. Every change is made here.

The rules (kept together because each bends the others):

* A leader is active and in the ISR. The present one stays if it can; else the first in replica
  order that can; else nobody.
* Without eligible leader replicas (KIP-966) the ISR never becomes empty: its last member stays
  though it is gone, for nobody else is known to hold every committed record.
* An unclean leader comes from outside the ISR: the ISR is then the leader alone, which is
  RECOVERING until it says otherwise.
* A reassignment (KIP-455) has replicas = target + removing. It is complete when all that are added
  are in the ISR, and, where the replicas become fewer, when all that stay are in it. Completing it
  is part of the change that makes it so.

What the coming and going of one broker means for the partitions that it holds, and for no
others.

Why: docs/decisions/015-one-function-changes-partitions.md
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import Enum
from typing import NamedTuple

from raftlog.metadata.config_layers import unclean_election_enabled
from raftlog.metadata.entities import Partition
from raftlog.metadata.image import ImageView, PartitionKey
from raftlog.metadata.records import Record, record
from raftlog.wire.records.v1 import records_pb2 as pb

NO_LEADER = -1
RECOVERED, RECOVERING = 0, 1


class Election(Enum):
    """Who may become the leader."""

    ONLINE = 0
    """Somebody of the ISR, if the present leader cannot go on."""
    PREFERRED = 1
    """The first replica, if it can; else as ONLINE."""
    UNCLEAN = 2
    """As ONLINE; where that finds nobody, any live replica."""


class Assignment(NamedTuple):
    """Where a partition's replicas are and are to be."""

    replicas: tuple[int, ...]
    removing: tuple[int, ...]
    adding: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas to have in the end."""
        return tuple(replica for replica in self.replicas if replica not in self.removing)

    @property
    def original(self) -> tuple[int, ...]:
        """The replicas there were before."""
        return tuple(replica for replica in self.replicas if replica not in self.adding)


class Brokers:
    """Who may lead, seen from the middle of a decision: ``joining`` is about to be unfenced,
    ``leaving`` about to go.
    """

    __slots__ = ("_brokers", "_joining", "_leaving")

    def __init__(self, view: ImageView, *, joining: int = -1, leaving: int = -1) -> None:
        self._brokers = view.brokers
        self._joining, self._leaving = joining, leaving

    def active(self, broker_id: int) -> bool:
        """Whether a broker is registered, unfenced and not shutting down."""
        if broker_id == self._leaving:
            return False
        if broker_id == self._joining:
            return True
        broker = self._brokers.get(broker_id)
        return broker is not None and broker.active


def assignment_of(partition: Partition) -> Assignment:
    """A partition's assignment as it is."""
    return Assignment(partition.replicas, partition.removing_replicas, partition.adding_replicas)


def choose_leader(
    brokers: Brokers,
    present: int,
    replicas: Sequence[int],
    isr: Collection[int],
    election: Election,
) -> int:
    """The leader among the members of the ISR, or NO_LEADER."""
    active = brokers.active
    if election is Election.PREFERRED and replicas[0] in isr and active(replicas[0]):
        return replicas[0]
    if present in isr and active(present):
        return present
    return next((replica for replica in replicas if replica in isr and active(replica)), NO_LEADER)


def next_state(
    brokers: Brokers,
    partition: Partition,
    *,
    isr: Sequence[int] | None = None,
    assignment: Assignment | None = None,
    recovery_state: int | None = None,
    election: Election = Election.ONLINE,
) -> pb.PartitionChangeRecord | None:
    """The record that makes a change true; None if nothing changes.

    ``isr`` empty: its last member is gone, and stays in it.

    ``isr`` must be part of the replicas of ``assignment``.
    """
    present = assignment_of(partition) if assignment is None else assignment
    wanted, members = present, partition.isr if isr is None else tuple(isr)
    if present.adding or present.removing:
        wanted, members = _completed(present, members)
    leader = choose_leader(brokers, partition.leader, wanted.replicas, members, election)
    if leader == NO_LEADER and election is Election.UNCLEAN:
        # Who is only being added may have nothing yet: last.
        candidates = (*present.original, *present.adding)
        leader = next(filter(brokers.active, candidates), NO_LEADER)
        if leader != NO_LEADER:
            # The ISR that would have completed the reassignment is given up.
            wanted, members, recovery_state = present, (leader,), RECOVERING
    return _record(partition, wanted, members or partition.isr, leader, recovery_state)


def is_overdue(partition: Partition) -> bool:
    """Whether a reassignment could be complete and is not: a controller of an earlier build has
    taken the last replica in.
    """
    if not partition.adding_replicas and not partition.removing_replicas:
        return False
    present = assignment_of(partition)
    return _completed(present, partition.isr)[0] != present


def _completed(wanted: Assignment, members: tuple[int, ...]) -> tuple[Assignment, tuple[int, ...]]:
    """The assignment and ISR after completion, if it is time; else as they are."""
    staying = tuple(member for member in members if member not in wanted.removing)
    if not staying or not set(wanted.adding) <= set(members):
        return wanted, members
    target = wanted.target
    if len(wanted.removing) > len(wanted.adding) and not set(target) <= set(staying):
        return wanted, members
    return Assignment(target, (), ()), staying


def _record(
    partition: Partition,
    wanted: Assignment,
    members: tuple[int, ...],
    leader: int,
    recovery_state: int | None,
) -> pb.PartitionChangeRecord | None:
    """Only what differs is in the record: naming a leader, even the same one, begins a leader
    epoch.
    """
    change = pb.PartitionChangeRecord(partition_id=partition.index, topic_id=partition.topic_id)
    if members != partition.isr:
        change.isr.ids.extend(members)
    if leader != partition.leader:
        change.leader = leader
    if recovery_state is not None and recovery_state != partition.leader_recovery_state:
        change.leader_recovery_state = recovery_state
    if wanted.replicas != partition.replicas:
        change.replicas.ids.extend(wanted.replicas)
    if wanted.removing != partition.removing_replicas:
        change.removing_replicas.ids[:] = wanted.removing
        change.removing_replicas.SetInParent()
    if wanted.adding != partition.adding_replicas:
        change.adding_replicas.ids[:] = wanted.adding
        change.adding_replicas.SetInParent()
    # partition_id and topic_id alone: nothing differs.
    return change if len(change.ListFields()) > 1 + (partition.index != 0) else None


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
