"""The entities that a request selects, and the entity groups that contain them.

A record changes one entity group, so only the groups of these entities are read and folded; other
entities of these groups are then dropped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

import pyarrow.compute as pc
from msgspec import structs

from raftlog.metadata.imported import IMPORTED_KINDS, PARTITION_DETAIL
from raftlog.metadata.kinds import KINDS as ALL_KINDS
from raftlog.metadata.records import RecordType
from raftlog.metadata.words import TYPE_NUMBERS, config_key, parse_topic_id
from replay.errors import ReplayError
from replay.kernels.folding import Groups
from replay.kernels.passes import Rows
from replay.request import JobRequest

_GROUP_OF_KIND = {
    **{kind.name: kind.group_kind or kind.name for kind in ALL_KINDS if kind.plural},
    PARTITION_DETAIL: "topic",
    **{kind: kind for kind in IMPORTED_KINDS},
}
TOPIC = "topic"
BY_ID = "id:"
"""Prefix of a topic id in a key; no topic name contains it."""
_TOPIC_CONFIGS = 2
_OF_TOPIC_CONFIGS = (RecordType.TOPIC, RecordType.CONFIG, RecordType.REMOVE_TOPIC)
_ENTRY_ID = re.compile(r"[0-9a-f]{32}")
KINDS = tuple(_GROUP_OF_KIND)
"""Kinds of entities, as in requests."""


class Selection(NamedTuple):
    """The entities that a request selects.

    ``group``: kind and id of the entity group, or None as id for all groups of the kind. ``kind``,
    ``key``, and the ``prefix`` and ``suffix`` of a key select entities of these groups; None
    selects all.
    """

    group: tuple[str, str | None]
    kind: str | None = None
    key: str | None = None
    prefix: str | None = None
    suffix: str | None = None
    topic_name: str = ""
    """Name that the topics have had at some time; "" for any."""
    topic_types: tuple[int, ...] = ()
    """Types of the topics' records to read in addition to ``group``; () for all of the topics'
    records and nothing else.
    """

    def has(self, kind: str, key: str) -> bool:
        """Return whether the selection contains an entity of its groups."""
        return (
            self.kind in {None, kind}
            and self.key in {None, key}
            and (self.prefix is None or key.startswith(self.prefix))
            and (self.suffix is None or key.endswith(self.suffix))
        )


def select(kind: str, key: str = "") -> Selection:
    """Return the entities of a kind with a key; "" selects all of the kind.

    A topic's name also selects its partitions, a client's id the results of its writes, and a
    config resource all its keys. Raises ReplayError for an unknown kind or an impossible key.
    """
    if kind not in _GROUP_OF_KIND:
        raise ReplayError(f"unknown kind {kind!r} of entities: give one of {', '.join(KINDS)}")
    group = _GROUP_OF_KIND[kind]
    if not key:
        return Selection((group, None), kind)
    return _BY_KEY.get(kind, _of_own_group)(group, kind, key)


def _of_own_group(group: str, kind: str, key: str) -> Selection:
    """Return an entity whose group has the same id as the entity."""
    return Selection((group, key), kind, key)


def _by_id(group: str, kind: str, key: str) -> Selection:
    _require_id(kind, key)
    return _of_own_group(group, kind, key)


def _client(group: str, kind: str, key: str) -> Selection:
    _require_id(kind, key)
    return Selection((group, key))


def _client_result(group: str, kind: str, key: str) -> Selection:
    client_id, _, sequence = key.partition("-")
    if not (client_id.isdigit() and sequence.isdigit()):
        raise ReplayError(f"client_result {key!r} is not CLIENT-SEQUENCE, e.g. 1204-7")
    return Selection((group, client_id), kind, key)


def _topic_id(name: str) -> str | None:
    return parse_topic_id(name.removeprefix(BY_ID)) if name.startswith(BY_ID) else None


def _topic(group: str, kind: str, key: str) -> Selection:
    if (id_ := _topic_id(key)) is not None:
        return Selection((group, id_))
    return Selection((group, None), topic_name=key)


def _partition(group: str, kind: str, key: str) -> Selection:
    name, _, index = key.rpartition("-")
    if not (name and index.isdigit()):
        raise ReplayError(f"partition {key!r} is not TOPIC-NUMBER, e.g. orders-0")
    if (id_ := _topic_id(name)) is not None:
        return Selection((group, id_), kind, suffix=f"-{index}")
    return Selection((group, None), kind, key, topic_name=name)


def _config(group: str, kind: str, key: str) -> Selection:
    group_id, resource, name = parse_config_key(key)
    own = Selection(
        (group, group_id),
        kind,
        f"{resource}:{name}" if name else None,
        None if name else f"{resource}:",
    )
    number, _, topic = group_id.partition(":")
    if int(number) != _TOPIC_CONFIGS:
        return own
    # In an imported log, a topic's configs belong to the topic's group.
    return own._replace(topic_name=topic, topic_types=_OF_TOPIC_CONFIGS)


def parse_config_key(text: str) -> tuple[str, str, str]:
    """Split TYPE:NAME[:KEY] into the group id, the resource, and the config name or "". Raises
    ReplayError.
    """
    kind, _, rest = text.partition(":")
    name, _, key = rest.partition(":")
    number = TYPE_NUMBERS.get(kind)
    if number is None or not rest:
        raise ReplayError(
            f"config key {text!r} is not TYPE:NAME or TYPE:NAME:KEY, where TYPE is one of"
            f" {', '.join(TYPE_NUMBERS)}"
        )
    return f"{number}:{name}", config_key(number, name), key


def _entry(group: str, kind: str, key: str) -> Selection:
    if not _ENTRY_ID.fullmatch(key):
        raise ReplayError(f"acl {key!r} is not the id of an entry: an id has 32 hex digits")
    return _of_own_group(group, kind, key)


def _sole(group: str, kind: str, key: str) -> Selection:
    raise ReplayError(f"{kind} takes no key, given {key!r}: there is only one at a time")


def _require_id(kind: str, key: str) -> None:
    if not key.isdigit():
        raise ReplayError(f"{kind} {key!r} is not a {kind} id: an id is a number")


_BY_KEY: dict[str, Callable[[str, str, str], Selection]] = {
    "topic": _topic,
    "partition": _partition,
    PARTITION_DETAIL: _partition,
    "broker": _by_id,
    "config": _config,
    "client": _client,
    "lease": _by_id,
    "client_result": _client_result,
    "acl": _entry,
    "leader": _sole,
    "voters": _sole,
}


def groups_of(selection: Selection | None, topic_ids: Iterable[str]) -> Groups:
    """Return the groups of the selected entities, or all groups if the selection is None.

    ``topic_ids``: ids of all topics that have ever had the selection's name.
    """
    if selection is None:
        return Groups()
    kind, id_ = selection.group
    if not selection.topic_name:
        wanted = None if id_ is None else frozenset({(kind, id_)})
        return Groups(frozenset({kind}), wanted)
    topics = frozenset((TOPIC, each) for each in topic_ids)
    if not selection.topic_types:
        return Groups(frozenset({TOPIC}), topics)
    own = frozenset({(kind, id_ or "")})
    return Groups(
        frozenset({kind, TOPIC}), topics | own, types={TOPIC: frozenset(selection.topic_types)}
    )


def by_id(log: Rows, request: JobRequest) -> JobRequest:
    """Return the request with its key read as a topic id, if it is one and no topic ever had that
    name.
    """
    kind, key = request.key or ("", "")
    if kind not in {TOPIC, "partition", PARTITION_DETAIL}:
        return request
    name = key if kind == TOPIC else key.rpartition("-")[0]
    if parse_topic_id(name) is None:
        return request
    names = log.table(("topic_name",), (RecordType.TOPIC,))["topic_name"]
    if pc.any(pc.equal(names, name)).as_py():
        return request
    return structs.replace(request, key=(kind, BY_ID + key))
