"""A feature level is raised in a cluster of two broker builds: clients learn of it when every
broker has applied it, and not before.

The same life with the gate patched out: the broker that is ahead tells its clients when it has
applied the level itself, and the one behind has not.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from raftlog.client.controller_client import ControllerClient
from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.versions import METADATA_VERSION
from raftlog.transport.api import Conversation
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb
from simulation.checks.levels import Levels
from simulation.checks.suite import all_checkers
from simulation.mutants.edits import Edit, edited
from simulation.outcome import Outcome
from simulation.round_robin import RoundRobinClient
from simulation.swarm.config import SwarmConfig
from simulation.twins.loop import run
from simulation.world import World

BEHIND_S = 3.0
CONFIG = SwarmConfig(voters=1, brokers=2, clients=0, release_version=1, session_timeout_ms=9000)
WITHOUT_THE_GATE = (
    Edit(
        "broker.service.api_versions:ApiVersions.moved",
        "image = view.repeatable",
        "image = view.tip",
    ),
)


class Cluster:
    """One controller, a broker of this build, and one that begins as a build that knows
    metadata.version 1 at most.
    """

    def __init__(self) -> None:
        # Levels would end the run at the broker's notice: here the client is to get it.
        checkers = [checker for checker in all_checkers() if not isinstance(checker, Levels)]
        self.world = World(7, CONFIG, checkers, Outcome(7, CONFIG))
        self.new, self.old = self.world.members
        self.old.be_of_build(1)
        transport = self.world.network.transport_for("client")
        self.operator = ControllerClient(
            transport, self.world.fleet.endpoints, rng=random.Random(1)
        )
        self.client = RoundRobinClient(
            transport,
            [host.endpoint for host in self.world.members],
            rng=random.Random(2),
        )
        self.told: list[int] = []

    async def begin(self) -> None:
        for host in self.world.fleet.hosts():
            host.start()
        await self.until(self.world.is_up)

    async def until(self, condition: Callable[[], bool]) -> None:
        await self.world.until(condition, 30.0, "the test goes on")

    async def raise_level(self) -> int:
        update = pb.FeatureUpdate(name=METADATA_VERSION, max_version_level=2, upgrade_type=1)
        response = await self.operator.call(pb.UpdateFeaturesRequest(updates=[update]))
        return response.write.token.offset

    async def read(self) -> None:
        """Read at both brokers. A level that the client was told of, each of them has applied."""
        offered = await self.client.api_versions()
        self.told += [
            one.level for one in offered.finalized_features if one.name == METADATA_VERSION
        ]
        for host in self.world.members:
            if host.service is not None and not host.service.why_fenced():
                known = host.service.image.features[METADATA_VERSION]
                assert known >= self.told[-1], f"{host.name} is at {known}"
        body = broker_pb2.MetadataRequest()
        reads = [asyncio.ensure_future(self.client.read(body, timeout_s=10.0)) for _ in range(2)]
        await asyncio.gather(*reads)

    async def read_for(self, seconds: float) -> None:
        end = self.world.now() + seconds
        while self.world.now() < end:
            await self.read()
            await asyncio.sleep(0.01)

    def close(self) -> None:
        self.operator.close()
        self.client.close()


async def upgraded(cluster: Cluster) -> None:
    """Both brokers become of this build, one behind the other; nothing that the client does may
    fail, whichever it asks.
    """
    await cluster.begin()
    await cluster.read_for(0.5)
    with pytest.raises(ApiError) as refused:
        await cluster.raise_level()
    assert refused.value.code is ErrorCode.INVALID_UPDATE_VERSION
    assert "broker 2" in refused.value.message
    cluster.old.kill()
    cluster.old.be_of_build(2)
    cluster.old.start()
    await cluster.until(
        lambda: cluster.old.service is not None and not cluster.old.service.why_fenced()
    )
    await cluster.read_for(0.5)
    assert set(cluster.told) == {1}
    # From here on the log comes late to the second broker.
    stalled = cluster.world.network.stall("c1", cluster.old.name, BEHIND_S, Conversation.OBSERVER)
    assert stalled == 1
    offset = await cluster.raise_level()
    begun = cluster.world.now()
    await cluster.read_for(BEHIND_S / 2)
    assert cluster.new.service is not None
    assert cluster.new.service.image.offset >= offset
    assert cluster.old.service is not None
    assert cluster.old.service.image.offset < offset
    assert cluster.told[-1] == 1
    while cluster.told[-1] != 2:
        await cluster.read()
        await asyncio.sleep(0.01)
        assert cluster.world.now() < begun + 10 * BEHIND_S
    assert cluster.old.service.image.offset >= offset, (
        "a level that a client is told of, every broker has applied"
    )
    await cluster.read_for(1.0)
    config = pb.AlterableConfig(name="num.io.threads", value="9")
    resource = pb.AlterConfigsResource(resource_type=4, resource_name="", configs=[config])
    write = await cluster.client.write(
        pb.IncrementalAlterConfigsRequest(resources=[resource]), acks=common_pb2.ACKS_VISIBLE
    )
    assert write.write.reached == common_pb2.ACKS_VISIBLE


def live(test: Callable[[Cluster], Awaitable[object]]) -> None:
    async def main() -> None:
        cluster = Cluster()
        try:
            await test(cluster)
        finally:
            cluster.close()
            cluster.world.finish()

    run(main())


def test_no_call_fails_while_a_level_is_raised_with_a_broker_behind() -> None:
    live(upgraded)


def test_client_learns_a_level_early_without_the_gate() -> None:
    with edited(WITHOUT_THE_GATE), pytest.raises(AssertionError, match="b2 is at 1"):
        live(upgraded)
