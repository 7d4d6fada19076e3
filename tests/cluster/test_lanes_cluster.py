"""A cluster in which one controller has no lanes, as in an older build."""

from collections.abc import Mapping
from typing import Any

from cluster_kit import PATIENCE_S, cluster_of, metric, raftlog, succeed, until

import raftlog as library
from raftlog.local.cluster import LocalCluster, Node

WITHOUT = 3


def settings_of(node: Node) -> Mapping[str, Any]:
    return {"lane.port.offset": 0} if node.node_id == WITHOUT else {}


cluster = cluster_of(controllers=3, brokers=2, settings_of=settings_of)


def lanes(node: Node, conversation: str = "replication") -> tuple[int, int]:
    """Return the numbers of lanes that a node serves and has dialed."""
    sample = f'raftlog_transport_lanes{{conversation="{conversation}",side="%s"}}'
    return int(metric(node, sample % "served")), int(metric(node, sample % "dialed"))


def at(cluster: LocalCluster) -> tuple[str, str]:
    return "--bootstrap-controller", cluster.bootstrap_controllers


def lead(cluster: LocalCluster, node_id: int) -> None:
    if cluster.wait_leader_id(PATIENCE_S) != node_id:
        succeed(f"quorum transfer --to {node_id}", *at(cluster))


def write(cluster: LocalCluster, name: str) -> None:
    succeed(f"configs alter client-metrics {name} --set match=x", *at(cluster))


def test_followers_use_lanes_where_both_ends_have_them(cluster: LocalCluster) -> None:
    with_lanes = [node for node in cluster.controllers if node.node_id != WITHOUT]
    (without,) = (node for node in cluster.controllers if node.node_id == WITHOUT)
    for leader in with_lanes:
        lead(cluster, leader.node_id)
        (follower,) = (node for node in with_lanes if node is not leader)
        until(lambda follower=follower: lanes(follower)[1] == 1, "the follower dials a lane")  # type: ignore[misc]
        until(lambda leader=leader: lanes(leader)[0] == 1, "the leader serves it")  # type: ignore[misc]
        assert lanes(without) == (0, 0)
        write(cluster, f"led-by-{leader.node_id}")
        until(
            lambda leader=leader: observers(cluster, leader) == ((2, 0), [(0, 1), (0, 1)]),  # type: ignore[misc]
            "both brokers fetch over lanes",
        )
    lead(cluster, WITHOUT)
    write(cluster, "led-by-the-other")
    assert lanes(without) == (0, 0)
    until(
        lambda: observers(cluster, without) == ((0, 0), [(0, 0), (0, 0)]),
        "brokers follow over gRPC who has no lanes",
    )
    raftlog("configs describe client-metrics led-by-the-other", brokers=cluster).showed("match")


def test_watch_moves_to_a_lane_of_its_broker_and_misses_nothing(cluster: LocalCluster) -> None:
    with library.connect(cluster.bootstrap_servers, timeout_s=PATIENCE_S) as client:
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
