"""Imported entities of a Kafka cluster's log that raftlog does not support: stored unchanged, as
JSON, under a kind and a key.

Only an imported log contains such records (``raftlog import kafka``); no node writes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from raftlog.metadata.entities import Topic
from raftlog.metadata.image import FoldError, ImageDraft, ImageView
from raftlog.metadata.words import kafka_id
from raftlog.wire.records.v1 import records_pb2 as pb

PARTITION_DETAIL = "partition_detail"
"""Kind of Kafka's further details of a partition: directories and eligible leader replicas."""
IMPORTED_KINDS = (
    "client_quota",
    "controller",
    "delegation_token",
    "producer_ids",
    "scram_credential",
    "zk_migration",
)
"""The kinds of the other entities."""
KAFKAS_METADATA_VERSION = "kafka.metadata.version"
"""Kafka's feature ``metadata.version``, whose levels differ from raftlog's."""
_TOPIC = 2
_LISTS = ("eligible_leader_replicas", "last_known_elr")


def set_imported(image: ImageDraft, kind: str, key: str, value: str | None) -> None:
    """Set an entity, or remove it if ``value`` is None and it exists."""
    old = image.imported.get((kind, key))
    if value is not None:
        image.imported[kind, key] = value
    elif old is not None:
        del image.imported[kind, key]
    image.replace("imported", (kind, key), old, value)


def fold_imported(image: ImageDraft, message: pb.ImportedRecord, offset: int, epoch: int) -> None:
    """Fold an ImportedRecord. Raises KeyError for a topic that does not exist."""
    if message.aborted:
        return
    if message.HasField("clears_elr_of"):
        for topic_id in (message.clears_elr_of,) if message.clears_elr_of else _topics(image):
            _clear_elr(image, image.topics[topic_id])
    elif message.kind:
        value = message.value if message.HasField("value") else None
        set_imported(image, message.kind, message.key, value)


def detail_key(topic_id: bytes, index: int) -> str:
    """Return the key of a partition's details; it contains the topic id, since another topic may
    have the name later.
    """
    return f"{topic_id.hex()}-{index}"


def imported_key(view: ImageView, kind: str, key: str) -> str:
    """Return the key of an entity as shown to users: a partition's key contains the topic's
    name.
    """
    if kind != PARTITION_DETAIL:
        return key
    topic_id, _, index = key.rpartition("-")
    topic = view.topics.get(bytes.fromhex(topic_id))
    return f"{topic.name if topic is not None else topic_id}-{index}"


def put_details(image: ImageDraft, messages: Iterable[pb.PartitionRecord]) -> None:
    """Set the details from the records of new partitions."""
    for message in messages:
        _put(image, message.topic_id, message.partition_id, _said(message.imported))


def change_detail(image: ImageDraft, message: pb.PartitionChangeRecord) -> None:
    """Set the details from a change to a partition."""
    detail = _detail(image, message.topic_id, message.partition_id) | _said(message.imported)
    _put(image, message.topic_id, message.partition_id, detail)


def remove_with_topic(image: ImageDraft, topic: Topic) -> None:
    """Remove a topic's configs and the details of its partitions."""
    for index in range(topic.partition_count):
        set_imported(image, PARTITION_DETAIL, detail_key(topic.id, index), None)
    values = image.configs.get((_TOPIC, topic.name))
    if values is None:
        return
    del image.configs[_TOPIC, topic.name]
    for name, value in values.items():
        image.replace("config", (_TOPIC, topic.name, name), value, None)


def _topics(image: ImageDraft) -> list[bytes]:
    return sorted(id_ for id_, _ in image.snapshot().topics.items())


def _clear_elr(image: ImageDraft, topic: Topic) -> None:
    """Clear the eligible leader replicas of a topic, as Kafka does: a partition that has any gets
    the next partition epoch.
    """
    for index in range(topic.partition_count):
        detail = _detail(image, topic.id, index)
        if any(detail.get(name) for name in _LISTS):
            old = image.partitions[topic.id, index]
            new = replace(old, partition_epoch=old.partition_epoch + 1)
            image.partitions[topic.id, index] = new
            image.replace("partition", (), old, new)
            _put(image, topic.id, index, detail | dict.fromkeys(_LISTS, ()))


def _said(imported: pb.ImportedPartition) -> dict[str, Any]:
    said: dict[str, Any] = {
        name: list(getattr(imported, name).ids) for name in _LISTS if imported.HasField(name)
    }
    if imported.HasField("directories"):
        said["directories"] = [kafka_id(one.hex()) for one in imported.directories.ids]
    return said


def _detail(image: ImageDraft, topic_id: bytes, index: int) -> dict[str, Any]:
    text = image.imported.get((PARTITION_DETAIL, detail_key(topic_id, index)))
    return {} if text is None else msgspec.json.decode(text)


def _put(image: ImageDraft, topic_id: bytes, index: int, detail: dict[str, Any]) -> None:
    """Set the details of a partition. Empty lists are omitted, since Kafka treats them like absent
    ones. Raises FoldError unless there is one directory per replica.
    """
    directories, replicas = detail.get("directories"), image.partitions[topic_id, index].replicas
    if directories and len(directories) != len(replicas):
        raise FoldError(
            f"partition {index} of {image.topics[topic_id].name!r} has {len(replicas)} replicas "
            f"but {len(directories)} directories"
        )
    kept = {name: value for name, value in sorted(detail.items()) if value}
    value = msgspec.json.encode(kept).decode() if kept else None
    set_imported(image, PARTITION_DETAIL, detail_key(topic_id, index), value)
