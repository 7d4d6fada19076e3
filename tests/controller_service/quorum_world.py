"""Controllers on simulated disks and network with a real client; in a :class:`QuorumWorld` nodes
join, leave, lose their disks and move.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, TypeVar

from fake_link import FakeLink

from controller.service.service import ControllerService
from controller.settings import ControllerSettings
from raftlog.client.controller_client import ControllerClient
from raftlog.endpoint import Voter
from raftlog.errors import ApiError
from raftlog.metadata.versions import LATEST_METADATA_VERSION
from raftlog.node.storage.api import NodeIdentity
from raftlog.quorum.config import QuorumConfig
from raftlog.wire.controller.v1 import controller_pb2 as pb
from simulation.twins.disk import SimDisk
from simulation.twins.loop import host_context
from simulation.twins.network import SimNetwork

T = TypeVar("T")


class Node:
    def __init__(
        self,
        world: World,
        node_id: int,
        *,
        voters: tuple[Voter, ...] = (),
        auto_join: bool = False,
        cluster_id: str = "c",
    ) -> None:
        self.world, self.id, self.auto_join = world, node_id, auto_join
        self.cluster_id = cluster_id
        self.disks = 0
        self.port = 9093
        self.up_now = False
        self.voters = voters
        self.new_disk()

    @property
    def name(self) -> str:
        return f"c{self.id}"

    @property
    def endpoint(self) -> str:
        return f"{self.name}:{self.port}"

    @property
    def directory(self) -> str:
        return f"dir-{self.id}-{self.disks}"

    def new_disk(self, *, joining: bool = True) -> None:
        """Format with --no-initial-controllers, unless it is the first or not ``joining``."""
        if self.disks and joining:
            self.voters = ()
        self.disks += 1
        self.disk = SimDisk(
            NodeIdentity(self.cluster_id, self.id, self.directory), random.Random(self.id)
        )

    def start(self) -> None:
        self.up_now = True
        self.failures: list[Exception] = []
        self.transport = self.world.network.transport_for(self.name)
        config = QuorumConfig(
            self.cluster_id,
            self.id,
            self.directory,
            self.voters,
            endpoint=self.endpoint if self.world.publishes else "",
            bootstrap_servers=tuple(
                one for one in self.world.bootstrap if self.world.publishes and one != self.endpoint
            ),
            configured_voters=self.world.configured,
            max_metadata_version=LATEST_METADATA_VERSION,
        )
        self.store = self.disk.open()
        self.service = ControllerService(
            ControllerSettings(controller_quorum_auto_join_enable=self.auto_join),
            config,
            self.store,
            self.transport,
            rng=random.Random(100 + self.id),
            wall_clock_ms=lambda: int(asyncio.get_running_loop().time() * 1000),
            on_failure=self.failures.append,
        )
        asyncio.get_running_loop().create_task(self._up(), context=host_context(self.name))

    async def _up(self) -> None:
        await self.transport.listen(self.endpoint, self.service.acceptors())
        self.service.start()
        self.service.replica.core.validate_each_step = True

    def kill(self) -> None:
        if self.up_now:
            self.up_now = False
            self.service.close()
            self.world.network.crash(self.name)
            self.disk.crash(random.Random(7))

    @property
    def voter_set(self) -> dict[int, str]:
        """Return this node's voter set, as id -> directory."""
        return {voter.node_id: voter.directory_id for voter in self.service.node.voters}


