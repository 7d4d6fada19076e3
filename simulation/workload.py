"""Clients of a simulated cluster, which report writes and reads of every kind to the checkers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from raftlog.client.broker_client import BrokerClient
from raftlog.client.controller_client import ControllerClient
from raftlog.client.session import Session
from raftlog.errors import ApiError, ErrorCode
from raftlog.transport.statuses import error_from_wire
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb
from simulation.administrator import Administrator, Exporters, set_config
from simulation.callers import Callers
from simulation.checks.api import CheckFailedError, Operation, fail
from simulation.checks.linearizability import CLIENT_METRICS, CONFIG_KEY
from simulation.data_workload import DataWorkload, IsrQueries
from simulation.forger import Forger
from simulation.keepers import Keepers
from simulation.partition_leaders import PartitionLeaders
from simulation.round_robin import PinnedClient, RoundRobinClient
from simulation.warden import Warden
from simulation.watchers import Watchers
from simulation.world import Actors, World

OWN_KEYS = 7
BURST_WRITES = 50
LEVELS = (common_pb2.ACKS_COMMITTED, common_pb2.ACKS_ACKNOWLEDGED, common_pb2.ACKS_VISIBLE)


class Workload:
    """All clients of a run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._tasks: list[asyncio.Task[Any]] = []
        self._rng = world.rng("clients")
        world.burst = self.burst
        self._burst_client: Client | None = None
        self.data = DataWorkload(world)
        self.watchers = Watchers(world)
        self.keepers = Keepers(world)
        self._others: tuple[Actors, ...] = (
            PartitionLeaders(world), Administrator(world), self.data, IsrQueries(world),
            Exporters(world), self.watchers, self.keepers, Callers(world), Warden(world),
            Forger(world),
        )  # fmt: skip

    def hosts(self) -> list[str]:
        config = self._world.config
        clients = [f"client{number}" for number in range(config.clients + config.direct_clients)]
        others = [host for each in self._others for host in each.hosts()]
        return [*clients, "last", "burst", *others]

    def begin(self) -> None:
        config = self._world.config
        for number in range(config.clients + config.direct_clients):
            direct = number >= config.clients or not self._world.members
            client = Client(self._world, f"client{number}", direct=direct)
            self._tasks.append(self._world.spawn(client.live(), client.name, client.name))
        for each in self._others:
            each.begin()

    def stop(self) -> None:
        """Start no more operations. Watchers continue if the log will be recovered."""
        watch_on = self._world.config.recovery and not self._world.config.authorizer
        for each in self._others:
            if each is not self.watchers or not watch_on:
                each.stop()
        for task in self._tasks:
            task.cancel()

    def burst(self, rng: random.Random) -> None:
        if self._burst_client is None:
            self._burst_client = Client(self._world, "burst", direct=not self._world.members)
        for _ in range(BURST_WRITES):
            work = self._burst_client.write_config(f"burst-{rng.randrange(5)}")
            self._tasks.append(self._world.spawn(work, "burst", "burst"))
        self._world.happened("burst")

    async def last_write(self, within_s: float, key: str = "last") -> Operation:
        """Repeat a write until every healed broker shows it. Raises CheckFailedError."""
        world = self._world
        deadline = world.now() + within_s
        attempt = 0
        while world.now() < deadline:
            attempt += 1
            brokers = [host.name for host in world.healed_brokers()]
            client = Client(
                world, f"last.{attempt}", direct=not brokers, only=brokers or None, host="last"
            )
            operation = await client.write_config(key, acks=LEVELS[-1] if brokers else LEVELS[0])
            client.close()
            if operation.outcome == "ok" and operation.reached == operation.acks:
                return operation
            await asyncio.sleep(0.2)
        fail(f"within {within_s:g} s it did not happen: a write is served")

    def reader(self, name: str, broker: str) -> Client:
        """Return a client that sends requests to one broker only."""
        return Client(self._world, name, direct=False, only=[broker], host="last")


