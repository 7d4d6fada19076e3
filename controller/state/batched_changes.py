"""Changes of more partitions than one batch should have: removals of a fenced broker from ISRs,
elections for those of a broker that returns, and leader epochs raised in a log that was taken back.

A batch of 100,000 changes would keep the controller from its followers for longer than their
timeout: they would elect another leader, which would reach the same point.

Removals from ISRs: the fencing comes first, with some of the changes, and the others follow in
batches of their own. Until the last one the broker stays fenced. After a failover the next
controller completes them. A broker that has shut down uncleanly, and was eligible to lead that many
partitions, leaves them in the same way before it registers.

The first decisions in a log that was taken back fence every broker, and raise every partition's
leader epoch.

After a restore or an unsafe recovery the state is an old one, and brokers have changed since.
Before any broker takes a role from it,

* all brokers are fenced: a live one reports, and is unfenced as after a restart. ISRs stay as they
  are, and no partition has a leader: the ISR names the brokers whose disks are believed to be in
  sync, and which of them still exist is unknown [if registrations removed brokers from the ISRs as
  usual, the last member might be one that never returns];
* leader epochs are raised into the range of this generation: no record of an earlier one can have
  the same (offset, leader epoch).

No broker is registered before all of this is decided, and registrations are answered with its
offset (``metadata_offset``). The remaining work is found in the state itself: a new controller
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
"""A key before that of each partition."""
BATCHES_A_STEP = 4
"""Batches of partitions looked at in one step while nothing changes: some milliseconds."""


class _Left(NamedTuple):
    """The removals that are left of one broker."""

    begin: PartitionKey = FIRST
    """Key of the next partition to look at, or one before it."""
    loss: Loss = Loss.NOTHING
    same_disk: bool = True


class IsrRemovals:
    """The removals of fenced brokers from ISRs and eligible leader replicas: soft state of one
    controller epoch.
    """

    def __init__(self) -> None:
        self._left: dict[int, _Left] = {}
        """Broker id -> what is left of it."""

    def __contains__(self, broker_id: int) -> bool:
        return broker_id in self._left

    def __bool__(self) -> bool:
        return bool(self._left)

    def resume(self, image: Image) -> None:
        """Find, at the claim, the fenced brokers that an earlier controller may not have finished.
        O(brokers).
        """
        for broker_id in sorted(image.brokers):
            if image.brokers[broker_id].fenced and holds_many(image, broker_id):
                self._left[broker_id] = _Left()

    def fenced(self, broker_id: int, written: int) -> None:
        """Record that a broker was fenced, with ``written`` records in the batch."""
        begun = self._left.get(broker_id)
        if written > MAX_REMOVALS or begun is not None:
            self._left[broker_id] = (begun or _Left())._replace(begin=FIRST)

    def begin(self, broker_id: int, loss: int, *, same_disk: bool) -> None:
        """Begin the removals of a broker as its next registration implies them, or its end, unless
        others are under way. One that is unfenced is fenced first.
        """
        self._left.setdefault(broker_id, _Left(loss=Loss(loss), same_disk=same_disk))

    def forget(self, broker_id: int) -> None:
        """Forget a broker: it is out of all ISRs, or another process has its id."""
        self._left.pop(broker_id, None)

    def advance(self, broker_id: int, begin: PartitionKey) -> None:
        """Record that the partitions before ``begin`` are processed."""
        left = self._left.get(broker_id, _Left())
        self._left[broker_id] = left._replace(begin=begin)

    def due(self, view: ImageView) -> Write | None:
        """Return the next changes of one broker; None if there are none among the partitions looked
        at.

        No unclean leaders: ``balance`` elects those.
        """
        for _ in range(BATCHES_A_STEP):
            if not self._left:
                break
            broker_id, left = next(iter(self._left.items()))
            broker = view.brokers.get(broker_id)
            if broker is not None and not broker.fenced:
                # Else its leaders would propose it for the ISRs that it has left.
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
    """The elections for the leaderless partitions of unfenced brokers, beyond those in the batch
    that unfences each: soft state of one controller epoch.

    [All brokers were off. The first to return is eligible to lead 100,000 partitions.]
    """

    def __init__(self) -> None:
        self._left: dict[int, PartitionKey] = {}
        """Broker id -> key of its next partition to look at, or one before it."""

    def __bool__(self) -> bool:
        return bool(self._left)

    def resume(self, image: Image) -> None:
        """Find, at the claim, the brokers that an earlier controller may not have finished.
        O(brokers).
        """
        for broker_id in sorted(image.brokers):
            if not image.brokers[broker_id].fenced and holds_many(image, broker_id):
                self._left[broker_id] = FIRST

    def unfenced(self, broker_id: int, written: int) -> None:
        """Record that a broker was unfenced, with ``written`` records in the batch."""
        if written > MAX_REMOVALS:
            self._left[broker_id] = FIRST

    def advance(self, broker_id: int, begin: PartitionKey) -> None:
        """Record that the partitions before ``begin`` are processed."""
        self._left[broker_id] = begin

    def due(self, view: ImageView) -> Write | None:
        """Return the next elections; None if there are none among the partitions looked at."""
        if not view.leader_counts.get(NO_LEADER):
            # No partition is leaderless: nearly always so at a claim.
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
    """Return as many partitions of a broker as one batch changes, from a key on, and the key behind
    them.
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
"""Partitions whose leader epochs one batch raises."""
RETRY_S = 0.02
"""Delay in seconds after which a registration is decided again that arrived before all epochs were
raised.
"""


class EpochFloor:
    """The raising of leader epochs to ``first``, the lowest leader epoch of this generation; 0 in a
    log that was never taken back, where nothing is to be done.
    """

    def __init__(self, recoveries: int) -> None:
        self.first = first_leader_epoch(recoveries)
        self._below: deque[PartitionKey] | None = None

    def is_due(self, view: ImageView) -> bool:
        """Return whether there may be partitions below the range whose epochs may be raised."""
        return bool(self.first and (self._below is None or self._below))

    def holds_back(self, records: Sequence[Record], view: ImageView) -> bool:
        """Return whether a request's records must wait until all epochs are raised [a reassignment
        is cancelled first: its partition gets the next epoch of the history before, in which that
        may have had another leader].
        """
        return self.is_due(view) and any(one.type == RecordType.PARTITION_CHANGE for one in records)

    def raised(self, count: int) -> None:
        """Record that raises of the first ``count`` partitions below the range are proposed."""
        assert self._below is not None
        for _ in range(count):
            self._below.popleft()

    def due(self, state: ControllerState) -> Write | None:
        """Return the next batch; None: all possible raises are done.

        All partitions are scanned once, in a new generation only.
        """
        view = state.log.pending
        if not self.is_due(view):
            return None
        if self._below is None:
            # None is created below the range from here on, and elections only raise.
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
        """Return whether the partition is still below the range: not deleted or raised since."""
        partition = view.partitions.get(key)
        return partition is not None and partition.leader_epoch < self.first


def _raised(partition: Partition, leader_epoch: int) -> pb.PartitionChangeRecord:
    """Return the record that raises a partition's leader epoch: nobody leads, and nobody is
    eligible beside the ISR [the history that was lost may have continued without them].
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
