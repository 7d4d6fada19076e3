"""Changes of more partitions than one batch should have: removals of a fenced broker from ISRs, and
leader epochs raised in a log that was taken back.

A batch of 100,000 changes would keep the controller from its followers for longer than they wait
for it: they would elect another leader, which would come to the same point.

Brokers that are fenced, and not yet out of every ISR: what one of them holds may be more than one
batch should.

A batch of 100,000 changes keeps the controller from its followers for longer than they wait for it:
another would be elected, and come to the same point. So the fencing is first, with some of the
changes, and the others follow in batches of their own. Until the last one the broker stays fenced.
What is not done at a failover the next controller does.

The first decisions in a log that was taken back: everybody is fenced, and every partition's leader
epoch is raised.

After a restore or an unsafe recovery the state says what was so at some time, and brokers have gone
on since. Before anybody may take a role from it,

* all brokers are fenced: who lives says so, and is unfenced like one that was started anew. ISRs
  stay as they are, and nobody leads: the ISR says whose disks are believed to be in sync, and which
  of them is still there nobody knows [were registrations to take brokers out of the ISRs as usual,
  the last one left might be one that never comes back];
* leader epochs are raised into the range of this generation: no record of an earlier one can have
  the same (offset, leader epoch).

Nobody is registered before all of this is decided, and registrations are answered with its offset
(``metadata_offset``). What is to do is found in the state itself: a controller that takes over
half-way goes on.

Why: docs/decisions/015-one-function-changes-partitions.md,
docs/decisions/016-leader-epoch-ranges.md
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from controller.decision import Fenced, IsrsLeft, LeaderEpochsRaised, Write
from controller.rules.fencing import registration_change
from controller.rules.partition_change import MAX_REMOVALS, NO_LEADER, removal, waits_for_members
from raftlog.metadata.causes import Cause
from raftlog.metadata.image import Image, ImageView, PartitionKey
from raftlog.metadata.leader_epochs import first_leader_epoch
from raftlog.metadata.records import Record, RecordType, record
from raftlog.wire.records.v1 import records_pb2 as pb

if TYPE_CHECKING:
    from controller.state.state import ControllerState


class _Left(NamedTuple):
    """What one broker held when it was fenced, in order, and how much of it is done."""

    keys: Sequence[PartitionKey]
    done: int


class IsrRemovals:
    """Soft state of one controller epoch."""

    def __init__(self) -> None:
        self._left: dict[int, _Left | None] = {}
        """None: not looked at yet."""

    def __contains__(self, broker_id: int) -> bool:
        return broker_id in self._left

    def __bool__(self) -> bool:
        return bool(self._left)

    def resume(self, image: Image) -> None:
        """At the claim: whom an earlier controller may not have finished with. O(brokers)."""
        for broker_id in sorted(image.brokers):
            if image.brokers[broker_id].fenced and holds_many(image, broker_id):
                self._left[broker_id] = None

    def fenced(self, broker_id: int, written: int) -> None:
        """A broker was fenced, with ``written`` records in the batch."""
        if written > MAX_REMOVALS:
            self._left[broker_id] = None

    def forget(self, broker_id: int) -> None:
        """It is out of all ISRs, or another process."""
        self._left.pop(broker_id, None)

    def advance(self, broker_id: int, keys: Sequence[PartitionKey], done: int) -> None:
        """The first ``done`` of these partitions are looked through."""
        self._left[broker_id] = _Left(keys, done)

    def due(self, view: ImageView) -> Write | None:
        """The next changes of one of them; None: there are no more.

        No unclean leaders: ``balance`` sees to those.
        """
        while self._left:
            broker_id, left = next(iter(self._left.items()))
            keys, done = left or _Left(sorted(view.replicas_of.get(broker_id) or ()), 0)
            records: list[Record] = []
            while done < len(keys) and len(records) < MAX_REMOVALS:
                partition = view.partitions.get(keys[done])
                done += 1
                if (
                    partition is not None
                    and broker_id in partition.isr
                    and not waits_for_members(partition)
                ):
                    records.extend(removal(view, partition, broker_id, on_purpose=True))
            if records:
                return Write(records, effects=(IsrsLeft(broker_id, keys, done),))
            self.forget(broker_id)
        return None


def holds_many(view: ImageView, broker_id: int) -> bool:
    """Whether a broker may be in more ISRs than are changed in one batch. O(1)."""
    return len(view.replicas_of.get(broker_id) or ()) > MAX_REMOVALS


MAX_RAISED = 1000
"""Partitions whose leader epochs one batch raises."""
RETRY_S = 0.02
"""After so long a registration is looked at again that came before all was raised."""


class EpochFloor:
    """``first``: the lowest leader epoch of this generation; 0 in a log that was never taken back,
    where nothing is to be done.
    """

    def __init__(self, recoveries: int) -> None:
        self.first = first_leader_epoch(recoveries)
        self._below: deque[PartitionKey] | None = None

    def is_due(self, view: ImageView) -> bool:
        """Whether there may be partitions below the range, and their epochs may be raised."""
        return bool(self.first and (self._below is None or self._below))

    def holds_back(self, records: Sequence[Record], view: ImageView) -> bool:
        """Whether what a request wants to write must wait until all is raised [a reassignment is
        cancelled first: its partition gets the next epoch of the history before, in which that may
        have had another leader].
        """
        return self.is_due(view) and any(one.type == RecordType.PARTITION_CHANGE for one in records)

    def raised(self, count: int) -> None:
        """The first ``count`` of those that were below are proposed to be raised."""
        assert self._below is not None
        for _ in range(count):
            self._below.popleft()

    def due(self, state: ControllerState) -> Write | None:
        """The next batch; None: all that can be done is done.

        Looks through all partitions once, in a new generation only.
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
            record(
                pb.PartitionChangeRecord(
                    partition_id=key[1], topic_id=key[0], leader=NO_LEADER, leader_epoch=self.first
                )
            )
            for key in keys
            if self._is_below(view, key)
        ]
        return Write(records, effects=(LeaderEpochsRaised(len(keys)),))

    def _is_below(self, view: ImageView, key: PartitionKey) -> bool:
        """Not deleted since, nor raised."""
        partition = view.partitions.get(key)
        return partition is not None and partition.leader_epoch < self.first
