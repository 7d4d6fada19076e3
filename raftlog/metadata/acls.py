"""Access control entries: the operations that a principal may or may not perform (KIP-11, KIP-290),
and the index of one image's entries for making verdicts.

The numbers are Kafka's; from 100 upwards they are resource types that Kafka does not have.

The index is part of the image, and derived from its entries. Verdicts are cached only in the index
that made them, so none outlives a change: a removed entry must not continue to admit its principal.
The cost of a look-up does not depend on the number of entries: it takes two keys and, for prefixes,
a walk down a trie that stops at the first letter with which no prefix continues.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

import msgspec

from raftlog.metadata import pmap

ANYBODY = "User:*"
"""The principal of an entry that applies to every principal."""
ANY_HOST = "*"
ALL_RESOURCES = "*"
"""The literal name that stands for every resource of its type."""
CLUSTER_NAME = "kafka-cluster"
"""The name of the one cluster resource, as in Kafka."""


class AclResourceType(IntEnum):
    """The type of resource that an entry applies to."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    CLIENT_SESSION = 100
    HOSTNAME = 101
    EXPORT_CURSOR = 102
    KEY_VALUE = 103


class PatternType(IntEnum):
    """How an entry names its resources."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """An operation on a resource."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11


class AclPermission(IntEnum):
    """The effect of an entry: deny or allow."""

    ANY = 1
    DENY = 2
    ALLOW = 3


_TOPIC_OPERATIONS = frozenset(
    {
        AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE, AclOperation.DELETE,
        AclOperation.ALTER, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    }
)  # fmt: skip
OPERATIONS_OF: dict[AclResourceType, frozenset[AclOperation]] = {
    AclResourceType.TOPIC: _TOPIC_OPERATIONS,
    AclResourceType.GROUP: frozenset(
        {AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS},
    ),
    AclResourceType.CLUSTER: frozenset(
        {
            AclOperation.CREATE, AclOperation.ALTER, AclOperation.DESCRIBE,
            AclOperation.CLUSTER_ACTION, AclOperation.DESCRIBE_CONFIGS,
            AclOperation.ALTER_CONFIGS,
        }
    ),
    AclResourceType.CLIENT_SESSION: frozenset({AclOperation.CREATE}),
    AclResourceType.HOSTNAME: frozenset({AclOperation.DESCRIBE, AclOperation.ALTER}),
    AclResourceType.EXPORT_CURSOR: frozenset({AclOperation.DESCRIBE, AclOperation.ALTER}),
    AclResourceType.KEY_VALUE: frozenset({AclOperation.DESCRIBE, AclOperation.ALTER}),
}  # fmt: skip
"""The operations on each type of resource; ALL stands for all of them."""

IMPLIED_BY: dict[AclOperation, frozenset[AclOperation]] = {
    AclOperation.DESCRIBE: frozenset(
        {AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER}
    ),
    AclOperation.DESCRIBE_CONFIGS: frozenset({AclOperation.ALTER_CONFIGS}),
}
"""An operation -> the operations whose ALLOW implies it. A DENY denies only its own operation."""


class Resource(NamedTuple):
    """A resource on which a request needs a right."""

    type: AclResourceType
    name: str

    def __str__(self) -> str:
        return f"{self.type.name} {self.name}"


CLUSTER = Resource(AclResourceType.CLUSTER, CLUSTER_NAME)


class AccessControlEntry(msgspec.Struct, frozen=True, array_like=True):
    """An access control entry. ``id``: 16 random bytes that identify the entry in the log."""

    id: bytes
    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int

    @property
    def binding(self) -> Binding:
        """The entry without its id; no two entries have the same binding."""
        return Binding.of(self)

    def __str__(self) -> str:
        return str(self.binding)


class Binding(NamedTuple):
    """An access control entry without its id."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int

    @classmethod
    def of(cls, entry: Any) -> Binding:
        """Return the binding of an entry in the image, a record or a message."""
        return cls(
            entry.resource_type,
            entry.resource_name,
            entry.pattern_type,
            entry.principal,
            entry.host,
            entry.operation,
            entry.permission_type,
        )

    def __str__(self) -> str:
        host = "any host" if self.host == ANY_HOST else f"host {self.host}"
        return (
            f"{AclPermission(self.permission_type).name} {self.principal} from {host}:"
            f" {AclOperation(self.operation).name} on {AclResourceType(self.resource_type).name}"
            f" {PatternType(self.pattern_type).name} {self.resource_name}"
        )


_KNOWN = frozenset(map(int, AclOperation))


def bit_of(operation: int) -> int:
    """Return 1 << AclOperation, or 0 for an unknown number, which a log may contain but no request
    asks for.
    """
    return 1 << operation if operation in _KNOWN else 0


class Bits(NamedTuple):
    """Operations as bits (``bit_of``): the denied and the allowed ones."""

    denied: int = 0
    allowed: int = 0


class Rules(NamedTuple):
    """One principal's entries on one pattern, and the operations that they allow and deny."""

    entries: tuple[AccessControlEntry, ...]
    """Sorted, so that every node names the same entry as the reason for a verdict."""
    any_host: Bits
    by_host: Mapping[str, Bits]
    """Host -> operations, from the entries that name a host."""


Bucket = Mapping[str, Rules]
"""Principal -> its rules on one pattern. Immutable."""


Trie = Mapping[str, Any]
"""A node of a trie: letter -> child node; HERE -> bucket of the prefix that ends at this node."""
HERE = ""
VERDICTS_MAX = 4_096
VERDICT_NAME_MAX_CHARS = 1_024
"""Longest name of a resource, in characters, whose verdict is cached, as a refused request may
contain any name.
"""
T = TypeVar("T")


