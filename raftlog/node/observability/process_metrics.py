"""The metrics of every node, whatever its role: identity, requests, disk, event loop."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from raftlog.errors import ErrorCode
from raftlog.files import BackgroundLook
from raftlog.node.observability.figures import Latency, RequestFigures
from raftlog.node.observability.registry import MetricsRegistry, gauge
from raftlog.process import commit_text, version_text

UNKNOWN_API = "Unknown"
"""API name of a request without a body."""


def build_labels() -> Mapping[str, str]:
    """Return the labels of this build. In a checkout it runs git, so do not call it on an event
    loop.
    """
    return {"version": version_text(), "revision": commit_text()}


def add_node_metrics(
    metrics: MetricsRegistry,
    role: str,
    node_id: int,
    cluster_id: str,
    build: Mapping[str, str],
    loop_lag: Latency,
) -> None:
    """Add the node's identity and build, and the lag of its event loop."""
    node = {"cluster_id": cluster_id, "node_id": str(node_id), "role": role}
    metrics.collect(
        lambda: (
            InfoMetricFamily("raftlog_build", "The build that this node runs.", value=dict(build)),
            InfoMetricFamily("raftlog_node", "The identity of this node, for joins.", value=node),
        )
    )
    metrics.latency(
        "raftlog_event_loop_lag_seconds",
        "Delay of a timer of the event loop, measured four times a second.",
        loop_lag,
    )


def api_name(body: str) -> str:
    """Return Kafka's name for a request: ``CreateTopics`` for ``create_topics``."""
    return "".join(part.capitalize() for part in body.split("_")) or UNKNOWN_API


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def add_request_metrics(
    metrics: MetricsRegistry, figures: RequestFigures, depths: Callable[[], Mapping[str, int]]
) -> None:
    """Add Kafka's ``RequestMetrics``, and the numbers of waiting requests by queue."""
    metrics.collect(lambda: _requests(figures))
    metrics.gauges(
        "raftlog_waiting_requests",
        "Waiting requests, by what they wait for. Writes that arrived together and wait for one"
        " commit count once.",
        ("awaits",),
        lambda: [((awaits,), depth) for awaits, depth in depths().items()],
    )


def _requests(figures: RequestFigures) -> Iterator[Metric]:
    label = ("request",)
    requests = CounterMetricFamily(
        "kafka_network_request_metrics_requests",
        "Answered requests, by API. A broker counts a forwarded request under the API that it"
        " forwards.",
        labels=label,
    )
    errors = CounterMetricFamily(
        "kafka_network_request_metrics_errors",
        "Errors in responses, by API and Kafka's error code: one for each refused request, and one"
        " for each refused item.",
        labels=("request", "error"),
    )
    times = HistogramMetricFamily(
        "kafka_network_request_metrics_total_time_seconds",
        "Time from a request to its response, by API.",
        labels=label,
    )
    for body, one in sorted(figures.apis.items()):
        name = api_name(body)
        requests.add_metric((name,), one.requests)
        for code, count in sorted(one.errors.items()):
            errors.add_metric((name, _error_name(code)), count)
        times.add_metric((name,), one.latency.buckets(), one.latency.total_s)
    yield requests
    yield errors
    yield times


def add_certificate_metrics(metrics: MetricsRegistry, ends: Callable[[], datetime | None]) -> None:
    """Add the expiry of the node's certificates. ``ends`` reads files and returns the earliest, or
    None.
    """
    look = BackgroundLook(ends)
    metrics.look(look)

    def collect() -> Iterator[Metric]:
        ends_at = look.latest
        yield _if_known(
            "raftlog_certificate_valid_seconds",
            "Remaining validity of the node's certificate that expires first; negative once it has"
            " expired. Absent without TLS.",
            None if ends_at is None else (ends_at - datetime.now(UTC)).total_seconds(),
        )

    metrics.collect(collect)


def add_disk_metrics(
    metrics: MetricsRegistry, directory: Path, busy_s: Callable[[], float]
) -> None:
    """Add the disk of a node's log directory. ``busy_s`` returns the duration so far of the current
    sync.

    If the disk hangs, the values are those of the last scrape.
    """
    look = BackgroundLook(lambda: shutil.disk_usage(directory))
    metrics.look(look)

    def collect() -> Iterator[Metric]:
        # If the disk failed, the node detects that itself, and stops; a scrape reports the rest.
        usage = look.latest
        yield _if_known(
            "raftlog_log_dir_free_bytes",
            "Free space on the log directory's disk, in bytes.",
            None if usage is None else usage.free,
        )
        yield _if_known(
            "raftlog_log_dir_total_bytes",
            "Size of the log directory's disk, in bytes.",
            None if usage is None else usage.total,
        )
        yield gauge(
            "raftlog_disk_busy_seconds",
            "How long the current sync of the disk has lasted, or 0 if there is none.",
            busy_s(),
        )

    metrics.collect(collect)


def _if_known(name: str, doc: str, value: float | None) -> GaugeMetricFamily:
    """Return a gauge, without a sample if the value is unknown."""
    family = GaugeMetricFamily(name, doc)
    if value is not None:
        family.add_metric((), value)
    return family
