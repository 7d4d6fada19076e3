import asyncio
import os
import random
import signal

import pytest
from cluster_kit import PATIENCE_S, Load, committed_image, controllers_of, lost
from tiers import nightly

from raftlog.local.cluster import LocalCluster

ROUNDS = int(os.environ.get("RAFTLOG_KILL_ROUNDS", "10"))


async def burst(cluster: LocalCluster, rounds: int, round_: int) -> dict[str, int]:
    """Write until everything is dead; return the offset of each acknowledged write."""
    async with controllers_of(cluster) as client:
        load = Load(client, prefix=f"round-{round_}-of-{rounds}", writers=64)
        await load.more(500)
        await asyncio.sleep(random.Random(round_).random() * 0.2)
        for node in cluster.controllers:
            cluster.kill(node.name, signal.SIGKILL)
        await load.stop()
    return load.acknowledged


@pytest.mark.parametrize("rounds", [2, nightly(ROUNDS)])
def test_acknowledged_writes_survive_the_death_of_all_controllers(
    three_controllers: LocalCluster, rounds: int
) -> None:
    cluster, acknowledged = three_controllers, dict[str, int]()
    names = [node.name for node in cluster.controllers]
    for round_ in range(rounds):
        acknowledged |= asyncio.run(burst(cluster, rounds, round_))
        assert all(cluster.wait_gone(name) for name in names)
        cluster.start_controllers()
        cluster.wait_ready(names, PATIENCE_S)
    missing = lost(acknowledged, asyncio.run(committed_image(cluster)))
    print(f"{len(acknowledged)} writes acknowledged before {rounds} deaths of all nodes")
    assert len(acknowledged) >= 500 * rounds
    assert missing == []
