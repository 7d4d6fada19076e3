import signal
from pathlib import Path

from command_lines import Raftlog

from raftlog.local.cluster import LocalCluster


def test_killed_leader_is_explained_online_and_offline(raftlog: Raftlog, tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "c", controllers=3, brokers=0)
    cluster.generate()
    try:
        cluster.start_controllers()
        cluster.wait_ready([node.name for node in cluster.nodes])
        old = cluster.wait_leader()
        cluster.kill(old.name, signal.SIGKILL)
        assert cluster.wait_gone(old.name)
        others = [node for node in cluster.controllers if node is not old]
        cluster.wait_ready([node.name for node in others])
        new = cluster.wait_leader()
        at = ("--bootstrap-controller", cluster.bootstrap_controllers)
        running = raftlog("explain -d", cluster.data_path(new.name))
        assert f"is in use by pid {cluster.pid(new.name)}" in " ".join(running.out.split())
        assert "Query the cluster instead" in " ".join(running.out.split())
        told = raftlog.succeed("explain --since 10m", *at)
        words = " ".join(told.out.split())
        assert f"! node {new.node_id} leads epoch" in words
        assert f"the process of node {old.node_id} had ended" in words
        assert f"Missing: controller-{old.node_id}:" in words
        assert "Now: DEGRADED" in told.out
        assert all(len(line) <= 80 for line in told.out.splitlines())
        document = raftlog("explain --since 10m --json", *at).json
        codes = [line["code"] for line in document["lines"]]
        assert codes.count("ELECTION") == 2
        # Without a quorum the log cannot be read; who is left tells what it knows.
        cluster.kill(new.name, signal.SIGKILL)
        assert cluster.wait_gone(new.name)
        alone = raftlog.succeed("explain --since 10m --timeout 1", *at)
        assert "Missing: the log: " in " ".join(alone.out.split())
        assert "Now: DOWN" in alone.out
    finally:
        cluster.stop_all()
    directories = [
        word for node in cluster.controllers for word in ("-d", cluster.data_path(node.name))
    ]
    offline = raftlog.succeed("explain --since 10m --all", *directories)
    words = " ".join(offline.out.split())
    assert f"node {new.node_id} leads epoch" in words
    assert f"the process of node {old.node_id} had ended" in words
    assert "started for the first time" in words
    assert "Now:" not in offline.out
    raftlog("explain -d", tmp_path / "nothing").refused(
        2, "is not a data directory of a node: it does not exist"
    )
    cluster.delete()
