"""ElectLeaders (KIP-460): elections of preferred leaders, and of unclean leaders where no other
replica is left.

The controller also elects without a request: preferred leaders, and unclean ones in topics that
allow them, on the same two conditions. It also completes overdue reassignments. At intervals it
scans all partitions, in slices with pauses in between, and then elects leaders for at most 1,000
partitions per batch, so no request waits for longer than one slice, however many partitions there
are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator
from heapq import merge
from itertools import islice

from controller.decision import (
    Reply,
    Write,
    check_record_count,
    own_error,
    refuse,
    write_or_reply,
)
from controller.decisions.partitions.reassignment import find_partition
from controller.rules.partition_change import (
    MAX_ELECTIONS,
    Brokers,
    Election,
    is_overdue,
    next_state,
)
from controller.settings import ControllerSettings
from controller.state.state import ControllerState
from controller.state.unclean_recovery import UncleanRecovery
from raftlog.errors import ErrorCode
from raftlog.metadata.config_keys import unclean_election_enabled
from raftlog.metadata.entities import NO_LEADER, Partition
from raftlog.metadata.image import Image, ImageView, PartitionKey
from raftlog.metadata.records import Record, record
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb


def wants_preferred(brokers: Brokers, partition: Partition) -> bool:
    """Return whether the first replica does not lead, but could."""
    first = partition.replicas[0]
    return (
        partition.leader != first
        and first in partition.isr
        and brokers.active(first)
        and first not in brokers.low_on_space
    )


def wants_unclean(brokers: Brokers, partition: Partition) -> bool:
    """Return whether there is no leader, but some replica could lead, with or without all
    records.
    """
    return partition.leader == NO_LEADER and any(map(brokers.active, partition.replicas))


def elect(
    brokers: Brokers,
    partition: Partition,
    election: Election,
    recovery: UncleanRecovery | None = None,
) -> pb.PartitionChangeRecord:
    """Return the record of an election for which one of the two conditions holds.

    ``recovery``: the reports of replicas, or None to ignore them. If a live replica has reported,
    the one that has lost least becomes the unclean leader.
    """
    if recovery is not None and election is Election.UNCLEAN:
        best = recovery.elect_now(brokers.view, (partition.topic_id, partition.index))
        if best is not None:
            return best
    change = next_state(brokers, partition, election=election)
    assert change is not None
    return change


def elect_leaders(state: ControllerState, request: rpc.ElectLeadersRequest) -> Write | Reply:
    """Elect leaders as requested.

    Raises INVALID_REQUEST, and POLICY_VIOLATION for more partitions than fit into a batch.
    """
    if request.election_type not in (rpc.PREFERRED, rpc.UNCLEAN):
        raise refuse(
            ErrorCode.INVALID_REQUEST,
            f"election_type is {request.election_type}; it must be PREFERRED (0) or UNCLEAN (1)",
            "election_type",
        )
    decision = _elect_named(state, request) if request.topics else _elect_all(state, request)
    return Reply(decision.body) if request.validate_only else decision


def _elect_named(state: ControllerState, request: rpc.ElectLeadersRequest) -> Write | Reply:
    view, brokers = state.log.pending, Brokers(state.log.pending)
    limit = state.settings.max_records_per_request
    # Limited here, as a topic with many partitions may be given many times.
    named = list(islice(_named(state, request), limit + 1))
    check_record_count(len(named), limit)
    twice = Counter((name, index) for name, index, _ in named)
    records: list[Record] = []
    results: dict[str, rpc.ElectedTopic] = {}
    for name, index, field in named:
        topic = results.setdefault(name, rpc.ElectedTopic(name=name))
        result = topic.partitions.add(partition_index=index, leader_id=NO_LEADER)
        with own_error(result):
            if twice[name, index] > 1:
                raise refuse(ErrorCode.INVALID_REQUEST, "this partition is given twice", field)
            partition = find_partition(view, name, index, field)
            result.leader_id = partition.leader
            _check_needed(brokers, partition, request.election_type, field)
            change = elect(brokers, partition, _election(request), state.unclean_recovery)
            result.leader_id = change.leader
            records.append(record(change))
    return write_or_reply(records, rpc.ElectLeadersResponse(topics=results.values()))


def _named(
    state: ControllerState, request: rpc.ElectLeadersRequest
) -> Iterator[tuple[str, int, str]]:
    """Yield (topic, partition, field) for all partitions that a request names."""
    view = state.log.pending
    for index, topic in enumerate(request.topics):
        field = f"topics[{index}]"
        if topic.partition_indexes:
            for position, partition_index in enumerate(topic.partition_indexes):
                yield topic.name, partition_index, f"{field}.partition_indexes[{position}]"
        else:
            topic_id = view.topic_ids.get(topic.name)
            # For an unknown topic, partition 0: its result has the error.
            count = view.topics[topic_id].partition_count if topic_id is not None else 1
            yield from ((topic.name, each, f"{field}.name") for each in range(count))


def _check_needed(brokers: Brokers, partition: Partition, election_type: int, field: str) -> None:
    if election_type == rpc.UNCLEAN:
        if partition.leader != NO_LEADER:
            raise refuse(ErrorCode.ELECTION_NOT_NEEDED, f"broker {partition.leader} leads", field)
        if not wants_unclean(brokers, partition):
            raise refuse(
                ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
                f"none of the replicas {list(partition.replicas)} is live",
                field,
            )
        return
    first = partition.replicas[0]
    if partition.leader == first:
        raise refuse(
            ErrorCode.ELECTION_NOT_NEEDED, f"the preferred leader, broker {first}, leads", field
        )
    if not wants_preferred(brokers, partition):
        why = (
            "is not live"
            if not brokers.active(first)
            else f"is not in the ISR {list(partition.isr)}"
        )
        raise refuse(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"the preferred leader, broker {first}, {why}",
            field,
        )


def _elect_all(state: ControllerState, request: rpc.ElectLeadersRequest) -> Write | Reply:
    """Elect leaders for all partitions that need it, by topic id, up to one batch, and count the
    others.

    O(partitions).
    """
    image = state.log.pending.snapshot()
    brokers, limit = Brokers(image), state.settings.max_records_per_request
    keys = sorted(_wanting(image, brokers, request.election_type))
    records: list[Record] = []
    results: dict[str, rpc.ElectedTopic] = {}
    for topic_id, index in keys[:limit]:
        partition = image.partitions[topic_id, index]
        change = elect(brokers, partition, _election(request), state.unclean_recovery)
        records.append(record(change))
        name = image.topics[topic_id].name
        topic = results.setdefault(name, rpc.ElectedTopic(name=name))
        topic.partitions.add(partition_index=index, leader_id=change.leader)
    body = rpc.ElectLeadersResponse(
        topics=[results[name] for name in sorted(results)], remaining=max(0, len(keys) - limit)
    )
    return write_or_reply(records, body)


def _wanting(image: Image, brokers: Brokers, election_type: int) -> Iterator[PartitionKey]:
    wants = wants_unclean if election_type == rpc.UNCLEAN else wants_preferred
    return (key for key, partition in image.partitions.items() if wants(brokers, partition))


def _election(request: rpc.ElectLeadersRequest) -> Election:
    return Election.UNCLEAN if request.election_type == rpc.UNCLEAN else Election.PREFERRED


SLICE_PARTITIONS = 4096
"""Number of partitions scanned in one step, which takes a millisecond or two."""
PAUSE_S = 0.05
"""Pause between two steps, in seconds."""


class LeaderBalance:
    """Periodic elections: one scan per interval for each of the two kinds."""

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
        """Return when ``due`` next has work."""
        return min(self._preferred_due, self._unclean_due) if self._run is None else self._next_step

    def due(
        self, view: ImageView, committed: Image, now: float, low_on_space: Collection[int] = ()
    ) -> Write | None:
        """Return the next step's elections, or None.

        The scan uses the committed image; the elections are decided on ``view``, the pending one.
        Brokers that are ``low_on_space`` get no leadership back.
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
        if not self._run.looked_through(low_on_space):
            return None
        keys = list(islice(self._run.found, MAX_ELECTIONS))
        records = self._run.elections(Brokers(view, low_on_space=low_on_space), keys)
        if len(keys) < MAX_ELECTIONS:
            self._run = None
        return Write(records) if records else None