class World:
    def __init__(
        self, *, voters: int = 3, auto_join: bool = False, seed: int = 5, publishes: bool = False
    ) -> None:
        """``voters``: the size of a static set; 0: node 1 alone with its directory, as by
        --standalone. ``publishes``: nodes register themselves in the log.
        """
        self.publishes = publishes
        self.network = SimNetwork(random.Random(seed))
        self.auto_join = auto_join
        self.configured: tuple[Voter, ...] = ()
        """``controller.quorum.voters`` in the files of nodes that start from now on."""
        count = voters or 1
        self.bootstrap = tuple(f"c{i}:9093" for i in range(1, count + 1))
        first = tuple(
            Voter(i, f"c{i}:9093", "" if voters else "dir-1-1") for i in range(1, count + 1)
        )
        self.nodes = {
            i: Node(self, i, voters=first, auto_join=auto_join) for i in range(1, count + 1)
        }
        for node in self.nodes.values():
            node.start()
        self.acknowledged: set[str] = set()
        self.client = ControllerClient(
            self.network.transport_for("client"),
            [f"c{i}:9093" for i in range(1, 8 if publishes else count + 1)],
            rng=random.Random(9),
        )

    def join(self, node_id: int) -> Node:
        node = self.nodes[node_id] = Node(self, node_id, auto_join=self.auto_join)
        node.start()
        return node

    async def until(
        self, condition: Callable[[], T | None], within_s: float = 30.0, every_s: float = 0.005
    ) -> T:
        deadline = asyncio.get_running_loop().time() + within_s
        while True:
            self.check()
            found = condition()
            if found:
                return found
            assert asyncio.get_running_loop().time() < deadline, "it did not happen in time"
            await asyncio.sleep(every_s)

    def check(self) -> None:
        assert not self.network.handler_failures, self.network.handler_failures
        for node in self.nodes.values():
            assert not node.failures, (node.id, node.failures)

    def up(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.up_now]

    async def active(self) -> Node:
        def leading() -> Node | None:
            found = [node for node in self.up() if node.service.node.decider is not None]
            return max(found, key=lambda node: node.service.node.controller_epoch, default=None)

        return await self.until(leading)

    async def settled(self) -> list[Node]:
        """Return the active controller, after a first write, and the others."""
        active = await self.active()
        await self.ask(alter("a"))
        return [active, *self.others(active)]

    def cut_off(self, node: Node) -> None:
        """Cut the links of a node to all others; clients still reach it."""
        for other in self.others(node):
            self.network.partition(node.name, other.name)

    def others(self, node: Node) -> list[Node]:
        return [one for one in self.nodes.values() if one is not node]

    def hashes(self) -> set[tuple[int, int]]:
        """Return the image hashes of the running nodes."""
        return {(n.service.image.offset, n.service.image.state_hash) for n in self.up()}

    async def voters_are(self, *expected: int | str) -> Node:
        """Wait until the active controller has committed this set of node ids or directories."""

        def there() -> Node | None:
            for node in self.up():
                active = node.service.node.decider
                if active is None:
                    continue
                named = active.state.log.committed.voters
                found = named.voters if named is not None else ()
                if [one.id for one in found] == list(expected) or [
                    one.directory_id for one in found
                ] == list(expected):
                    return node
            return None

        return await self.until(there)

    async def ask(self, body: Any, timeout_s: float = 20.0) -> pb.ControllerResponse:
        return await self.client.call(body, timeout_s=timeout_s)

    async def write(self, name: str) -> None:
        """Write until it is acknowledged; writing a value twice is harmless."""
        for _ in range(20):
            try:
                await self.ask(alter(name))
            except ApiError:
                await asyncio.sleep(0.05)
            else:
                self.acknowledged.add(name)
                return
        raise AssertionError(f"never acknowledged: {name}")

    async def converged(self) -> None:
        """Assert that all running nodes have the same image, with every acknowledged write."""
        await self.write(f"last-{len(self.acknowledged)}")
        await self.until(
            lambda: (
                len(self.hashes()) == 1
                and all(
                    (16, name) in n.service.image.configs
                    for n in self.up()
                    for name in self.acknowledged
                )
            )
        )


class QuorumWorld(World):
    """A world whose voters change."""

    def __init__(self, *, voters: int = 0, auto_join: bool = False, seed: int = 5) -> None:
        super().__init__(voters=voters, auto_join=auto_join, seed=seed, publishes=True)


def alter(name: str, value: str = "v") -> pb.IncrementalAlterConfigsRequest:
    config = pb.AlterableConfig(name="match", value=value)
    resource = pb.AlterConfigsResource(resource_type=16, resource_name=name, configs=[config])
    return pb.IncrementalAlterConfigsRequest(resources=[resource])


def describing(correlation_id: int = 7) -> pb.ControllerRequest:
    """Return a read-only request."""
    return pb.ControllerRequest(
        correlation_id=correlation_id, describe_brokers=pb.DescribeBrokersRequest()
    )


class KeepingLink(FakeLink):
    """A link of this peer, which can be closed."""

    def __init__(self, peer: str = "somebody:1") -> None:
        super().__init__()
        self.peer, self.closed_because = peer, ""

    def close(self, reason: str = "") -> None:
        self.closed_because = reason


def after_each(target: object, name: str, what: Callable[..., object]) -> None:
    """Call ``what`` after each call of this method, with its arguments."""
    method = getattr(target, name)

    def both(*arguments: Any) -> Any:
        result = method(*arguments)
        what(*arguments)
        return result

    setattr(target, name, both)
