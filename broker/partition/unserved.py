"""Partitions that the metadata says are led here, and that cannot be used: counted by reason, so
that every sign can say so. O(1).
"""

from __future__ import annotations

from typing import NamedTuple

from broker.partition.host import Host
from broker.partition.leader import UNKNOWN_HIGH_WATERMARK

LOG_AHEAD = "log_ahead_of_metadata"
"""The log has records of the leader epoch, or of later ones: it is not led.

Lasts until the leader epoch is raised.
"""
FENCED = "fenced"
"""This broker takes itself for fenced, and its image does not show it yet."""
NO_HIGH_WATERMARK = "high_watermark_unknown"
"""Led, and a member of the ISR has not fetched in this leader epoch: consumers get nothing,
acks=all waits.
"""
LOW_SPACE = "low_on_space"
"""Below the free-space reserve: producers are refused."""
REASONS = (LOG_AHEAD, FENCED, NO_HIGH_WATERMARK, LOW_SPACE)


class Unserved(NamedTuple):
    """``counts`` by reason; ``example``: of those that are not led, one of them and why, for
    people.
    """

    counts: dict[str, int]
    example: str


def unserved(host: Host, *, low_space: bool) -> Unserved:
    """How many partitions this broker leads and does not serve, by reason, and an example.

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
