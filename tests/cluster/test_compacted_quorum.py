"""Logs that start late: starts from snapshots, exports, offline readers."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_kit import PATIENCE_S, raftlog, succeed, until, written

from raftlog.local.cluster import LocalCluster, Node
from raftlog.segments.manifest import read_manifest

SETTINGS = {
    "metadata.log.max.record.bytes.between.snapshots": 30_000,
    "metadata.max.retention.bytes": 60_000,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    made = LocalCluster(
        tmp_path_factory.mktemp("compacted") / "c", controllers=3, brokers=1, settings=SETTINGS
    )
    made.generate()
    try:
        made.start_controllers()
        made.wait_ready([node.name for node in made.controllers], PATIENCE_S)
        yield made
    finally:
        made.stop_all(timeout_s=5)


def log_starts(cluster: LocalCluster) -> dict[int, int]:
    return {one.node_id: one.log_start_offset for one in cluster.quorum(5.0).descriptions}


def ends(cluster: LocalCluster) -> set[tuple[int, int]]:
    return {(one.log_end_offset, one.high_watermark) for one in cluster.quorum(5.0).descriptions}


@pytest.mark.nightly
def test_late_starting_log_is_the_same_on_nodes_in_exports_and_offline(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    leader = cluster.wait_leader(PATIENCE_S)
    down = next(node for node in cluster.controllers if node != leader)
    assert cluster.kill(down.name, signal.SIGKILL)
    for _ in range(20):
        written(cluster, "w" * 40, 400)
        if log_starts(cluster).get(leader.node_id, 0) > 100:
            break
    assert log_starts(cluster)[leader.node_id] > 100

    # A node and a broker begin with a snapshot.
    cluster.start(down.name)
    cluster.start("broker-4")
    cluster.wait_ready([down.name, "broker-4"], PATIENCE_S)
    until(
        lambda: len(ends(cluster)) == 1 and log_starts(cluster)[down.node_id] > 0,
        "the node has caught up",
    )

    # What the running cluster and each stopped node say of one offset is the same as long as they
    # have it.
    shown = raftlog("log image --json", controllers=cluster).json
    dumped = raftlog("log dump --until 1", controllers=cluster)
    assert (dumped.code, dumped.out) == (0, "")
    assert dumped.err.startswith("history begins at offset ")
    export = succeed("export --verify", tmp_path / "export", controllers=cluster)
    assert "so does this export" in export.err
    _recorded(tmp_path / "export", cluster)
    cluster.stop_all(timeout_s=10)
    _same_offline(cluster, down, shown)
    for node in cluster.controllers:
        cluster.start(node.name)
    cluster.wait_leader(PATIENCE_S)
    written(cluster, "w" * 40, 20)


def _recorded(export: Path, cluster: LocalCluster) -> None:
    """Assert that the manifest has all reported state hashes, without contradictions."""
    manifest = read_manifest(export)
    said = [one for one in manifest.state_hashes if one.source == "image"]
    assert {one.node_id for one in said} == {node.node_id for node in cluster.controllers}
    last = max(said)
    assert last.offset == manifest.end_offset - 1
    asked = raftlog("log image --json --at", last.offset, controllers=cluster)
    assert asked.json["state_hash"] == last.state_hash
    by_offset = {one.offset: one.state_hash for one in manifest.state_hashes}
    assert all(by_offset[one.offset] == one.state_hash for one in manifest.state_hashes)
    # Whether a snapshot lies inside of the export depends on when its node last dropped some of its
    # log.
    inside = {
        (one.node_id, snapshot.end_offset - 1)
        for one in cluster.quorum(5.0).descriptions
        for snapshot in one.snapshots
        if manifest.history_begin < snapshot.end_offset <= manifest.end_offset
    }
    assert {
        (one.node_id, one.offset) for one in manifest.state_hashes if one.source == "snapshot"
    } == inside


def _same_offline(cluster: LocalCluster, node: Node, shown: dict) -> None:
    directory = cluster.data_path(node.name)
    info = raftlog("storage info --json -d", directory).json
    assert info["log_start_offset"] > 0
    offline = succeed("log image --json -d", directory, "--at", shown["offset"])
    assert offline.json["state_hash"] == shown["state_hash"]
    raftlog("log image --at 1 -d", directory).refused(2, "the oldest available state")
    dump = succeed("log dump -d", directory, "--until", info["log_start_offset"] + 1)
    assert f"history begins at offset {info['log_start_offset']}" in dump.err
