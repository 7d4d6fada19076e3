"""The data plane's metrics, under Kafka's names: ``ReplicaManager`` and ``BrokerTopicMetrics``."""

from __future__ import annotations

import re
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from broker.replication.data_plane import DataPlane
from raftlog.node.observability.registry import MetricsRegistry, gauge

_GAUGES = {
    "PartitionCount": "Partition replicas on this broker.",
    "LeaderCount": "Partitions that this broker leads.",
    "UnderReplicatedPartitions": ("Partitions led here with fewer in-sync replicas than replicas."),
    "UnderMinIsrPartitionCount": (
        "Partitions led here with fewer in-sync replicas than min.insync.replicas."
    ),
    "AtMinIsrPartitionCount": (
        "Partitions led here with as many in-sync replicas as min.insync.replicas."
    ),
    "ReassigningPartitions": "Partitions led here that are being reassigned.",
    "OfflineReplicaCount": "Replicas on this broker that cannot be served.",
}
_COUNTERS = {
    "IsrShrinks": "Changes that removed a replica from an ISR.",
    "IsrExpands": "Changes that added a replica to an ISR.",
    "FailedIsrUpdates": "ISR changes that the controller refused.",
    "FailedReplicaFetches": "Partitions whose fetch a leader refused.",
    "StaleReplicaEpochs": "Fetches refused here because the follower's broker epoch is over.",
    "Truncations": "Logs truncated here because they differed from their leaders'.",
}


def add_data_metrics(metrics: MetricsRegistry, plane: DataPlane) -> None:
    """Add the counters of the replicas and of the shell; none before the store was recovered."""
    metrics.collect(lambda: _collect(plane))
    metrics.latency(
        "kafka_server_produce_total_time_seconds",
        "Time from a produce request to its answer.",
        plane.figures.produce,
    )
    metrics.latency(
        "kafka_log_flush_time_seconds",
        "Time from requesting a disk sync until it is done.",
        plane.figures.flush,
    )


def _collect(plane: DataPlane) -> Iterator[Metric]:
    if not plane.recovered:
        return
    for name, value in plane.replicas.counters().items():
        kafka = f"kafka_server_replica_manager_{_snake(name)}"
        if name in _GAUGES:
            yield gauge(kafka, _GAUGES[name], value)
        elif name in _COUNTERS:
            yield CounterMetricFamily(kafka, _COUNTERS[name], value=value)
        else:
            yield gauge(kafka, name, value)
    not_served = GaugeMetricFamily(
        "raftlog_partitions_not_served",
        "Partitions that this broker leads according to the metadata but cannot serve, by reason.",
        labels=["reason"],
    )
    for reason, count in plane.unserved().counts.items():
        not_served.add_metric([reason], count)
    yield not_served
    figures = plane.figures
    topics = "kafka_server_broker_topic_metrics"
    yield CounterMetricFamily(
        f"{topics}_bytes_in", "Bytes of batches appended here.", value=figures.bytes_in
    )
    yield CounterMetricFamily(
        f"{topics}_messages_in", "Records appended here.", value=figures.messages_in
    )
    yield CounterMetricFamily(
        f"{topics}_bytes_out", "Bytes sent to consumers.", value=figures.bytes_out
    )
    yield CounterMetricFamily(
        f"{topics}_replication_bytes_out",
        "Bytes sent to followers.",
        value=figures.replication_bytes_out,
    )
    yield CounterMetricFamily(
        f"{topics}_total_produce_requests",
        "Produce requests received.",
        value=figures.produce_requests,
    )


def _snake(name: str) -> str:
    """Return a Kafka metric name in Prometheus's style, where only a histogram has a ``_count``."""
    if name.endswith("Count"):
        name = name.removesuffix("Count") + "s"
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
