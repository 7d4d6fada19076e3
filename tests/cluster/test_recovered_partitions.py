"""Partitions after an unsafe recovery with old metadata."""

import asyncio
import shutil
import signal
import sys
from functools import partial
from pathlib import Path

import pytest
from cluster_kit import (
    PATIENCE_S,
    crash,
    metric,
    raftlog,
    running,
    says,
    succeed,
    until,
    until_true,
)
from data_kit import SETTINGS, TOPIC, DataWorld, Load, clients_of, in_sync, nothing_is_lost
from mixed_builds import MixedCluster

from raftlog.local.cluster import LocalCluster, Node
from raftlog.metadata.control_records import EPOCHS_PER_RECOVERY

WITHOUT_EPOCH_FLOOR = """
from controller.state import batched_changes
batched_changes.first_leader_epoch = lambda recoveries: 0
from raftlog.cli.main import main
main()
"""
PARTITIONS = 3


def create(cluster: LocalCluster, name: str) -> None:
    succeed(f"topics create {name} -p {PARTITIONS} -r 3", brokers=cluster)


async def all_in_sync(world: DataWorld) -> None:
    for index in range(PARTITIONS):
        await in_sync(world, index)


async def elections(cluster: LocalCluster, world: DataWorld) -> None:
    """Take each broker out and back in once, for more leader epochs than the old metadata."""
    for node in cluster.brokers:
        await asyncio.to_thread(cluster.stop, [node.name], 10)
        await asyncio.to_thread(cluster.start, node.name)
        await asyncio.to_thread(cluster.wait_ready, [node.name], PATIENCE_S)
        await all_in_sync(world)


async def serves_again(world: DataWorld, wanted: set[int]) -> Load:
    """Assert that every partition accepts and returns records."""
    load = Load(world.producer())

    async def everywhere() -> bool:
        return {partition for partition, _ in load.acknowledged.values()} >= wanted

    await until_true(everywhere, f"partitions {sorted(wanted)} take records")
    await load.more(50)
    await load.stop()
    return load


def keep(cluster: LocalCluster, kept: Path) -> None:
    """Copy the controller's directory."""
    (node,) = cluster.controllers
    cluster.stop([node.name], 10)
    shutil.copytree(cluster.data_path(node.name), kept)
    cluster.start(node.name)
    cluster.wait_leader(PATIENCE_S)


def take_back(cluster: LocalCluster, kept: Path) -> None:
    """Kill the controller, and recover it from the copy."""
    (node,) = cluster.controllers
    crash(cluster, node.name)
    shutil.rmtree(cluster.data_path(node.name))
    shutil.copytree(kept, cluster.data_path(node.name))
    recover(cluster)


def recover(cluster: LocalCluster) -> None:
    """Recover the controller's directory as a quorum of one, and start it."""
    (node,) = cluster.controllers
    command = "storage recover --unsafe --yes --reason test --endpoint"
    succeed(command, node.endpoint, cluster.data_path(node.name))
    cluster.start(node.name)
    cluster.wait_leader(PATIENCE_S)


@pytest.mark.nightly
def test_partitions_serve_again_whatever_elections_were_lost(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "c", controllers=1, brokers=3, settings=SETTINGS)
    kept = tmp_path / "kept"

    async def live() -> None:
        async with clients_of(cluster) as world:
            load = Load(world.producer())
            await load.more(100)
            await asyncio.to_thread(keep, cluster, kept)
            await elections(cluster, world)
            await load.more(100)
            await load.stop()
            await asyncio.to_thread(create, cluster, "forgotten")
            await all_in_sync(world)
            cluster.kill(late, signal.SIGKILL)
            await asyncio.to_thread(take_back, cluster, kept)
        async with clients_of(cluster) as world:
            load.acknowledged |= (await serves_again(world, set(range(PARTITIONS)))).acknowledged
            await nothing_is_lost(world, load)
            cluster.start(late)
            await asyncio.to_thread(cluster.wait_ready, [late], PATIENCE_S)
            await all_in_sync(world)
            load.acknowledged |= (await serves_again(world, set(range(PARTITIONS)))).acknowledged
            await nothing_is_lost(world, load)

    cluster.generate()
    late = cluster.brokers[-1].name
    with running(cluster):
        create(cluster, TOPIC)
        asyncio.run(live())
        shown = raftlog(f"topics describe {TOPIC} --json", brokers=cluster)
        assert all(
            row["leader_epoch"] >= EPOCHS_PER_RECOVERY
            for row in shown.json["items"][0]["partitions"]
        )


