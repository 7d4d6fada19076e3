"""How long writes stand still with real processes: the leader killed, and every controller restarted in order."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time
from collections.abc import Iterator

import pytest
from cluster_kit import PATIENCE_S, Load, committed_image, controllers_of, lost

from raftlog.cli.local import LocalCluster

KILLS = 10
KILL_MEDIAN_S, RESTART_MEDIAN_S = 0.15, 0.10
BUSY_FACTOR = 20
"""On a machine that has more to do than it has processors, times say little."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    made = LocalCluster(tmp_path_factory.mktemp("times") / "c", controllers=3, brokers=0)
    made.generate()
    try:
        made.start_controllers()
        made.wait_ready([node.name for node in made.controllers], PATIENCE_S)
        yield made
    finally:
        made.stop_all(timeout_s=5)


def assert_median(seconds: list[float], most_s: float) -> None:
    """On a machine that is busy with other things, only that it is no timeout."""
    busy = os.getloadavg()[0] > (os.cpu_count() or 1)
    assert statistics.median(seconds) <= most_s * (BUSY_FACTOR if busy else 1), seconds


async def test_a_killed_leader_is_replaced_at_once(cluster: LocalCluster) -> None:
    gaps: list[float] = []
    async with controllers_of(cluster) as client:
        load = Load(client, prefix="killed", writers=4)
        for _ in range(KILLS):
            await load.more(20)
            leader = await asyncio.to_thread(cluster.wait_leader, PATIENCE_S)
            epoch, before = load.epoch, time.monotonic()
            assert cluster.kill(leader.name, signal.SIGKILL)
            while load.epoch == epoch:
                assert time.monotonic() - before < PATIENCE_S
                await asyncio.sleep(0.002)
            gaps.append(time.monotonic() - before)
            assert await asyncio.to_thread(cluster.wait_gone, leader.name, PATIENCE_S)
            cluster.start(leader.name)
            await asyncio.to_thread(cluster.wait_ready, [leader.name], PATIENCE_S)
        await load.stop()
    assert lost(load.acknowledged, await committed_image(cluster)) == []
    assert_median(gaps, KILL_MEDIAN_S)


async def test_a_quorum_is_restarted_one_by_one_without_a_noticeable_gap(cluster: LocalCluster) -> None:
    gaps: list[float] = []
    async with controllers_of(cluster) as client:
        load = Load(client, prefix="restarted", writers=4)
        for _ in range(2):
            for node in cluster.controllers:
                await load.more(20)
                load.longest_gap_s = 0.0
                assert cluster.kill(node.name, signal.SIGTERM)
                assert await asyncio.to_thread(cluster.wait_gone, node.name, PATIENCE_S)
                cluster.start(node.name)
                await asyncio.to_thread(cluster.wait_ready, [node.name], PATIENCE_S)
                await load.more(20)
                gaps.append(load.longest_gap_s)
        await load.stop()
    assert lost(load.acknowledged, await committed_image(cluster)) == []
    assert_median(gaps, RESTART_MEDIAN_S)
