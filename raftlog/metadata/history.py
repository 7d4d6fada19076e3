"""Questions for history: ``topic orders``, ``broker 4``, ``cluster``, and the changes that they
select.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from raftlog.metadata.entity_words import TYPE_NUMBERS

_ALIASES = {
    "topics": "topic",
    "partitions": "partition",
    "brokers": "broker",
    "configs": "config",
    "acls": "acl",
    "features": "feature",
    "hostnames": "hostname",
    "cursor": "export_cursor",
    "cursors": "export_cursor",
    "clients": "client",
    "leases": "lease",
    "quorum": "cluster",
}
_CLUSTER = frozenset({"leader", "voters", "feature"})
KINDS = (
    "topic", "partition", "broker", "config", "acl", "cluster", "feature", "hostname",
    "export_cursor", "kv", "lease", "client",
)  # fmt: skip


class Question(NamedTuple):
    """A question. ``kinds``: of entities to examine; ``matches``: whether (kind, key) counts."""

    kinds: frozenset[str]
    matches: Callable[[str, str], bool]


def question(kind: str, key: str = "") -> Question:
    """Return the question for ``kind`` and ``key``; without a key, for all of the kind. Raises
    ValueError.

    A topic includes its partitions and configs, and a broker its configs.
    """
    kind = _ALIASES.get(kind, kind)
    if kind not in KINDS:
        raise ValueError(f"there is no history of {kind!r}; it is one of {', '.join(KINDS)}")
    if kind == "cluster":
        if key:
            raise ValueError(f"there is one cluster: it has no key like {key!r}")
        return Question(_CLUSTER, lambda of, _: True)
    if not key:
        return Question(frozenset({kind}), lambda of, _: True)
    return _OF_KEY.get(kind, _plain)(kind, key)


def _plain(kind: str, key: str) -> Question:
    return Question(frozenset({kind}), lambda of, at: at == key)


def _topic(_: str, key: str) -> Question:
    configs = f"topic:{key}:"

    def matches(of: str, at: str) -> bool:
        if of == "config":
            return at.startswith(configs)
        return at == key if of == "topic" else at.rpartition("-")[0] == key

    return Question(frozenset({"topic", "partition", "config"}), matches)


def _partition(kind: str, key: str) -> Question:
    name, _, index = key.rpartition("-")
    if name and index.isdigit():
        return _plain(kind, key)
    # A topic: all its partitions.
    return Question(frozenset({kind}), lambda of, at: at.rpartition("-")[0] == key)


def _broker(kind: str, key: str) -> Question:
    if not key.isdigit():
        raise ValueError(f"broker {key!r} is no broker id")
    configs = f"broker:{key}:"
    return Question(
        frozenset({kind, "config"}),
        lambda of, at: at.startswith(configs) if of == "config" else at == key,
    )


def _config(kind: str, key: str) -> Question:
    type_, _, rest = key.partition(":")
    if type_ not in TYPE_NUMBERS or not rest:
        raise ValueError(
            f"config {key!r} is not TYPE NAME, TYPE:NAME or TYPE:NAME:KEY with TYPE one of"
            f" {', '.join(TYPE_NUMBERS)}"
        )
    return Question(frozenset({kind}), lambda of, at: at == key or at.startswith(f"{key}:"))


_OF_KEY: dict[str, Callable[[str, str], Question]] = {
    "topic": _topic,
    "partition": _partition,
    "broker": _broker,
    "config": _config,
}
