"""The entities that a question is about: one of them, all of a kind, or all; as data, for Spark
(:mod:`replay.selection`) and for the jobs without it.

A record changes one entity group, so only the groups that the entities are in are read and folded,
and of what comes out of these the entities asked for are kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from raftlog.metadata.imported import IMPORTED_KINDS, PARTITION_DETAIL
from raftlog.metadata.kinds import KINDS as ALL_KINDS
from raftlog.metadata.records import RecordType
from raftlog.metadata.words import parse_topic_id
from replay.entities import parse_config_key
from replay.errors import ReplayError
from replay.kernels.folding import Groups

_GROUP_OF_KIND = {
    **{kind.name: kind.group_kind or kind.name for kind in ALL_KINDS if kind.plural},
    PARTITION_DETAIL: "topic",
    **{kind: kind for kind in IMPORTED_KINDS},
}
TOPIC = "topic"
BY_ID = "id:"
"""Prefix of a topic's id in a key; no name contains it."""
_TOPIC_CONFIGS = 2
_OF_TOPIC_CONFIGS = (RecordType.TOPIC, RecordType.CONFIG, RecordType.REMOVE_TOPIC)
_ENTRY_ID = re.compile(r"[0-9a-f]{32}")
KINDS = tuple(_GROUP_OF_KIND)
"""Kinds of entities, as questions name them."""


class Asked(NamedTuple):
    """The entities that a question asks for.

    ``group``: a group's kind and its id (None: all of the kind). ``kind``, ``key``, ``prefix`` and
    ``suffix`` (of the key) choose among the entities of the groups; None: any.
    """

    group: tuple[str, str | None]
    kind: str | None = None
    key: str | None = None
    prefix: str | None = None
    suffix: str | None = None
    topic_name: str = ""
    """Name that the topics must have had; empty: any."""
    topic_types: tuple[int, ...] = ()
    """Types of the topics' records that are read, beside ``group``; empty: all of the topics'
    records, and no others.
    """

    def has(self, kind: str, key: str) -> bool:
        """Return whether the question is about an entity of the groups."""
        return (
            self.kind in {None, kind}
            and self.key in {None, key}
            and (self.prefix is None or key.startswith(self.prefix))
            and (self.suffix is None or key.endswith(self.suffix))
        )


def ask(kind: str, key: str = "") -> Asked:
    """Return the entities of a kind under a key; "": all of the kind.

    Raises ReplayError for a kind or a key that there can't be.

    A topic's name means its partitions too, a client's id the results of its writes, and a config
    resource all its keys.
    """
    if kind not in _GROUP_OF_KIND:
        raise ReplayError(f"there is no kind {kind!r} of entities: it is one of {', '.join(KINDS)}")
    group = _GROUP_OF_KIND[kind]
    if not key:
        return Asked((group, None), kind)
    return _BY_KEY.get(kind, _of_own_group)(group, kind, key)


def _of_own_group(group: str, kind: str, key: str) -> Asked:
    """Return a kind whose group is named as the entity is."""
    return Asked((group, key), kind, key)


def _by_id(group: str, kind: str, key: str) -> Asked:
    _require_id(kind, key)
    return _of_own_group(group, kind, key)


def _client(group: str, kind: str, key: str) -> Asked:
    _require_id(kind, key)
    return Asked((group, key))


def _client_result(group: str, kind: str, key: str) -> Asked:
    client_id, _, sequence = key.partition("-")
    if not (client_id.isdigit() and sequence.isdigit()):
        raise ReplayError(f"client_result {key!r} is not CLIENT-SEQUENCE, like 1204-7")
    return Asked((group, client_id), kind, key)


def _applied(group: str, kind: str, key: str) -> Asked:
    _require_id("broker", key)
    return Asked((group, None), kind, key)


def _topic_id(name: str) -> str | None:
    return parse_topic_id(name.removeprefix(BY_ID)) if name.startswith(BY_ID) else None


def _topic(group: str, kind: str, key: str) -> Asked:
    if (id_ := _topic_id(key)) is not None:
        return Asked((group, id_))
    return Asked((group, None), topic_name=key)


def _partition(group: str, kind: str, key: str) -> Asked:
    name, _, index = key.rpartition("-")
    if not (name and index.isdigit()):
        raise ReplayError(f"partition {key!r} is not TOPIC-NUMBER, like orders-0")
    if (id_ := _topic_id(name)) is not None:
        return Asked((group, id_), kind, suffix=f"-{index}")
    return Asked((group, None), kind, key, topic_name=name)


def _config(group: str, kind: str, key: str) -> Asked:
    group_id, resource, name = parse_config_key(key)
    own = Asked(
        (group, group_id),
        kind,
        f"{resource}:{name}" if name else None,
        None if name else f"{resource}:",
    )
    number, _, topic = group_id.partition(":")
    if int(number) != _TOPIC_CONFIGS:
        return own
    # In an imported log a topic's configs are in the topic's group.
    return own._replace(topic_name=topic, topic_types=_OF_TOPIC_CONFIGS)


def _entry(group: str, kind: str, key: str) -> Asked:
    if not _ENTRY_ID.fullmatch(key):
        raise ReplayError(f"acl {key!r} is not the id of an entry: it has 32 hex digits")
    return _of_own_group(group, kind, key)


def _sole(group: str, kind: str, key: str) -> Asked:
    raise ReplayError(f"there is one {kind} at a time: it has no key like {key!r}")


def _require_id(kind: str, key: str) -> None:
    if not key.isdigit():
        raise ReplayError(f"{kind} {key!r} is not a {kind} id")


_BY_KEY: dict[str, Callable[[str, str, str], Asked]] = {
    "topic": _topic,
    "partition": _partition,
    PARTITION_DETAIL: _partition,
    "broker": _by_id,
    "config": _config,
    "client": _client,
    "lease": _by_id,
    "client_result": _client_result,
    "applied": _applied,
    "acl": _entry,
    "leader": _sole,
    "voters": _sole,
    "progress": _sole,
}


def groups_of(asked: Asked | None, topic_ids: Iterable[str]) -> Groups:
    """Return the groups of the entities asked for; None: all groups.

    ``topic_ids``: the ids of the topics that have the name asked for.
    """
    if asked is None:
        return Groups()
    kind, id_ = asked.group
    if not asked.topic_name:
        wanted = None if id_ is None else frozenset({(kind, id_)})
        return Groups(frozenset({kind}), wanted)
    topics = frozenset((TOPIC, each) for each in topic_ids)
    if not asked.topic_types:
        return Groups(frozenset({TOPIC}), topics)
    own = frozenset({(kind, id_ or "")})
    return Groups(
        frozenset({kind, TOPIC}), topics | own, types={TOPIC: frozenset(asked.topic_types)}
    )
