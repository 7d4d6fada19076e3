"""Conversion between the library's values and the protobuf messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from raftlog.client.arguments import config_text
from raftlog.client.requests import item_error
from raftlog.client.values import (
    Acl,
    AclFilter,
    Broker,
    BrokerState,
    BrokerStatus,
    ConfigEntry,
    ConfigSource,
    ItemResult,
    NewTopic,
    Partition,
    PartitionCounts,
    ReadMode,
    Topic,
    Visibility,
)
from raftlog.metadata.acls import AclOperation, AclPermission, AclResourceType, PatternType
from raftlog.metadata.causes import Cause, cause_name
from raftlog.metadata.config_keys import without_effect
from raftlog.outcome import Acks, Token, WriteResult
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2

ItemT = TypeVar("ItemT", bound=ItemResult)
_ACKS = {
    Acks.COMMITTED: common_pb2.ACKS_COMMITTED,
    Acks.ACKNOWLEDGED: common_pb2.ACKS_ACKNOWLEDGED,
    Acks.VISIBLE: common_pb2.ACKS_VISIBLE,
}
_LEVELS = {number: level for level, number in _ACKS.items()}
_MODES = {
    ReadMode.REPEATABLE: broker_pb2.REPEATABLE,
    ReadMode.LATEST: broker_pb2.LATEST,
    ReadMode.STRICT: broker_pb2.STRICT,
}


def acks_to_wire(acks: str) -> common_pb2.Acks:
    """Return the level with a name. Raises ValueError, which lists the levels."""
    return _ACKS[_member(Acks, acks, "acks")]


def mode_to_wire(mode: str) -> broker_pb2.ReadMode:
    """Return the mode with a name. Raises ValueError, which lists the modes."""
    return _MODES[_member(ReadMode, mode, "read")]


def _member(kind: Any, value: str, what: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"{what}={value!r}: it is one of {', '.join(kind)}") from None


def token_from_wire(token: common_pb2.MetadataToken) -> Token:
    """Return a position in the log."""
    return Token(token.generation, token.epoch, token.offset)


def token_to_wire(token: Token) -> common_pb2.MetadataToken:
    """Return the message of a position."""
    return common_pb2.MetadataToken(
        generation=token.generation, epoch=token.epoch, offset=token.offset
    )


def write_result(
    response: controller_pb2.ControllerResponse, items: Iterable[ItemT]
) -> WriteResult[ItemT]:
    """Return the token of a write, with the results of its items."""
    if not response.HasField("write"):
        return WriteResult(None, None, items=tuple(items))
    write = response.write
    return WriteResult(
        token_from_wire(write.token),
        _LEVELS.get(write.reached, Acks.COMMITTED),
        tuple(write.waiting_for_brokers),
        write.duplicate,
        tuple(items),
    )


def named_items(results: Iterable[Any]) -> Iterator[ItemResult]:
    """Yield the results of items that have names."""
    for one in results:
        yield ItemResult(one.name, item_error(one))


def new_topic(topic: NewTopic) -> controller_pb2.CreatableTopic:
    """Return the message of a topic to be created."""
    return controller_pb2.CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        assignments=[
            controller_pb2.CreatableReplicaAssignment(partition_index=index, broker_ids=ids)
            for index, ids in enumerate(topic.assignments)
        ],
        configs=[
            controller_pb2.ConfigEntry(name=name, value=config_text(name, value))
            for name, value in topic.configs.items()
        ],
    )


def topic_from_wire(topic: broker_pb2.MetadataTopic) -> Topic:
    """Return a topic in a broker's answer."""
    return Topic(
        topic.name,
        topic.topic_id.hex(),
        tuple(
            Partition(
                one.partition_index,
                known(one.leader_id),
                one.leader_epoch,
                tuple(one.replica_nodes),
                tuple(one.offline_replicas),
            )
            for one in topic.partitions
        ),
    )


def config_from_wire(kind: int, config: broker_pb2.DescribedConfig) -> ConfigEntry:
    """Return one key of a resource of this kind."""
    return ConfigEntry(
        config.name,
        config.value,
        ConfigSource(config.config_source),
        config.is_default,
        without_effect(kind, config.name, config.value),
    )


def broker_from_wire(broker: broker_pb2.DescribeClusterBroker) -> Broker:
    """Return a broker in another one's answer."""
    return Broker(
        broker.broker_id,
        broker.host,
        broker.port,
        broker.rack or None,
        broker.broker_epoch,
        broker.is_fenced,
    )


def visibility_from_wire(answer: controller_pb2.DescribeBrokersResponse) -> Visibility:
    """Return the brokers in the controller's answer."""
    return Visibility(
        answer.high_watermark,
        known(answer.lowest_acknowledged_offset),
        answer.lao_unknown_reason,
        tuple(answer.held_back_by),
        answer.held_back_ms,
        PartitionCounts(
            answer.partitions.total,
            answer.partitions.offline,
            answer.partitions.not_led_by_preferred,
            answer.partitions.reassigning,
            answer.partitions.recovering,
        ),
        tuple(
            BrokerStatus(
                one.broker_id,
                one.broker_epoch,
                BrokerState(one.state),
                one.endpoint,
                one.rack or None,
                known(one.applied_offset),
                known(one.last_contact_age_ms),
                one.leader_count,
                one.replica_count,
                one.reason,
                cause_name(Cause, one.cause),
                one.state_age_ms,
                one.state_age_is_at_least,
                known(one.told_lowest_acknowledged_offset),
                (
                    None
                    if one.applied_offset < 0
                    else max(0, answer.high_watermark - 1 - one.applied_offset)
                ),
                one.registration_version,
                one.broker_id in answer.held_back_by,
            )
            for one in answer.brokers
        ),
    )


def acl_to_wire(acl: Acl) -> controller_pb2.AccessControlEntry:
    """Return the message of an entry to be created."""
    return controller_pb2.AccessControlEntry(
        resource_type=acl.resource_type,
        resource_name=acl.resource_name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


def acls_from_wire(entries: Iterable[controller_pb2.AccessControlEntry]) -> tuple[Acl, ...]:
    """Return the entries in the cluster's answer."""
    return tuple(
        Acl(
            one.principal,
            AclOperation(one.operation),
            AclResourceType(one.resource_type),
            one.resource_name,
            PatternType(one.pattern_type),
            AclPermission(one.permission_type),
            one.host,
        )
        for one in entries
    )


def filter_to_wire(chosen: AclFilter) -> controller_pb2.AccessControlEntryFilter:
    """Return the message of a filter of entries."""
    return controller_pb2.AccessControlEntryFilter(
        resource_type=chosen.resource_type,
        resource_name=chosen.resource_name,
        pattern_type=chosen.pattern_type,
        principal=chosen.principal,
        host=chosen.host,
        operation=chosen.operation,
        permission_type=chosen.permission,
    )


def known(number: int) -> int | None:
    """Return a number; None for -1, which means unknown."""
    return None if number < 0 else number
