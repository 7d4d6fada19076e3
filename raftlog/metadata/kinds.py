"""The kinds of entities in an image: one row each in ``KINDS``.

Everything that covers all entities is derived from the rows: snapshots, the entity groups of a
state, printable keys and paths of entities, documents and lists of entities. A new kind of entity
in the image needs a row here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import msgspec

from raftlog.metadata.acls import AccessControlEntry
from raftlog.metadata.entities import (
    Broker,
    Client,
    ClientResult,
    ExportCursor,
    Hostname,
    KeyValue,
    Leader,
    Lease,
    Partition,
    Topic,
    Voters,
    entity_bytes,
)
from raftlog.metadata.fold import put_entry, put_key_value
from raftlog.metadata.image import Image, ImageDraft, ImageView
from raftlog.metadata.imported import PARTITION_DETAIL, imported_key
from raftlog.metadata.partitions import put_new
from raftlog.metadata.records import GroupKey
from raftlog.metadata.words import config_key, result_key

Content = tuple[Any, ...]
"""An entity in the form that is hashed: its key, followed by its value."""


class NamedTopic(msgspec.Struct, frozen=True):
    """A topic as it appears in changes, where a topic created again under the same name is a
    different one.
    """

    id: bytes
    name: str


class Kind(NamedTuple):
    """One kind of entity."""

    name: str
    """Name in the state hash."""
    plural: str
    """Name of the kind in paths and in an image's document; empty if each entity has its own."""
    fields: tuple[str, ...]
    """Fields of ``Image`` that contain the kind."""
    keys: Callable[[Image], Iterable[Any]]
    """Function that returns the keys by which the entities are sorted, in any order."""
    contents: Callable[[Image, Any], Iterable[Content]]
    """Function that returns the entities under a key, in order."""
    type: Any
    """Type of the entities' hashed form."""
    add: Callable[[Any, Content], None]
    """Function that puts an entity into a draft. Raises KeyError, ValueError if it contradicts
    earlier entities.
    """
    group: Callable[[Content], GroupKey]
    """Function that returns the entity group, which is also that of the records that change the
    entity.
    """
    words: Callable[[ImageView, Content], str]
    """Function that returns the key in printable form."""
    key_field: str = ""
    """Field of an entity's document that contains its printable key, or "" if none does."""
    group_kind: str = ""
    """Kind of the groups, if it differs from the entities' kind."""
    add_all: Callable[[Any, Iterable[Content]], None] | None = None
    """Function that puts many entities into a draft at once and accounts for them, or None to put
    them one by one.
    """
    by_words: Callable[[Image], Iterable[Any]] | None = None
    """Function that returns the keys in the order in which they are shown, or None if that is
    sorted.
    """
    book_keeping: bool = False
    """Whether the entities change without a user's request; they are shown only to a selector that
    names them.
    """


def _word(key: Any) -> str:
    return key.hex() if isinstance(key, bytes) else str(key)


def _map(
    name: str,
    field: str,
    type_: Any,
    key_field: str,
    *,
    group_kind: str = "",
    book_keeping: bool = False,
) -> Kind:
    """Return a kind whose entities are the values of a field of ``Image``, keyed by one of their
    own fields, which is also the id of their entity group.
    """
    entities, key_of = attrgetter(field), attrgetter(key_field)

    def add(draft: ImageDraft, content: Content) -> None:
        entities(draft)[key_of(content[0])] = content[0]

    return Kind(
        name,
        field,
        (field,),
        entities,
        lambda image, key: ((entities(image)[key],),),
        tuple[type_],
        add,
        lambda content: GroupKey(group_kind or name, _word(key_of(content[-1]))),
        lambda _, content: _word(key_of(content[-1])),
        key_field,
        group_kind,
        book_keeping=book_keeping,
    )


def _sole(name: str, type_: Any) -> Kind:
    """Return a kind with at most one entity."""
    return Kind(
        name,
        name,
        (name,),
        lambda image: () if getattr(image, name) is None else ((),),
        lambda image, _: ((getattr(image, name),),),
        tuple[type_],
        lambda draft, content: setattr(draft, name, content[0]),
        lambda _: GroupKey(name, ""),
        lambda *_: "",
    )


