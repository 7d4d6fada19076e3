"""Entities of the image in words: printable keys, and values as JSON objects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from raftlog.metadata.image import Image
from raftlog.metadata.imported import imported_key
from raftlog.metadata.words import (
    RESOURCE_TYPES,
    TYPE_NUMBERS,
    config_key,
    plain,
    result_key,
    to_json,
)
from replay.errors import ReplayError

__all__ = [
    "RESOURCE_TYPES",
    "config_key",
    "count_entities",
    "entities",
    "parse_config_key",
    "plain",
    "result_key",
    "to_json",
]


def parse_config_key(text: str) -> tuple[str, str, str]:
    """(group id, resource, config name or "") of TYPE:NAME[:KEY]. Raises ReplayError."""
    kind, _, rest = text.partition(":")
    name, _, key = rest.partition(":")
    number = TYPE_NUMBERS.get(kind)
    if number is None or not rest:
        raise ReplayError(
            f"config key {text!r} is not TYPE:NAME or TYPE:NAME:KEY with TYPE one of"
            f" {', '.join(TYPE_NUMBERS)}"
        )
    return f"{number}:{name}", config_key(number, name), key


def count_entities(image: Image) -> dict[str, int]:
    """Return the number of entities of each kind, without kinds that have none."""
    counts = {
        "broker": len(image.brokers),
        "topic": len(image.topics),
        "partition": len(image.partitions),
        "config": sum(len(values) for values in image.configs.values()),
        "feature": len(image.features),
        "applied": len(image.applied),
        "leader": int(image.leader is not None),
        "progress": int(image.progress is not None),
        "client": len(image.clients),
        "client_result": len(image.client_results),
        "voters": int(image.voters is not None),
        "hostname": len(image.hostnames),
        "export_cursor": len(image.export_cursors),
        "kv": len(image.key_values),
        "lease": len(image.leases),
        "acl": len(image.acls),
        **Counter(kind for kind, _ in image.imported),
    }
    return {kind: count for kind, count in counts.items() if count}


def entities(image: Image) -> Iterator[tuple[str, str, Any]]:
    """(kind, key, value) of every entity, each kind sorted by key."""
    for _, broker in sorted(image.brokers.items()):
        yield "broker", str(broker.id), broker
    for topic in sorted(image.topics.values(), key=lambda topic: topic.name):
        yield "topic", topic.name, topic
    for (topic_id, index), partition in sorted(image.partitions.items()):
        yield "partition", f"{image.topics[topic_id].name}-{index}", partition
    for (resource_type, resource_name), values in sorted(image.configs.items()):
        for name in sorted(values):
            yield "config", config_key(resource_type, resource_name, name), values[name]
    for name, level in sorted(image.features.items()):
        yield "feature", name, level
    for broker_id, applied in sorted(image.applied.items()):
        yield "applied", str(broker_id), applied
    if image.leader is not None:
        yield "leader", "", image.leader
    if image.progress is not None:
        yield "progress", "", image.progress
    for client_id, client in sorted(image.clients.items()):
        yield "client", str(client_id), client
    for _, result in sorted(image.client_results.items()):
        yield "client_result", result_key(result), result
    if image.voters is not None:
        yield "voters", "", image.voters
    for hostname, mapping in sorted(image.hostnames.items()):
        yield "hostname", hostname, mapping
    for name, cursor in sorted(image.export_cursors.items()):
        yield "export_cursor", name, cursor
    for key, one in sorted(image.key_values.items()):
        yield "kv", key, one
    for lease_id, lease in sorted(image.leases.items()):
        yield "lease", str(lease_id), lease
    for id_, entry in sorted(image.acls.items()):
        yield "acl", id_.hex(), entry
    for (kind, key), value in sorted(image.imported.items()):
        yield kind, imported_key(image, kind, key), msgspec.json.decode(value)
