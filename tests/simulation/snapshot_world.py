"""Controllers, brokers and a writing client in the simulated world, with snapshots so frequent that
they matter.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import uuid
from collections.abc import Callable
from typing import Any

from broker.service.service import BrokerService
from broker.settings import BrokerSettings
from controller.service.service import ControllerService
from controller.settings import ControllerSettings
from raftlog.client.controller_client import ControllerClient
from raftlog.errors import ApiError, FatalError
from raftlog.metadata.entities import Process
from raftlog.metadata.versions import LATEST_METADATA_VERSION
from raftlog.node.storage.api import NodeIdentity
from raftlog.quorum.config import QuorumConfig, Voter
from raftlog.wire.controller.v1 import controller_pb2 as pb
from simulation.twins.disk import SimDisk
from simulation.twins.loop import host_context
from simulation.twins.network import SimNetwork

CLUSTER = "s"
OFTEN = {
    "metadata_log_max_record_bytes_between_snapshots": 20_000,
    "metadata_max_retention_bytes": 60_000,
    "broker_session_timeout_ms": 3_000,
}


class Node:
    """One controller, whose disk outlives its process."""

    def __init__(self, world: World, node_id: int) -> None:
        self.world, self.id, self.name = world, node_id, f"c{node_id}"
        self.disk = SimDisk(
            NodeIdentity(CLUSTER, node_id, f"dir-{node_id}"), random.Random(node_id)
        )
        self.failures: list[FatalError] = []
        self.service: ControllerService
        self.is_up = False
        self.lives = 0

    def start(self) -> None:
        self.is_up, self.lives = True, self.lives + 1
        transport = self.world.network.transport_for(self.name)
        service = self.service = ControllerService(
            ControllerSettings(**self.world.settings),
            QuorumConfig(
                CLUSTER,
                self.id,
                f"dir-{self.id}",
                self.world.voters,
                max_metadata_version=LATEST_METADATA_VERSION,
            ),
            self.disk.open(),
            transport,
            rng=random.Random(1000 * self.lives + self.id),
            wall_clock_ms=lambda: 1_000_000 + int(asyncio.get_running_loop().time() * 1000),
            on_failure=self.failures.append,
        )

        async def up() -> None:
            await transport.listen(f"{self.name}:9093", service.acceptors())
            service.recover()
            service.replica.core.validate_each_step = True
            service.start()

        asyncio.get_running_loop().create_task(up(), context=host_context(self.name))

    def kill(self, rng: random.Random | None = None) -> None:
        """Lose the process and what was not flushed."""
        self.is_up = False
        self.service.close()
        self.world.network.crash(self.name)
        self.disk.crash(rng or random.Random(7))

    @property
    def active(self) -> bool:
        return self.is_up and self.service.node.decider is not None

    @property
    def log_start(self) -> int:
        return self.service.replica.log_start_offset

    @property
    def state(self) -> tuple[int, int]:
        return self.service.image.offset, self.service.image.state_hash


class Broker:
    """One broker; each start is a new incarnation."""

    def __init__(self, world: World, broker_id: int) -> None:
        self.world, self.id, self.name = world, broker_id, f"b{broker_id}"
        self.service: BrokerService
        self.lives = 0

    def start(self) -> None:
        self.lives += 1
        service = self.service = BrokerService(
            BrokerSettings(
                broker_id=self.id,
                cluster_id=CLUSTER,
                controllers=tuple(voter.endpoint for voter in self.world.voters),
                listen=f"{self.name}:9092",
                advertised_host=self.name,
            ),
            self.world.network.transport_for(self.name),
            process=Process("boot", f"dir-{self.name}", 1, self.id),
            incarnation_id=str(uuid.UUID(int=self.id * 1000 + self.lives)),
            rng=random.Random(self.id * 1000 + self.lives),
        )

        async def up() -> None:
            await service.start()

        asyncio.get_running_loop().create_task(up(), context=host_context(self.name))

    def kill(self) -> None:
        self.world.network.crash(self.name)

    @property
    def state(self) -> tuple[int, int]:
        return self.service.image.offset, self.service.image.state_hash


class World:
    def __init__(self, seed: int = 5, **settings: Any) -> None:
        self.settings = {**OFTEN, **settings}
        self.network = SimNetwork(random.Random(seed))
        self.voters = tuple(Voter(i, f"c{i}:9093") for i in (1, 2, 3))
        self.nodes = [Node(self, voter.node_id) for voter in self.voters]
        self.brokers: list[Broker] = []
        self.client = ControllerClient(
            self.network.transport_for("client"),
            [voter.endpoint for voter in self.voters],
            rng=random.Random(9),
        )
        self.written: dict[str, str] = {}
        self._numbers = itertools.count()
        for node in self.nodes:
            node.start()

    def broker(self, broker_id: int) -> Broker:
        made = Broker(self, broker_id)
        self.brokers.append(made)
        made.start()
        return made

    async def until(
        self, condition: Callable[[], Any], within_s: float = 60.0, what: str = "it"
    ) -> Any:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while not (found := condition()):
            self.check()
            assert loop.time() < deadline, f"{what} did not happen in time"
            await asyncio.sleep(0.005)
        return found

    def check(self) -> None:
        assert not self.network.handler_failures, self.network.handler_failures
        for node in self.nodes:
            assert not node.failures, node.failures

    async def active(self) -> Node:
        return await self.until(
            lambda: next((node for node in self.nodes if node.active), None), what="a leader"
        )

    async def write(self, count: int = 1, size: int = 1000) -> None:
        """Write so many configs, over and over the same thirty, so that the state stays small and
        the log does not.
        """
        for _ in range(count):
            number = next(self._numbers) % 30
            name, value = f"k{number}", f"{asyncio.get_running_loop().time()}".ljust(size, ".")
            body = pb.IncrementalAlterConfigsRequest(
                resources=[
                    pb.AlterConfigsResource(
                        resource_type=16,
                        resource_name=name,
                        configs=[pb.AlterableConfig(name="match", value=value)],
                    )
                ]
            )
            while True:
                try:
                    await self.client.call(body, timeout_s=20)
                    break
                except ApiError as error:
                    # The same again: whether it was executed or not, this is what is there in the
                    # end.
                    if not error.outcome_unknown:
                        raise
            self.written[name] = value

    async def write_until(self, condition: Callable[[], bool], what: str, most: int = 2000) -> None:
        for _ in range(most // 10):
            if condition():
                return
            await self.write(10)
        raise AssertionError(f"{what} did not happen")

    async def converged(self, within_s: float = 60.0) -> None:
        """All nodes and brokers have the same state at the same offset, and it is what was
        written.
        """

        def same() -> bool:
            states = {node.state for node in self.nodes if node.is_up} | {
                one.state for one in self.brokers
            }
            return len(states) == 1

        await self.until(same, within_s, "everybody equally far")
        everybody: list[Any] = [*(node for node in self.nodes if node.is_up), *self.brokers]
        for one in everybody:
            found = {name: one.service.image.configs[(16, name)]["match"] for name in self.written}
            assert found == self.written, one.name
        self.check()