def _configs_of(image: Image, resource: tuple[int, str]) -> Iterable[Content]:
    resource_type, resource_name = resource
    values = image.configs[resource]
    if len(values) == 1:
        ((name, value),) = values.items()
        return ((resource_type, resource_name, name, value),)
    return [(resource_type, resource_name, name, value) for name, value in sorted(values.items())]


def _add_config(draft: ImageDraft, content: Content) -> None:
    resource_type, resource_name, name, value = content
    resource = (resource_type, resource_name)
    values = draft.configs.get(resource)
    if values is None:
        values = draft.configs[resource] = {}
    values[name] = value


def _add_topic(draft: ImageDraft, content: Content) -> None:
    topic_id, name = content
    if name in draft.topic_ids:
        raise ValueError(f"duplicate topic {name!r}")
    draft.topics[topic_id] = Topic(topic_id, name, 0)
    draft.topic_ids[name] = topic_id


def _topic_in_words(_: ImageView, content: Content) -> str:
    value = content[-1]
    return value.name if isinstance(value, NamedTopic) else str(value)


def _topics_by_name(image: Image) -> Iterable[bytes]:
    return (image.topic_ids[name] for name in sorted(image.topic_ids))


def _add_partition(draft: ImageDraft, content: Content) -> None:
    _add_partitions(draft, (content,))


def _add_partitions(draft: ImageDraft, contents: Iterable[Content]) -> None:
    put_new(draft, (partition for (partition,) in contents))


def _partitions_by_name(image: Image) -> Iterable[tuple[bytes, int]]:
    for topic_id in _topics_by_name(image):
        for index in range(image.topics[topic_id].partition_count):
            yield topic_id, index


def _add_broker(draft: ImageDraft, content: Content) -> None:
    draft.brokers[content[0]] = content[1]


def _add_feature(draft: ImageDraft, content: Content) -> None:
    draft.features[content[0]] = content[1]


def _add_client_result(draft: ImageDraft, content: Content) -> None:
    result: ClientResult = content[0]
    draft.client_results[result.client_id, result.sequence] = result


def _add_key_value(draft: ImageDraft, content: Content) -> None:
    one: KeyValue = content[0]
    if one.key in draft.key_values:
        raise ValueError(f"duplicate key {one.key!r}")
    put_key_value(draft, one.key, None, one)


def _add_imported(draft: ImageDraft, content: Content) -> None:
    kind, key, value = content
    draft.imported[kind, key] = value


def _group_of_imported(content: Content) -> GroupKey:
    kind, key, _ = content
    if kind == PARTITION_DETAIL:
        return GroupKey("topic", key.rpartition("-")[0])
    return GroupKey(kind, key)


KINDS: tuple[Kind, ...] = (
    Kind(
        "config",
        "configs",
        ("configs",),
        attrgetter("configs"),
        _configs_of,
        tuple[int, str, str, str],
        _add_config,
        lambda content: GroupKey("config", f"{content[0]}:{content[1]}"),
        lambda _, content: config_key(*content[:3]),
    ),
    Kind(
        "topic",
        "topics",
        ("topics", "topic_ids"),
        attrgetter("topics"),
        lambda image, id_: ((id_, image.topics[id_].name),),
        tuple[bytes, str],
        _add_topic,
        lambda content: GroupKey("topic", content[0].hex()),
        _topic_in_words,
        by_words=_topics_by_name,
    ),
    # After the topics that they belong to; in order, because each raises its topic's count.
    Kind(
        "partition",
        "partitions",
        ("partitions", "replicas_of", "leader_counts", "standings"),
        attrgetter("partitions"),
        lambda image, key: ((image.partitions[key],),),
        tuple[Partition],
        _add_partition,
        lambda content: GroupKey("topic", content[-1].topic_id.hex()),
        lambda view, content: f"{view.topics[content[-1].topic_id].name}-{content[-1].index}",
        group_kind="topic",
        add_all=_add_partitions,
        by_words=_partitions_by_name,
    ),
    Kind(
        "broker",
        "brokers",
        ("brokers",),
        attrgetter("brokers"),
        lambda image, id_: ((id_, image.brokers[id_]),),
        tuple[int, Broker],
        _add_broker,
        lambda content: GroupKey("broker", str(content[0])),
        lambda _, content: str(content[0]),
        "id",
    ),
    Kind(
        "feature",
        "features",
        ("features",),
        attrgetter("features"),
        lambda image, name: ((name, image.features[name]),),
        tuple[str, int],
        _add_feature,
        lambda content: GroupKey("feature", content[0]),
        lambda _, content: str(content[0]),
    ),
    _map("hostname", "hostnames", Hostname, "name"),
    _map("export_cursor", "export_cursors", ExportCursor, "name"),
    _map("kv", "key_values", KeyValue, "key")._replace(
        plural="kv",
        fields=("key_values", "key_names", "keys_of_lease", "keys_in"),
        add=_add_key_value,
        by_words=attrgetter("key_names"),
    ),
    _map("lease", "leases", Lease, "id"),
    _map("acl", "acls", AccessControlEntry, "id")._replace(
        fields=("acls", "acl_index"), add=lambda draft, content: put_entry(draft, content[0])
    ),
    _sole("voters", Voters),
    _sole("leader", Leader),
    _map("client", "clients", Client, "id", book_keeping=True),
    _map(
        "client_result",
        "client_results",
        ClientResult,
        "client_id",
        group_kind="client",
        book_keeping=True,
    )._replace(
        add=_add_client_result, words=lambda _, content: result_key(content[-1]), key_field=""
    ),
    Kind(
        "imported",
        "",
        ("imported",),
        attrgetter("imported"),
        lambda image, key: ((*key, image.imported[key]),),
        tuple[str, str, str],
        _add_imported,
        _group_of_imported,
        lambda view, content: imported_key(view, content[0], content[1]),
    ),
)
KIND_OF: dict[str, Kind] = {kind.name: kind for kind in KINDS}
_DECODERS = {kind.name: msgspec.msgpack.Decoder(kind.type) for kind in KINDS}


