"""Clients of the real cluster: the simulation's metadata clients, and producers."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from raftlog.client.producer import Producer, ProducerSettings
from raftlog.errors import ApiError, ErrorCode
from raftlog.transport.grpc_transport import GrpcTransport
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb
from simulation.chaos.nodes import ChaosCluster, ChaosNode
from simulation.checks.api import Operation
from simulation.swarm.config import SwarmConfig
from simulation.workload import Client

if TYPE_CHECKING:
    from simulation.world import World

TOPIC = "records"
PARTITIONS = 3
TIMEOUT_S = 5.0
CONFIG = SwarmConfig(
    clients=3,
    direct_clients=1,
    writes_per_s=40.0,
    reads_per_s=40.0,
    strict_share=0.4,
    timeout_s=TIMEOUT_S,
    round_robin=True,
)


@dataclass(slots=True)
class History:
    """In order: (False, operation) at the invocation, (True, operation) at the return."""

    events: list[tuple[bool, Operation]] = field(default_factory=list)
    produced: list[Operation] = field(default_factory=list)
    """Operations of producers. ``value``: of the record; ``key``: TOPIC-PARTITION."""
    duplicates: int = 0


class RealWorld:
    """The world of :class:`simulation.workload.Client` over real time and a real network."""

    def __init__(self, cluster: ChaosCluster, history: History, seed: int) -> None:
        self.config = CONFIG
        self.history = history
        self._cluster, self._seed = cluster, seed
        self._loop = asyncio.get_running_loop()
        self._transport = GrpcTransport()
        self._operations = 0
        # As the simulated network: one for all hosts.
        self.network = self

    @property
    def controllers(self) -> list[ChaosNode]:
        return self._cluster.controllers

    @property
    def members(self) -> list[ChaosNode]:
        return self._cluster.brokers

    def rng(self, purpose: str) -> random.Random:
        return random.Random(f"{self._seed} {purpose}")

    def transport_for(self, _host: str) -> GrpcTransport:
        return self._transport

    def now(self) -> float:
        return self._loop.time()

    def operation(self, **fields: Any) -> Operation:
        self._operations += 1
        operation = Operation(number=self._operations, invoked_at=self.now(), **fields)
        self.history.events.append((False, operation))
        return operation

    def returned(self, operation: Operation) -> None:
        operation.returned_at = self.now()
        operation.response = None
        self.history.events.append((True, operation))

    def count(self, outcome: str, times: int = 1) -> None:
        self.history.duplicates += times * (outcome == "duplicate")

    async def close(self) -> None:
        await self._transport.close()


class Clients:
    """All clients of a run. ``failure``: the error that ended one of them."""

    def __init__(self, cluster: ChaosCluster, history: History, seed: int) -> None:
        self.world = RealWorld(cluster, history, seed)
        self._history = history
        self._tasks: list[asyncio.Task[None]] = []
        self._open: list[Any] = []

    def client(self, name: str, *, direct: bool = False) -> Client:
        made = Client(cast("World", self.world), name, direct=direct)
        self._open.append(made)
        return made

    async def begin(self) -> None:
        """Create the topic of the producers, and let all clients begin. Raises ApiError."""
        await self._create_topic()
        for number in range(CONFIG.clients + CONFIG.direct_clients):
            self._spawn(self.client(f"client{number}", direct=number >= CONFIG.clients).live())
        for number in range(2):
            self._spawn(self._produce(f"producer{number}"))

    async def _create_topic(self) -> None:
        topic = pb.CreatableTopic(name=TOPIC, num_partitions=PARTITIONS, replication_factor=3)
        topic.configs.add(name="min.insync.replicas", value="2")
        operation = self.world.operation(
            client="setup", kind="create_topic", key=TOPIC, acks=common_pb2.ACKS_VISIBLE
        )
        client = self.client("setup")
        response = await client.write(operation, pb.CreateTopicsRequest(topics=[topic]))
        result = response.create_topics.topics[0]
        if result.HasField("error"):
            raise ApiError(ErrorCode(result.error.error_code), result.error.error_message)
        operation.outcome = "ok"
        self.world.returned(operation)

    def _spawn(self, work: Any) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    async def _produce(self, name: str) -> None:
        rng = self.world.rng(name)
        settings = ProducerSettings(request_timeout_ms=5000, delivery_timeout_ms=15_000)
        servers = [node.endpoint for node in self.world.members]
        producer = Producer(self.world.transport_for(name), servers, rng=rng, settings=settings)
        self._open.append(producer)
        count = 0
        while True:
            await asyncio.sleep(rng.expovariate(20.0))
            count += 1
            self._spawn(
                self._one_record(producer, name, f"{name}.{count}", rng.randrange(PARTITIONS))
            )

    async def _one_record(self, producer: Producer, name: str, value: str, partition: int) -> None:
        operation = self.world.operation(
            client=name, kind="produce", key=f"{TOPIC}-{partition}", value=value
        )
        self._history.produced.append(operation)
        try:
            written = await producer.send(TOPIC, value.encode(), partition=partition)
        except ApiError as error:
            operation.refused(error)
        else:
            operation.outcome, operation.record_offset = "ok", written.offset
        self.world.returned(operation)

    def failure(self) -> BaseException | None:
        done = [task for task in self._tasks if task.done() and not task.cancelled()]
        found = next((task.exception() for task in done if task.exception() is not None), None)
        self._tasks = [task for task in self._tasks if not task.done()]
        return found

    async def stop(self) -> BaseException | None:
        """Cancel all clients; pending operations stay pending. Return the error that ended a
        client.
        """
        failure = self.failure()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in self._open:
            client.close()
        return failure
