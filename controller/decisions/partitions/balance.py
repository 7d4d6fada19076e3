"""What the controller does about leaders by itself: preferred ones back to work, and unclean ones
in topics that allow them.

Reassignments that nobody has completed are completed on the way.

Now and then it looks through all partitions, a slice at a time with a pause between two, and elects
what it has found, at most 1,000 partitions a batch. So no request waits longer than for one slice,
however many partitions there are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from heapq import merge
from itertools import islice

from controller.decision import Write
from controller.decisions.partitions.leader_elections import elect, wants_preferred, wants_unclean
from controller.rules.partition_change import Brokers, Election, is_overdue
from controller.settings import ControllerSettings
from raftlog.metadata.config_layers import unclean_election_enabled
from raftlog.metadata.entities import Partition
from raftlog.metadata.image import Image, ImageView, PartitionKey
from raftlog.metadata.records import Record, record

SLICE_PARTITIONS = 4096
"""Looked at in one step: a millisecond or two."""
MAX_ELECTIONS = 1000
"""In one batch, as in Kafka."""
PAUSE_S = 0.05
"""Between two steps."""


class LeaderBalance:
    """Runs once an interval for each of the two purposes; nothing is due in between."""

    def __init__(self, settings: ControllerSettings, now: float) -> None:
        self._preferred_s = (
            float(settings.leader_imbalance_check_interval_seconds)
            if settings.auto_leader_rebalance_enable
            else math.inf
        )
        self._unclean_s = settings.unclean_leader_election_interval_ms / 1000
        self._preferred_due, self._unclean_due = now + self._preferred_s, now + self._unclean_s
        self._run: _Run | None = None
        self._next_step = -math.inf

    def next_deadline(self) -> float:
        """When ``due`` has something to do."""
        return min(self._preferred_due, self._unclean_due) if self._run is None else self._next_step

    def due(self, view: ImageView, committed: Image, now: float) -> Write | None:
        """The next step: elections, or None.

        Found in the committed image, decided on ``view``, the pending one.
        """
        if now < self.next_deadline():
            return None
        if self._run is None:
            self._run = _Run(
                committed, preferred=self._preferred_due <= now, unclean=self._unclean_due <= now
            )
            if self._run.preferred:
                self._preferred_due = now + self._preferred_s
            if self._run.unclean:
                self._unclean_due = now + self._unclean_s
        self._next_step = now + PAUSE_S
        if not self._run.looked_through():
            return None
        keys = list(islice(self._run.found, MAX_ELECTIONS))
        records = self._run.elections(view, keys)
        if len(keys) < MAX_ELECTIONS:
            self._run = None
        return Write(records) if records else None


class _Run:
    """One look through all partitions."""

    def __init__(self, image: Image, *, preferred: bool, unclean: bool) -> None:
        self.preferred, self.unclean = preferred, unclean
        self._image = image
        self._unseen = iter(image.partitions.items())
        self._slices: list[list[PartitionKey]] = []
        self.found: Iterator[PartitionKey] = iter(())
        """All that there is something to do for, sorted, once everything is looked through."""

    def looked_through(self) -> bool:
        """Look at one slice, unless all was seen; whether it is."""
        seen = list(islice(self._unseen, SLICE_PARTITIONS))
        if not seen and not self._slices:
            return True
        brokers = Brokers(self._image)
        # Iteration has no order that means anything: what is found is sorted, so that every
        # controller would do the same.
        here = sorted(
            key
            for key, partition in seen
            if self._election(self._image, brokers, partition) is not None
        )
        if here:
            self._slices.append(here)
        if len(seen) < SLICE_PARTITIONS:
            self.found, self._slices = merge(*self._slices), []
            self._unseen = iter(())
            return True
        return False

    def elections(self, view: ImageView, keys: list[PartitionKey]) -> list[Record]:
        """The records for those of ``keys`` for which there still is something to do."""
        brokers = Brokers(view)
        records: list[Record] = []
        for key in keys:
            partition = view.partitions.get(key)
            election = None if partition is None else self._election(view, brokers, partition)
            if partition is not None and election is not None:
                records.append(record(elect(brokers, partition, election)))
        return records

    def _election(self, view: ImageView, brokers: Brokers, partition: Partition) -> Election | None:
        if self.preferred and (wants_preferred(brokers, partition) or is_overdue(partition)):
            return Election.PREFERRED
        if (
            self.unclean
            and wants_unclean(brokers, partition)
            and unclean_election_enabled(view, partition.topic_id)
        ):
            return Election.UNCLEAN
        return None