def entities_of(image: Image, kind: Kind) -> Iterator[tuple[str, Any]]:
    """Yield the printable key and the value of each entity of a kind, in the order of the keys."""
    keys = sorted(kind.keys(image)) if kind.by_words is None else kind.by_words(image)
    for key in keys:
        for content in kind.contents(image, key):
            value = NamedTopic(*content) if kind.name == "topic" else content[-1]
            yield kind.words(image, content), value


def count_of(image: Image, kind: Kind) -> int:
    """Return the number of entities of a kind."""
    if kind.name == "config":
        return sum(map(len, image.configs.values()))
    return sum(1 for _ in kind.keys(image))


def decode_into(draft: ImageDraft, name: str, encoded: Iterable[bytes]) -> None:
    """Put entities of a kind into a draft, and account for them. Raises KeyError, ValueError,
    MsgspecError for invalid content.
    """
    kind, decode = KIND_OF[name], _DECODERS[name].decode
    contents: Iterator[Content] = map(decode, encoded)
    if kind.add_all is not None:
        kind.add_all(draft, contents)
        return
    for content in contents:
        kind.add(draft, content)
        draft.replace(name, content[:-1], None, content[-1])


class GroupState(NamedTuple):
    """The entities of one group, encoded for ``put``."""

    group: GroupKey
    body: bytes


_TOPIC_CONFIGS = 2
_PAIRS: msgspec.msgpack.Decoder[list[tuple[str, bytes]]] = msgspec.msgpack.Decoder(
    list[tuple[str, bytes]]
)


def by_group(
    image: Image,
    has: Callable[[str, str], bool] = lambda kind, id_: True,
    *,
    imported: bool = False,
) -> Iterator[GroupState]:
    """Yield the groups of a state that have entities and satisfy ``has`` (kind, id), so that each
    can be folded further independently, anywhere.

    ``imported``: the log was imported; a topic's configs then belong to the topic's group.
    """
    groups: dict[GroupKey, list[tuple[str, bytes]]] = {}
    for kind in KINDS:
        for key in sorted(kind.keys(image)):
            for content in kind.contents(image, key):
                group = kind.group(content)
                if imported and kind.name == "config" and content[0] == _TOPIC_CONFIGS:
                    topic_id = image.topic_ids.get(content[1])
                    group = group if topic_id is None else GroupKey("topic", topic_id.hex())
                if has(*group):
                    groups.setdefault(group, []).append((kind.name, entity_bytes(content)))
    for group, entities in groups.items():
        yield GroupState(group, msgspec.msgpack.encode(entities))


def put(draft: ImageDraft, body: bytes) -> None:
    """Put the entities of a group into a draft that has none of them yet."""
    for name, encoded in groupby(_PAIRS.decode(body), itemgetter(0)):
        decode_into(draft, name, (data for _, data in encoded))
