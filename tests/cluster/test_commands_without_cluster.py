"""Commands against a cluster that is unreachable, paused or partitioned."""

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cluster_kit import PATIENCE_S, cluster_of, one_message, raftlog, running, says, succeed, until
from command_runs import Ran

from raftlog.local.cluster import LocalCluster

TIMEOUT_S = 1.5
GRACE_S = 20.0
"""Bound in seconds for starting several Pythons with all imports on a busy machine."""


def commands(controllers: str, servers: str) -> list[tuple[str, ...]]:
    """Commands of each kind."""
    at, through = ("--bootstrap-controller", controllers), ("--bootstrap-server", servers)
    return [
        ("quorum", "describe", *at),
        ("brokers", "list", *at),
        ("topics", "list", *through),
        ("topics", "create", "t", *through),
        ("configs", "alter", "broker", "", "--set", "log.retention.ms=1", *at),
        ("log", "dump", *at),
    ]


def run_all(controllers: str, servers: str) -> list[Ran]:
    """Run all of them concurrently; each has to end soon after its timeout."""
    with ThreadPoolExecutor(6) as pool:
        found = pool.map(
            lambda one: raftlog(*one, "--timeout", TIMEOUT_S, timeout_s=TIMEOUT_S + GRACE_S),
            commands(controllers, servers),
        )
        return list(found)


def all_unreachable(controllers: str, servers: str) -> str:
    """Assert that all end with code 4 and one message; return the messages."""
    ran = run_all(controllers, servers)
    assert [one.code for one in ran] == [4] * len(ran), ran
    return "\n".join(one_message(one) for one in ran)


cluster = cluster_of(controllers=3, brokers=1)


@pytest.mark.nightly
def test_command_names_the_mistake_for_a_port_of_another_service(cluster: LocalCluster) -> None:
    """The HTTP port of a node, and the port of a node with the other role."""
    controller = cluster.controllers[0]
    says(
        all_unreachable(controller.http.removeprefix("http://"), controller.endpoint),
        "answers as an HTTP server, not gRPC",
        "is a controller, not a broker; the request was not executed",
    )


@pytest.mark.nightly
def test_command_ends_at_its_timeout_when_the_cluster_is_paused(cluster: LocalCluster) -> None:
    for node in cluster.nodes:
        assert cluster.kill(node.name, signal.SIGSTOP)
    try:
        all_unreachable(cluster.bootstrap_controllers, cluster.bootstrap_servers)
    finally:
        for node in cluster.nodes:
            cluster.kill(node.name, signal.SIGCONT)
    cluster.wait_ready([node.name for node in cluster.nodes], PATIENCE_S)


@pytest.mark.nightly
def test_partial_cluster_is_described_by_its_live_nodes(tmp_path: Path) -> None:
    """One node of three dead, then two: the live ones are described, and not ready."""
    cluster = LocalCluster(tmp_path / "c", controllers=3, brokers=0)
    cluster.generate()
    at = ("--bootstrap-controller", cluster.bootstrap_controllers, "--timeout", 5)
    with running(cluster):
        first = cluster.wait_leader(PATIENCE_S)
        cluster.kill(first.name, signal.SIGKILL)
        assert cluster.wait_gone(first.name)
        second = cluster.wait_leader(PATIENCE_S)
        cluster.wait_ready([node.name for node in cluster.controllers if node != first], PATIENCE_S)
        ran = succeed("quorum describe --json", *at)
        assert ran.json["leader_id"] == second.node_id
        roles = {node["node_id"]: node["role"] for node in ran.json["nodes"]}
        assert (roles.pop(first.node_id), sorted(roles.values())) == (None, ["follower", "leader"])

        cluster.kill(second.name, signal.SIGKILL)
        assert cluster.wait_gone(second.name)
        (last,) = (node for node in cluster.controllers if node not in (first, second))
        until(lambda: not cluster.ready(last.name)[0], "the last node is not ready any more")
        says(
            cluster.ready(last.name)[1],
            "no leader is known in epoch",
            f"last leader was node {second.node_id}",
        )
        ran = raftlog("quorum describe", *at).refused(3)
        says(
            ran.out,
            "no leader",
            *(f"{node.endpoint} does not answer: .*refused" for node in (first, second)),
        )
        ran = raftlog("quorum describe --json", *at)
        assert (ran.code, ran.json["leader_id"]) == (3, None)
        (alive,) = (node for node in ran.json["nodes"] if node["role"] is not None)
        assert alive["node_id"] == last.node_id
        assert alive["log_end_offset"] > 0
