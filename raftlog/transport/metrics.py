"""What a node tells of its transport."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client.core import CounterMetricFamily, Metric

from raftlog.observability.registry import gauge
from raftlog.transport.bounds import Bounds
from raftlog.transport.complaints import Complaint


def transport_metrics(bounds: Bounds) -> Sequence[Metric]:
    """For a node's registry."""
    refused = CounterMetricFamily(
        "raftlog_transport_complaints",
        "What peers did that a peer must not do, by kind.",
        labels=("kind",),
    )
    for kind in Complaint:
        refused.add_metric((str(kind),), bounds.complaints.counts[kind])
    return (
        refused,
        gauge(
            "raftlog_transport_unsent_bytes",
            "Bytes that wait to be sent, on all links.",
            bounds.send_budget.total_bytes,
        ),
        gauge(
            "raftlog_transport_streams",
            "Open streams and unary calls that peers have begun here.",
            *(((pool.lower(),), shares.total) for pool, shares in bounds.streams.items()),
            labels=("conversation",),
        ),
    )
