"""What a node tells of its transport."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client.core import CounterMetricFamily, Metric

from raftlog.memory_bounds import memory_bounds
from raftlog.observability.registry import gauge
from raftlog.transport.bounds import Bounds
from raftlog.transport.complaints import Complaint
from raftlog.transport.lane_offer import LANED


def transport_metrics(bounds: Bounds, role: str) -> Sequence[Metric]:
    """For the registry of a node of this role."""
    refused = CounterMetricFamily(
        "raftlog_transport_complaints",
        "What peers did that a peer must not do, by kind.",
        labels=("kind",),
    )
    for kind in Complaint:
        refused.add_metric((str(kind),), bounds.complaints.counts[kind])
    lane_failures = CounterMetricFamily(
        "raftlog_transport_lane_failures",
        "Attempts to have such a connection that came to nothing: the link stays on gRPC.",
        value=bounds.lanes.failures,
    )
    return (
        refused,
        gauge(
            "raftlog_transport_unsent_bytes",
            "Bytes that wait to be sent, on all links.",
            bounds.send_budget.total_bytes,
        ),
        gauge(
            "raftlog_transport_waiting_bytes",
            "Bytes of received messages that wait for their turn, on all links.",
            bounds.waiting.total,
        ),
        gauge(
            "raftlog_transport_unfinished_bytes",
            "Bytes of messages that have arrived in part, on all connections and lanes.",
            bounds.unfinished.total_bytes + bounds.unfinished_frames.total,
        ),
        gauge(
            "raftlog_memory_bound_bytes",
            "The most that each part of the node may hold in memory; metadata is not in it.",
            *(((part,), most) for part, most in memory_bounds(bounds.limits, role).items()),
            labels=("part",),
        ),
        gauge(
            "raftlog_transport_lanes",
            "Links of replication, of observers and of clients that have moved from gRPC to a TCP"
            " connection, served here and dialed here.",
            *(
                ((side, conversation.name.lower()), counted[conversation])
                for side, counted in (
                    ("served", bounds.lanes.served),
                    ("dialed", bounds.lanes.dialed),
                )
                for conversation in LANED
            ),
            labels=("side", "conversation"),
        ),
        lane_failures,
        gauge(
            "raftlog_transport_streams",
            "Open streams and unary calls that peers have begun here.",
            *(((pool.lower(),), shares.total) for pool, shares in bounds.streams.items()),
            labels=("conversation",),
        ),
    )
