"""The rights that records of clients' requests need, by :mod:`raftlog.node.security.permissions`:
the audit's side of that table.

Keys that are deleted in the batch that ends their lease go with it: the owner of a lease may end
it.

Left out are records that a node writes in its own name: registrations, heartbeats, ISRs; and the
voter set, which a controller changes for itself. So are records that belong to another one of their
batch: the partitions and configs of a topic that is created, the configs of one that is deleted,
the ISRs that an unregistered broker leaves.
"""

from __future__ import annotations

from typing import NamedTuple

from raftlog.metadata.acls import CLUSTER_NAME, AclOperation, AclResourceType
from raftlog.metadata.config_keys import ResourceType
from raftlog.metadata.records import RecordType
from replay.kernels.entries import Question
from replay.kernels.facts import Facts, Row


class Need(NamedTuple):
    """The right that a request needs for its record. ``name``: the column of the resource's
    name.
    """

    operation: AclOperation
    type: AclResourceType = AclResourceType.CLUSTER
    name: str = ""


_CLUSTER = Need(AclOperation.ALTER)
NEEDS: dict[RecordType, Need] = {
    RecordType.UNREGISTER_BROKER: _CLUSTER,
    RecordType.FEATURE_LEVEL: _CLUSTER,
    RecordType.PARTITION_CHANGE: _CLUSTER,
    RecordType.ACCESS_CONTROL_ENTRY: _CLUSTER,
    RecordType.REMOVE_ACCESS_CONTROL_ENTRY: _CLUSTER,
    RecordType.TOPIC: Need(AclOperation.CREATE, AclResourceType.TOPIC, "topic_name"),
    RecordType.PARTITION: Need(AclOperation.ALTER, AclResourceType.TOPIC, "topic_name"),
    RecordType.REMOVE_TOPIC: Need(AclOperation.DELETE, AclResourceType.TOPIC, "topic_name"),
    RecordType.HOSTNAME: Need(AclOperation.ALTER, AclResourceType.HOSTNAME, "group_id"),
    RecordType.EXPORT_CURSOR: Need(AclOperation.ALTER, AclResourceType.EXPORT_CURSOR, "group_id"),
    RecordType.LEASE: Need(AclOperation.CREATE, AclResourceType.CLIENT_SESSION, "lease_name"),
    RecordType.KEY_VALUE: Need(AclOperation.ALTER, AclResourceType.KEY_VALUE, "group_id"),
    RecordType.OPEN_CLIENT: Need(
        AclOperation.CREATE, AclResourceType.CLIENT_SESSION, "client_name"
    ),
}
"""Configs are in ``_CONFIGS``."""
CONFIG_TYPES = (RecordType.CONFIG,)
_CONFIGS = {
    int(ResourceType.TOPIC): AclResourceType.TOPIC,
    int(ResourceType.GROUP): AclResourceType.GROUP,
}
"""Type of a config's resource -> whose permission it needs; the cluster's for all others."""
_BY_ID = (RecordType.PARTITION, RecordType.REMOVE_TOPIC)
"""These name their topic by its id."""
_LEADING = (
    RecordType.REGISTER_BROKER,
    RecordType.BROKER_REGISTRATION_CHANGE,
    RecordType.UNREGISTER_BROKER,
    RecordType.FEATURE_LEVEL,
)
"""Changes of partitions and hosts in a batch with such a record come of that."""
_WHOLE = (RecordType.TOPIC, RecordType.REMOVE_TOPIC, RecordType.REMOVE_LEASE)
_LED = (RecordType.PARTITION_CHANGE, RecordType.HOSTNAME)


def needed(row: Row, facts: Facts) -> Question | None:
    """Return the question whether the writer had the right to a record; None: not decidable."""
    if row["type"] == RecordType.CONFIG:
        type_ = _CONFIGS.get(row["resource_type"], AclResourceType.CLUSTER)
        name = row["resource_name"] if row["resource_type"] in _CONFIGS else CLUSTER_NAME
        operation = AclOperation.ALTER_CONFIGS
    else:
        need = NEEDS[RecordType(row["type"])]
        operation, type_ = need.operation, need.type
        name = CLUSTER_NAME
        if need.name:
            name = _topic_name(row, facts) if row["type"] in _BY_ID else row[need.name]
    return None if name is None else Question(row["principal"], int(operation), int(type_), name)


def _topic_name(row: Row, facts: Facts) -> str | None:
    """Return the name of the topic of its id; None of a topic that is not there."""
    for life in facts.lives_of.get(row["topic_id"], ()):
        if life.begins < row["offset"] <= life.ends:
            return life.topic_name
    return None


class Wholes:
    """Wholes of which the records of a batch may be parts."""

    def __init__(self, facts: Facts) -> None:
        self._parts: set[tuple[int, str]] = set()
        columns = ("type", "offset", "batch_base_offset", "topic_id", "topic_name")
        for row in facts.of(*_LEADING, *_WHOLE, columns=columns):
            batch = row["batch_base_offset"]
            if row["type"] == RecordType.TOPIC:
                self._parts |= {
                    (batch, f"id {row['topic_id']}"),
                    (batch, f"topic {row['topic_name']}"),
                }
            elif row["type"] == RecordType.REMOVE_TOPIC:
                self._parts.add((batch, f"topic {_topic_name(row, facts)}"))
            elif row["type"] == RecordType.REMOVE_LEASE:
                self._parts.add((batch, "lease"))
            else:
                self._parts.add((batch, "led"))

    def holds(self, row: Row) -> bool:
        """Return whether a record is a part of another one of its batch."""
        if row["type"] in _LED:
            part = "led"
        elif row["type"] == RecordType.KEY_VALUE:
            part = "lease"
        elif row["type"] == RecordType.PARTITION:
            part = f"id {row['topic_id']}"
        elif row["type"] == RecordType.CONFIG and row["resource_type"] == ResourceType.TOPIC:
            part = f"topic {row['resource_name']}"
        else:
            return False
        return (row["batch_base_offset"], part) in self._parts
