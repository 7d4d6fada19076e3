"""The record types: their numbers, their messages, and the entity group that each one changes.

Numbers are Kafka's apiKeys where Kafka has the record. A record changes at most one *entity group*
(in an imported log one type changes every topic's, ``EVERY_TOPIC``); folding a log group by group
gives the same entities as folding it in order, so an engine like Spark can do it in parallel.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError, Message

from raftlog.batch import RecordData
from raftlog.errors import FatalError
from raftlog.wire.records.v1 import records_pb2 as pb

RECORD_VERSION = 0


class UnknownRecordError(FatalError):
    """A record type or version that this build does not support. It must not be skipped, so the
    node stops.
    """


class RecordType(IntEnum):
    """A record's type in the log."""

    REGISTER_BROKER = 0
    UNREGISTER_BROKER = 1
    TOPIC = 2
    PARTITION = 3
    CONFIG = 4
    PARTITION_CHANGE = 5
    REMOVE_TOPIC = 9
    FEATURE_LEVEL = 12
    BROKER_REGISTRATION_CHANGE = 17
    ACCESS_CONTROL_ENTRY = 18
    REMOVE_ACCESS_CONTROL_ENTRY = 19
    NO_OP = 20
    LEADER_CHANGE = 1000
    PROGRESS = 1001
    VOTERS = 1002
    OPEN_CLIENT = 1003
    CLOSE_CLIENT = 1004
    RECOVERY = 1005
    SNAPSHOT_HEADER = 1006
    SNAPSHOT_FOOTER = 1007
    SNAPSHOT_ENTITIES = 1008
    HOSTNAME = 1009
    EXPORT_CURSOR = 1010
    KEY_VALUE = 1011
    LEASE = 1012
    REMOVE_LEASE = 1013
    IMPORTED = 1100


CHANGES_NOTHING = frozenset({RecordType.NO_OP, RecordType.PROGRESS, RecordType.RECOVERY})
"""Types whose records change nothing but the offset."""


class GroupKey(NamedTuple):
    """An entity group: a kind ("topic", "broker", ...) and an id within it, both printable."""

    kind: str
    id: str


EVERY_TOPIC = GroupKey("topic", "")
"""Placeholder for a record that changes every group of the kind topic."""

MESSAGES: dict[int, type[Message]] = {
    type_: getattr(pb, f"{type_.name.title().replace('_', '')}Record") for type_ in RecordType
}
"""Record type -> its message, which has the type's name."""
TYPE_OF: dict[type[Message], RecordType] = {
    message: RecordType(number) for number, message in MESSAGES.items()
}


class Record(NamedTuple):
    """A record in both forms: its bytes, encoded once, for the log (as in RecordData), and its
    message, for the fold.
    """

    type: int
    version: int
    body: bytes
    message: Any

    @property
    def data(self) -> RecordData:
        """The record in the form stored in the log."""
        return RecordData(self.type, self.version, self.body)


def record(message: Any) -> Record:
    """Encode a message of :mod:`raftlog.wire.records` as a record."""
    # No record has a map field, so the bytes depend only on the message.
    return Record(TYPE_OF[type(message)], RECORD_VERSION, message.SerializeToString(), message)


def decoded(data: RecordData) -> Record:
    """Return a record of the log with its message. Raises UnknownRecordError."""
    return Record(*data, parse(data))


def parse(data: RecordData) -> Any:
    """Decode a record's message. Raises UnknownRecordError, also for a body that cannot be
    parsed.
    """
    return parse_body(data.type, data.version, data.body)


def parse_body(type_: int, version: int, body: bytes) -> Any:
    """Decode the message of a record given as type, version and body; see ``parse``."""
    message_type = MESSAGES.get(type_)
    if message_type is None or version != RECORD_VERSION:
        raise UnknownRecordError(
            f"record type {type_} version {version} is not supported by this build: the log was "
            "written by a newer one"
        )
    try:
        return message_type.FromString(body)
    except DecodeError as error:
        raise UnknownRecordError(
            f"record type {RecordType(type_).name} cannot be parsed: {error}"
        ) from error


def _topic(message: Any) -> GroupKey:
    return GroupKey("topic", message.topic_id.hex())


def _imported(message: Any) -> GroupKey | None:
    if message.HasField("clears_elr_of"):
        return GroupKey("topic", message.clears_elr_of.hex())
    return GroupKey(message.kind, message.key) if message.kind else None


def _broker(message: Any) -> GroupKey:
    return GroupKey("broker", str(message.broker_id))


_GROUPS: dict[int, Callable[[Any], GroupKey | None]] = {
    RecordType.REGISTER_BROKER: _broker,
    RecordType.UNREGISTER_BROKER: _broker,
    RecordType.BROKER_REGISTRATION_CHANGE: _broker,
    RecordType.TOPIC: _topic,
    RecordType.PARTITION: _topic,
    RecordType.PARTITION_CHANGE: _topic,
    RecordType.REMOVE_TOPIC: _topic,
    RecordType.CONFIG: lambda message: (
        _topic(message)
        if message.topic_id
        else GroupKey("config", f"{message.resource_type}:{message.resource_name}")
    ),
    RecordType.FEATURE_LEVEL: lambda message: GroupKey("feature", message.name),
    RecordType.LEADER_CHANGE: lambda _: GroupKey("leader", ""),
    RecordType.VOTERS: lambda _: GroupKey("voters", ""),
    RecordType.CLOSE_CLIENT: lambda message: client_group(message.client_id),
    RecordType.HOSTNAME: lambda message: GroupKey("hostname", message.hostname),
    RecordType.EXPORT_CURSOR: lambda message: GroupKey("export_cursor", message.name),
    RecordType.KEY_VALUE: lambda message: GroupKey("kv", message.key),
    RecordType.REMOVE_LEASE: lambda message: lease_group(message.lease_id),
    RecordType.IMPORTED: _imported,
    RecordType.ACCESS_CONTROL_ENTRY: lambda message: GroupKey("acl", message.id.hex()),
    RecordType.REMOVE_ACCESS_CONTROL_ENTRY: lambda message: GroupKey("acl", message.id.hex()),
    **dict.fromkeys(CHANGES_NOTHING, lambda _: None),
}
ONLY_IN_SNAPSHOTS = frozenset(
    {RecordType.SNAPSHOT_HEADER, RecordType.SNAPSHOT_FOOTER, RecordType.SNAPSHOT_ENTITIES}
)
"""Types that never occur in the log, and so have no entity group."""


def client_group(client_id: int) -> GroupKey:
    """Return the entity group of a client: of its records, and of every batch whose header names
    it.
    """
    return GroupKey("client", str(client_id))


def lease_group(lease_id: int) -> GroupKey:
    """Return the entity group of a lease."""
    return GroupKey("lease", str(lease_id))


def group_of(type_: int, message: Any, offset: int) -> GroupKey | None:
    """Return the entity group that the record at ``offset`` changes, or None if it changes
    nothing.
    """
    if type_ == RecordType.OPEN_CLIENT:  # its offset is the client's id
        return client_group(offset)
    if type_ == RecordType.LEASE:  # so is a lease's
        return lease_group(offset)
    return _GROUPS[type_](message)
