"""Writes while the leader is killed. Durations are printed; the asserted bound is far above that of
an idle machine (150 ms).
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
    crash,
    lost,
    running,
    setting,
)

from raftlog.client.controller_client import ControllerClient
from raftlog.local.cluster import LocalCluster

KILLS = int(os.environ.get("RAFTLOG_LEADER_KILLS", "10"))
KILL_GAP_S = 5.0
"""Median of the times from the kill to the first write that is acknowledged."""


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
    # A majority has to be left when the next leader is killed.
    names = [node.name for node in cluster.controllers]
    await asyncio.to_thread(cluster.wait_ready, names, PATIENCE_S)
    return took_s, load.acknowledged


@pytest.mark.nightly
async def test_repeatedly_killed_leader_loses_no_write(three_controllers: LocalCluster) -> None:
    cluster, acknowledged = three_controllers, dict[str, int]()
    took_s: list[float] = []
    async with controllers_of(cluster) as client:
        for round_ in range(KILLS):
            took, written = await _kill_leader(cluster, client, round_)
            took_s.append(took)
            acknowledged |= written
    print(
        f"from kill -9 of the leader to the first acknowledged write: median"
        f" {median(took_s) * 1000:.0f} ms, of {sorted(round(one * 1000) for one in took_s)}"
    )
    assert median(took_s) < KILL_GAP_S
    assert lost(acknowledged, await committed_image(cluster)) == []


@pytest.mark.nightly
async def test_quorum_whose_nodes_swap_addresses_elects_a_leader(tmp_path: Path) -> None:
    """[Each dialed the others at their addresses in the log, and another voter answered.]"""
    made = LocalCluster(tmp_path / "c", controllers=3, brokers=0)
    with running(made):
        async with controllers_of(made) as client:
            await client.call(setting("before", "1"), timeout_s=PATIENCE_S)
        crash(made, *(node.name for node in made.controllers))
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
