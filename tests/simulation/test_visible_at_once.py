"""A retry that waits for every broker to know LAO is answered at once, although brokers report what
they were told with their next fetch, and nothing else is written.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest
import structlog

from raftlog.client.controller_client import ControllerClient
from raftlog.client.requests import controller_request
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb
from simulation.checks.suite import all_checkers
from simulation.cli import silence
from simulation.outcome import Outcome
from simulation.swarm.config import SwarmConfig
from simulation.twins.loop import run
from simulation.world import World

CONFIG = SwarmConfig(voters=1, brokers=3, clients=0, session_timeout_ms=9000)
IDLE_S = 0.3
AT_ONCE_S = 0.1
"""Far below the time that a fetch waits, and that lies between two heartbeats."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    silence()
    yield
    structlog.reset_defaults()


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


def test_a_retry_until_visible_is_answered_at_once() -> None:
    async def main() -> float:
        world = World(7, CONFIG, all_checkers(), Outcome(7, CONFIG))
        for host in world.fleet.hosts():
            host.start()
        await world.until(world.is_up, 30.0, "the test goes on")
        await asyncio.sleep(1.0)
        transport = world.network.transport_for("client")
        operator = ControllerClient(transport, world.fleet.endpoints, rng=random.Random(1))
        try:
            return await retried(operator)
        finally:
            operator.close()
            world.finish()

    assert run(main()) < AT_ONCE_S
