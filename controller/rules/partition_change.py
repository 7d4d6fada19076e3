"""The next state of a partition: its leader, its ISR, and whether its reassignment is complete.
Every change is made here.

The rules (kept together because each bends the others):

* A leader is active and in the ISR. The present one stays if it can; else the first in replica
  order that can; else none.
* Without eligible leader replicas (KIP-966) the ISR never becomes empty: its last member stays
  though it is absent, for no other replica is known to hold every committed record.
* An unclean leader comes from outside the ISR: the ISR is then the leader alone, which is
  RECOVERING until it reports otherwise.
* A reassignment (KIP-455) has replicas = target + removing. It is complete when all that are added
  are in the ISR, and, where the replicas become fewer, when all that stay are in it. Completing it
  is part of the change that makes it so.

Removals and elections change the partitions that one broker holds, when it joins or leaves.

Why: docs/decisions/015-one-function-changes-partitions.md
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import Enum
from typing import NamedTuple

from raftlog.metadata.config_keys import unclean_election_enabled
from raftlog.metadata.entities import Partition
from raftlog.metadata.image import ImageView, PartitionKey
from raftlog.metadata.records import Record, record
from raftlog.wire.records.v1 import records_pb2 as pb

NO_LEADER = -1
RECOVERED, RECOVERING = 0, 1


class Election(Enum):
    """Eligibility for the leadership in an election."""

    ONLINE = 0
    """A member of the ISR, if the present leader cannot stay."""
    PREFERRED = 1
    """The first replica, if it can; else as ONLINE."""
    UNCLEAN = 2
    """A member as for ONLINE; if there is none, any live replica."""


class Assignment(NamedTuple):
    """The replicas of a partition, present and intended."""

    replicas: tuple[int, ...]
    removing: tuple[int, ...]
    adding: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas at the end of the reassignment."""
        return tuple(replica for replica in self.replicas if replica not in self.removing)

    @property
    def original(self) -> tuple[int, ...]:
        """The replicas before the reassignment."""
        return tuple(replica for replica in self.replicas if replica not in self.adding)


class Brokers:
    """The brokers that may lead, as a decision sees them: ``joining`` is about to be unfenced,
    ``leaving`` about to leave.
    """

    __slots__ = ("_brokers", "_joining", "_leaving")

    def __init__(self, view: ImageView, *, joining: int = -1, leaving: int = -1) -> None:
        self._brokers = view.brokers
        self._joining, self._leaving = joining, leaving

    def active(self, broker_id: int) -> bool:
        """Return whether a broker is registered, unfenced and not shutting down."""
        if broker_id == self._leaving:
            return False
        if broker_id == self._joining:
            return True
        broker = self._brokers.get(broker_id)
        return broker is not None and broker.active


def assignment_of(partition: Partition) -> Assignment:
    """Return a partition's present assignment."""
    return Assignment(partition.replicas, partition.removing_replicas, partition.adding_replicas)


def choose_leader(
    brokers: Brokers,
    present: int,
    replicas: Sequence[int],
    isr: Collection[int],
    election: Election,
) -> int:
    """Return the leader among the members of the ISR, or NO_LEADER."""
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
    """Return the record of a change; None if nothing changes.

    ``isr`` empty: its last member is absent, and stays in it.

    ``isr`` must be part of the replicas of ``assignment``.
    """
    present = assignment_of(partition) if assignment is None else assignment
    wanted, members = present, partition.isr if isr is None else tuple(isr)
    if present.adding or present.removing:
        wanted, members = _completed(present, members)
    leader = choose_leader(brokers, partition.leader, wanted.replicas, members, election)
    if leader == NO_LEADER and election is Election.UNCLEAN:
        # A replica that is only being added may have no records yet: last.
        candidates = (*present.original, *present.adding)
        leader = next(filter(brokers.active, candidates), NO_LEADER)
        if leader != NO_LEADER:
            # The ISR that would have completed the reassignment is given up.
            wanted, members, recovery_state = present, (leader,), RECOVERING
    return _record(partition, wanted, members or partition.isr, leader, recovery_state)


def is_overdue(partition: Partition) -> bool:
    """Return whether a reassignment could be complete and is not: a controller of an earlier build
    has added the last replica.
    """
    if not partition.adding_replicas and not partition.removing_replicas:
        return False
    present = assignment_of(partition)
    return _completed(present, partition.isr)[0] != present


def _completed(wanted: Assignment, members: tuple[int, ...]) -> tuple[Assignment, tuple[int, ...]]:
    """Return the assignment and ISR after completion, if it is possible; else both unchanged."""
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
    """Return a record of the differences only: naming a leader, even the same one, begins a leader
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
"""Most partitions that one batch removes a broker from, where several batches are allowed: it takes
well below a fetch timeout.
"""


def partitions_of(view: ImageView, broker_id: int) -> Iterable[Partition]:
    """Yield the partitions with a replica on a broker, in a fixed order.

    The cost grows with the partitions of the broker, not of the cluster.
    """
    held: Iterable[PartitionKey] = view.replicas_of.get(broker_id) or ()
    partitions = view.partitions
    return (partitions[key] for key in sorted(held))


def leads_any(view: ImageView, broker_id: int) -> bool:
    """Return whether a broker leads a partition."""
    partitions = view.partitions
    return any(partitions[key].leader == broker_id for key in view.replicas_of.get(broker_id) or ())


def waits_for_members(partition: Partition) -> bool:
    """Return whether there is no leader and the ISR has several members: a log that was taken back
    has such partitions until a member returns. See ``epoch_floor``.
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
    """Remove a broker from every ISR and leadership: one record for each partition that changes, at
    most ``limit``.

    A topic that allows it gets an unclean leader where no member is left, except for a broker that
    leaves ``on_purpose``: an operator who stops the last member of an ISR may be about to restart
    it. A broker that registers with the ``same_disk`` stays in the ISRs that wait for any of their
    members.
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
    """Return the record that removes a broker from one ISR; none if it is the last member, and no
    longer leads.
    """
    isr = tuple(member for member in partition.isr if member != broker_id)
    unclean = not isr and not on_purpose and unclean_election_enabled(view, partition.topic_id)
    election = Election.UNCLEAN if unclean else Election.ONLINE
    change = next_state(Brokers(view, leaving=broker_id), partition, isr=isr, election=election)
    return [] if change is None else [record(change)]


def elections_on_join(view: ImageView, broker_id: int) -> list[Record]:
    """Elect leaders for the leaderless partitions that a broker, about to be unfenced, can lead.

    These are the partitions with it in the ISR, and those of topics that allow unclean leaders.
    Where several members were awaited, absent ones leave the ISR, and no replica outside it is
    elected yet.
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
