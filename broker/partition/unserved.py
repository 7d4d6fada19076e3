"""Partitions that this broker leads by the metadata but cannot serve: counted by reason, so that
every status can say so. O(1).
"""

from __future__ import annotations

from typing import NamedTuple

from broker.partition.host import Host
from broker.partition.leader import UNKNOWN_HIGH_WATERMARK

LOG_AHEAD = "log_ahead_of_metadata"
"""The log has records of the leader epoch, or of later ones: the partition is not led.

Lasts until the leader epoch is raised.
"""
FENCED = "fenced"
"""This broker considers itself fenced, and its image does not show it yet."""
NO_HIGH_WATERMARK = "high_watermark_unknown"
"""The partition is led, and a member of the ISR has not fetched in this leader epoch: consumers get
nothing, acks=all waits.
"""
LOW_SPACE = "low_on_space"
"""Free space is below the reserve: produce requests are refused."""
REASONS = (LOG_AHEAD, FENCED, NO_HIGH_WATERMARK, LOW_SPACE)


class Unserved(NamedTuple):
    """``counts`` by reason; ``example``: one partition that is not led and why, for people."""

    counts: dict[str, int]
    example: str


def unserved(host: Host, *, low_space: bool) -> Unserved:
    """Return how many partitions this broker leads and does not serve, by reason, and an example.

    ``low_space``: produce is refused for all.
    """
    led = host.gauges["LeaderCount"]
    counts = {
        LOG_AHEAD: len(host.not_led),
        FENCED: 0 if host.serves else led,
        NO_HIGH_WATERMARK: host.gauges[UNKNOWN_HIGH_WATERMARK] if host.serves else 0,
        LOW_SPACE: led if low_space else 0,
    }
    example = ""
    if host.not_led:
        key, why = next(iter(host.not_led.items()))
        topic = host.image.topics.get(key[0])
        example = f"{key[0].hex() if topic is None else topic.name}:{key[1]}: {why}"
    return Unserved(counts, example)
