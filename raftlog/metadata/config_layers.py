"""The layers of a config: the topic's own value, else the value set for all brokers under the
broker's name of the key, else the default.

The configs of a single broker are no layer of a topic: answers would differ from broker to broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from raftlog.metadata.config_keys import ResourceType, config_keys
from raftlog.metadata.entities import Partition

ALL_BROKERS = ""
"""The resource name of the configs of all brokers: the cluster default."""
BROKER_NAME: Mapping[str, str] = MappingProxyType(
    {
        "cleanup.policy": "log.cleanup.policy",
        "compression.type": "compression.type",
        "max.message.bytes": "message.max.bytes",
        "min.insync.replicas": "min.insync.replicas",
        "retention.bytes": "log.retention.bytes",
        "retention.ms": "log.retention.ms",
        "segment.bytes": "log.segment.bytes",
        "unclean.leader.election.enable": "unclean.leader.election.enable",
    }
)
"""Topic key -> the broker key that gives its default, as in Kafka."""
UNCLEAN_ELECTION = "unclean.leader.election.enable"
MIN_INSYNC_REPLICAS = "min.insync.replicas"

_TOPIC, _BROKER = int(ResourceType.TOPIC), int(ResourceType.BROKER)
_TOPIC_KEYS = config_keys(_TOPIC) or {}
_NOTHING: Mapping[str, str] = MappingProxyType({})


def inherited(view: Any) -> dict[str, str]:
    """Return the values that topics inherit from the configs of all brokers: topic key -> value.

    ``view``: an image or a draft.
    """
    shared: Mapping[str, str] = view.configs.get((_BROKER, ALL_BROKERS)) or _NOTHING
    return {key: shared[name] for key, name in BROKER_NAME.items() if name in shared}


def topic_config(view: Any, topic: str, key: str) -> str:
    """Return the value in force of a topic's key, as text like in the log.

    Raises KeyError for a key that topics do not have.
    """
    own: Mapping[str, str] = view.configs.get((_TOPIC, topic)) or _NOTHING
    if key in own:
        return own[key]
    shared: Mapping[str, str] = view.configs.get((_BROKER, ALL_BROKERS)) or _NOTHING
    name = BROKER_NAME.get(key)
    if name is not None and name in shared:
        return shared[name]
    return _TOPIC_KEYS[key].default


def needed_in_sync(partition: Partition, wanted: int) -> int:
    """Return how many replicas must be in sync for a write with acks=all, where
    ``min.insync.replicas`` is ``wanted``.

    A replica that is only being added makes writes no harder before it makes them safer.
    """
    return min(wanted, max(1, len(partition.replicas) - len(partition.adding_replicas)))


def unclean_election_enabled(view: Any, topic_id: bytes) -> bool:
    """Return whether a replica outside the ISR may lead a partition of this topic when no other
    can.
    """
    topic = view.topics.get(topic_id)
    return topic is not None and topic_config(view, topic.name, UNCLEAN_ELECTION) == "true"
