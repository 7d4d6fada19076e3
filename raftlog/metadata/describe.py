"""An image as plain containers, for output and JSON: sorted, and equal on every node for the same
state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from raftlog.metadata.entities import WINDOW, Broker, Client, Topic, format_hash
from raftlog.metadata.image import Image
from raftlog.metadata.kinds import KINDS, Kind, entities_of
from raftlog.metadata.words import plain

KEY_FIELDS = {kind.plural: kind.key_field for kind in KINDS if kind.key_field}
"""Name of a kind in the document -> the field that contains an entity's key."""


def image_to_dict(image: Image) -> dict[str, Any]:
    """Return the whole image as JSON-able containers: topics sorted by name, other entities by key;
    topic ids and the state hash in hex. O(image).
    """
    document: dict[str, Any] = {
        "offset": image.offset,
        "epoch": image.epoch,
        "timestamp_ms": image.timestamp_ms,
        "state_hash": format_hash(image.state_hash),
    }
    for kind in KINDS:
        if kind.name not in _WITHIN_OTHERS:
            describe = _OWN.get(kind.name)
            document[kind.plural or kind.name] = (
                _plain(image, kind) if describe is None else describe(image)
            )
    return document


def _plain(image: Image, kind: Kind) -> Any:
    """Return all entities of a kind as JSON; for a kind with a single entity, that one or None."""
    found = [plain(value) for _, value in entities_of(image, kind)]
    if kind.key_field:
        return found
    return found[0] if found else None


def _broker(broker: Broker) -> dict[str, Any]:
    return plain(broker) | {
        "features": [
            {"name": name, "min_supported_version": low, "max_supported_version": high}
            for name, low, high in broker.features
        ]
    }


def _client(image: Image, client: Client) -> dict[str, Any]:
    keys = (
        (client.id, sequence)
        for sequence in range(client.all_below_done, client.all_below_done + WINDOW)
    )
    results = (image.client_results.get(key) for key in keys)
    return plain(client) | {
        "results": [
            {"sequence": result.sequence, "offset": result.offset, "epoch": result.epoch}
            for result in results
            if result is not None
        ],
    }


def _topic(image: Image, topic: Topic) -> dict[str, Any]:
    partitions = []
    for index in range(topic.partition_count):
        partition = plain(image.partitions[topic.id, index])
        del partition["topic_id"]  # the topic's own
        partitions.append(partition)
    return {"id": topic.id.hex(), "name": topic.name, "partitions": partitions}


_WITHIN_OTHERS = frozenset({"partition", "client_result"})
_OWN: dict[str, Callable[[Image], Any]] = {
    "broker": lambda image: [_broker(image.brokers[id_]) for id_ in sorted(image.brokers)],
    "client": lambda image: [_client(image, image.clients[id_]) for id_ in sorted(image.clients)],
    "config": lambda image: [
        {
            "resource_type": key[0],
            "resource_name": key[1],
            "values": dict(sorted(image.configs[key].items())),
        }
        for key in sorted(image.configs)
    ],
    "feature": lambda image: {name: image.features[name] for name in sorted(image.features)},
    "imported": lambda image: [
        {"kind": kind, "key": key, "value": msgspec.json.decode(value)}
        for (kind, key), value in sorted(image.imported.items())
    ],
    "topic": lambda image: [
        _topic(image, image.topics[image.topic_ids[name]]) for name in sorted(image.topic_ids)
    ],
}
"""Kinds with a special form."""
