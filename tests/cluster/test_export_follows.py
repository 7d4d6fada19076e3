"""``raftlog export --follow`` while leaders are killed and restarted."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cluster_kit import PATIENCE_S, raftlog, restart, until, written

from raftlog.local.cluster import LocalCluster, own_environment
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.segments.errors import ExportError
from raftlog.segments.manifest import RAW, Manifest, read_manifest
from raftlog.segments.raw import read_segment
from raftlog.segments.verify import verify_export


@pytest.fixture
def cluster(three_controllers: LocalCluster) -> LocalCluster:
    return three_controllers


def write(cluster: LocalCluster, prefix: str) -> int:
    """Write a few configs; return the offset of the last one acknowledged."""
    return max(written(cluster, prefix, 30).values())


def follower(target: Path, cluster: LocalCluster, *more: str) -> subprocess.Popen[str]:
    words = ["export", target, "--follow", "--publish-interval", "0.2", "--timeout", "60", *more]
    at = ["--bootstrap-controller", cluster.bootstrap_controllers]
    return subprocess.Popen(
        [sys.executable, "-m", "raftlog", *map(str, [*words, *at])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=own_environment(),
    )


def end_of(target: Path) -> int:
    try:
        return read_manifest(target).end_offset
    except ExportError:
        return 0


def states(target: Path, manifest: Manifest) -> dict[int, str]:
    """Return the state hash after each batch of the export."""
    draft, hashes = ImageBuilder(Image()), {}
    for segment in manifest.of_kind(RAW):
        for data in read_segment(target, segment):
            draft.apply_chunk(data)
            hashes[draft.offset] = f"{draft.state_hash % 2**128:032x}"
    return hashes


@pytest.mark.nightly
def test_export_and_its_cursor_follow_killed_and_restarted_leaders(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    target = tmp_path / "export"
    process = follower(target, cluster, "--cursor", "rolling")
    try:
        before = write(cluster, "before")
        until(lambda: end_of(target) > before, "what was written is exported")
        for number, how in enumerate((signal.SIGKILL, *[signal.SIGTERM] * 3)):
            leader = cluster.wait_leader(PATIENCE_S)
            assert cluster.kill(leader.name, how)
            written = write(cluster, f"after{number}")
            until(lambda: end_of(target) > written, "what the next leader wrote is exported")  # noqa: B023
            restart(cluster, leader.name)
            assert process.poll() is None, process.communicate()[1]
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert "Traceback" not in err
    assert out.count("published up to offset") >= 2
    assert f"{target}: {end_of(target)} new records (offsets 0 to {end_of(target) - 1})" in out
    (cursor,) = raftlog("cluster cursors list --json", controllers=cluster).json["items"]
    assert cursor["name"] == "rolling"
    assert cursor["end_offset"] >= written, "it holds what is not exported yet, and no more"
    manifest = verify_export(target)
    assert len({segment.last_epoch for segment in manifest.segments}) > 1

    # Each node's own word on the state, on the way and at the end, is what the export folds to.
    folded = states(target, manifest)
    assert len(manifest.state_hashes) > 3
    assert len({one.node_id for one in manifest.state_hashes}) == 3
    assert {one.offset: one.state_hash for one in manifest.state_hashes}.items() <= folded.items()
    assert max(manifest.state_hashes).offset == manifest.end_offset - 1
