"""Unsafe recovery from one directory, and restore from a backup."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import (
    PATIENCE_S,
    Load,
    committed_image,
    controllers_of,
    crash,
    lost,
    raftlog,
    running,
    setting,
    succeed,
    until,
    written,
)

from raftlog.local.cluster import LocalCluster


async def backed_up_meanwhile(
    cluster: LocalCluster, backup: Path
) -> tuple[dict[str, int], dict[str, Any]]:
    """Back up while writes go on; return the writes acknowledged before it, and its description."""
    async with controllers_of(cluster) as client:
        load = Load(client, prefix="early")
        await load.more(200)
        asked = ("backup", "--controller", cluster.bootstrap_controllers, backup, "--json")
        made = await asyncio.to_thread(succeed, *asked)
        await load.more(50)
        await load.stop()
    said = made.json
    after = [offset for offset in load.acknowledged.values() if offset >= said["end_offset"]]
    assert len(load.acknowledged) - len(after) >= 200, "what was acknowledged before is in it"
    assert after, "writes went on"
    return load.acknowledged, said


async def generation_now(cluster: LocalCluster) -> int:
    async with controllers_of(cluster) as client:
        response = await client.call(setting("asked", "generation"), timeout_s=PATIENCE_S)
        return response.write.token.generation


@pytest.mark.nightly
def test_quorum_is_recovered_from_one_directory_and_from_a_backup(tmp_path: Path) -> None:
    old = LocalCluster(tmp_path / "old", controllers=3, brokers=1)
    new = LocalCluster(tmp_path / "new", controllers=3, brokers=0)
    backup = tmp_path / "backup.checkpoint"
    with running(old):
        early, said = asyncio.run(backed_up_meanwhile(old, backup))
        in_backup = {name: offset for name, offset in early.items() if offset < said["end_offset"]}
        there = raftlog("log image --json --at", said["end_offset"] - 1, controllers=old)
        assert there.json["state_hash"] == said["state_hash"], (
            "the state of the cluster at that very offset"
        )
        acknowledged = early | written(old, "late", 200)
        survivor = _lose_all_but_the_best(old)
        generation = _recover(old, survivor)
        _led_on(old, survivor, acknowledged, generation)
    _restore(new, backup, said)
    with running(new):
        _begins_anew(new, in_backup, said["generation"])


def _lose_all_but_the_best(cluster: LocalCluster) -> str:
    """Kill all controllers at once; keep only the directory with the longest log."""
    names = [node.name for node in cluster.controllers]
    crash(cluster, *names)
    found = {}
    for name in names:
        shown = succeed("storage recover --json", cluster.data_path(name))
        found[name] = shown.json["last_record_epoch"], shown.json["log_end_offset"]
    best = max(names, key=lambda name: found[name])
    for name in set(names) - {best}:
        shutil.rmtree(cluster.data_path(name))
    return best


def _recover(cluster: LocalCluster, name: str) -> int:
    """Recover; return the generation that is over."""
    directory = cluster.data_path(name)
    before = raftlog("storage recover --json", directory).json
    raftlog("storage recover --unsafe", directory).refused(2, "nothing was changed")
    assert raftlog("storage recover --json", directory).json == before
    recover = "storage recover --json --unsafe --yes --reason test --endpoint"
    done = succeed(recover, cluster.node(name).endpoint, directory)
    assert "Committed records that are not in this directory are lost" in done.err
    assert done.json["before"] == before
    assert done.json["epoch"] > before["vote_epoch"]
    generation: int = before["generation"]
    return generation


def _led_on(
    cluster: LocalCluster, name: str, acknowledged: dict[str, int], generation: int
) -> None:
    cluster.start(name)
    cluster.wait_ready([name], PATIENCE_S)
    image = asyncio.run(committed_image(cluster))
    assert not lost(acknowledged, image), "the best directory had all that was acknowledged"
    assert image.voters is not None
    assert [voter.id for voter in image.voters.voters] == [cluster.node(name).node_id]
    assert asyncio.run(generation_now(cluster)) not in (0, generation)
    # The broker still has the image of the old generation, perhaps for a moment more.
    read = "configs describe client-metrics settled --json"
    until(
        lambda: "yes" in raftlog(read, brokers=cluster).out,
        "the broker shows the new generation's state",
    )


def _restore(cluster: LocalCluster, backup: Path, said: dict[str, Any]) -> None:
    cluster.generate()
    for node in cluster.controllers:
        shutil.rmtree(cluster.data_path(node.name))
        done = succeed("restore --json --from", backup, "-c", cluster.config_path(node.name))
        assert (done.json["generation"], done.json["cluster_id"]) == (0, cluster.cluster_id)
        assert done.json["cluster_id"] != said["cluster_id"]
        assert done.json["state_hash"] == said["state_hash"]


def _begins_anew(cluster: LocalCluster, in_backup: dict[str, int], before: int) -> None:
    generation = asyncio.run(generation_now(cluster))
    assert generation not in (0, before)
    acknowledged = written(cluster, "new", 50)
    for node in cluster.controllers:
        described = succeed("log image --json", controllers=node.endpoint)
        kept = {one["resource_name"] for one in described.json["configs"]}
        assert kept >= in_backup.keys() | acknowledged.keys()
        assert "late-1-1" not in kept
