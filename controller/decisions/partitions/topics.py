"""CreateTopics, DeleteTopics and CreatePartitions: one result per topic, and one atomic batch for
all topics that succeed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

from controller.decision import (
    Reply,
    Write,
    check_item,
    check_item_count,
    check_record_count,
    own_error,
    refuse,
    write_or_reply,
)
from controller.decisions.configs import check_config, config_record
from controller.rules.partition_change import assignment_of
from controller.rules.placement import (
    active_brokers,
    new_partition,
    spread,
    uncordoned,
    wrong_new_replicas,
)
from controller.state.state import ControllerState
from raftlog.errors import ErrorCode
from raftlog.metadata.config_keys import ResourceType, find
from raftlog.metadata.image import ImageView
from raftlog.metadata.records import Record, record
from raftlog.node.security.authorization import NONE_REFUSED, Refused
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb

DEFAULT = -1
NO_TOPIC_ID = bytes(16)
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class _Targets:
    """The brokers that may receive new replicas: unfenced, neither stopping nor cordoned."""

    def __init__(self, state: ControllerState, live: Sequence[int], now: float) -> None:
        self._all = uncordoned(state.log.pending, live)
        low = state.lag_watch.low_on_space(now)
        self._with_space = [one for one in self._all if one not in low]

    def __len__(self) -> int:
        return len(self._all)

    def of(self, width: int) -> list[int]:
        """Return candidates for ``width`` replicas.

        Brokers that are low on space store no record that a leader sends; they are excluded if the
        others suffice.
        """
        return self._with_space if len(self._with_space) >= width else self._all


def create_topics(
    state: ControllerState,
    request: rpc.CreateTopicsRequest,
    now: float,
    refused: Refused = NONE_REFUSED,
) -> Write | Reply:
    """Create topics.

    Raises POLICY_VIOLATION.
    """
    live = active_brokers(state.log.pending)
    targets = _Targets(state, live, now)
    response = rpc.CreateTopicsResponse()

    def create(index: int, field: str, records: list[Record], result: Any) -> None:
        _create(state, live, targets, request.topics[index], field, records, result)

    names = [topic.name for topic in request.topics]
    records = _decide_each(state, names, "topics", ".name", refused, response.topics, create)
    return write_or_reply([] if request.validate_only else records, response)


def delete_topics(
    state: ControllerState, request: rpc.DeleteTopicsRequest, refused: Refused = NONE_REFUSED
) -> Write | Reply:
    """Delete topics by name.

    Their configs are deleted first, so that no image shows configs of a deleted topic. Raises
    POLICY_VIOLATION.
    """
    view = state.log.pending
    response = rpc.DeleteTopicsResponse()

    def delete(index: int, field: str, records: list[Record], result: Any) -> None:
        name = request.names[index]
        topic_id = _topic_id(view, name, field)
        keys = sorted(view.configs.get((ResourceType.TOPIC, name)) or ())
        records.extend(config_record(ResourceType.TOPIC, name, key, None) for key in keys)
        records.append(record(pb.RemoveTopicRecord(topic_id=topic_id)))
        result.topic_id = topic_id

    records = _decide_each(state, request.names, "names", "", refused, response.topics, delete)
    return write_or_reply([] if request.validate_only else records, response)


def create_partitions(
    state: ControllerState,
    request: rpc.CreatePartitionsRequest,
    now: float,
    refused: Refused = NONE_REFUSED,
) -> Write | Reply:
    """Add partitions to topics.

    Raises POLICY_VIOLATION.
    """
    live = active_brokers(state.log.pending)
    targets = _Targets(state, live, now)
    response = rpc.CreatePartitionsResponse()

    def add(index: int, field: str, records: list[Record], _result: Any) -> None:
        _add(state, live, targets, request.topics[index], field, records)

    names = [topic.name for topic in request.topics]
    records = _decide_each(state, names, "topics", ".name", refused, response.results, add)
    return write_or_reply([] if request.validate_only else records, response)


def _decide_each(
    state: ControllerState,
    names: Sequence[str],
    field: str,
    name_field: str,
    refused: Refused,
    results: Any,
    decide: Callable[[int, str, list[Record], Any], None],
) -> list[Record]:
    """Return the records for all named topics that ``decide`` accepts, as one batch.

    The error of a single topic is only in its result. Raises POLICY_VIOLATION for more topics, or
    records, than a batch may have.
    """
    limit = state.settings.max_records_per_request
    check_item_count(len(names), limit, field)
    count = Counter(names)
    records: list[Record] = []
    for index, name in enumerate(names):
        result, item = results.add(name=name), f"{field}[{index}]"
        with own_error(result, whole=ErrorCode.POLICY_VIOLATION):
            check_item(refused, index)
            if count[name] > 1:
                raise refuse(
                    ErrorCode.INVALID_REQUEST,
                    f"topic {name[:249]!r} is given twice",
                    f"{item}{name_field}",
                )
            decide(index, item, records, result)
    check_record_count(len(records), limit)
    return records


def _create(
    state: ControllerState,
    live: Sequence[int],
    targets: _Targets,
    topic: rpc.CreatableTopic,
    field: str,
    records: list[Record],
    result: rpc.CreatableTopicResult,
) -> None:
    """Append the records of one topic, all or none, and fill in its result."""
    _check_name(state.log.pending, topic.name, f"{field}.name")
    configs = _configs(state, topic, f"{field}.configs")
    if topic.assignments:
        # Checked before any object is made: a request must not cost more than its answer may.
        check_record_count(
            len(records) + 1 + len(configs) + len(topic.assignments),
            state.settings.max_records_per_request,
            f"{field}.assignments",
        )
        assignments = _manual(state.log.pending, frozenset(live), topic, field)
    else:
        partitions = _partition_count(state, topic, f"{field}.num_partitions")
        replication_factor = _replication_factor(
            state, topic, len(targets), f"{field}.replication_factor"
        )
        check_record_count(
            len(records) + 1 + len(configs) + partitions,
            state.settings.max_records_per_request,
            f"{field}.num_partitions",
        )
        assignments = spread(
            state.log.pending,
            targets.of(replication_factor),
            partitions,
            replication_factor,
            state.rng,
        )
    topic_id = _new_topic_id(state)
    records.append(record(pb.TopicRecord(name=topic.name, topic_id=topic_id)))
    records.extend(configs)
    active = frozenset(live)
    first = state.epoch_floor.first
    records.extend(
        new_partition(topic_id, index, replicas, active, first)
        for index, replicas in enumerate(assignments)
    )
    result.topic_id, result.num_partitions = topic_id, len(assignments)
    result.replication_factor = len(assignments[0])


def _check_name(view: ImageView, name: str, field: str) -> None:
    if name in (".", "..") or not _NAME.fullmatch(name):
        raise refuse(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"{name[:300]!r} is not a topic name: use 1 to 249 of a-z A-Z 0-9 . _ -, and"
            " neither '.' nor '..'",
            field,
        )
    if name in view.topic_ids:
        raise refuse(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} already exists", field)


def _configs(state: ControllerState, topic: rpc.CreatableTopic, field: str) -> list[Record]:
    records: list[Record] = []
    seen: set[str] = set()
    for index, entry in enumerate(topic.configs):
        key = find(ResourceType.TOPIC, entry.name)
        if key is None or entry.name in seen:
            wrong = "there is no topic config key" if key is None else "given twice:"
            raise refuse(
                ErrorCode.INVALID_CONFIG, f"{wrong} {entry.name[:80]!r}", f"{field}[{index}].name"
            )
        seen.add(entry.name)
        check_config(state.settings, key, entry.value, f"{field}[{index}].value")
        records.append(config_record(ResourceType.TOPIC, topic.name, entry.name, entry.value))
    return records


def _partition_count(state: ControllerState, topic: rpc.CreatableTopic, field: str) -> int:
    count = (
        state.settings.num_partitions if topic.num_partitions == DEFAULT else topic.num_partitions
    )
    if count < 1:
        raise refuse(
            ErrorCode.INVALID_PARTITIONS,
            f"a topic must have at least 1 partition, not {count}",
            field,
        )
    return count


def _replication_factor(
    state: ControllerState, topic: rpc.CreatableTopic, live: int, field: str
) -> int:
    wanted = topic.replication_factor
    if wanted == DEFAULT:
        wanted = max(1, min(state.settings.default_replication_factor, live))
    if wanted < 1 or wanted > live:
        raise refuse(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {wanted} exceeds the number of unfenced brokers that are neither"
            f" stopping nor cordoned, {live}"
            if wanted > live
            else f"replication factor {wanted} must be at least 1",
            field,
        )
    return wanted


def _manual(
    view: ImageView, live: Collection[int], topic: rpc.CreatableTopic, field: str
) -> list[tuple[int, ...]]:
    """Return the replicas that the request assigns, by partition.

    The counts in the request, if any, must agree with them.
    """
    by_index = {entry.partition_index: tuple(entry.broker_ids) for entry in topic.assignments}
    where = f"{field}.assignments"
    if sorted(by_index) != list(range(len(topic.assignments))):
        raise refuse(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "partition indexes must be 0, 1, 2, ..., each once",
            where,
        )
    width = len(by_index[0])
    if topic.num_partitions not in (0, DEFAULT, len(by_index)):
        raise refuse(
            ErrorCode.INVALID_REQUEST,
            f"num_partitions is {topic.num_partitions}, but {len(by_index)} partitions are"
            " assigned",
            f"{field}.num_partitions",
        )
    if topic.replication_factor not in (0, DEFAULT, width):
        raise refuse(
            ErrorCode.INVALID_REQUEST,
            f"replication_factor is {topic.replication_factor}, but {width} replicas are assigned",
            f"{field}.replication_factor",
        )
    for position, entry in enumerate(topic.assignments):
        wrong = wrong_new_replicas(view, entry.broker_ids, live, width)
        if wrong:
            raise refuse(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, wrong, f"{where}[{position}].broker_ids"
            )
    return [by_index[index] for index in range(len(by_index))]


def _new_topic_id(state: ControllerState) -> bytes:
    while True:
        topic_id = state.rng.randbytes(16)
        if topic_id != NO_TOPIC_ID and topic_id not in state.log.pending.topics:
            return topic_id


def _add(
    state: ControllerState,
    live: Sequence[int],
    targets: _Targets,
    wanted: rpc.CreatePartitionsTopic,
    field: str,
    records: list[Record],
) -> None:
    """Append the new partitions of one topic, all or none.

    Each has as many replicas as the topic's first partition has (after its reassignment, if any).
    """
    topic = state.log.pending.topics[_topic_id(state.log.pending, wanted.name, f"{field}.name")]
    added = wanted.count - topic.partition_count
    if added < 1:
        raise refuse(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {topic.name!r} has {topic.partition_count} partitions; count must be greater,"
            f" not {wanted.count}",
            f"{field}.count",
        )
    # Checked before any object is made: a request must not cost more than its answer may.
    limit = state.settings.max_records_per_request
    check_record_count(len(records) + added, limit, f"{field}.count")
    width = len(assignment_of(state.log.pending.partitions[topic.id, 0]).target)
    active = frozenset(live)
    if wanted.assignments:
        placed = _added_assignment(state, active, wanted, added, width, f"{field}.assignments")
    elif width > len(targets):
        raise refuse(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {width} exceeds the number of unfenced brokers that are neither"
            f" stopping nor cordoned, {len(targets)}",
            field,
        )
    else:
        placed = spread(state.log.pending, targets.of(width), added, width, state.rng)
    records.extend(
        new_partition(
            topic.id, topic.partition_count + index, replicas, active, state.epoch_floor.first
        )
        for index, replicas in enumerate(placed)
    )


def _topic_id(view: ImageView, name: str, field: str) -> bytes:
    topic_id = view.topic_ids.get(name)
    if topic_id is None:
        raise refuse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}", field)
    return topic_id


def _added_assignment(
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
            f"{added} partitions are added, but {len(wanted.assignments)} are assigned",
            field,
        )
    for position, entry in enumerate(wanted.assignments):
        wrong = wrong_new_replicas(state.log.pending, entry.broker_ids, live, width)
        if wrong:
            raise refuse(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, wrong, f"{field}[{position}].broker_ids"
            )
    return [tuple(entry.broker_ids) for entry in wanted.assignments]
