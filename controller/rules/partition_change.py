"""The next state of a partition: its leader, its ISR, and whether its reassignment is complete.

Every change to a partition is made here. The rules are kept together because they interact:

* A leader is active and in the ISR. The current leader stays if it can; otherwise the first replica
  that can lead becomes leader; if there is none, the partition has no leader.
* A replica that leaves the ISR below ``min.insync.replicas`` becomes an eligible leader replica
  (ELR, KIP-966): it has everything up to the high watermark, which does not advance while there is
  an ELR. It stays eligible until the ISR is large enough again, its broker shuts down uncleanly,
  has another disk or is unregistered.
* If the ISR is empty, the leader comes from the ELR, the last leader first. If no leader is left,
  the last one is recorded as last known, unless its disk is known to be lost.
* An unclean leader comes from outside both: the ISR is then the leader alone, which is RECOVERING
  until it reports otherwise, and no other replica is eligible.
* During a reassignment (KIP-455), replicas = target + removing. It is complete when every added
  replica is in the ISR and, if the number of replicas shrinks, every remaining one is, too. The
  change that makes it complete also completes it.

Removals and elections change the partitions of one broker when it joins or leaves.

Why: docs/decisions/015-one-function-changes-partitions.md,
docs/decisions/037-the-replica-that-has-lost-least.md
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import Enum, IntEnum
from itertools import islice
from typing import NamedTuple

from raftlog.metadata.config_keys import (
    MIN_INSYNC_REPLICAS,
    needed_in_sync,
    topic_value,
    unclean_election_enabled,
)
from raftlog.metadata.entities import NO_LEADER, RECOVERING, Partition
from raftlog.metadata.image import ImageView, PartitionKey
from raftlog.metadata.partitions import changed_partition
from raftlog.metadata.records import Record, record
from raftlog.wire.records.v1 import records_pb2 as pb


class Election(Enum):
    """Which replicas may be elected leader."""

    ONLINE = 0
    """A member of the ISR; the current leader stays if it can."""
    PREFERRED = 1
    """The first replica if it is active and in the ISR; else as ONLINE."""
    UNCLEAN = 2
    """As ONLINE; if no member can lead, any active replica."""


class Loss(IntEnum):
    """What a departing broker may have lost of the records that it stored."""

    NOTHING = 0
    """The broker is fenced or was shut down cleanly: its disk is intact."""
    UNCLEAN = 1
    """The broker was not shut down cleanly: its last records may be missing."""
    DISK = 2
    """The broker has a new disk, or was unregistered."""


class Elections(NamedTuple):
    """Numbers of elections from outside an ISR."""

    from_elr: int = 0
    """Elections from the eligible leader replicas, which lose nothing."""
    unclean: int = 0
    """Elections that may lose records: requested by an operator, based on the replicas' reports, or
    in a topic that allows any leader.
    """


class Assignment(NamedTuple):
    """The current and intended replicas of a partition."""

    replicas: tuple[int, ...]
    removing: tuple[int, ...]
    adding: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after the reassignment."""
        return tuple(replica for replica in self.replicas if replica not in self.removing)

    @property
    def original(self) -> tuple[int, ...]:
        """The replicas before the reassignment."""
        return tuple(replica for replica in self.replicas if replica not in self.adding)


