"""Access control entries over time: the offsets at which the answer to an authorization query
changes; and the rights that requests needed for their records.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from raftlog.metadata.acls import (
    ALL_RESOURCES,
    ANY_HOST,
    ANYBODY,
    CLUSTER_NAME,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
)
from raftlog.metadata.config_keys import ResourceType
from raftlog.metadata.records import RecordType
from replay.kernels.arrays import NEVER
from replay.kernels.facts import Facts, Row

ENTRIES = (RecordType.ACCESS_CONTROL_ENTRY, RecordType.REMOVE_ACCESS_CONTROL_ENTRY)


class Question(NamedTuple):
    """An authorization query: principal, operation, resource."""

    principal: str
    operation: int
    on_type: int
    on_name: str


class Entry(NamedTuple):
    """The interval during which an entry applied."""

    host: str
    operation: int
    allows: bool
    begins: int
    ends: int


def begins(facts: Facts) -> int | None:
    """Return the offset after which writes are judged, or None if they are not.

    This is the offset of the first entry: from there on, the log contains the rights. If super
    users are given, the cluster had an authorizer even before, so writes are judged after the first
    record of metadata.version.
    """
    added = facts.of(RecordType.ACCESS_CONTROL_ENTRY, columns=("type", "offset"))
    first = [row["offset"] for row in added[:1]]
    if facts.super_users:
        first += [offset for offset, _ in facts.levels[:1]]
    return min(first, default=None)


class Entries:
    """All entries of the history, with lookup of their effect at an offset."""

    def __init__(self, facts: Facts) -> None:
        self._about: dict[tuple[int, int, str, str], list[Entry]] = defaultdict(list)
        """Entries by resource type, pattern, name, and principal."""
        self._on: dict[tuple[int, int, str], list[Entry]] = defaultdict(list)
        """Entries by resource type, pattern and name."""
        self._open = facts.allow_everyone_if_no_acl_found
        self._prefixes: dict[int, set[int]] = defaultdict(set)
        self._lines: dict[Question, tuple[list[int], list[int]]] = {}
        of_entry: dict[str, list[Row]] = defaultdict(list)
        for row in facts.of(*ENTRIES):
            of_entry[row["group_id"]].append(row)
        for rows in of_entry.values():
            ends = [row["offset"] for row in rows[1:]] + [NEVER]
            for row, end in zip(rows, ends, strict=True):
                if row["type"] == RecordType.ACCESS_CONTROL_ENTRY:
                    self._add(row, end)

    def _add(self, row: Row, ends: int) -> None:
        about = row["acl_resource_type"]
        key = about, row["pattern_type"], row["resource_name"], row["acl_principal"]
        allows = row["permission_type"] == AclPermission.ALLOW
        entry = Entry(row["host"], row["operation"], allows, row["offset"], ends)
        self._about[key].append(entry)
        self._on[key[:3]].append(entry)
        if row["pattern_type"] == PatternType.PREFIXED:
            self._prefixes[about].add(len(row["resource_name"]))

    def at(self, question: Question, offset: int) -> tuple[int, int | None]:
        """Return the number of open ways to the right, and the offset at which that number last
        changed, or None.
        """
        line = self._lines.get(question)
        if line is None:
            line = self._lines[question] = self._line(question)
        offsets, ways = line
        place = bisect_right(offsets, offset) - 1
        return (0, None) if place < 0 else (ways[place], offsets[place])

    def _line(self, question: Question) -> tuple[list[int], list[int]]:
        """Return the offsets at which the number of ways changes, and the new numbers.

        A way is a resource whose entries may grant the right, combined with a host: one that an
        entry allows, or any other. It is open while at least one of its entries allows and none
        denies.
        """
        turns: dict[int, int] = defaultdict(int)
        resources = [(question.on_type, question.on_name)]
        if creates_topic(question):
            resources.append((int(AclResourceType.CLUSTER), CLUSTER_NAME))
        for resource in resources:
            entries = list(self._deciding(question, *resource))
            hosts = {entry.host for entry in entries if entry.allows}
            for host in hosts | {ANY_HOST} if hosts else ():
                for offset, turn in _turns(entries, host):
                    turns[offset] += turn
            if self._open:
                for offset, turn in _unmentioned(list(self._naming(*resource))):
                    turns[offset] += turn
        # Opposite turns of two ways at one offset count as a turn, though the number stays.
        offsets, ways, now = [], [], 0
        for offset in sorted(turns):
            now += turns[offset]
            offsets.append(offset)
            ways.append(now)
        return offsets, ways

    def _patterns(self, type_: int, name: str) -> set[tuple[int, str]]:
        literal = {(int(PatternType.LITERAL), name), (int(PatternType.LITERAL), ALL_RESOURCES)}
        return literal | {
            (int(PatternType.PREFIXED), name[:length])
            for length in self._prefixes[type_]
            if length <= len(name)
        }

    def _naming(self, type_: int, name: str) -> Iterator[Entry]:
        for pattern in self._patterns(type_, name):
            yield from self._on.get((type_, *pattern), ())

    def _deciding(self, question: Question, type_: int, name: str) -> Iterator[Entry]:
        for pattern in self._patterns(type_, name):
            for who in {question.principal, ANYBODY}:
                for entry in self._about.get((type_, *pattern, who), ()):
                    if entry.operation in (AclOperation.ALL, question.operation):
                        yield entry


def _turns(entries: list[Entry], host: str) -> Iterator[tuple[int, int]]:
    """Yield the offsets at which a way from a host opens (1) or closes (-1)."""
    changes: dict[int, list[tuple[bool, int]]] = defaultdict(list)
    for entry in entries:
        if entry.host in (ANY_HOST, host):
            changes[entry.begins].append((entry.allows, 1))
            if entry.ends < NEVER:
                changes[entry.ends].append((entry.allows, -1))
    allow = deny = was_open = 0
    for offset in sorted(changes):
        for allows, more in changes[offset]:
            if allows:
                allow += more
            else:
                deny += more
        is_open = int(allow > 0 and deny == 0)
        if is_open != was_open:
            yield offset, is_open - was_open
        was_open = is_open


def _unmentioned(entries: list[Entry]) -> Iterator[tuple[int, int]]:
    """Yield the offsets at which the way of allow.everyone.if.no.acl.found opens (1) or closes
    (-1): it is open while the resource has no entry.
    """
    changes: dict[int, int] = defaultdict(int)
    for entry in entries:
        changes[entry.begins] += 1
        if entry.ends < NEVER:
            changes[entry.ends] -= 1
    yield -1, 1
    there = 0
    for offset in sorted(changes):
        before, there = there, there + changes[offset]
        if (before == 0) != (there == 0):
            yield offset, 1 if there == 0 else -1


def creates_topic(question: Question) -> bool:
    """Return whether a query is about creating a topic, which CREATE on the cluster also allows."""
    return (question.operation, question.on_type) == (AclOperation.CREATE, AclResourceType.TOPIC)


class Need(NamedTuple):
    """The right that a request needs for a record. ``name``: column with the resource's name."""

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
"""The right needed per record type, except for configs: see ``_CONFIGS``."""
CONFIG_TYPES = (RecordType.CONFIG,)
_CONFIGS = {
    int(ResourceType.TOPIC): AclResourceType.TOPIC,
    int(ResourceType.GROUP): AclResourceType.GROUP,
}
"""Resource type of a config -> resource type whose right it needs; CLUSTER for all others."""
_BY_ID = (RecordType.PARTITION, RecordType.REMOVE_TOPIC)
"""Record types that identify their topic by id."""
_LEADING = (
    RecordType.REGISTER_BROKER,
    RecordType.BROKER_REGISTRATION_CHANGE,
    RecordType.UNREGISTER_BROKER,
    RecordType.FEATURE_LEVEL,
)
"""Record types that cause the changes to partitions and hosts in the same batch."""
_WHOLE = (RecordType.TOPIC, RecordType.REMOVE_TOPIC, RecordType.REMOVE_LEASE)
_LED = (RecordType.PARTITION_CHANGE, RecordType.HOSTNAME)


def needed(row: Row, facts: Facts) -> Question | None:
    """Return the query that decides whether the writer had the right to a record, or None if this
    cannot be decided.
    """
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
    """Return the name of the topic with the record's topic id, or None if it does not exist."""
    for life in facts.lives_of.get(row["topic_id"], ()):
        if life.begins < row["offset"] <= life.ends:
            return life.topic_name
    return None


class CompoundChanges:
    """The records of which other records of the same batch are part."""

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
        """Return whether a record is part of another one in its batch."""
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
