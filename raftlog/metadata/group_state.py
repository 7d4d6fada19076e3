"""A state by entity group, so that each group can be folded further by itself, anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from raftlog.metadata.entities import entity_bytes
from raftlog.metadata.image import Image, ImageDraft
from raftlog.metadata.imported import PARTITION_DETAIL
from raftlog.metadata.records import GroupKey, client_group, lease_group
from raftlog.metadata.snapshot import KINDS, Content

_TOPIC_CONFIGS = 2


class GroupState(NamedTuple):
    """The entities of one group, encoded for ``put``."""

    group: GroupKey
    body: bytes


def by_group(
    image: Image,
    has: Callable[[str, str], bool] = lambda kind, id_: True,
    *,
    imported: bool = False,
) -> Iterator[GroupState]:
    """Yield the groups of a state that have entities and satisfy ``has`` (kind, id).

    ``imported``: the log was imported; a topic's configs are then in the topic's group.
    """
    groups: dict[GroupKey, list[tuple[str, bytes]]] = {}
    for kind in KINDS:
        group_of = _GROUPS[kind.name]
        for key in sorted(kind.keys(image)):
            for content in kind.contents(image, key):
                group = group_of(content)
                if imported and kind.name == "config" and content[0] == _TOPIC_CONFIGS:
                    topic_id = image.topic_ids.get(content[1])
                    group = group if topic_id is None else GroupKey("topic", topic_id.hex())
                if has(*group):
                    groups.setdefault(group, []).append((kind.name, entity_bytes(content)))
    for group, entities in groups.items():
        yield GroupState(group, msgspec.msgpack.encode(entities))


def put(draft: ImageDraft, body: bytes) -> None:
    """Put the entities of a group into a draft that has none of them yet."""
    for name, entities in groupby(_ENTITIES.decode(body), itemgetter(0)):
        kind, decoder = _KINDS[name]
        contents = (decoder.decode(data) for _, data in entities)
        if kind.add_all is not None:
            kind.add_all(draft, contents)
            continue
        for decoded in contents:
            content = kind.canonical(decoded)
            kind.add(draft, content)
            draft.replace(kind.name, content[:-1], None, content[-1])


def _named(content: Content) -> str:
    name: str = content[0].name
    return name


def _imported(content: Content) -> GroupKey:
    kind, key, _ = content
    if kind == PARTITION_DETAIL:
        return GroupKey("topic", key.rpartition("-")[0])
    return GroupKey(kind, key)


_GROUPS: dict[str, Callable[[Content], GroupKey]] = {
    "feature": lambda content: GroupKey("feature", content[0]),
    "leader": lambda _: GroupKey("leader", ""),
    "voters": lambda _: GroupKey("voters", ""),
    "progress": lambda _: GroupKey("progress", ""),
    "broker": lambda content: GroupKey("broker", str(content[0])),
    "applied": lambda _: GroupKey("progress", ""),
    "topic": lambda content: GroupKey("topic", content[0].hex()),
    "partition": lambda content: GroupKey("topic", content[0].topic_id.hex()),
    "config": lambda content: GroupKey("config", f"{content[0]}:{content[1]}"),
    "client": lambda content: client_group(content[0].id),
    "client_result": lambda content: client_group(content[0].client_id),
    "hostname": lambda content: GroupKey("hostname", _named(content)),
    "export_cursor": lambda content: GroupKey("export_cursor", _named(content)),
    "acl": lambda content: GroupKey("acl", content[0].id.hex()),
    "kv": lambda content: GroupKey("kv", content[0].key),
    "lease": lambda content: lease_group(content[0].id),
    "imported": _imported,
}
"""Kind of entity -> its entity group: that of the records that change it."""
_ENTITIES: msgspec.msgpack.Decoder[list[tuple[str, bytes]]] = msgspec.msgpack.Decoder(
    list[tuple[str, bytes]]
)
_KINDS: dict[str, tuple[Any, Any]] = {
    kind.name: (kind, msgspec.msgpack.Decoder(kind.type)) for kind in KINDS
}