class Brokers:
    """The brokers as leader candidates of one decision.

    ``joining``: broker that the decision unfences. ``leaving``: broker that leaves, with this
    ``loss``. ``low_on_space``: brokers that lead only where no other can.
    """

    __slots__ = ("_joining", "_leaving", "_loss", "low_on_space", "view")

    def __init__(
        self,
        view: ImageView,
        *,
        joining: int = -1,
        leaving: int = -1,
        loss: Loss = Loss.NOTHING,
        low_on_space: Collection[int] = (),
    ) -> None:
        self.view = view
        self.low_on_space = low_on_space
        self._joining, self._leaving, self._loss = joining, leaving, loss

    def active(self, broker_id: int) -> bool:
        """Return whether a broker is registered, unfenced and not shutting down."""
        if broker_id == self._leaving:
            return False
        if broker_id == self._joining:
            return True
        broker = self.view.brokers.get(broker_id)
        return broker is not None and broker.active

    def loss_of(self, broker_id: int) -> Loss:
        """Return what a broker may lose by this change."""
        return self._loss if broker_id == self._leaving else Loss.NOTHING

    def min_in_sync(self, topic_id: bytes, replicas: int) -> int:
        """Return the ISR size below which replicas that leave the ISR become eligible leader
        replicas.

        ``replicas``: number of replicas of the partition, without those being added.
        """
        return needed_in_sync(int(topic_value(self.view, topic_id, MIN_INSYNC_REPLICAS)), replicas)


def assignment_of(partition: Partition) -> Assignment:
    """Return a partition's current assignment."""
    return Assignment(partition.replicas, partition.removing_replicas, partition.adding_replicas)


def choose_leader(
    brokers: Brokers,
    present: int,
    replicas: Sequence[int],
    isr: Collection[int],
    election: Election,
) -> int:
    """Return the member of the ISR that leads, or NO_LEADER."""
    active = brokers.active
    if brokers.low_on_space:
        with_space = [member for member in isr if member not in brokers.low_on_space]
        isr = with_space if any(map(active, with_space)) else isr
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
    eligible: bool = True,
) -> pb.PartitionChangeRecord | None:
    """Return the record of a change, or None if nothing changes.

    ``isr`` must be a subset of the replicas of ``assignment``; each keeps its current value if
    None. ``eligible``: whether replicas that leave the ISR may become eligible leader replicas.
    """
    present = assignment_of(partition) if assignment is None else assignment
    wanted, members = present, partition.isr if isr is None else tuple(isr)
    if present.adding or present.removing:
        wanted, members = _completed(present, members)
    elr = _eligible_leaders(brokers, partition, wanted, members) if eligible else ()
    leader = choose_leader(brokers, partition.leader, wanted.replicas, members, election)
    if not members and elr:
        last = _last_leader(partition)
        leader = choose_leader(brokers, last, wanted.replicas, elr, election)
        if leader != NO_LEADER:
            members = (leader,)
            elr = _eligible_leaders(brokers, partition, wanted, members)
    if leader == NO_LEADER and election is Election.UNCLEAN:
        # A replica that is being added may have no records yet, so it comes last.
        candidates = (*present.original, *present.adding)
        leader = next(filter(brokers.active, candidates), NO_LEADER)
        if leader != NO_LEADER:
            # The ISR that would have completed the reassignment is discarded.
            wanted, members, elr, recovery_state = present, (leader,), (), RECOVERING
    change = _record(partition, wanted, members, leader, recovery_state)
    last_known: tuple[int, ...] = ()
    if leader == NO_LEADER and not members:
        last = _last_leader(partition)
        if last in wanted.replicas and brokers.loss_of(last) is not Loss.DISK:
            last_known = (last,)
    if elr != partition.elr:
        change.eligible_leader_replicas.ids[:] = elr
        change.eligible_leader_replicas.SetInParent()
    # Stated when the last holder leaves, even if it is empty, so that readers need not infer it.
    emptied = not members and bool(partition.isr or (partition.elr and not elr))
    if last_known != partition.last_known_elr or emptied:
        change.last_known_elr.ids[:] = last_known
        change.last_known_elr.SetInParent()
    # Only partition_id and topic_id are set: nothing has changed.
    return change if len(change.ListFields()) > 1 + (partition.index != 0) else None


def elect_recovered(
    partition: Partition, leader: int, recovery: pb.UncleanRecovery
) -> pb.PartitionChangeRecord:
    """Return the record of an unclean recovery: ``leader`` leads, alone in the ISR."""
    change = _record(partition, assignment_of(partition), (leader,), leader, RECOVERING)
    for was, now in (
        (partition.elr, change.eligible_leader_replicas),
        (partition.last_known_elr, change.last_known_elr),
    ):
        if was:
            now.SetInParent()
    change.recovery.CopyFrom(recovery)
    return change


