"""An image as plain containers, for people and JSON: sorted, and equal on every node for the same
state.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import asdict

from raftlog.metadata.clients import WINDOW
from raftlog.metadata.entities import Broker, Client, Partition, Topic, Voters, format_hash
from raftlog.metadata.entity_words import plain
from raftlog.metadata.image import Image


def image_to_dict(image: Image) -> dict[str, Any]:
    """Return the whole image as JSON-able containers: topics by name, all else by id; topic ids and
    the state hash in hex. O(image).
    """
    return {
        "offset": image.offset,
        "epoch": image.epoch,
        "timestamp_ms": image.timestamp_ms,
        "state_hash": format_hash(image.state_hash),
        "leader": None
        if image.leader is None
        else {**asdict(image.leader), "voters": list(image.leader.voters)},
        "progress": None if image.progress is None else asdict(image.progress),
        "features": {name: image.features[name] for name in sorted(image.features)},
        "brokers": [_broker(image.brokers[broker_id]) for broker_id in sorted(image.brokers)],
        "topics": [
            _topic(image, image.topics[image.topic_ids[name]]) for name in sorted(image.topic_ids)
        ],
        "configs": [
            {
                "resource_type": key[0],
                "resource_name": key[1],
                "values": dict(sorted(image.configs[key].items())),
            }
            for key in sorted(image.configs)
        ],
        "voters": None if image.voters is None else _voters(image.voters),
        "clients": [
            _client(image, image.clients[client_id]) for client_id in sorted(image.clients)
        ],
        "hostnames": [asdict(image.hostnames[name]) for name in sorted(image.hostnames)],
        "export_cursors": [
            asdict(image.export_cursors[name]) for name in sorted(image.export_cursors)
        ],
        "acls": [{**asdict(image.acls[id_]), "id": id_.hex()} for id_ in sorted(image.acls)],
        "kv": [plain(image.key_values[key]) for key in sorted(image.key_values)],
        "leases": [asdict(image.leases[id_]) for id_ in sorted(image.leases)],
        "applied": [asdict(image.applied[broker_id]) for broker_id in sorted(image.applied)],
        "imported": [
            {"kind": kind, "key": key, "value": msgspec.json.decode(value)}
            for (kind, key), value in sorted(image.imported.items())
        ],
    }


def _broker(broker: Broker) -> dict[str, Any]:
    return {
        **asdict(broker),
        "listeners": [asdict(listener) for listener in broker.listeners],
        "features": [
            {"name": name, "min_supported_version": low, "max_supported_version": high}
            for name, low, high in broker.features
        ],
        "log_dirs": list(broker.log_dirs),
        "process": asdict(broker.process),
    }


def _voters(voters: Voters) -> dict[str, Any]:
    return {"offset": voters.offset, "voters": [asdict(voter) for voter in voters.voters]}


def _client(image: Image, client: Client) -> dict[str, Any]:
    keys = (
        (client.id, sequence)
        for sequence in range(client.all_below_done, client.all_below_done + WINDOW)
    )
    results = (image.client_results.get(key) for key in keys)
    return {
        **asdict(client),
        "results": [
            {"sequence": result.sequence, "offset": result.offset, "epoch": result.epoch}
            for result in results
            if result is not None
        ],
    }


def _topic(image: Image, topic: Topic) -> dict[str, Any]:
    return {
        "id": topic.id.hex(),
        "name": topic.name,
        "partitions": [
            _partition(image.partitions[topic.id, index]) for index in range(topic.partition_count)
        ],
    }


def _partition(partition: Partition) -> dict[str, Any]:
    fields = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(partition).items()
    }
    del fields["topic_id"]  # the topic's own
    return fields
