"""CreatePartitions: more partitions for topics that exist.

A result for each topic, and one atomic batch for all that succeed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from controller.decision import (
    Reply,
    Write,
    check_item_count,
    check_record_count,
    refuse,
    wire_error,
    write_or_reply,
)
from controller.rules.assignments import active_brokers, new_partition, spread, wrong_new_replicas
from controller.rules.partition_change import assignment_of
from controller.state.state import ControllerState
from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.entities import Topic
from raftlog.metadata.records import Record
from raftlog.security.authorization import NONE_REFUSED, Refused, check_item
from raftlog.wire.controller.v1 import controller_pb2 as rpc


def create_partitions(
    state: ControllerState, request: rpc.CreatePartitionsRequest, refused: Refused = NONE_REFUSED
) -> Write | Reply:
    """Add partitions to topics.

    Raises POLICY_VIOLATION for more than fits into a batch; everything else is an error of its
    topic.
    """
    check_item_count(len(request.topics), state.settings.max_records_per_request, "topics")
    live = active_brokers(state.log.pending)
    names = Counter(topic.name for topic in request.topics)
    records: list[Record] = []
    results = []
    for index, topic in enumerate(request.topics):
        result = rpc.CreatePartitionsTopicResult(name=topic.name)
        try:
            check_item(refused, index)
            if names[topic.name] > 1:
                raise refuse(
                    ErrorCode.INVALID_REQUEST,
                    f"topic {topic.name!r} is named twice",
                    f"topics[{index}].name",
                )
            _add(state, live, topic, f"topics[{index}]", records)
        except ApiError as error:
            if error.code == ErrorCode.POLICY_VIOLATION:
                raise
            result.error.CopyFrom(wire_error(error))
        results.append(result)
    return write_or_reply(
        [] if request.validate_only else records, rpc.CreatePartitionsResponse(results=results)
    )


def _add(
    state: ControllerState,
    live: Sequence[int],
    wanted: rpc.CreatePartitionsTopic,
    field: str,
    records: list[Record],
) -> None:
    """Append the new partitions of one topic, all or none.

    They have as many replicas as its first one is to have.
    """
    topic = _topic(state, wanted, field)
    added = wanted.count - topic.partition_count
    if added < 1:
        raise refuse(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {topic.name!r} has {topic.partition_count} partitions: {wanted.count} are not"
            " more",
            f"{field}.count",
        )
    # Counted before anything is made of them: a request must not cost more than its answer may.
    limit = state.settings.max_records_per_request
    check_record_count(len(records) + added, limit, f"{field}.count")
    width = len(assignment_of(state.log.pending.partitions[topic.id, 0]).target)
    active = frozenset(live)
    if wanted.assignments:
        placed = _manual(state, active, wanted, added, width, f"{field}.assignments")
    elif width > len(live):
        raise refuse(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {width} with {len(live)} live brokers",
            field,
        )
    else:
        placed = spread(state.log.pending, live, added, width, state.rng)
    records.extend(
        new_partition(
            topic.id, topic.partition_count + index, replicas, active, state.epoch_floor.first
        )
        for index, replicas in enumerate(placed)
    )


def _topic(state: ControllerState, wanted: rpc.CreatePartitionsTopic, field: str) -> Topic:
    topic_id = state.log.pending.topic_ids.get(wanted.name)
    if topic_id is None:
        raise refuse(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"there is no topic {wanted.name!r}",
            f"{field}.name",
        )
    topic = state.log.pending.topics[topic_id]
    return topic


def _manual(
    state: ControllerState,
    live: frozenset[int],
    wanted: rpc.CreatePartitionsTopic,
    added: int,
    width: int,
    field: str,
) -> list[tuple[int, ...]]:
    if len(wanted.assignments) != added:
        raise refuse(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{added} partitions are added, {len(wanted.assignments)} are assigned",
            field,
        )
    for position, entry in enumerate(wanted.assignments):
        wrong = wrong_new_replicas(state.log.pending, entry.broker_ids, live, width)
        if wrong:
            raise refuse(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, wrong, f"{field}[{position}].broker_ids"
            )
    return [tuple(entry.broker_ids) for entry in wanted.assignments]
