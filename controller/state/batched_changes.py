"""Partition changes that are too many for one batch.

A batch of 100,000 changes would block the controller for longer than its followers' fetch timeout;
they would elect another leader, and that would do the same.

* Removals from ISRs: the first batch fences the broker and has some of the removals; further
  batches have the rest. The broker stays fenced until the last one. After a failover the next
  controller completes them. A broker that has shut down uncleanly leaves the ELRs in the same way
  before it registers.
* Elections of a returning broker.
* Leader epochs after a restore or an unsafe recovery: see below.

After a restore or an unsafe recovery the state is out of date. Before any broker takes a role from
it,

* all brokers are fenced: a live one reports and is unfenced, as after a restart. ISRs stay as they
  are, and no partition has a leader: the ISR names the brokers whose disks are believed to be in
  sync, but which of them still exist is unknown. (If registrations removed brokers from the ISRs as
  usual, the last member might be one that never returns.)
* leader epochs are raised into this generation's range, so that no record of an earlier generation
  can have the same (offset, leader epoch).

No broker is registered before all this is decided, and the answers to registrations carry its
offset (``metadata_offset``). The state itself shows the remaining work, so a new controller
continues it.

Why: docs/decisions/015-one-function-changes-partitions.md,
docs/decisions/016-leader-epoch-ranges.md
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from controller.decision import Fenced, IsrsLeft, LeaderEpochsRaised, LeadersElected, Write
from controller.rules.fencing import fence, registration_change
from controller.rules.partition_change import (
    MAX_REMOVALS,
    Brokers,
    Loss,
    election_on_join,
    must_leave,
    removal,
)
from raftlog.metadata.control_records import first_leader_epoch
from raftlog.metadata.entities import NO_LEADER, Cause, Partition
from raftlog.metadata.image import NO_REPLICAS, Image, ImageView, PartitionKey, Replicas
from raftlog.metadata.records import Record, RecordType, record
from raftlog.wire.records.v1 import records_pb2 as pb

if TYPE_CHECKING:
    from controller.state.state import ControllerState


FIRST: PartitionKey = (b"", 0)
"""A key that sorts before every partition's."""
BATCHES_A_STEP = 4
"""Batches of partitions examined in one step while nothing changes; takes some milliseconds."""


class _Left(NamedTuple):
    """The pending removals of one broker."""

    begin: PartitionKey = FIRST
    """No partition before this key remains to be examined."""
    loss: Loss = Loss.NOTHING
    same_disk: bool = True


class IsrRemovals:
    """The pending removals of fenced brokers from ISRs and ELRs: soft state of one controller
    epoch.
    """

    def __init__(self) -> None:
        self._left: dict[int, _Left] = {}
        """Broker id -> its pending removals."""

    def __contains__(self, broker_id: int) -> bool:
        return broker_id in self._left

    def __bool__(self) -> bool:
        return bool(self._left)

    def resume(self, image: Image) -> None:
        """At the claim, add the fenced brokers whose removals an earlier controller may not have
        finished.

        O(brokers).
        """
        for broker_id in sorted(image.brokers):
            if image.brokers[broker_id].fenced and holds_many(image, broker_id):
                self._left[broker_id] = _Left()

    def fenced(self, broker_id: int, written: int) -> None:
        """Record that a batch of ``written`` records has fenced a broker."""
        begun = self._left.get(broker_id)
        if written > MAX_REMOVALS or begun is not None:
            self._left[broker_id] = (begun or _Left())._replace(begin=FIRST)

    def begin(self, broker_id: int, loss: int, *, same_disk: bool) -> None:
        """Schedule the removals that a broker's registration or unregistration requires, unless
        some are already pending.

        An unfenced broker is fenced first.
        """
        self._left.setdefault(broker_id, _Left(loss=Loss(loss), same_disk=same_disk))

    def forget(self, broker_id: int) -> None:
        """Drop a broker that has left all ISRs, or whose id now belongs to another process."""
        self._left.pop(broker_id, None)

    def advance(self, broker_id: int, begin: PartitionKey) -> None:
        """Record that the partitions before ``begin`` are processed."""
        left = self._left.get(broker_id, _Left())
        self._left[broker_id] = left._replace(begin=begin)

    def due(self, view: ImageView) -> Write | None:
        """Return the next changes to one broker, or None if the examined partitions need none.

        Elects no unclean leaders; ``balance`` does that.
        """
        for _ in range(BATCHES_A_STEP):
            if not self._left:
                break
            broker_id, left = next(iter(self._left.items()))
            broker = view.brokers.get(broker_id)
            if broker is not None and not broker.fenced:
                # While it is unfenced, leaders would propose it again for the ISRs that it has
                # left.
                cause = Cause.ASKED_TO_BE_FENCED
                records = fence(view, broker, cause)
                return Write(records, effects=(Fenced(broker_id, cause, len(records)),))
            begin, loss, same_disk = left
            partitions, begin = _next(view, broker_id, begin)
            records = [
                one
                for partition in partitions
                if must_leave(partition, broker_id, same_disk=same_disk, loss=loss)
                for one in removal(view, partition, broker_id, on_purpose=True, loss=loss)
            ]
            if records:
                return Write(records, effects=(IsrsLeft(broker_id, begin),))
            if partitions:
                self._left[broker_id] = left._replace(begin=begin)
            else:
                self.forget(broker_id)
        return None


