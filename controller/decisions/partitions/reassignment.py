"""AlterPartitionReassignments and ListPartitionReassignments (KIP-455): moving replicas between
brokers without reducing their number.

During a reassignment the replicas are target + removing. The leader adds the new ones to the ISR
when they have caught up, and the change that adds the last one completes the reassignment
(``partition_change``). A second reassignment of a partition starts from the original replicas of
the first: a replica that the first was adding, and that is no longer a target, is removed at once.
Cancelling restores the original replicas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from controller.decision import (
    Reply,
    Write,
    check_item_count,
    check_record_count,
    own_error,
    refuse,
    write_or_reply,
)
from controller.rules.partition_change import (
    Assignment,
    Brokers,
    Election,
    assignment_of,
    next_state,
)
from controller.rules.placement import cordoned_among, wrong_replicas
from controller.state.state import ControllerState
from raftlog.errors import ErrorCode
from raftlog.metadata.config_keys import unclean_election_enabled
from raftlog.metadata.entities import NO_LEADER, Partition
from raftlog.metadata.image import Image, ImageView
from raftlog.metadata.records import Record, record
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb


def alter_partition_reassignments(
    state: ControllerState, request: rpc.AlterPartitionReassignmentsRequest
) -> Write | Reply:
    """Begin, change or cancel reassignments; each partition has its own result.

    Raises POLICY_VIOLATION.
    """
    limit = state.settings.max_records_per_request
    check_item_count(len(request.topics), limit, "topics")
    check_record_count(sum(len(topic.partitions) for topic in request.topics), limit)
    may_resize = (
        not request.HasField("allow_replication_factor_change")
        or request.allow_replication_factor_change
    )
    named = Counter(
        (topic.name, each.partition_index) for topic in request.topics for each in topic.partitions
    )
    records: list[Record] = []
    topics = []
    for index, topic in enumerate(request.topics):
        results = []
        for position, wanted in enumerate(topic.partitions):
            field = f"topics[{index}].partitions[{position}]"
            result = rpc.ReassignedPartition(partition_index=wanted.partition_index)
            with own_error(result):
                if named[topic.name, wanted.partition_index] > 1:
                    raise refuse(ErrorCode.INVALID_REQUEST, "this partition is given twice", field)
                partition = find_partition(
                    state.log.pending, topic.name, wanted.partition_index, field
                )
                change = _decide(state.log.pending, partition, wanted, field, may_resize=may_resize)
                if change is not None:
                    records.append(record(change))
            results.append(result)
        topics.append(rpc.ReassignedTopic(name=topic.name, partitions=results))
    body = rpc.AlterPartitionReassignmentsResponse(topics=topics)
    return write_or_reply([] if request.validate_only else records, body)


def list_partition_reassignments(
    state: ControllerState, request: rpc.ListPartitionReassignmentsRequest
) -> Reply:
    """Return the reassignments in the committed image, by topic name.

    Omits partitions that do not exist. O(partitions) if the request lists no topics.
    """
    image, topics = state.log.committed, []
    for name, indexes in _asked(image, request):
        topic_id = image.topic_ids[name]
        found = (image.partitions.get((topic_id, index)) for index in indexes)
        ongoing = [
            rpc.OngoingPartitionReassignment(
                partition_index=partition.index,
                replicas=partition.replicas,
                adding_replicas=partition.adding_replicas,
                removing_replicas=partition.removing_replicas,
                isr=partition.isr,
            )
            for partition in found
            if partition is not None and (partition.adding_replicas or partition.removing_replicas)
        ]
        if ongoing:
            topics.append(rpc.OngoingTopicReassignment(name=name, partitions=ongoing))
    return Reply(rpc.ListPartitionReassignmentsResponse(topics=topics, offset=image.offset))


def find_partition(view: ImageView, topic: str, index: int, field: str) -> Partition:
    """Return a partition by the name of its topic.

    Raises UNKNOWN_TOPIC_OR_PARTITION.
    """
    topic_id = view.topic_ids.get(topic)
    if topic_id is None:
        raise refuse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic!r}", field)
    partition = view.partitions.get((topic_id, index))
    if partition is None:
        raise refuse(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"topic {topic!r} has no partition {index}",
            field,
        )
    return partition


def _asked(
    image: Image, request: rpc.ListPartitionReassignmentsRequest
) -> Iterable[tuple[str, Iterable[int]]]:
    wanted = {topic.name: list(topic.partition_indexes) for topic in request.topics}
    for name in sorted(wanted if request.topics else image.topic_ids):
        if name in image.topic_ids:
            yield (
                name,
                sorted(set(wanted.get(name, ())))
                or range(image.topics[image.topic_ids[name]].partition_count),
            )


def _decide(
    view: ImageView,
    partition: Partition,
    wanted: rpc.ReassignablePartition,
    field: str,
    *,
    may_resize: bool,
) -> pb.PartitionChangeRecord | None:
    if wanted.HasField("replicas"):
        return _reassign(
            view, partition, tuple(wanted.replicas.ids), f"{field}.replicas", may_resize=may_resize
        )
    if not partition.adding_replicas and not partition.removing_replicas:
        raise refuse(
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
            "this partition has no reassignment to cancel",
            field,
        )
    return _change(view, partition, Assignment(assignment_of(partition).original, (), ()), field)


def _reassign(
    view: ImageView, partition: Partition, target: tuple[int, ...], field: str, *, may_resize: bool
) -> pb.PartitionChangeRecord | None:
    wrong = wrong_replicas(view, target)
    if wrong:
        raise refuse(ErrorCode.INVALID_REPLICA_ASSIGNMENT, wrong, field)
    original = assignment_of(partition).original
    if not may_resize and len(target) != len(original):
        raise refuse(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{len(target)} replicas given; the replication factor must stay {len(original)}",
            field,
        )
    removing = tuple(replica for replica in original if replica not in target)
    adding = tuple(replica for replica in target if replica not in original)
    if wrong := cordoned_among(view, adding):
        raise refuse(ErrorCode.INVALID_REPLICA_ASSIGNMENT, wrong, field)
    return _change(view, partition, Assignment((*target, *removing), removing, adding), field)


def _change(
    view: ImageView, partition: Partition, assignment: Assignment, field: str
) -> pb.PartitionChangeRecord | None:
    """Return the record of the change to ``assignment``, or None if nothing changes.

    Raises INVALID_REPLICA_ASSIGNMENT if only replicas that may lack records would remain.
    """
    isr: Sequence[int] = [member for member in partition.isr if member in assignment.replicas]
    brokers = Brokers(view)
    kept = set(assignment.replicas)
    # Without a leader, a replica that may have the records must remain.
    held = partition.elr or partition.last_known_elr or partition.replicas
    if isr or (not partition.isr and not kept.isdisjoint(held)):
        return next_state(brokers, partition, isr=isr, assignment=assignment)
    if unclean_election_enabled(view, partition.topic_id):
        change = next_state(
            brokers, partition, isr=(), assignment=assignment, election=Election.UNCLEAN
        )
        # An unset field reads as broker 0; it is unset if there was no leader and no candidate
        # exists.
        if change is not None and change.HasField("leader") and change.leader != NO_LEADER:
            return change
    raise refuse(
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        f"replicas must include a member of the ISR {list(partition.isr)}: otherwise only an"
        " unclean leader could be elected",
        field,
    )
