"""Writes while nodes restart one by one and the leader is killed. Durations are printed; the
asserted bounds are far above those of an idle machine (50 ms and 150 ms).
"""

import asyncio
import os
import signal
import time
from pathlib import Path
from statistics import median

import pytest
from cluster_kit import (
    PATIENCE_S,
    Load,
    committed_image,
    configure,
    controllers_of,
    lost,
    running,
    setting,
)

from raftlog.client.controller_client import ControllerClient
from raftlog.local.cluster import LocalCluster

RESTART_ROUNDS = 2
KILLS = int(os.environ.get("RAFTLOG_LEADER_KILLS", "10"))
RESTART_GAP_S = 5.0
"""Median of the longest gaps."""
KILL_GAP_S = 5.0
"""Median of the times from the kill to the first write that is acknowledged."""


@pytest.fixture
def cluster(three_controllers: LocalCluster) -> LocalCluster:
    return three_controllers


async def caught_up(cluster: LocalCluster) -> None:
    """Wait until all voters follow, so that the next restart leaves a majority."""
    await asyncio.to_thread(
        cluster.wait_ready, [node.name for node in cluster.controllers], PATIENCE_S
    )


def in_ms(gaps_s: list[float]) -> str:
    return (
        f"median {median(gaps_s) * 1000:.0f} ms, of {sorted(round(gap * 1000) for gap in gaps_s)}"
    )


@pytest.mark.nightly
async def test_rolling_restart_under_writes_loses_nothing(cluster: LocalCluster) -> None:
    gaps_s: list[float] = []
    led_s: list[float] = []
    async with controllers_of(cluster) as client:
        load = Load(client, prefix="restart", writers=8)
        await load.more(100)
        for _ in range(RESTART_ROUNDS):
            leader = await asyncio.to_thread(cluster.wait_leader, PATIENCE_S)
            # The leader comes last: so each round restarts each node once, and there is one
            # hand-over a round at least.
            for node in sorted(cluster.controllers, key=lambda one: one == leader):
                led = await asyncio.to_thread(cluster.wait_leader, PATIENCE_S)
                await load.more(20)
                load.longest_gap_s = 0.0
                assert await asyncio.to_thread(cluster.stop, [node.name], 20) == [], (
                    f"{node.name} had to be killed"
                )
                await load.more(20)
                cluster.start(node.name)
                await caught_up(cluster)
                await load.more(20)
                (led_s if node == led else gaps_s).append(load.longest_gap_s)
        await load.stop()
    print(f"restarts of followers: longest gap {in_ms(gaps_s)}; of leaders: {in_ms(led_s)}")
    assert median(gaps_s + led_s) < RESTART_GAP_S
    assert lost(load.acknowledged, await committed_image(cluster)) == []


async def _kill_leader(
    cluster: LocalCluster, client: ControllerClient, round_: int
) -> tuple[float, dict[str, int]]:
    """Kill the leader under load; return the seconds to the next write, and acknowledged writes."""
    leader = await asyncio.to_thread(cluster.wait_leader, PATIENCE_S)
    load = Load(client, prefix=f"kill-{round_}", writers=8)
    await load.more(50)
    epoch = load.epoch
    killed_at = time.monotonic()
    assert cluster.kill(leader.name, signal.SIGKILL)
    while load.epoch <= epoch:
        assert time.monotonic() - killed_at < PATIENCE_S, "nobody took over"
        await asyncio.sleep(0.001)
    took_s = time.monotonic() - killed_at
    await load.more(20)
    await load.stop()
    cluster.start(leader.name)
    await caught_up(cluster)
    return took_s, load.acknowledged


@pytest.mark.nightly
async def test_repeatedly_killed_leader_loses_no_write(cluster: LocalCluster) -> None:
    acknowledged: dict[str, int] = {}
    took_s: list[float] = []
    async with controllers_of(cluster) as client:
        for round_ in range(KILLS):
            took, written = await _kill_leader(cluster, client, round_)
            took_s.append(took)
            acknowledged |= written
    print(f"from kill -9 of the leader to the first acknowledged write: {in_ms(took_s)}")
    assert median(took_s) < KILL_GAP_S
    assert lost(acknowledged, await committed_image(cluster)) == []


@pytest.mark.nightly
async def test_quorum_whose_nodes_swap_addresses_elects_a_leader(tmp_path: Path) -> None:
    """[Each dialed the others at their addresses in the log, and another voter answered.]"""
    made = LocalCluster(tmp_path / "c", controllers=3, brokers=0)
    with running(made):
        async with controllers_of(made) as client:
            await client.call(setting("before", "1"), timeout_s=PATIENCE_S)
        for node in made.controllers:
            assert made.kill(node.name, signal.SIGKILL)
            assert made.wait_gone(node.name, PATIENCE_S)
        # The log has node 1 where node 3 is, and so on.
        turned = [*made.controllers[1:], made.controllers[0]]
        for node, there in zip(made.controllers, turned, strict=True):
            voters = [
                f"{one.node_id}@{at.endpoint}"
                for one, at in zip(made.controllers, turned, strict=True)
            ]
            configure(
                made, node, {"listeners": [there.endpoint], "controller.quorum.voters": voters}
            )
        for node in made.controllers:
            made.start(node.name)
        async with controllers_of(made) as client:
            await client.call(setting("after", "1"), timeout_s=PATIENCE_S)
            image = await committed_image(made)
        assert {"before", "after"} <= {name for _, name in image.configs}
