"""Visible writes are answered at once in a quiet cluster, although brokers report the LAO that they
were told with their next fetch, and nothing else is written.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from raftlog.client.controller_client import ControllerClient
from raftlog.client.requests import controller_request
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb
from simulation.checks.suite import all_checkers
from simulation.outcome import Outcome
from simulation.swarm.config import SwarmConfig
from simulation.twins.loop import run
from simulation.world import World

CONFIG = SwarmConfig(voters=1, brokers=3, clients=0, session_timeout_ms=9000)
IDLE_S = 0.3
AT_ONCE_S = 0.1
"""Far below the time that a fetch waits, and that lies between two heartbeats."""


def numbered(client_id: int, generation: int, acks: common_pb2.Acks) -> pb.ControllerRequest:
    config = pb.AlterableConfig(name="num.io.threads", value="9")
    resource = pb.AlterConfigsResource(resource_type=4, resource_name="", configs=[config])
    return controller_request(
        pb.IncrementalAlterConfigsRequest(resources=[resource]),
        acks=acks,
        client=common_pb2.ClientIdentity(client_id=client_id, sequence=1, generation=generation),
    )


async def retried(operator: ControllerClient) -> float:
    opened = await operator.call(pb.OpenClientRequest(name="c"))
    client = opened.open_client.client_id, opened.write.token.generation
    await operator.call(numbered(*client, common_pb2.ACKS_COMMITTED))
    await asyncio.sleep(IDLE_S)
    begun = asyncio.get_running_loop().time()
    again = await operator.call(numbered(*client, common_pb2.ACKS_VISIBLE), timeout_s=10.0)
    assert again.write.duplicate
    assert again.write.reached == common_pb2.ACKS_VISIBLE
    return asyncio.get_running_loop().time() - begun


async def written_one_by_one(operator: ControllerClient) -> float:
    """Return the longest time that a visible write took."""
    longest_s = 0.0
    for number in range(5):
        await asyncio.sleep(IDLE_S)
        begun = asyncio.get_running_loop().time()
        body = pb.OpenClientRequest(name=f"c{number}")
        written = await operator.call(
            controller_request(body, acks=common_pb2.ACKS_VISIBLE), timeout_s=10.0
        )
        assert written.write.reached == common_pb2.ACKS_VISIBLE
        longest_s = max(longest_s, asyncio.get_running_loop().time() - begun)
    return longest_s


@pytest.mark.parametrize("brokers", [1, 3])
@pytest.mark.parametrize("writes", [retried, written_one_by_one])
def test_visible_write_is_answered_at_once_in_a_quiet_cluster(
    writes: Callable[[ControllerClient], Awaitable[float]], brokers: int
) -> None:
    config = replace(CONFIG, brokers=brokers)

    async def main() -> float:
        world = World(7, config, all_checkers(), Outcome(7, config))
        for host in world.fleet.hosts():
            host.start()
        await world.until(world.is_up, 30.0, "the test goes on")
        await asyncio.sleep(1.0)
        transport = world.network.transport_for("client")
        operator = ControllerClient(transport, world.fleet.endpoints, rng=random.Random(1))
        try:
            return await writes(operator)
        finally:
            operator.close()
            world.finish()

    assert run(main()) < AT_ONCE_S
