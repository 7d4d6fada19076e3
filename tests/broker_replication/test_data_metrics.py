"""Metrics of the data plane."""

import pytest
from data_cluster import TOPIC, DataCluster, on_cluster
from prometheus_client import generate_latest
from scenarios import scenario

from broker.replication.metrics import add_data_metrics
from raftlog.node.observability.registry import MetricsRegistry


def scrape(cluster: DataCluster, broker_id: int) -> dict[str, float]:
    service = cluster.brokers[broker_id].service
    assert service is not None
    assert service.data is not None
    registry = MetricsRegistry(process=False)
    add_data_metrics(registry, service.data)
    lines = generate_latest(registry.registry).decode().splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name: float(value) for name, value in pairs}


@scenario(on_cluster)
async def test_partitions_isrs_and_bytes_are_counted_at_their_brokers(cluster: DataCluster) -> None:
    await cluster.create(min_insync_replicas="2")
    producer = cluster.producer()
    for number in range(3):
        await producer.send(TOPIC, b"%d" % number)
    leader = cluster.leader()
    found = scrape(cluster, leader)
    manager, topics = "kafka_server_replica_manager", "kafka_server_broker_topic_metrics"
    assert found[f"{manager}_partitions"] == found[f"{manager}_leaders"] == 1
    assert (
        found[f"{manager}_under_replicated_partitions"]
        == found[f"{manager}_under_min_isr_partitions"]
        == 0
    )
    assert (
        found[f"{topics}_messages_in_total"] == found[f"{topics}_total_produce_requests_total"] == 3
    )
    assert found["kafka_server_produce_total_time_seconds_count"] == 3
    assert found["kafka_log_flush_time_seconds_count"] >= 3
    follower = next(one for one in cluster.brokers if one != leader)
    other = scrape(cluster, follower)
    assert (other[f"{manager}_leaders"], other[f"{topics}_messages_in_total"]) == (0, 3)
    assert found[f"{topics}_replication_bytes_out_total"] == pytest.approx(
        2 * other[f"{topics}_bytes_in_total"], rel=0.01
    )
    # Both others die: too few are left, and it shows.
    for broker_id, host in cluster.brokers.items():
        if broker_id != leader:
            host.kill()
    await cluster.until(lambda: cluster.isr() == (leader,), "the leader is alone")
    found = scrape(cluster, leader)
    assert (
        found[f"{manager}_under_replicated_partitions"]
        == found[f"{manager}_under_min_isr_partitions"]
        == 1
    )