class _Run:
    """One scan of all partitions."""

    def __init__(self, image: Image, *, preferred: bool, unclean: bool) -> None:
        self.preferred, self.unclean = preferred, unclean
        self._image = image
        self._unseen = iter(image.partitions.items())
        self._slices: list[list[PartitionKey]] = []
        self.found: Iterator[PartitionKey] = iter(())
        """Keys of all partitions that need an election, sorted; valid once the scan is complete."""

    def looked_through(self, low_on_space: Collection[int] = ()) -> bool:
        """Scan one more slice, unless the scan is complete; return whether it is."""
        seen = list(islice(self._unseen, SLICE_PARTITIONS))
        if not seen and not self._slices:
            return True
        brokers = Brokers(self._image, low_on_space=low_on_space)
        # Iteration order is arbitrary: keys are sorted, so that every controller would do the same.
        here = sorted(
            key for key, partition in seen if self._election(brokers, partition) is not None
        )
        if here:
            self._slices.append(here)
        if len(seen) < SLICE_PARTITIONS:
            self.found, self._slices = merge(*self._slices), []
            self._unseen = iter(())
            return True
        return False

    def elections(self, brokers: Brokers, keys: list[PartitionKey]) -> list[Record]:
        """Return the records for those keys that still need an election."""
        records: list[Record] = []
        for key in keys:
            partition = brokers.view.partitions.get(key)
            election = None if partition is None else self._election(brokers, partition)
            if partition is not None and election is not None:
                records.append(record(elect(brokers, partition, election)))
        return records

    def _election(self, brokers: Brokers, partition: Partition) -> Election | None:
        if self.preferred and (wants_preferred(brokers, partition) or is_overdue(partition)):
            return Election.PREFERRED
        if (
            self.unclean
            and wants_unclean(brokers, partition)
            and unclean_election_enabled(brokers.view, partition.topic_id)
        ):
            return Election.UNCLEAN
        return None