def elections_outside_isr(view: ImageView, records: Iterable[Record]) -> Elections:
    """Count the elections from outside an ISR among records that ``view`` does not include yet."""
    from_elr = unclean = 0
    for one in records:
        change = one.message
        if not change.HasField("leader"):
            continue
        old = view.partitions.get((change.topic_id, change.partition_id))
        if old is None or change.leader in (NO_LEADER, *old.isr):
            continue
        if change.leader in old.elr and not change.HasField("recovery"):
            from_elr += 1
        elif changed_partition(old, change).leader_recovery_state == RECOVERING:
            unclean += 1
    return Elections(from_elr, unclean)


def _last_leader(partition: Partition) -> int:
    """Return the current leader, else the last known one, else the only member of the ISR, else
    NO_LEADER.
    """
    if partition.leader != NO_LEADER:
        return partition.leader
    known = partition.last_known_elr or (partition.isr if len(partition.isr) == 1 else ())
    return known[0] if known else NO_LEADER


def _eligible_leaders(
    brokers: Brokers, partition: Partition, wanted: Assignment, members: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the eligible leader replicas next to an ISR of ``members``, in replica order."""
    if not partition.elr and members == partition.isr:
        return ()
    count = len(wanted.replicas) - len(wanted.adding)
    if len(members) >= brokers.min_in_sync(partition.topic_id, count):
        return ()
    held = {*partition.isr, *partition.elr}.difference(members)
    return tuple(
        replica
        for replica in wanted.replicas
        if replica in held and brokers.loss_of(replica) is Loss.NOTHING
    )


def is_overdue(partition: Partition) -> bool:
    """Return whether a reassignment could have been completed but was not: earlier builds did not
    complete it when the last replica was added.
    """
    if not partition.adding_replicas and not partition.removing_replicas:
        return False
    present = assignment_of(partition)
    return _completed(present, partition.isr)[0] != present


def _completed(wanted: Assignment, members: tuple[int, ...]) -> tuple[Assignment, tuple[int, ...]]:
    """Return the assignment and ISR after completion, or both unchanged if it is not possible."""
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
) -> pb.PartitionChangeRecord:
    """Return a record of the differences only: setting a leader, even the same one, would begin a
    new leader epoch.
    """
    change = pb.PartitionChangeRecord(partition_id=partition.index, topic_id=partition.topic_id)
    if members != partition.isr:
        change.isr.ids[:] = members
        change.isr.SetInParent()
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
    return change


MAX_ELECTIONS = 1000
"""Maximum number of elections in one batch, as in Kafka."""
MAX_REMOVALS = 5_000
"""Maximum number of partitions from which one batch removes a broker, where several batches are
allowed. Such a batch takes much less than a fetch timeout.
"""


def partitions_of(view: ImageView, broker_id: int) -> Iterable[Partition]:
    """Yield the partitions with a replica on a broker, in a fixed order.

    O(partitions of the broker).
    """
    held: Iterable[PartitionKey] = view.replicas_of.get(broker_id) or ()
    partitions = view.partitions
    return (partitions[key] for key in held)


def elections_elsewhere(
    view: ImageView, broker_id: int, low_on_space: Collection[int], *, limit: int
) -> list[Record]:
    """Elect other leaders for the partitions that a broker low on space leads; at most ``limit``.

    The new leaders are ISR members with space. The broker stays in the ISRs, and continues to lead
    where no such member exists.
    """
    brokers = Brokers(view, low_on_space=low_on_space)
    changes = (
        next_state(brokers, partition)
        for partition in partitions_of(view, broker_id)
        if partition.leader == broker_id
        and any(one not in low_on_space and brokers.active(one) for one in partition.isr)
    )
    return [record(change) for change in islice(filter(None, changes), limit)]


def leads_any(view: ImageView, broker_id: int) -> bool:
    """Return whether a broker leads a partition. O(1)."""
    return view.leader_counts.get(broker_id, 0) > 0


def waits_for_members(partition: Partition) -> bool:
    """Return whether a partition with ISR members has no leader.

    After a restore or an unsafe recovery, such partitions wait until a member returns: see
    ``EpochFloor``.
    """
    return partition.leader == NO_LEADER and bool(partition.isr)


def removals(
    view: ImageView,
    broker_id: int,
    *,
    on_purpose: bool = False,
    same_disk: bool = False,
    loss: Loss = Loss.NOTHING,
    limit: int | None = None,
) -> list[Record]:
    """Remove a broker from every ISR and leadership, and from the ELRs if ``loss`` requires it.

    Returns one record for each changed partition, at most ``limit``. If an ISR becomes empty, an
    unclean leader is elected where the topic allows it, but not if the broker left ``on_purpose``:
    the operator may be about to restart it. A broker that registers with the ``same_disk`` stays in
    ISRs that wait for any member to return.
    """
    records: list[Record] = []
    for partition in partitions_of(view, broker_id):
        if must_leave(partition, broker_id, same_disk=same_disk, loss=loss):
            if len(records) == limit:
                break
            records.extend(removal(view, partition, broker_id, on_purpose=on_purpose, loss=loss))
    return records


def must_leave(partition: Partition, broker_id: int, *, same_disk: bool, loss: Loss) -> bool:
    """Return whether ``removals`` of a broker would change a partition."""
    in_isr = broker_id in partition.isr and not (same_disk and waits_for_members(partition))
    eligible = loss is not Loss.NOTHING and broker_id in partition.elr
    known = loss is Loss.DISK and broker_id in partition.last_known_elr
    return in_isr or eligible or known


def removal(
    view: ImageView,
    partition: Partition,
    broker_id: int,
    *,
    on_purpose: bool,
    loss: Loss = Loss.NOTHING,
) -> list[Record]:
    """Return the record that removes a broker from one ISR and leadership; empty if nothing
    changes.
    """
    waits = waits_for_members(partition)
    isr = tuple(member for member in partition.isr if member != broker_id)
    unclean = not isr and not on_purpose and unclean_election_enabled(view, partition.topic_id)
    election = Election.UNCLEAN if unclean else Election.ONLINE
    brokers = Brokers(view, leaving=broker_id, loss=loss)
    change = next_state(brokers, partition, isr=isr, election=election, eligible=not waits)
    return [] if change is None else [record(change)]


def elections_on_join(view: ImageView, broker_id: int, *, limit: int | None = None) -> list[Record]:
    """Elect leaders for leaderless partitions that a broker, about to be unfenced, can lead.

    At most ``limit`` elections.
    """
    if not view.leader_counts.get(NO_LEADER):
        return []
    brokers = Brokers(view, joining=broker_id)
    records: list[Record] = []
    for partition in partitions_of(view, broker_id):
        if len(records) == limit:
            break
        change = election_on_join(brokers, partition)
        if change is not None:
            records.append(record(change))
    return records


def election_on_join(brokers: Brokers, partition: Partition) -> pb.PartitionChangeRecord | None:
    """Return the election for a leaderless partition now that a broker has joined, or None if the
    partition has a leader or no broker can lead it.

    Candidates are the ISR, then the eligible leader replicas, then, if the topic allows unclean
    leaders, all replicas. If the partition waited for ISR members, absent ones leave the ISR and no
    replica outside it is elected.
    """
    if partition.leader != NO_LEADER:
        return None
    waits = waits_for_members(partition)
    unclean = not waits and unclean_election_enabled(brokers.view, partition.topic_id)
    election = Election.UNCLEAN if unclean else Election.ONLINE
    isr = tuple(filter(brokers.active, partition.isr)) if waits else ()
    if waits and not isr:
        return None
    return next_state(brokers, partition, isr=isr, election=election, eligible=not waits)
