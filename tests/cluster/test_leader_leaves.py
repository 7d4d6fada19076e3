"""The active controller stops or sleeps under load."""

import asyncio
import itertools
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cluster_kit import (
    PATIENCE_S,
    Load,
    committed_image,
    controllers_of,
    lost,
    restart,
    running,
    says,
    until,
    until_true,
)
from cluster_kit import raftlog as raftlog_command

import raftlog
from raftlog.local.cluster import LocalCluster, Node

GAP_S = 10.0
"""Bound in seconds for a leadership transfer, which takes some 20 ms on an idle machine."""
SLEEP_S = 3.0


@pytest.fixture
def cluster(three_controllers: LocalCluster) -> LocalCluster:
    return three_controllers


async def role(cluster: LocalCluster, node: Node) -> tuple[str, int]:
    """Return (role, epoch) as a node reports them."""
    quorum = await asyncio.to_thread(cluster.quorum, 2.0)  # One that sleeps uses up the time.
    found = next((one for one in quorum.descriptions if one.node_id == node.node_id), None)
    return (found.role, found.leader_epoch) if found is not None else ("", -1)


async def test_stopped_leader_transfers_its_leadership(cluster: LocalCluster) -> None:
    leader = await asyncio.to_thread(cluster.wait_leader, PATIENCE_S)
    async with controllers_of(cluster) as client:
        load = Load(client, prefix="stopped")
        await load.more(200)
        epoch, load.longest_gap_s = load.epoch, 0.0
        assert cluster.kill(leader.name, signal.SIGTERM)
        await load.more(200)
        await load.led_by_another(epoch)
        await load.more(100)
        await load.stop()
    assert load.unknown == [], (
        "what was on its way to the old leader was refused by it, not cut off"
    )
    assert load.longest_gap_s < GAP_S
    assert await asyncio.to_thread(cluster.wait_gone, leader.name, PATIENCE_S)
    says(cluster.log_path(leader.name).read_text().splitlines()[-1], "controller stopped")
    assert lost(load.acknowledged, await committed_image(cluster)) == []
    await asyncio.to_thread(restart, cluster, leader.name)


@pytest.mark.nightly
async def test_leader_that_slept_steps_down_when_it_wakes(cluster: LocalCluster) -> None:
    leader = await asyncio.to_thread(cluster.wait_leader, PATIENCE_S)
    others = [node for node in cluster.controllers if node != leader]
    async with controllers_of(cluster) as client:
        load = Load(client, prefix="asleep")
        await load.more(200)
        epoch = load.epoch
        assert cluster.kill(leader.name, signal.SIGSTOP)
        asleep_at = asyncio.get_running_loop().time()
        try:

            async def led_by_another() -> bool:
                roles = [await role(cluster, node) for node in others]
                return any(name == "leader" and led > epoch for name, led in roles)

            await until_true(led_by_another, "another leads while the old leader sleeps")
            await load.more(200)
            await asyncio.sleep(max(0.0, SLEEP_S - (asyncio.get_running_loop().time() - asleep_at)))
        finally:
            assert cluster.kill(leader.name, signal.SIGCONT)

        async def stepped_down() -> bool:
            name, now = await role(cluster, leader)
            return name == "follower" and now > epoch

        await until_true(stepped_down, "the old leader follows")
        await load.more(100)
        await load.stop()
    assert load.epoch > epoch
    assert lost(load.acknowledged, await committed_image(cluster)) == []
    await asyncio.to_thread(
        cluster.wait_ready, [node.name for node in cluster.controllers], PATIENCE_S
    )


@pytest.mark.nightly
def test_visible_writes_succeed_when_leaders_are_transferred_and_restarted(tmp_path: Path) -> None:
    made = LocalCluster(tmp_path / "c", controllers=3, brokers=3)
    with running(made), ThreadPoolExecutor() as pool:
        stopping = threading.Event()

        def write(number: int, acks: raftlog.Acks) -> int:
            with raftlog.connect([node.endpoint for node in made.brokers], timeout_s=30) as client:
                for count in itertools.count(1):
                    # Raises if the level is not reached.
                    client.kv.put(f"key-{number}", str(count), acks=acks)
                    if stopping.is_set():
                        return count
            return 0

        levels = [*[raftlog.Acks.VISIBLE] * 3, raftlog.Acks.ACKNOWLEDGED]
        writers = [pool.submit(write, *each) for each in enumerate(levels)]
        try:
            for _ in range(4):
                leader = made.wait_leader(PATIENCE_S)
                raftlog_command("quorum transfer", controllers=made)
                until(lambda: made.wait_leader(PATIENCE_S) != leader, "another leads")  # noqa: B023
            for _ in range(2):
                leader = made.wait_leader(PATIENCE_S)
                assert made.kill(leader.name, signal.SIGTERM)
                restart(made, leader.name)
        finally:
            stopping.set()
        assert all(writer.result(PATIENCE_S) > 10 for writer in writers)
