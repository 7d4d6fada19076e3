"""``raftlog doctor`` and ``raftlog explain`` for three controllers that hang and die."""

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from command_lines import Raftlog, running
from command_runs import Ran

from raftlog.local.cluster import LocalCluster, Node

sys.path.insert(0, str(Path(__file__).parents[1] / "cluster"))
import cluster_kit

Look = Callable[..., str]


@pytest.fixture
def shell() -> Callable[..., Ran]:
    """Run commands as processes: a late response of a hanging node ends with its process. In one
    process gRPC would deliver it to the loop of the next command.
    """
    return partial(cluster_kit.raftlog, environment={"COLUMNS": "80"})


@pytest.fixture(scope="module")
def controllers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running(tmp_path_factory.mktemp("three") / "c", brokers=0, controllers=3) as made:
        yield made


@pytest.fixture
def three(controllers: LocalCluster) -> LocalCluster:
    """Three ready controllers, whatever the test before has killed."""
    for node in controllers.nodes:
        if controllers.pid(node.name) is None:
            controllers.start(node.name)
    controllers.wait_ready([node.name for node in controllers.nodes], 120)
    return controllers


def killed(cluster: LocalCluster, *nodes: Node) -> None:
    for node in nodes:
        cluster.kill(node.name, signal.SIGKILL)
        assert cluster.wait_gone(node.name)


@pytest.fixture
def look(shell: Callable[..., Ran]) -> Look:
    def looked(at: str, wanted: str, code: int) -> str:
        """Run it until the output is as expected: nodes notice after a second or two."""
        until = time.monotonic() + 30
        while True:
            ran = shell("doctor --bootstrap-controller", at)
            words = " ".join(ran.out.split())
            if wanted in words or time.monotonic() > until:
                break
        assert wanted in words, ran.out
        assert ran.code == code
        assert all(len(line) <= 80 for line in ran.out.splitlines()), ran.out
        return words

    return looked


def hang(cluster: LocalCluster, node: Node) -> int:
    pid = cluster.pid(node.name)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    return pid


def test_killed_leader_is_explained_online_and_offline(
    raftlog: Raftlog, three: LocalCluster, tmp_path: Path
) -> None:
    at = raftlog.by("--bootstrap-controller", three.bootstrap_controllers)

    def elections() -> int:
        lines = at("explain --since 10m --json").json["lines"]
        return [line["code"] for line in lines].count("ELECTION")

    before, old = elections(), three.wait_leader()
    killed(three, old)
    three.wait_ready([node.name for node in three.controllers if node is not old])
    new = three.wait_leader()
    running = " ".join(raftlog("explain -d", three.data_path(new.name)).out.split())
    assert f"is in use by pid {three.pid(new.name)}" in running
    assert "Query the cluster instead" in running
    told = at.succeed("explain --since 10m").out
    assert all(len(line) <= 80 for line in told.splitlines())
    for text in (
        f"! node {new.node_id} leads epoch",
        f"the process of node {old.node_id} had exited",
        f"Missing: controller-{old.node_id}:",
        "Now: DEGRADED",
    ):
        assert text in " ".join(told.split())
    assert elections() == before + 1
    # Without a quorum the log cannot be read; who is left tells what it knows.
    killed(three, new)
    alone = " ".join(at.succeed("explain --since 10m --timeout 1").out.split())
    assert "Missing: the log: " in alone
    assert "Now: DOWN" in alone
    three.stop_all()
    places = [word for node in three.nodes for word in ("-d", three.data_path(node.name))]
    offline = " ".join(raftlog.succeed("explain --since 10m --all", *places).out.split())
    assert f"node {new.node_id} leads epoch" in offline
    assert f"the process of node {old.node_id} had exited" in offline
    assert "started for the first time" in offline
    assert "Now:" not in offline
    raftlog("explain -d", tmp_path / "nothing").refused(
        2, "is not a data directory of a node: it does not exist"
    )


def test_doctor_follows_healthy_to_down(
    shell: Callable[..., Ran], look: Look, three: LocalCluster
) -> None:
    at = three.bootstrap_controllers
    leader = three.wait_leader()
    one, two = (node for node in three.controllers if node is not leader)
    look(at, "HEALTHY: cluster", 0)
    wait = ("doctor", "--timeout", 1, "--bootstrap-controller", at, "--wait")
    shell(*wait, "degraded").showed()
    shell(*wait, "healthy").refused(4, "was not healthy within 1 s: no broker is unfenced")
    hanging = [hang(three, one)]
    try:
        words = look(at, f"DEGRADED Node {one.node_id} does not answer", 3)
        assert "one more failure stops all writes" in words
        hanging.append(hang(three, two))
        words = look(at, "No leader: 1 of 3 voters answers, but 2 are needed", 3)
        ids = f"nodes {one.node_id} and {two.node_id}"
        assert f"Start one of {ids} (kill the hanging process first: {ids})" in words
    finally:
        for pid in hanging:
            os.kill(pid, signal.SIGCONT)
    killed(three, one, two)
    words = look(at, f"2 are needed; {ids} refuse connections since", 3)
    assert f"Start one of {ids}. If their disks" in words
    until = time.monotonic() + 30
    said = "1 of 3 voters can be reached, 2 are needed"
    # The one that lives: to be sure that it was asked before the time is over.
    ask = ("history", "cluster", "--timeout", 1, "--bootstrap-controller", leader.endpoint)
    while said not in (refused := shell(*ask)).err and time.monotonic() < until:
        pass  # A node that has lost its peers a moment ago does not count yet.
    assert refused.code == 4
    assert said in refused.err
    killed(three, leader)
    words = look(at, "DOWN: no controller answers", 4)
    assert "So: Writes are not possible." in words


def test_doctor_detects_wrong_ports_and_two_clusters(
    shell: Callable[..., Ran], look: Look, three: LocalCluster, cluster: LocalCluster
) -> None:
    three.wait_leader()
    words = look(cluster.bootstrap_servers, "the server there is a node of the other kind", 4)
    assert "So: The state of the cluster is unknown" in words
    both = f"{cluster.bootstrap_controllers},{three.bootstrap_controllers}"
    words = look(both, "DOWN Nodes of several clusters answer", 3)
    shown = [words.count(f"cluster {one.cluster_id}, leader") for one in (cluster, three)]
    assert sum(shown) == 1, "the headline is of one of them"
    # The brokers are of the same one.
    assert ("No broker is registered" in words) is bool(shown[1])
    # [commands that show one cluster left the other out in silence, and ended with 0]
    for command in ("quorum describe", "cluster features describe"):
        told = shell(command, controllers=both).refused(3)
        assert told.out.count(" belongs to another cluster: node ") in (1, 3)
    nodes = shell("quorum describe --json", controllers=both).json["nodes"]
    assert len(nodes) == 4, "each of both, though node 1 is there twice"


@pytest.mark.nightly
def test_doctor_names_a_voter_formatted_for_another_cluster(
    shell: Callable[..., Ran], look: Look, three: LocalCluster
) -> None:
    leader = three.wait_leader()
    wrong = next(node for node in three.controllers if node is not leader)
    killed(three, wrong)
    config = three.config_path(wrong.name)
    other = "00000000-0000-4000-8000-000000000000"
    config.write_text(config.read_text().replace(three.cluster_id, other))
    shutil.rmtree(three.directory / "data" / wrong.name)
    shell("storage format -c", config).showed()
    three.start(wrong.name)
    words = look(three.bootstrap_controllers, f"runs with cluster id {other}", 3)
    assert f"DEGRADED Node {wrong.node_id} ({wrong.endpoint})" in words
    assert "2 of 3 voters are left" in words