@pytest.mark.nightly
def test_unled_partitions_are_reported_until_their_epochs_are_raised(tmp_path: Path) -> None:
    """The controller first leaves the leader epochs as the recovery found them."""
    other = [sys.executable, "-c", WITHOUT_EPOCH_FLOOR]
    cluster = MixedCluster(tmp_path / "c", other, controllers=1, brokers=2, settings=SETTINGS)
    LocalCluster.generate(cluster)
    (controller,) = cluster.controllers
    cluster.of_other.add(controller.name)
    at, servers = (
        ("--bootstrap-controller", controller.endpoint),
        ("--bootstrap-server", cluster.bootstrap_servers),
    )
    try:
        cluster.start_controllers()
        cluster.wait_leader(PATIENCE_S)
        cluster.start_brokers()
        names = [node.name for node in cluster.nodes]
        cluster.wait_ready(names, PATIENCE_S)
        succeed(f"topics create {TOPIC} --replica-assignment 2:3,3:2", *servers)
        for partition in (0, 1):
            values = ("--value", f"a{partition}", "--value", f"b{partition}")
            succeed(f"produce {TOPIC}", *values, "--partition", partition, *servers)
        succeed(f"partitions elect {TOPIC}", *at)
        assert not_served(cluster.brokers[0]) == 0
        crash(cluster, controller.name)
        recover(cluster)

        for node in cluster.brokers:
            until(
                partial(lambda one: not_served(one) == 1, node),
                f"{node.name} counts its partition",
            )
            ready, why = cluster.ready(node.name)
            assert not ready
            says(
                why,
                rf"1 partition not led, although the metadata says so: {TOPIC}:[01]: the log has"
                r" records of leader epoch",
            )
        described = raftlog(f"topics describe {TOPIC} --json", *servers)
        for row in described.json["items"][0]["partitions"]:
            assert row["leader"] in (2, 3), "by the metadata"
            says(
                described.json["not_served"][f"{TOPIC}:{row['index']}"],
                rf"broker {row['leader']} does not lead it: KAFKA_STORAGE_ERROR: the log has"
                r" records",
            )
        consumed = raftlog(f"consume {TOPIC} --from-beginning --timeout 3", *servers)
        assert (consumed.code, consumed.out) == (4, "")
        says(
            consumed.err,
            f"2 partitions cannot be read: {TOPIC}:0: KAFKA_STORAGE_ERROR: the log has records",
        )
        produced = raftlog(f"produce {TOPIC} --value c --partition 0 --timeout 3", *servers)
        assert produced.code in (1, 4)
        says(
            produced.err, "the log has records of leader epoch", "0 records written, 1 not written"
        )
        for where in (at, servers):
            elected = raftlog(f"partitions elect {TOPIC}", *where).refused(3)
            says(
                elected.err,
                f"no election is needed, but these partitions are not served: {TOPIC}:0: broker 2"
                " does not lead it",
            )

        cluster.change(controller.name, to_other=False)
        cluster.wait_ready(names, PATIENCE_S)
        for partition in (0, 1):
            succeed(f"produce {TOPIC} --value c{partition} --partition", partition, *servers)
        consumed = raftlog(f"consume {TOPIC} --from-beginning --timeout 3", *servers)
        assert consumed.code == 0
        assert sorted(consumed.out.split()) == ["a0", "a1", "b0", "b1", "c0", "c1"]
        succeed(f"partitions elect {TOPIC}", *at)
        shown = raftlog(f"topics describe {TOPIC} --json", *servers)
        assert shown.json["not_served"] == {}
        assert [not_served(node) for node in cluster.brokers] == [0, 0]
    finally:
        cluster.stop_all(timeout_s=5)


def not_served(node: Node) -> float:
    return metric(node, 'raftlog_partitions_not_served{reason="log_ahead_of_metadata"}')
