"""The configuration of a topic as a broker has to see it: its own, then this broker's, then that of all brokers, then the default."""

from __future__ import annotations

from raftlog.metadata.config_keys import ResourceType, find
from raftlog.metadata.image import Image

MIN_INSYNC_REPLICAS = "min.insync.replicas"
MAX_MESSAGE_BYTES = "max.message.bytes"
_BROKERS_NAME = {MIN_INSYNC_REPLICAS: MIN_INSYNC_REPLICAS, MAX_MESSAGE_BYTES: "message.max.bytes"}
"""What a topic's key is called as a default of all topics."""


def topic_number(image: Image, broker_id: int, topic_id: bytes, name: str) -> int:
    """A whole number; the controller has checked that each value is one."""
    topic = image.topics.get(topic_id)
    places = (
        (int(ResourceType.TOPIC), topic.name if topic is not None else "", name),
        (int(ResourceType.BROKER), str(broker_id), _BROKERS_NAME[name]),
        (int(ResourceType.BROKER), "", _BROKERS_NAME[name]),
    )
    for resource_type, resource_name, key in places:
        values = image.configs.get((resource_type, resource_name))
        if values is not None and key in values:
            return int(values[key])
    known = find(ResourceType.TOPIC, name)
    assert known is not None
    return int(known.default)