class JoinElections:
    """The pending elections for leaderless partitions of unfenced brokers, beyond those in the
    batch that unfenced each broker: soft state of one controller epoch.

    Example: all brokers were off, and the first to return is eligible to lead 100,000 partitions.
    """

    def __init__(self) -> None:
        self._left: dict[int, PartitionKey] = {}
        """Broker id -> key before which no partition remains to be examined."""

    def __bool__(self) -> bool:
        return bool(self._left)

    def resume(self, image: Image) -> None:
        """At the claim, add the brokers whose elections an earlier controller may not have
        finished.

        O(brokers).
        """
        for broker_id in sorted(image.brokers):
            if not image.brokers[broker_id].fenced and holds_many(image, broker_id):
                self._left[broker_id] = FIRST

    def unfenced(self, broker_id: int, written: int) -> None:
        """Record that a batch of ``written`` records unfenced a broker."""
        if written > MAX_REMOVALS:
            self._left[broker_id] = FIRST

    def advance(self, broker_id: int, begin: PartitionKey) -> None:
        """See ``IsrRemovals.advance``."""
        self._left[broker_id] = begin

    def due(self, view: ImageView) -> Write | None:
        """Return the next elections, or None if the examined partitions need none."""
        if not view.leader_counts.get(NO_LEADER):
            # No partition is leaderless, the usual case at a claim.
            self._left.clear()
        for _ in range(BATCHES_A_STEP):
            if not self._left:
                break
            broker_id, begin = next(iter(self._left.items()))
            broker = view.brokers.get(broker_id)
            if broker is None or not broker.active:
                del self._left[broker_id]
                break
            brokers = Brokers(view)
            partitions, begin = _next(view, broker_id, begin)
            changes = (election_on_join(brokers, partition) for partition in partitions)
            records = [record(change) for change in changes if change is not None]
            if records:
                return Write(records, effects=(LeadersElected(broker_id, begin),))
            if partitions:
                self._left[broker_id] = begin
            else:
                del self._left[broker_id]
        return None


def _next(
    view: ImageView, broker_id: int, begin: PartitionKey
) -> tuple[list[Partition], PartitionKey]:
    """Return the next partitions of a broker from a key onwards, at most one batch, and the key
    after the last of them.
    """
    held: Replicas = view.replicas_of.get(broker_id) or NO_REPLICAS
    keys = list(islice(held.since(begin), MAX_REMOVALS))
    if keys:
        topic_id, index = keys[-1]
        begin = topic_id, index + 1
    return [view.partitions[key] for key in keys], begin