class AclIndex:
    """An immutable index; a change creates a new one that shares almost everything with it."""

    __slots__ = ("_literal", "_prefixed", "_whole", "verdicts")

    def __init__(
        self,
        literal: pmap.Map[tuple[int, str], Bucket] | None = None,
        whole: Mapping[int, Bucket] | None = None,
        prefixed: Mapping[int, Trie] | None = None,
    ) -> None:
        self._literal: pmap.Map[tuple[int, str], Bucket] = literal or pmap.empty()
        """(resource type, name) -> bucket."""
        self._whole = whole or {}
        """Resource type -> bucket of the literal ``*``."""
        self._prefixed = prefixed or {}
        """Resource type -> the trie of its prefixed patterns."""
        self.verdicts: dict[Hashable, Any] = {}
        """Cache of verdicts, with at most VERDICTS_MAX entries."""

    def remember(self, question: tuple[Any, ...], verdict: T) -> T:
        """Cache a verdict made with this index, and return it. ``question`` ends with its
        resource.
        """
        if len(question[-1].name) > VERDICT_NAME_MAX_CHARS:
            return verdict
        if len(self.verdicts) >= VERDICTS_MAX:
            self.verdicts.clear()
        self.verdicts[question] = verdict
        return verdict

    def with_entry(self, entry: AccessControlEntry) -> AclIndex:
        """Return the index with an additional entry."""
        bucket = self._bucket(entry)
        rules = bucket.get(entry.principal)
        entries = (*(rules.entries if rules else ()), entry)
        return self._with(entry, bucket, tuple(sorted(entries, key=lambda one: one.binding)))

    def without(self, entry: AccessControlEntry) -> AclIndex:
        """Return the index without this entry, which it must contain."""
        bucket = self._bucket(entry)
        left = tuple(one for one in bucket[entry.principal].entries if one.id != entry.id)
        return self._with(entry, bucket, left)

    def matching(self, resource_type: int, name: str) -> list[Bucket]:
        """Return the buckets of all patterns that match this resource."""
        found: list[Bucket] = []
        if (bucket := self._literal.get((resource_type, name))) is not None:
            found.append(bucket)
        if (bucket := self._whole.get(resource_type)) is not None:
            found.append(bucket)
        node: Any = self._prefixed.get(resource_type)
        if node is not None:
            for letter in name:
                if (node := node.get(letter)) is None:
                    break
                if HERE in node:
                    found.append(node[HERE])
        return found

    def items(self) -> Iterator[tuple[tuple[int, int, str], Bucket]]:
        """Yield each pattern as (pattern type, resource type, name), with its bucket."""
        for (type_, name), bucket in self._literal.items():
            yield (PatternType.LITERAL, type_, name), bucket
        for type_, bucket in self._whole.items():
            yield (PatternType.LITERAL, type_, ALL_RESOURCES), bucket
        for type_, trie in self._prefixed.items():
            below: list[tuple[str, Trie]] = [("", trie)]
            while below:
                prefix, node = below.pop()
                for letter, other in node.items():
                    if letter == HERE:
                        yield (PatternType.PREFIXED, type_, prefix), other
                    else:
                        below.append((prefix + letter, other))

    def _bucket(self, entry: AccessControlEntry) -> Bucket:
        type_, name = entry.resource_type, entry.resource_name
        if entry.pattern_type == PatternType.PREFIXED:
            node: Any = self._prefixed.get(type_, {})
            for letter in name:
                node = node.get(letter, {})
            return node.get(HERE, {})
        if name == ALL_RESOURCES:
            return self._whole.get(type_, {})
        return self._literal.get((type_, name), {})

    def _with(
        self, entry: AccessControlEntry, old: Bucket, entries: tuple[AccessControlEntry, ...]
    ) -> AclIndex:
        """Return the index with ``entries`` as the principal's entries on the pattern of
        ``entry``.
        """
        bucket = {**old, entry.principal: _rules(entries)}
        if not entries:
            del bucket[entry.principal]
        type_, name = entry.resource_type, entry.resource_name
        literal, whole, prefixed = self._literal, self._whole, self._prefixed
        if entry.pattern_type == PatternType.PREFIXED:
            trie = _put(prefixed.get(type_, {}), name, bucket)
            prefixed = {**prefixed, type_: trie}
            if not trie:
                del prefixed[type_]
        elif name == ALL_RESOURCES:
            whole = {**whole, type_: bucket}
            if not bucket:
                del whole[type_]
        else:
            draft = literal.mutate()
            if bucket:
                draft[type_, name] = bucket
            else:
                del draft[type_, name]
            literal = draft.finish()
        return AclIndex(literal, whole, prefixed)


def _rules(entries: tuple[AccessControlEntry, ...]) -> Rules:
    bits: dict[str, list[int]] = {ANY_HOST: [0, 0]}
    for entry in entries:
        allows = entry.permission_type == AclPermission.ALLOW
        bits.setdefault(entry.host, [0, 0])[allows] |= bit_of(entry.operation)
    any_host = Bits(*bits.pop(ANY_HOST))
    return Rules(entries, any_host, {host: Bits(*both) for host, both in bits.items()})


def _put(node: Trie, rest: str, bucket: Bucket) -> Trie:
    """Return the node with this bucket at the path ``rest``, or an empty node if no bucket is left.
    Copies only the nodes on the path.
    """
    path: list[Trie] = [node]
    for letter in rest:
        path.append(path[-1].get(letter, {}))
    below: Any = bucket
    for letter, above in zip((HERE, *reversed(rest)), reversed(path), strict=True):
        changed = {**above, letter: below}
        if not below:
            del changed[letter]
        below = changed
    return below
