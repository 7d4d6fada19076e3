"""An export with its cursor on a real controller."""

from pathlib import Path

import pytest
from cluster_kit import cluster_of, raftlog, succeed, until, written

from raftlog.local.cluster import LocalCluster

SETTINGS = {
    "metadata.log.max.record.bytes.between.snapshots": 20_000,
    "metadata.max.retention.bytes": 30_000,
}


cluster = cluster_of(controllers=1, brokers=0, settings=SETTINGS)


def log_start(cluster: LocalCluster) -> int:
    return cluster.quorum(5.0).descriptions[0].log_start_offset


@pytest.mark.nightly
def test_log_is_kept_for_the_export_without_a_gap(cluster: LocalCluster, tmp_path: Path) -> None:
    (node,) = cluster.controllers

    def exported(*more: str) -> int:
        ran = succeed(
            "export --json", tmp_path / "export", "--cursor", "nightly", *more, controllers=cluster
        )
        return int(ran.json["end_offset"])

    def cursor() -> dict:
        (one,) = raftlog("cluster cursors list --json", controllers=cluster).json["items"]
        return one

    end = exported()
    assert cursor()["end_offset"] == end
    assert cursor()["target"].endswith(str(tmp_path / "export"))
    # Its own record is no reason to move it again, however often one looks.
    assert exported() == end + 1
    assert exported() == end + 1
    assert cursor()["end_offset"] == end

    for letter in "abc":
        written(cluster, letter * 60, 300)
    said = "export cursors hold the log back"
    until(
        lambda: said in cluster.log_path(node.name).read_text(),
        "retention would drop what the cursor holds",
    )
    assert log_start(cluster) <= end
    raftlog("export", tmp_path / "other", "--cursor", "nightly", controllers=cluster).refused(
        2, "the cursor nightly belongs to the export"
    )

    newer = exported("--verify")
    assert newer > end + 900
    assert cursor()["end_offset"] == newer
    until(lambda: log_start(cluster) > end, "what was exported is dropped")
    assert log_start(cluster) <= newer
    gone = raftlog(
        "export", tmp_path / "stopped", "--cursor", "x", "--directory", cluster.data_path(node.name)
    )
    assert (gone.code, gone.out) != (0, "")
