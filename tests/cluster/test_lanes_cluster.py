"""A cluster in which one controller has no lanes, as in an older build, and what its nodes report."""

from collections.abc import Mapping
from typing import Any

from cluster_kit import PATIENCE_S, cluster_of, metric, metrics_of, until
from prometheus_client.parser import text_string_to_metric_families
from reference_pages.metrics import of_a_broker, of_a_controller

import raftlog
from raftlog.local.cluster import LocalCluster, Node

WITHOUT = 3


def settings_of(node: Node) -> Mapping[str, Any]:
    return {"lane.port.offset": 0} if node.node_id == WITHOUT else {}


cluster = cluster_of(controllers=3, brokers=2, settings_of=settings_of)


def lanes(node: Node, conversation: str = "replication") -> tuple[int, int]:
    """Return the numbers of lanes that a node serves and has dialed."""
    sample = f'raftlog_transport_lanes{{conversation="{conversation}",side="%s"}}'
    return int(metric(node, sample % "served")), int(metric(node, sample % "dialed"))


def write_led_by(cluster: LocalCluster, node_id: int) -> None:
    """Transfer the leadership, and write once that is visible on both brokers."""
    servers, controllers = cluster.bootstrap_servers, cluster.bootstrap_controllers
    with raftlog.connect(servers, controllers=controllers, timeout_s=PATIENCE_S) as client:
        if cluster.wait_leader_id(PATIENCE_S) != node_id:
            client.quorum.transfer(node_id)
        client.kv.put("led-by", str(node_id), acks="visible")


def test_followers_use_lanes_where_both_ends_have_them(cluster: LocalCluster) -> None:
    with_lanes = [node for node in cluster.controllers if node.node_id != WITHOUT]
    (without,) = (node for node in cluster.controllers if node.node_id == WITHOUT)
    for leader in with_lanes:
        write_led_by(cluster, leader.node_id)
        (follower,) = (node for node in with_lanes if node is not leader)
        until(lambda follower=follower: lanes(follower)[1] == 1, "the follower dials a lane")  # type: ignore[misc]
        until(lambda leader=leader: lanes(leader)[0] == 1, "the leader serves it")  # type: ignore[misc]
        assert lanes(without) == (0, 0)
        until(
            lambda leader=leader: observers(cluster, leader) == ((2, 0), [(0, 1), (0, 1)]),  # type: ignore[misc]
            "both brokers fetch over lanes",
        )
    write_led_by(cluster, WITHOUT)
    assert lanes(without) == (0, 0)
    until(
        lambda: observers(cluster, without) == ((0, 0), [(0, 0), (0, 0)]),
        "brokers follow over gRPC who has no lanes",
    )


def test_watch_moves_to_a_lane_of_its_broker_and_misses_nothing(cluster: LocalCluster) -> None:
    with raftlog.connect(cluster.bootstrap_servers, timeout_s=PATIENCE_S) as client:
        changes = client.watch("configs/client-metrics/watched", tip=True)
        expected = [f"value-{number}" for number in range(50)]
        for value in expected:
            client.configs.alter("client-metrics", "watched", set={"match": value})
        assert [next(changes).after for _ in expected] == expected
        served = [lanes(node, "watch_many")[0] for node in cluster.brokers]
        assert sorted(served) == [0, 1]
    until(
        lambda: all(lanes(node, "watch_many")[0] == 0 for node in cluster.brokers),
        "the lane ends with the client",
    )


def observers(cluster: LocalCluster, leader: Node) -> tuple[tuple[int, int], list[tuple[int, int]]]:
    """Return the lanes of the metadata log at the leader and at each broker."""
    return lanes(leader, "observer"), [lanes(node, "observer") for node in cluster.brokers]


def test_metrics_are_valid_prometheus_text(cluster: LocalCluster) -> None:
    with raftlog.connect(cluster.bootstrap_servers, timeout_s=PATIENCE_S) as client:
        client.topics.create("measured", acks="visible")
    shown: dict[str, dict[str, Any]] = {
        node.name: {one.name: one for one in text_string_to_metric_families(metrics_of(node))}
        for node in cluster.nodes
    }

    def value(of: dict[str, Any], name: str) -> float:
        return float(of[name].samples[0].value)

    active = "kafka_controller_active_controllers"
    (leader,) = (of for of in shown.values() if active in of and value(of, active) == 1)
    assert value(leader, "kafka_controller_global_topics") == 1
    assert value(leader, "kafka_controller_fenced_brokers") == 0
    lao = value(leader, "raftlog_lowest_acknowledged_offset")
    assert 0 < lao < value(leader, "raft_metrics_high_watermark")
    assert value(leader, "raftlog_lowest_known_lao") <= lao
    # The reference is generated from stand-ins of nodes.
    families = (*of_a_controller(), *of_a_broker())
    reference = {family.name + "_info" * (family.type == "info") for family in families}
    every = {name for of in shown.values() for name in of}
    assert {
        name for name in every - reference if not name.startswith(("process_", "python_"))
    } == set()


def test_readiness_reason_names_the_role(cluster: LocalCluster) -> None:
    reasons = {node.name: cluster.ready(node.name, PATIENCE_S) for node in cluster.nodes}
    assert all(ready for ready, _ in reasons.values())
    told = sorted(reason.split(" ")[0] for _, reason in reasons.values())
    assert told == ["active", "following", "following", "serving", "serving"]
