"""``raftlog export --follow`` while leaders are killed and restarted."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cluster_kit import PATIENCE_S, Load, controllers_of, raftlog, until

from raftlog.local.cluster import LocalCluster
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.segments.errors import ExportError
from raftlog.segments.manifest import RAW, Manifest, read_manifest
from raftlog.segments.raw import read_segment
from raftlog.segments.verify import verify_export


@pytest.fixture
def cluster(three_controllers: LocalCluster) -> LocalCluster:
    return three_controllers


async def write(cluster: LocalCluster, prefix: str) -> int:
    """Write a few configs; return the offset of the last one acknowledged."""
    async with controllers_of(cluster) as client:
        load = Load(client, prefix=prefix)
        await load.more(30)
        await load.stop()
    return max(load.acknowledged.values())


def follower(target: Path, cluster: LocalCluster, *more: str) -> subprocess.Popen[str]:
    words = ["export", target, "--follow", "--publish-interval", "0.2", "--timeout", "60", *more]
    at = ["--bootstrap-controller", cluster.bootstrap_controllers]
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAFTLOG_")}
    return subprocess.Popen(
        [sys.executable, "-m", "raftlog", *map(str, [*words, *at])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=own,
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
def test_export_follows_the_next_leader(cluster: LocalCluster, tmp_path: Path) -> None:
    target = tmp_path / "export"
    process, leader = follower(target, cluster), cluster.wait_leader(PATIENCE_S)
    try:
        before = asyncio.run(write(cluster, "before"))
        until(lambda: end_of(target) > before, "what was written is exported")
        assert cluster.kill(leader.name, signal.SIGKILL)
        after = asyncio.run(write(cluster, "after"))
        until(lambda: end_of(target) > after, "what the next leader wrote is exported")
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        cluster.start(leader.name)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    assert out.count("published up to offset") >= 2
    assert f"{target}: {end_of(target)} new records (offsets 0 to {end_of(target) - 1})" in out
    manifest = verify_export(target)
    epochs = {segment.last_epoch for segment in manifest.segments}
    assert len(epochs) > 1

    # Each node's own word on the state, on the way and at the end, is what the export folds to.
    folded = states(target, manifest)
    assert len(manifest.state_hashes) > 3
    assert len({one.node_id for one in manifest.state_hashes}) == 3
    assert {one.offset: one.state_hash for one in manifest.state_hashes}.items() <= folded.items()
    assert max(manifest.state_hashes).offset == manifest.end_offset - 1


@pytest.mark.nightly
def test_export_cursor_survives_a_rolling_restart(cluster: LocalCluster, tmp_path: Path) -> None:
    target = tmp_path / "export"
    process = follower(target, cluster, "--cursor", "rolling")
    try:
        until(lambda: end_of(target) > 0, "something is exported")
        for number in range(3):
            leader = cluster.wait_leader(PATIENCE_S)
            assert cluster.kill(leader.name, signal.SIGTERM)
            written = asyncio.run(write(cluster, f"rolling{number}"))
            assert cluster.wait_gone(leader.name, PATIENCE_S)
            cluster.start(leader.name)
            cluster.wait_ready([leader.name], PATIENCE_S)
            until(lambda: end_of(target) > written, "what the next leader wrote is exported")  # noqa: B023
            assert process.poll() is None, process.communicate()[1]
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert "Traceback" not in err
    (cursor,) = raftlog("cluster cursors list --json", controllers=cluster).json["items"]
    assert cursor["name"] == "rolling"
    assert cursor["end_offset"] >= written, "it holds what is not exported yet, and no more"
    verify_export(target)


@pytest.mark.nightly
def test_export_refuses_a_second_writer(cluster: LocalCluster, tmp_path: Path) -> None:
    process = follower(tmp_path / "export", cluster)
    try:
        until(lambda: end_of(tmp_path / "export") > 0, "something is exported")
        raftlog("export", tmp_path / "export", controllers=cluster).refused(
            1, "another export is writing to"
        )
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == -signal.SIGINT
    finally:
        process.kill()
    raftlog("export", tmp_path / "export", "--follow", "-d", tmp_path).refused(2, "does not grow")
