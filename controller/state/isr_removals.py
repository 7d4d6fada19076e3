"""Brokers that are fenced, and not yet out of every ISR: what one of them holds may be more than
one batch should.

A batch of 100,000 changes keeps the controller from its followers for longer than they wait for it:
another would be elected, and come to the same point. So the fencing is first, with some of the
changes, and the others follow in batches of their own. Until the last one the broker stays fenced.
What is not done at a failover the next controller does.

Why: docs/decisions/015-one-function-changes-partitions.md
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from controller.decision import Write
from controller.effects import IsrsLeft
from controller.rules.elections import MAX_REMOVALS, removal, waits_for_members
from raftlog.metadata.image import Image, ImageView, PartitionKey
from raftlog.metadata.records import Record


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
