"""What a node may hold in memory for its peers and its log at the most, part by part, as it is
configured.

Metadata is not in it: an image grows with the topics and brokers that there are.
"""

from __future__ import annotations

from raftlog.resource_limits import (
    BROKER_IMAGES_MAX_BYTES,
    CALL_NOT_BEGUN_BYTES,
    CONTROLLER_MAX_WAITING_BYTES,
    MAX_CALLS_NOT_BEGUN,
    ROCKSDB_BLOCK_CACHE_BYTES,
    ROCKSDB_WRITE_BUFFER_BYTES,
    TAIL_CACHE_BYTES,
    TransportLimits,
)

_WRITE_BUFFERS = 2
"""One that is filled, and one that is written."""


def memory_bounds(limits: TransportLimits, role: str) -> dict[str, int]:
    """Part -> bytes. ``role``: "controller" or "broker"."""
    parts = {
        "unsent_responses": limits.max_queued_total_bytes,
        "waiting_messages": limits.max_waiting_total_bytes,
        "unfinished_messages": limits.max_unfinished_total_bytes,
        "calls_not_begun": (MAX_CALLS_NOT_BEGUN + limits.max_streams) * CALL_NOT_BEGUN_BYTES,
    }
    if role == "controller":
        parts["unfinished_messages_of_lanes"] = limits.max_unfinished_total_bytes
        parts["waiting_requests"] = CONTROLLER_MAX_WAITING_BYTES
        parts["log_tail"] = TAIL_CACHE_BYTES
        parts["rocksdb"] = ROCKSDB_BLOCK_CACHE_BYTES + _WRITE_BUFFERS * ROCKSDB_WRITE_BUFFER_BYTES
    else:
        parts["log_above_lao"] = BROKER_IMAGES_MAX_BYTES
    return parts
