"""The limits of every text, byte string and list that a client, a broker or another node sends:
their kinds, the table of all fields, and the check of a message against this table.

A field without a row in ``FIELDS`` has the limit of its kind: 249 printable characters, 16 KiB, or
100,000 items. The limits fit everything downstream: the principal's length takes 16 bits of a
batch's header; names become parts of keys, snapshots and metrics; every text is printed somewhere.
The size of a whole request is bounded in ``raftlog/bounds.py``. Every kind of request may also name
its cluster, which is checked here, too.

Why: docs/decisions/022-a-peer-can-cost-only-so-much.md
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from raftlog.bounds import (
    DATA_REQUEST_MAX_PARTITIONS,
    DIRECTORY_NONCES_MAX,
    MESSAGE_MAX_BYTES,
    REPLICA_LOGS_MAX,
)
from raftlog.descriptors import is_repeated
from raftlog.endpoint import ENDPOINTS_MAX_CHARS, HOST_MAX_CHARS, endpoints_error, host_error
from raftlog.errors import ApiError, ErrorCode
from raftlog.wire.broker.v1 import broker_pb2 as broker
from raftlog.wire.common.v1 import common_pb2 as common
from raftlog.wire.controller.v1 import controller_pb2 as controller
from raftlog.wire.data.v1 import data_pb2 as data
from raftlog.wire.node.v1 import node_pb2 as node
from raftlog.wire.quorum.v1 import quorum_pb2 as quorum
from raftlog.wire.records.v1 import records_pb2 as records

_SHOWN_CHARS = 80


@dataclass(frozen=True, slots=True)
class Text:
    """A text of at most ``max_chars`` printable characters, as terminals and logs will show it."""

    max_chars: int

    def error(self, value: str) -> str:
        """Return what is wrong with the value, or "" if it is valid."""
        if len(value) > self.max_chars:
            return f"{len(value)} characters, but at most {self.max_chars} are allowed"
        return (
            ""
            if value.isprintable()
            else f"{value[:_SHOWN_CHARS]!r} contains characters that cannot be printed"
        )


@dataclass(frozen=True, slots=True)
class Allowed:
    """A text of at most ``max_chars`` characters that matches a pattern."""

    max_chars: int
    pattern: re.Pattern[str]
    what: str

    def error(self, value: str) -> str:
        """See ``Text.error``."""
        if len(value) > self.max_chars:
            return f"{len(value)} characters, but at most {self.max_chars} are allowed"
        return (
            ""
            if self.pattern.fullmatch(value)
            else f"{value[:_SHOWN_CHARS]!r} is not a {self.what}"
        )


@dataclass(frozen=True, slots=True)
class Address:
    """A host, or the endpoints of a node. Empty is allowed only with ``optional``."""

    wrong: Callable[[str], str]
    max_chars: int
    optional: bool = False

    def error(self, value: str) -> str:
        """See ``Text.error``."""
        return "" if self.optional and not value else self.wrong(value)


@dataclass(frozen=True, slots=True)
class Octets:
    """A byte string of at most ``max_bytes``."""

    max_bytes: int

    def error(self, value: bytes) -> str:
        """See ``Text.error``."""
        return (
            ""
            if len(value) <= self.max_bytes
            else f"{len(value)} bytes, but at most {self.max_bytes} are allowed"
        )


@dataclass(frozen=True, slots=True)
class Items:
    """A list of at most ``max_items``. ``each``: the rule for an item that is not a message."""

    max_items: int
    each: Text | Allowed | Octets | None = None

    def error(self, value: Any) -> str:
        """Return what is wrong with the list, apart from its items, or "" if it is valid."""
        return (
            ""
            if len(value) <= self.max_items
            else f"{len(value)} items, but at most {self.max_items} are allowed"
        )


@dataclass(frozen=True, slots=True)
class ByHandler:
    """A field that is not checked here, because the request's handler has an equally strict check.

    ``why``: text that names the handler's check. ``limit``: its bound.
    """

    limit: int
    why: str


Rule = Text | Allowed | Address | Octets | Items | ByHandler

NAME = re.compile(r"[A-Za-z0-9._-]*")


def name(max_chars: int = 249) -> Allowed:
    """Return the rule for a name: letters, digits, dots, dashes and underscores."""
    return Allowed(max_chars, NAME, "name of ASCII letters, digits, dots, dashes and underscores")


RACK = Allowed(
    255,
    re.compile(r"[A-Za-z0-9 ._:/@=+,-]*"),
    "rack: ASCII letters, digits, spaces and . _ : / @ = + , -",
)
CLUSTER_ID_TEXT = Text(255)
HOST = Address(host_error, HOST_MAX_CHARS)
ENDPOINT = Address(endpoints_error, ENDPOINTS_MAX_CHARS)
OPTIONAL_ENDPOINT = Address(endpoints_error, ENDPOINTS_MAX_CHARS, optional=True)
PRINCIPAL_MAX_CHARS = 1024
ENVELOPE = ByHandler(
    MESSAGE_MAX_BYTES, "the transport splits it into requests, each of which is checked separately"
)
CLUSTER_ID = ByHandler(
    255, "compared with the cluster's own id; an error shows 80 characters of it"
)
ID = Text(255)
DIRECTORY_ID = Text(255)
ERROR_MESSAGE = Text(2000)
TOPIC_ID = Octets(16)
VALUE_MAX_BYTES = 16 << 10
"""Largest value in the key-value store, in bytes: for a lock's owner or a setting, not for
files.
"""
KEY_MAX_CHARS = 249
_KEY_SEGMENT = r"[A-Za-z0-9._:@=+,-]+"
_KEY_SEGMENTS = "ASCII letters, digits and . _ - : @ = + , with single slashes between them"
KEY = Allowed(
    KEY_MAX_CHARS,
    re.compile(rf"{_KEY_SEGMENT}(/{_KEY_SEGMENT})*"),
    f"key: segments of {_KEY_SEGMENTS}",
)
KEY_PREFIX = Allowed(
    KEY_MAX_CHARS,
    re.compile(rf"({_KEY_SEGMENT}(/{_KEY_SEGMENT})*/?)?"),
    f"prefix of a key: segments of {_KEY_SEGMENTS}",
)
SELECTOR = Text(2_000)
"""The path of an entity: a kind and up to two percent-encoded names."""
TEXT, OCTETS, MAX_ITEMS = Text(249), Octets(16 << 10), 100_000
"""Limits of texts, byte strings and lists without a row. The size of the request bounds such a list
further, and the handler counts the records that it would write.
"""
_BY_TYPE: Mapping[int, Text | Octets] = {
    FieldDescriptor.TYPE_STRING: TEXT,
    FieldDescriptor.TYPE_BYTES: OCTETS,
}
_NOTHING: Mapping[str, Rule] = {}
ACL_FILTERS = Items(100)
"""Limit of the filters of access control entries, each of which examines every entry."""
REPLICAS = Items(1_000)
READ_TOPICS = Items(20_000, TEXT)
READ_RESOURCES = Items(1_000)
KEPT_LEASES_MAX = 1_000
"""Maximum number of leases, in addition to the first, that one request keeps alive."""
DATA_PARTITIONS = Items(DATA_REQUEST_MAX_PARTITIONS)
"""Limit of the partitions in one read: the read is answered in one go, and the answer is many times
larger than the request.
"""
BROKER_FEATURES, BROKER_LISTENERS, BROKER_LOG_DIRS = Items(100), Items(100), Items(100, Text(4096))
CHUNK = ByHandler(MESSAGE_MAX_BYTES, "batches with checksums, which the reader of the log checks")
PART = ByHandler(
    MESSAGE_MAX_BYTES, "part of a snapshot, which its footer verifies once it is complete"
)


def rule_of(type_: type[Message], name: str) -> Rule | None:
    """Return the limit of a field, or None if it is a number, or a message with its own limits."""
    rule = FIELDS.get(type_, _NOTHING).get(name)
    if rule is not None:
        return rule
    field = type_.DESCRIPTOR.fields_by_name[name]
    one = _BY_TYPE.get(field.type)
    return Items(MAX_ITEMS, one) if is_repeated(field) else one


FIELDS: Mapping[type[Message], Mapping[str, Rule]] = {
    common.ClientIdentity: {"principal": Text(PRINCIPAL_MAX_CHARS), "host": Text(255)},
    records.Listener: {"name": name(255), "host": HOST},
    records.FeatureRange: {"name": name()},
    records.ProcessProof: {"boot_id": ID, "directory_id": DIRECTORY_ID},
    records.IdList: {"ids": REPLICAS},
    # --- to the active controller
    controller.ControllerRequests: {"requests": ENVELOPE},
    controller.ControllerRequest: {
        "cluster_id": CLUSTER_ID,
        "traceparent": ByHandler(55, "raftlog.tracing ignores an invalid one"),
    },
    controller.RegisterBrokerRequest: {
        "cluster_id": CLUSTER_ID,
        "incarnation_id": ID,
        "listeners": BROKER_LISTENERS,
        "features": BROKER_FEATURES,
        "rack": RACK,
        "log_dirs": BROKER_LOG_DIRS,
    },
    controller.BrokerHeartbeatRequest: {"replica_logs": Items(REPLICA_LOGS_MAX)},
    controller.ReplicaLogReport: {"topic_id": TOPIC_ID},
    controller.AlterPartitionTopic: {"topic_id": TOPIC_ID},
    controller.ExpectedTopic: {"topic_id": TOPIC_ID},
    controller.AlterPartitionData: {"new_isr_with_epochs": REPLICAS},
    controller.CreatableTopic: {
        "name": ByHandler(
            249, "controller.decisions.partitions.topics checks it, with an error for each topic"
        ),
        "configs": Items(1_000),
    },
    controller.CreatableReplicaAssignment: {"broker_ids": REPLICAS},
    controller.ConfigEntry: {
        "name": ByHandler(249, "must be in raftlog.metadata.config_keys"),
        "value": ByHandler(
            32_768, "controller.decisions.configs: config.value.max.bytes, printable"
        ),
    },
    # The hot path: everything in it is looked up or checked by controller.decisions.configs.
    controller.IncrementalAlterConfigsRequest: {
        "resources": ByHandler(100_000, "controller.decisions.configs counts them")
    },
    controller.AlterConfigsResource: {
        "resource_name": ByHandler(
            249, "controller.decisions.configs: looked up, or 249 printable characters"
        ),
        "configs": ByHandler(
            1_000, "controller.decisions.configs refuses duplicate and unknown keys"
        ),
    },
    controller.AlterableConfig: {
        "name": ByHandler(249, "must be in raftlog.metadata.config_keys"),
        "value": ByHandler(
            32_768, "controller.decisions.configs: config.value.max.bytes, printable"
        ),
        "expected": ByHandler(
            32_768, "controller.decisions.configs: config.value.max.bytes, and only compared"
        ),
    },
    controller.AddRaftVoterRequest: {"voter_directory_id": DIRECTORY_ID, "endpoint": ENDPOINT},
    controller.RemoveRaftVoterRequest: {"voter_directory_id": DIRECTORY_ID},
    controller.UpdateRaftVoterRequest: {"voter_directory_id": DIRECTORY_ID, "endpoint": ENDPOINT},
    controller.KeepLeaseAliveRequest: {"more_lease_ids": Items(KEPT_LEASES_MAX)},
    controller.UpdateFeaturesRequest: {"updates": Items(100)},
    controller.FeatureUpdate: {"name": name()},
    controller.CreatePartitionsAssignment: {"broker_ids": REPLICAS},
    controller.HostnameAlteration: {
        "hostname": ByHandler(
            255,
            "controller.decisions.brokers.hostnames: a valid host, or an existing mapping to"
            " delete",
        )
    },
    controller.ExportCursorAlteration: {
        "name": ByHandler(
            249,
            "controller.decisions.clients.export_cursors checks it, with an error for each cursor",
        ),
        "target": ByHandler(
            1024, "controller.decisions.clients.export_cursors: 1024 printable characters"
        ),
    },
    controller.KeyValueAlteration: {"key": KEY, "value": Octets(VALUE_MAX_BYTES)},
    controller.DeleteAclsRequest: {"filters": ACL_FILTERS},
    controller.AccessControlEntry: {"principal": Text(PRINCIPAL_MAX_CHARS), "host": Text(255)},
    controller.AccessControlEntryFilter: {
        "principal": Text(PRINCIPAL_MAX_CHARS),
        "host": Text(255),
    },
    controller.MetadataFetchRequest: {"cluster_id": CLUSTER_ID},
    # --- to a broker
    broker.BrokerRequests: {"requests": ENVELOPE},
    broker.BrokerRequest: {
        "traceparent": ByHandler(55, "raftlog.tracing ignores an invalid one"),
        "cluster_id": CLUSTER_ID,
    },
    broker.MetadataRequest: {"topics": READ_TOPICS},
    broker.DescribeConfigsRequest: {"resources": READ_RESOURCES},
    broker.DescribeConfigsResource: {"configuration_keys": Items(1_000, TEXT)},
    broker.ListKeyValuesRequest: {
        "keys": Items(1_000, KEY),
        "prefix": KEY_PREFIX,
        "after": KEY_PREFIX,
    },
    broker.WatchManyRequests: {"requests": ENVELOPE},
    broker.WatchRequest: {"cluster_id": CLUSTER_ID, "selectors": Items(100, SELECTOR)},
    data.ProduceRequest: {"partitions": DATA_PARTITIONS},
    data.ProducePartition: {
        "topic_id": TOPIC_ID,
        "records": ByHandler(
            24 << 20, "broker.partition: max.message.bytes, and the records per request"
        ),
    },
    data.FetchRequest: {"partitions": DATA_PARTITIONS},
    data.FetchPartition: {"topic_id": TOPIC_ID},
    data.ListOffsetsRequest: {"partitions": DATA_PARTITIONS},
    data.ListOffsetsPartition: {"topic_id": TOPIC_ID},
    data.PartitionKey: {"topic_id": TOPIC_ID},
    data.ReplicaFetchRequest: {"cluster_id": CLUSTER_ID},
    data.ReplicaFetchPartition: {"topic_id": TOPIC_ID},
    # --- between the nodes of the quorum, both ways
    quorum.QuorumMessages: {"messages": ENVELOPE},
    quorum.VoteRequest: {
        "cluster_id": CLUSTER_ID,
        "replica_directory_id": DIRECTORY_ID,
        "voter_directory_id": DIRECTORY_ID,
    },
    quorum.DirectoryStart: {"nonces": Items(DIRECTORY_NONCES_MAX)},
    quorum.KnownStart: {"directory_id": DIRECTORY_ID},
    quorum.VoteResponse: {"leader_endpoint": OPTIONAL_ENDPOINT, "error_message": ERROR_MESSAGE},
    quorum.BeginQuorumEpochRequest: {
        "cluster_id": CLUSTER_ID,
        "voter_directory_id": DIRECTORY_ID,
        "leader_endpoint": OPTIONAL_ENDPOINT,
    },
    quorum.BeginQuorumEpochResponse: {"error_message": ERROR_MESSAGE},
    quorum.EndQuorumEpochResponse: {"error_message": ERROR_MESSAGE},
    quorum.EndQuorumEpochRequest: {"cluster_id": CLUSTER_ID, "preferred_candidates": Items(1_000)},
    quorum.PreferredCandidate: {"candidate_directory_id": DIRECTORY_ID},
    quorum.FetchRequest: {
        "cluster_id": CLUSTER_ID,
        "replica_directory_id": DIRECTORY_ID,
        "spare_endpoint": OPTIONAL_ENDPOINT,
    },
    quorum.FetchResponse: {
        "records": CHUNK,
        "leader_endpoint": OPTIONAL_ENDPOINT,
        "preferred_candidates": Items(1_000),
        "known_starts": Items(1_000),
        "error_message": ERROR_MESSAGE,
    },
    quorum.FetchSnapshotRequest: {"cluster_id": CLUSTER_ID, "replica_directory_id": DIRECTORY_ID},
    quorum.FetchSnapshotResponse: {"bytes": PART},
    quorum.DescribeQuorumRequest: {"cluster_id": CLUSTER_ID},
    quorum.FetchMissingRecordsRequest: {"cluster_id": CLUSTER_ID},
    quorum.FetchMissingRecordsResponse: {
        "sections": Items(1_024),
        "records": CHUNK,
        "snapshots": Items(64),
        "bytes": PART,
    },
    quorum.LogSection: {"spans": Items(1_024)},
    # --- from operators, to any node
    node.DescribeNodeRequest: {"cluster_id": CLUSTER_ID},
    node.DescribeNodeEventsRequest: {"cluster_id": CLUSTER_ID},
    node.DiagnoseNodeRequest: {"cluster_id": CLUSTER_ID},
    node.AlterLogLevelRequest: {"cluster_id": CLUSTER_ID, "level": name(32)},
}

Check = Callable[[Any], None]
_CHECKS: dict[Any, Check | None] = {}
"""Message type -> its check, for the types checked so far."""
_UNKNOWN: Any = object()


class _WrongError(Exception):
    """The error of a field. ``path``: the names of the field and of the messages around it,
    innermost first.
    """

    def __init__(self, message: str, *path: str) -> None:
        super().__init__(message)
        self.path = list(path)


def cluster_error(cluster_id: str, asked: str) -> ApiError | None:
    """Return the error for a request that names another cluster, or None if it names this cluster
    or none.
    """
    if asked in ("", cluster_id):
        return None
    message = f"the request names cluster {asked[:80]!r}, but this is {cluster_id!r}"
    return ApiError(ErrorCode.INCONSISTENT_CLUSTER_ID, message, field="cluster_id")


def check(message: Message, prefix: str = "") -> None:
    """Raise INVALID_REQUEST naming the first field that exceeds its limit. ``prefix``: the field
    that contains the message.
    """
    checked = _CHECKS.get(type(message), _UNKNOWN)
    if checked is _UNKNOWN:
        checked = checks_of(type(message))
    if checked is None:
        return
    try:
        checked(message)
    except _WrongError as wrong:
        path = [*([prefix] if prefix else []), *reversed(wrong.path)]
        raise ApiError(ErrorCode.INVALID_REQUEST, str(wrong), field=".".join(path)) from None


def checks_of(type_: type[Message]) -> Check | None:
    """Return the check of a message type, or None if there is nothing to check."""
    if type_ not in _CHECKS:
        _CHECKS[type_] = _put_together(type_)
    return _CHECKS[type_]


def _put_together(type_: type[Message]) -> Check | None:
    # Values are checked in this function itself: a call for each would cost more than looking at
    # it.
    values: list[tuple[str, Callable[[Any], str]]] = []
    others: list[Check] = []
    for field in type_.DESCRIPTOR.fields:
        rule = rule_of(type_, field.name)
        if is_repeated(field) or field.message_type is not None:
            each = _inner_check(field, rule)
            if each is not None:
                others.append(each)
        elif rule is not None and not isinstance(rule, ByHandler):
            values.append((field.name, rule.error))
    if not values and not others:
        return None

    def checked(message: Any) -> None:
        for name, error in values:
            wrong = error(getattr(message, name))
            if wrong:
                raise _WrongError(wrong, name)
        for each in others:
            each(message)

    return checked


def _inner_check(field: Any, rule: Rule | None) -> Check | None:
    inner = (
        checks_of(GetMessageClass(field.message_type)) if field.message_type is not None else None
    )
    if is_repeated(field):
        return _list_check(field.name, rule, inner)
    return None if inner is None else _message_check(field.name, inner)


def _message_check(name: str, inner: Check) -> Check:
    def check_message(message: Any) -> None:
        if message.HasField(name):
            try:
                inner(getattr(message, name))
            except _WrongError as wrong:
                wrong.path.append(name)
                raise

    return check_message


def _list_check(name: str, rule: Rule | None, inner: Check | None) -> Check | None:
    limit = rule if isinstance(rule, Items) else None
    each = limit.each.error if limit is not None and limit.each is not None else None
    if limit is None and inner is None:
        return None

    def check_list(message: Any) -> None:
        values = getattr(message, name)
        if not values:
            return
        if limit is not None and (wrong := limit.error(values)):
            raise _WrongError(wrong, name)
        if inner is not None:
            for index, value in enumerate(values):
                try:
                    inner(value)
                except _WrongError as wrong_item:
                    wrong_item.path.append(f"{name}[{index}]")
                    raise
        elif each is not None:
            for index, value in enumerate(values):
                if wrong := each(value):
                    raise _WrongError(wrong, f"{name}[{index}]")

    return check_list
