"""The access control entries of one image, by what a verdict looks for.

It is a part of the image, and derived from its entries: there is no cache of verdicts that could
outlive a change [an entry is removed and acknowledged by every broker, and a cached verdict of the
time before still lets its principal in].

A lookup costs the same however many entries there are: two keys, and for prefixes a walk down a
trie that ends at the first letter with which no prefix goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from raftlog.metadata import pmap
from raftlog.metadata.acls import (
    ALL_RESOURCES,
    ANY_HOST,
    AccessControlEntry,
    AclOperation,
    AclPermission,
    PatternType,
)

_KNOWN = frozenset(map(int, AclOperation))


def bit_of(operation: int) -> int:
    """1 << AclOperation. 0 for a number that is none: a log can say any, and nobody asks for it."""
    return 1 << operation if operation in _KNOWN else 0


class Bits(NamedTuple):
    """Operations as bits (``bit_of``): those denied, and those allowed."""

    denied: int = 0
    allowed: int = 0


class Rules(NamedTuple):
    """The entries about one principal on one pattern, and what they come to."""

    entries: tuple[AccessControlEntry, ...]
    """Sorted, so that every node names the same one as the reason of a verdict."""
    any_host: Bits
    by_host: Mapping[str, Bits]
    """Of the entries that name a host."""


Bucket = Mapping[str, Rules]
"""Principal -> the rules about it, on one pattern. Never changed."""


Trie = Mapping[str, Any]
"""A node: a letter -> the node below, and under HERE the bucket of the prefix that ends here."""
HERE = ""


class AclIndex:
    """Immutable; a change makes another one, which shares almost everything with it."""

    __slots__ = ("_literal", "_prefixed", "_whole")

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

    def with_entry(self, entry: AccessControlEntry) -> AclIndex:
        """With one more."""
        bucket = self._bucket(entry)
        rules = bucket.get(entry.principal)
        entries = (*(rules.entries if rules else ()), entry)
        return self._with(entry, bucket, tuple(sorted(entries, key=lambda one: one.binding)))

    def without(self, entry: AccessControlEntry) -> AclIndex:
        """Without this one, which is there."""
        bucket = self._bucket(entry)
        left = tuple(one for one in bucket[entry.principal].entries if one.id != entry.id)
        return self._with(entry, bucket, left)

    def matching(self, resource_type: int, name: str) -> list[Bucket]:
        """The entries on every pattern that this resource matches."""
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
        """(pattern type, resource type, name) of each pattern, and the entries on it."""
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
        """With these entries about the principal, on the pattern of ``entry``."""
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
    """The node with this bucket, ``rest`` further down; empty if it leads nowhere any more.

    Only the nodes on the way are copied.
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
