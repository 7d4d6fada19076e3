"""Directories that were formatted again or restored from a copy."""

import json
import shutil
import time
from functools import partial
from pathlib import Path

import pytest
from cluster_kit import (
    PATIENCE_S,
    cluster_of,
    crash,
    on_files,
    raftlog,
    succeed,
    until,
    written,
)

from raftlog import connect
from raftlog.local.cluster import LocalCluster

KEPT = 20


cluster = cluster_of(controllers=3, brokers=2, scope="function")


def produced(cluster: LocalCluster) -> None:
    with connect(cluster.bootstrap_servers, timeout_s=PATIENCE_S) as client:
        client.topics.create("kept", partitions=2, replication_factor=2, acks="visible")
        for number in range(KEPT):
            client.produce("kept", f"value {number}".encode())


def _says_lost(cluster: LocalCluster, name: str) -> bool:
    return "committed records are lost" in cluster.ready(name)[1]


def _is_told_to(cluster: LocalCluster, offset: int) -> bool:
    dumped = raftlog("log dump --type PROGRESS --json", controllers=cluster).out
    said = [json.loads(line)["record"]["high_watermark"] for line in dumped.splitlines()]
    return max(said, default=0) > offset


def consumed(cluster: LocalCluster) -> int:
    with connect(cluster.bootstrap_servers, timeout_s=PATIENCE_S) as client:
        found = client.topics.describe("kept")
        assert all(partition.leader is not None for partition in found.partitions)
    ran = raftlog(f"consume kept --from-beginning --max-messages {KEPT} --json", brokers=cluster)
    return len(ran.out.splitlines())


@pytest.mark.nightly
def test_majority_with_new_disks_neither_elects_nor_deletes(cluster: LocalCluster) -> None:
    produced(cluster)
    names = [node.name for node in cluster.controllers]
    crash(cluster, *names)
    for name in names[:2]:
        shutil.rmtree(cluster.data_path(name))
        on_files("storage format -c", cluster.config_path(name))
        cluster.start(name)
    began = time.monotonic()
    while time.monotonic() - began < 4.0:
        assert cluster.leader_id() is None
        time.sleep(0.1)
    brokers = [node.name for node in cluster.brokers]
    for name in brokers:
        logged = cluster.log_path(name).read_text()
        assert "replica deleted" not in logged
        assert "replica set aside" not in logged
    # The third has the log, whose voters are on other disks than these: it is led on by hand.
    survivor = names[2]
    recover = "storage recover --unsafe --yes --endpoint"
    succeed(recover, cluster.node(survivor).endpoint, cluster.data_path(survivor))
    cluster.start(survivor)
    cluster.wait_ready([survivor, *brokers], PATIENCE_S)
    assert consumed(cluster) == KEPT


@pytest.mark.nightly
def test_restored_directory_is_detected_by_all_nodes(cluster: LocalCluster, tmp_path: Path) -> None:
    written(cluster, "early", 10)
    leader = cluster.wait_leader(PATIENCE_S).name
    lagging, old = [node.name for node in cluster.controllers if node.name != leader]
    # One voter lags, another one's directory is copied: both lack what is written now.
    crash(cluster, old, lagging)
    shutil.copytree(cluster.data_path(old), tmp_path / "copy")
    cluster.start(old)
    cluster.wait_leader(PATIENCE_S)
    written(cluster, "late", 30)
    with connect(cluster.bootstrap_servers, timeout_s=PATIENCE_S) as client:
        token = client.configs.alter(
            "client-metrics", "last", set={"interval.ms": 123_456}, acks="visible"
        ).token
    assert token is not None
    # Now and then the log itself says what is committed.
    until(partial(_is_told_to, cluster, token.offset), "a progress record covers what is lost")
    crash(cluster, leader, old)
    shutil.rmtree(cluster.data_path(old))
    shutil.copytree(tmp_path / "copy", cluster.data_path(old))
    cluster.start(old)
    cluster.start(lagging)
    cluster.wait_leader(PATIENCE_S)
    written(cluster, "other", 60)
    brokers = [node.name for node in cluster.brokers]
    for name in brokers:
        until(partial(_says_lost, cluster, name), f"{name} says what is lost")
    cluster.wait_ready(brokers, PATIENCE_S)
    said = raftlog("doctor --json", controllers=cluster, timeout_s=60)
    assert "LOG_CONTRADICTED" in said.out
    # No broker shows what is in no log, and a token of what was lost is refused.
    for name in brokers:
        ran = succeed(
            "configs describe client-metrics last --json", brokers=cluster.node(name).endpoint
        )
        assert "123456" not in ran.out
    cluster.start(leader)
    # It drops what the new leader does not have, or sees that its own epoch is led a second time.
    until(
        lambda: "committed records" in cluster.ready(leader)[1], "the third says what it has lost"
    )