class Client:
    """A client with one operation at a time. ``direct``: it writes to controllers only."""

    def __init__(
        self,
        world: World,
        name: str,
        *,
        direct: bool,
        only: list[str] | None = None,
        host: str = "",
    ) -> None:
        self.name = name
        self._world, self._config = world, world.config
        self._rng = world.rng(name)
        self._count = 0
        self._sessions = 0
        """Number of times that the client dropped its token; then it counts as another client."""
        shared = world.config.shared_keys
        # Without brokers there are no topics to ask about. Who asks, asks about those that others
        # change.
        self._asks_share = world.config.asks_share if direct and world.members else 0.0
        own = (0 if self._asks_share else 2) if shared else 4
        self._topics = [f"{name}-t{i}" for i in range(own)] + [
            f"shared-t{i}" for i in range(shared)
        ]
        transport = world.network.transport_for(host or name)
        self._brokers: BrokerClient | None = None
        self._controllers: list[ControllerClient] = []
        hosts: Sequence[Any] = world.controllers if direct else world.members
        endpoints = [host.endpoint for host in hosts if only is None or host.name in only]
        if direct:
            kind = PinnedClient if self._asks_share else ControllerClient
            self._controllers = [
                kind(transport, [e], rng=world.rng(f"{name} {e}")) for e in endpoints
            ]
            self._numbered = self._over_any_controller()
        else:
            made = RoundRobinClient if world.config.round_robin else BrokerClient
            self._brokers = made(transport, endpoints, rng=world.rng(f"{name} router"))
            self._numbered = self._brokers.session(name)

    def close(self) -> None:
        for client in (*self._controllers, self._brokers):
            if client is not None:
                client.close()

    def _over_any_controller(self) -> Session:
        async def attempt(request: pb.ControllerRequest, timeout_s: float) -> pb.ControllerResponse:
            return await self._rng.choice(self._controllers).send(request, timeout_s)

        return Session(
            attempt, name=self.name, rng=self._world.rng(f"{self.name} session"), cluster_id=""
        )

    async def live(self) -> None:
        config, rng = self._config, self._rng
        clients = config.clients + config.direct_clients
        reads_per_s = config.reads_per_s if self._brokers is not None else 0.0
        rate = (config.writes_per_s + reads_per_s) / clients
        while True:
            await asyncio.sleep(rng.expovariate(rate))
            await self._one(rng.random() * (config.writes_per_s + reads_per_s) < reads_per_s)

    async def _one(self, read: bool) -> None:
        rng = self._rng
        if read and rng.random() < 0.15:
            await self.read_topics()
        elif read:
            await self.read_config(self._key())
        elif self._asks_share and rng.random() < self._asks_share:
            await self.ask_topic(rng.choice(self._topics))
        elif self._world.members and rng.random() < self._config.topics_share:
            await self.change_topic(rng.choice(self._topics))
        else:
            await self.write_config(self._key())

    def _key(self) -> str:
        shared = self._config.shared_keys
        if shared and self._rng.random() < 0.5:
            return f"shared-{self._rng.randrange(shared)}"
        return f"{self.name}-{self._rng.randrange(OWN_KEYS)}"

    @property
    def _session(self) -> str:
        return f"{self.name}.{self._sessions}" if self._sessions else self.name

    async def write_config(self, key: str, acks: Any = None) -> Operation:
        self._count += 1
        value = f"{self.name}.{self._count}."
        value += "x" * self._rng.randrange(max(1, self._config.value_bytes))
        acks = self._rng.choice(LEVELS) if acks is None else acks
        operation = self._world.operation(
            client=self._session, kind="write_config", key=key, value=value, acks=acks
        )
        body = set_config(CLIENT_METRICS, [key], CONFIG_KEY, value)
        await self._carry_out(operation, lambda: self.write(operation, body))
        return operation

    async def change_topic(self, name: str) -> None:
        rng = self._rng
        body: Any
        if rng.random() < 0.5:
            replicas = rng.randint(1, min(3, len(self._world.members)))
            topic = pb.CreatableTopic(
                name=name, num_partitions=rng.randint(1, 3), replication_factor=replicas
            )
            body = pb.CreateTopicsRequest(topics=[topic])
        else:
            body = pb.DeleteTopicsRequest(names=[name])
        create = isinstance(body, pb.CreateTopicsRequest)
        kind = "create_topic" if create else "delete_topic"
        acks = rng.choice(LEVELS)
        operation = self._world.operation(client=self._session, kind=kind, key=name, acks=acks)

        async def work() -> None:
            response = await self.write(operation, body)
            if response.write.duplicate:
                return  # executed by an earlier attempt, whose answer is lost
            result = (response.create_topics if create else response.delete_topics).topics[0]
            if result.HasField("error"):
                raise error_from_wire(result.error)

        await self._carry_out(operation, work)

    async def ask_topic(self, name: str) -> None:
        """Ask a controller whether a topic exists, by validating its creation."""
        topic = pb.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        body = pb.CreateTopicsRequest(topics=[topic], validate_only=True)
        operation = self._world.operation(client=self._session, kind="ask_topic", key=name)

        async def work() -> None:
            client = self._rng.choice(self._controllers)
            response = await client.call(
                body, timeout_s=self._config.timeout_s, raise_refused=False
            )
            result = response.create_topics.topics[0]
            code = result.error.error_code if result.HasField("error") else None
            if code not in (None, ErrorCode.TOPIC_ALREADY_EXISTS):
                raise error_from_wire(result.error)
            operation.found = () if code is None else (name,)

        await self._carry_out(operation, work)

    async def read_config(self, key: str, mode: broker_pb2.ReadMode | None = None) -> Operation:
        body = broker_pb2.DescribeConfigsRequest()
        body.resources.add(
            resource_type=CLIENT_METRICS, resource_name=key, configuration_keys=[CONFIG_KEY]
        )

        def found(response: Any) -> str | None:
            result = response.describe_configs.results[0]
            configs = [config for config in result.configs if not config.is_default]
            return configs[0].value if configs else None

        return await self._read("read_config", key, body, found, mode)

    async def read_topics(self) -> None:
        def found(response: Any) -> tuple[str, ...]:
            return tuple(sorted(topic.name for topic in response.metadata.topics))

        await self._read("read_topics", "", broker_pb2.MetadataRequest(), found)

    async def _drawn_mode(self, client: BrokerClient) -> broker_pb2.ReadMode:
        if self._rng.random() < 0.3:
            client.forget()
            self._sessions += 1
        mode = self._rng.choice((broker_pb2.REPEATABLE, broker_pb2.LATEST))
        if self._config.strict_share and self._rng.random() < self._config.strict_share:
            return broker_pb2.STRICT
        return mode

    async def _read(
        self, kind: Any, key: str, body: Any, found: Callable[[Any], Any], mode: Any = None
    ) -> Operation:
        client = self._brokers
        assert client is not None
        if mode is None:
            mode = await self._drawn_mode(client)
        at_least = client.token.offset if client.token is not None else -1
        operation = self._world.operation(
            client=self._session, kind=kind, key=key, mode=mode, at_least=at_least
        )

        async def work() -> None:
            response = await client.read(body, mode=mode, timeout_s=self._config.timeout_s)
            token = response.token
            operation.offset, operation.generation = token.offset, token.generation
            operation.found = found(response)
            operation.response = response

        await self._carry_out(operation, work)
        return operation

    def see(self, token: common_pb2.MetadataToken) -> None:
        assert self._brokers is not None
        self._brokers.see(token)

    async def write(self, operation: Operation, body: Any) -> Any:
        """Send a write as the config says, and record the response. Raises ApiError, unless only
        single items were refused.
        """
        timeout_s = self._config.timeout_s
        acks: Any = operation.acks
        # A client that asks one controller alone cannot continue a wait at the next one.
        operation.timeout_s = 0.0 if self._asks_share else timeout_s
        numbered = self._rng.random() < self._config.numbered_share
        send: Any = self._numbered.write
        if not numbered:
            brokers = self._brokers
            send = brokers.write if brokers else self._rng.choice(self._controllers).call
        response = await send(body, acks=acks, timeout_s=timeout_s, raise_refused=False)
        if numbered and response.write.duplicate:
            self._world.count("duplicate")
        operation.wrote(response.write)
        operation.response = response
        return response

    async def _carry_out(self, operation: Operation, work: Callable[[], Awaitable[Any]]) -> None:
        try:
            await work()
        except ApiError as error:
            operation.refused(error)
            if error.code is ErrorCode.UNKNOWN_SERVER_ERROR:
                raise CheckFailedError(f"{self.name} was answered {error}") from error
        else:
            operation.outcome = "ok"
        self._world.returned(operation)
