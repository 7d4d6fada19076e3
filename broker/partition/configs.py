"""The configs of a topic that its leaders use."""

from __future__ import annotations

from raftlog.metadata.config_layers import topic_config
from raftlog.metadata.image import Image

CLEANUP_POLICY = "cleanup.policy"
RETENTION_MS = "retention.ms"
RETENTION_BYTES = "retention.bytes"
MIN_INSYNC_REPLICAS = "min.insync.replicas"
MAX_MESSAGE_BYTES = "max.message.bytes"
BATCH_MAX_BYTES = 24 << 20
"""Largest batch in bytes, whatever ``max.message.bytes`` says: it has to fit into one message with
everything that an answer already holds.
"""


def topic_value(image: Image, topic_id: bytes, name: str) -> str:
    """Return a value in force for a topic; the controller has checked each."""
    topic = image.topics.get(topic_id)
    return topic_config(image, topic.name if topic is not None else "", name)


def topic_number(image: Image, topic_id: bytes, name: str) -> int:
    """Return a whole number in force for a topic."""
    return int(topic_value(image, topic_id, name))