def holds_many(view: ImageView, broker_id: int) -> bool:
    """Return whether a broker may be in more ISRs than one batch changes. O(1)."""
    return len(view.replicas_of.get(broker_id) or ()) > MAX_REMOVALS


MAX_RAISED = 1000
"""Maximum number of leader epochs raised in one batch."""
RETRY_S = 0.02
"""Delay, in seconds, before a registration that arrived while epochs were being raised is decided
again.
"""


class EpochFloor:
    """Raises every leader epoch to ``first``, the lowest one of this generation.

    In a log that was never restored or recovered, ``first`` is 0 and nothing is to be done.
    """

    def __init__(self, recoveries: int) -> None:
        self.first = first_leader_epoch(recoveries)
        self._below: deque[PartitionKey] | None = None

    def is_due(self, view: ImageView) -> bool:
        """Return whether partitions below the range may remain."""
        return bool(self.first and (self._below is None or self._below))

    def must_delay(self, records: Sequence[Record], view: ImageView) -> bool:
        """Return whether a request's records must wait until all epochs are raised (a reassignment
        cancelled earlier would give its partition the next epoch of the old history, in which that
        epoch may have had another leader).
        """
        return self.is_due(view) and any(one.type == RecordType.PARTITION_CHANGE for one in records)

    def raised(self, count: int) -> None:
        """Record that the epochs of the first ``count`` partitions below the range are proposed."""
        assert self._below is not None
        for _ in range(count):
            self._below.popleft()

    def due(self, state: ControllerState) -> Write | None:
        """Return the next batch, or None once every possible epoch is raised.

        Scans all partitions once, and only in a new generation.
        """
        view = state.log.pending
        if not self.is_due(view):
            return None
        if self._below is None:
            # From here on no partition is created below the range, and elections only raise epochs.
            found = view.snapshot().partitions.items()
            self._below = deque(
                sorted(key for key, partition in found if partition.leader_epoch < self.first)
            )
        while self._below and not self._is_below(view, self._below[0]):
            self._below.popleft()
        if not self._below:
            return None
        return self._fence_all(state) or self._raise_some(view, self._below)

    def _fence_all(self, state: ControllerState) -> Write | None:
        brokers = state.log.pending.snapshot().brokers
        unfenced = [
            brokers[broker_id] for broker_id in sorted(brokers) if not brokers[broker_id].fenced
        ]
        if not unfenced:
            return None
        changes = [
            registration_change(
                broker, Cause.LOG_TAKEN_BACK, fenced=True, in_controlled_shutdown=False
            )
            for broker in unfenced
        ]
        return Write(
            changes, effects=tuple(Fenced(broker.id, Cause.LOG_TAKEN_BACK) for broker in unfenced)
        )

    def _raise_some(self, view: ImageView, below: deque[PartitionKey]) -> Write:
        keys = list(islice(below, MAX_RAISED))
        records: list[Record] = [
            record(_raised(view.partitions[key], self.first))
            for key in keys
            if self._is_below(view, key)
        ]
        return Write(records, effects=(LeaderEpochsRaised(len(keys)),))

    def _is_below(self, view: ImageView, key: PartitionKey) -> bool:
        """Return whether a partition still exists and is below the range."""
        partition = view.partitions.get(key)
        return partition is not None and partition.leader_epoch < self.first


def _raised(partition: Partition, leader_epoch: int) -> pb.PartitionChangeRecord:
    """Return the record that raises a partition's leader epoch.

    It leaves the partition without a leader, and with no eligible replica outside the ISR (in the
    lost part of the history the partition may have continued without them).
    """
    change = pb.PartitionChangeRecord(
        partition_id=partition.index,
        topic_id=partition.topic_id,
        leader=NO_LEADER,
        leader_epoch=leader_epoch,
    )
    if partition.elr:
        change.eligible_leader_replicas.SetInParent()
        if not partition.isr:
            change.isr.ids.extend(partition.elr)
    return change
