"""Which entities a question is about: one of them, all of a kind, or all.

A record changes one entity group, so only the groups that the entities are in are read and folded,
and of what comes out of these the entities asked for are kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from raftlog.metadata.imported import IMPORTED_KINDS, PARTITION_DETAIL
from raftlog.metadata.records import RecordType
from replay.entities import parse_config_key
from replay.errors import ReplayError

_GROUP_OF_KIND = {
    "topic": "topic",
    "partition": "topic",
    "broker": "broker",
    "config": "config",
    "client": "client",
    "client_result": "client",
    "feature": "feature",
    "hostname": "hostname",
    "export_cursor": "export_cursor",
    "acl": "acl",
    "leader": "leader",
    "voters": "voters",
    "progress": "progress",
    "applied": "progress",
    PARTITION_DETAIL: "topic",
    **{kind: kind for kind in IMPORTED_KINDS},
}
_TOPIC = 2
_OF_TOPIC_CONFIGS = (RecordType.TOPIC, RecordType.CONFIG, RecordType.REMOVE_TOPIC)
_ENTRY_ID = re.compile(r"[0-9a-f]{32}")
KINDS = tuple(_GROUP_OF_KIND)
"""Of entities, as questions name them."""


class Selection(NamedTuple):
    """The entities asked for.

    ``groups``: a condition on group_kind and group_id; ``entities``: one on kind and key.
    """

    groups: Column
    entities: Column
    topic_name: str = ""
    """Only topics that ever had this name; empty: whatever they are called."""
    topic_types: tuple[int, ...] = ()
    """Of the topics' records only these types, and all others of ``groups``; empty: all, and no
    others."""

    def narrow(self, rows: DataFrame) -> DataFrame:
        """The records that may matter.

        A name may have belonged to several topics, one after the other: all of them count.
        """
        if not self.topic_name:
            return rows
        ids = (
            rows.where(sf.col("topic_name") == self.topic_name)
            .select(sf.col("topic_id").alias("group_id"))
            .distinct()
        )
        of_topic = rows.where(sf.col("group_kind") == "topic")
        if not self.topic_types:
            return of_topic.join(ids, "group_id", "left_semi")
        of_topic = of_topic.where(sf.col("type").isin(*self.topic_types))
        others = rows.where(self.groups & (sf.col("group_kind") != "topic"))
        return others.unionByName(of_topic.join(ids, "group_id", "left_semi").select(rows.columns))


def select(kind: str, key: str = "") -> Selection:
    """The entities of a kind under a key; "": all of the kind.

    Raises ReplayError for a kind or a key that there can't be.

    A topic's name means its partitions too, a client's id the results of its writes, and a config
    resource all its keys.
    """
    if kind not in _GROUP_OF_KIND:
        raise ReplayError(f"there is no kind {kind!r} of entities: it is one of {', '.join(KINDS)}")
    of_group, of_kind = sf.col("group_kind") == _GROUP_OF_KIND[kind], sf.col("kind") == kind
    if not key:
        return Selection(of_group, of_kind)
    return _BY_KEY.get(kind, _of_own_group)(of_group, of_kind, kind, key)


def _of_own_group(of_group: Column, of_kind: Column, kind: str, key: str) -> Selection:
    """A kind whose group is named as the entity is."""
    return Selection(of_group & (sf.col("group_id") == key), of_kind & (sf.col("key") == key))


def _by_id(of_group: Column, of_kind: Column, kind: str, key: str) -> Selection:
    _require_id(kind, key)
    return _of_own_group(of_group, of_kind, kind, key)


def _client(of_group: Column, of_kind: Column, kind: str, key: str) -> Selection:
    _require_id(kind, key)
    return Selection(of_group & (sf.col("group_id") == key), sf.lit(True))


def _client_result(of_group: Column, of_kind: Column, kind: str, key: str) -> Selection:
    client_id, _, sequence = key.partition("-")
    if not (client_id.isdigit() and sequence.isdigit()):
        raise ReplayError(f"client_result {key!r} is not CLIENT-SEQUENCE, like 1204-7")
    return Selection(of_group & (sf.col("group_id") == client_id), of_kind & (sf.col("key") == key))


def _applied(of_group: Column, of_kind: Column, kind: str, key: str) -> Selection:
    _require_id("broker", key)
    return Selection(of_group, of_kind & (sf.col("key") == key))


def _topic(of_group: Column, of_kind: Column, kind: str, key: str) -> Selection:
    return Selection(of_group, sf.lit(True), key)


def _partition(of_group: Column, of_kind: Column, kind: str, key: str) -> Selection:
    name, _, index = key.rpartition("-")
    if not (name and index.isdigit()):
        raise ReplayError(f"partition {key!r} is not TOPIC-NUMBER, like orders-0")
    return Selection(of_group, of_kind & (sf.col("key") == key), name)


def _config(of_group: Column, of_kind: Column, kind: str, key: str) -> Selection:
    group_id, resource, name = parse_config_key(key)
    of_resource = sf.col("key").startswith(f"{resource}:")
    entities = of_kind & (sf.col("key") == f"{resource}:{name}" if name else of_resource)
    own = of_group & (sf.col("group_id") == group_id)
    number, _, topic = group_id.partition(":")
    if int(number) != _TOPIC:
        return Selection(own, entities)
    # In an imported log a topic's configs are in the topic's group.
    return Selection(own | (sf.col("group_kind") == "topic"), entities, topic, _OF_TOPIC_CONFIGS)


def _entry(of_group: Column, of_kind: Column, kind: str, key: str) -> Selection:
    if not _ENTRY_ID.fullmatch(key):
        raise ReplayError(f"acl {key!r} is not the id of an entry: it has 32 hex digits")
    return _of_own_group(of_group, of_kind, kind, key)


def _sole(of_group: Column, of_kind: Column, kind: str, key: str) -> Selection:
    raise ReplayError(f"there is one {kind} at a time: it has no key like {key!r}")


def _require_id(kind: str, key: str) -> None:
    if not key.isdigit():
        raise ReplayError(f"{kind} {key!r} is not a {kind} id")


_BY_KEY: dict[str, Callable[[Column, Column, str, str], Selection]] = {
    "topic": _topic,
    "partition": _partition,
    "broker": _by_id,
    "config": _config,
    "client": _client,
    "client_result": _client_result,
    "applied": _applied,
    "acl": _entry,
    "leader": _sole,
    "voters": _sole,
    "progress": _sole,
}
