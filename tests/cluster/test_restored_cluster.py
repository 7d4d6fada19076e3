"""A cluster is lost, and another one goes on from its followed export: with the same id, its brokers
and what they hold come back, and clients notice.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_kit import PATIENCE_S, raftlog, running, until
from test_export_follows import end_of, follower

from raftlog import connect
from raftlog.errors import InconsistentGenerationError
from raftlog.local.cluster import LocalCluster
from raftlog.recipes import Lock

TOPIC = "orders"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with running(LocalCluster(tmp_path / "c", controllers=3, brokers=2)) as made:
        yield made


def produced(cluster: LocalCluster, *values: str) -> None:
    sent = subprocess.run(
        [sys.executable, "-m", "raftlog", "produce", TOPIC,
         "--bootstrap-server", cluster.bootstrap_servers, "--timeout", str(PATIENCE_S)],
        input="".join(f"{one}\n" for one in values), text=True, capture_output=True,
        check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    assert sent.returncode == 0, sent.stderr


def consumed(cluster: LocalCluster, count: int) -> list[str]:
    at = ("--bootstrap-server", cluster.bootstrap_servers)
    read = raftlog("consume", TOPIC, "--max-messages", count, "--from-beginning", *at)
    return read.out.split()


def lose_all_controllers(cluster: LocalCluster) -> None:
    names = [node.name for node in cluster.controllers]
    for name in names:
        cluster.kill(name, signal.SIGKILL)
    for name in names:
        assert cluster.wait_gone(name)
        shutil.rmtree(cluster.data_path(name))


@pytest.mark.nightly
def test_lost_cluster_goes_on_from_its_export_with_its_brokers(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    target = tmp_path / "export"
    process = follower(target, cluster)
    try:
        with connect(cluster.bootstrap_servers, timeout_s=PATIENCE_S) as client:
            client.topics.create(TOPIC, partitions=1, replication_factor=2)
            produced(cluster, "one", "two")
            lock = Lock(client, "held", ttl_s=60)
            lock.acquire()
            kept = client.kv.put("app/mode", "blue").token
            assert kept is not None
            client.topics.create("late")
            last = client.kv.put("app/late", "1").token
            assert last is not None
            until(lambda: end_of(target) > last.offset, "the export has it all")
            lose_all_controllers(cluster)
            for node in cluster.controllers:
                done = raftlog(
                    "restore", "--from", target, "--at-offset", kept.offset,
                    "-c", cluster.config_path(node.name), "--same-cluster", "--yes", "--json",
                )  # fmt: skip
                assert done.code == 0, done.err
                said = done.json
                assert said["cluster_id"] == cluster.cluster_id
                assert "node" in said["vouched_by"]
                assert (said["after"]["brokers"], said["after"]["leases"]) == (2, 1)
            cluster.start_controllers()
            cluster.wait_ready([node.name for node in cluster.nodes], PATIENCE_S)
            assert lock.wait_lost(PATIENCE_S)
            with pytest.raises(InconsistentGenerationError):
                client.kv.get("app/mode")
            client.forget()
            found = client.kv.get("app/mode", read="strict")
            assert found is not None
            assert found.text == "blue"
            assert client.kv.get("app/late") is None, "behind the point"
        assert consumed(cluster, 2) == ["one", "two"]
        produced(cluster, "three")
        assert consumed(cluster, 3) == ["one", "two", "three"]
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 1, (out, err)
        assert "generation" in err, "the export of the lost log ends with an error"
    finally:
        process.kill()
        process.communicate()
