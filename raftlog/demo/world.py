"""The demo's world: a cluster of processes, clients for it, and ways to watch it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from raftlog.client.broker_client import BrokerClient
from raftlog.client.controller_client import ControllerClient
from raftlog.errors import ApiError, RaftlogError
from raftlog.local.cluster import LocalCluster, Node
from raftlog.transport.grpc_transport import GrpcTransport
from raftlog.transport.tls import TlsConfig
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb

POLL_S = 0.002
CLIENT_METRICS = 16
WRITE_TIMEOUT_S = 5.0


class DemoError(RaftlogError):
    """A guarantee that the demo shows was not kept."""


class CommandFailedError(RaftlogError):
    """A program that the demo runs has failed; no guarantee of the cluster is broken."""


class World:
    """A running cluster and its clients. Must be created on the event loop."""

    def __init__(self, cluster: LocalCluster, tls: TlsConfig | None = None) -> None:
        self.cluster = cluster
        self.transport = GrpcTransport(tls=tls)
        self.controllers = ControllerClient(
            self.transport, [node.endpoint for node in cluster.controllers], rng=random.Random()
        )
        self.all_brokers = self.client(*cluster.brokers)
        self.brokers = {node.node_id: self.client(node) for node in cluster.brokers}

    def client(self, *nodes: Node) -> BrokerClient:
        """Return a client that has not read anything yet."""
        return BrokerClient(self.transport, [node.endpoint for node in nodes], rng=random.Random())

    async def close(self) -> None:
        """End all calls."""
        self.controllers.close()
        self.all_brokers.close()
        for client in self.brokers.values():
            client.close()
        await self.transport.close()

    async def describe_brokers(self) -> pb.DescribeBrokersResponse:
        """Return the brokers as the active controller sees them."""
        response = await self.controllers.call(pb.DescribeBrokersRequest(), timeout_s=2.0)
        return response.describe_brokers

    async def about(self, broker_id: int) -> broker_pb2.DescribeBrokerResponse:
        """Return a broker's report about itself."""
        response = await self.brokers[broker_id].read(
            broker_pb2.DescribeBrokerRequest(), timeout_s=2.0
        )
        return response.describe_broker

    async def until(
        self, found: Callable[[], Coroutine[Any, Any, bool]], within_s: float, what: str
    ) -> float:
        """Wait until ``found`` returns true, and return the seconds it took. Raises DemoError, with
        ``what`` was awaited in vain.
        """
        begun = time.monotonic()
        while True:
            try:
                if await found():
                    return time.monotonic() - begun
            except ApiError as error:
                last = str(error)
            else:
                last = "not yet"
            if time.monotonic() - begun > within_s:
                raise DemoError(f"{what}: it did not happen within {within_s:g} s ({last})")
            await asyncio.sleep(0.02)

    async def value(self, broker_id: int, name: str, mode: broker_pb2.ReadMode) -> str:
        """Read a key from one broker with a new client."""
        client = self.client(self.node_of(broker_id))
        try:
            resource = broker_pb2.DescribeConfigsResource(
                resource_type=CLIENT_METRICS, resource_name=name
            )
            response = await client.read(
                broker_pb2.DescribeConfigsRequest(resources=[resource]), mode=mode, timeout_s=5.0
            )
        finally:
            client.close()
        configs = response.describe_configs.results[0].configs
        return next((config.value for config in configs if config.name == "match"), "")

    def node_of(self, broker_id: int) -> Node:
        """Return a broker's node."""
        return self.cluster.node(f"broker-{broker_id}")


def setting(name: str, value: str) -> pb.IncrementalAlterConfigsRequest:
    """Return a request that sets one config value."""
    config = pb.AlterableConfig(name="match", value=value)
    resource = pb.AlterConfigsResource(
        resource_type=CLIENT_METRICS, resource_name=name, configs=[config]
    )
    return pb.IncrementalAlterConfigsRequest(resources=[resource])


@dataclass(slots=True)
class Sample:
    """One sample of a broker. ``at``: seconds since the watch began."""

    at: float
    applied: int
    told: int


class Watch:
    """Samples every broker, and LAO on the controller, as often as possible."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._begun = time.monotonic()
        self.brokers: dict[int, list[Sample]] = {broker_id: [] for broker_id in world.brokers}
        self.lao: list[tuple[float, int]] = []
        self._tasks = [
            asyncio.create_task(self._controller()),
            *(asyncio.create_task(self._broker(broker_id)) for broker_id in world.brokers),
        ]

    def elapsed(self) -> float:
        """Seconds since the watch began."""
        return time.monotonic() - self._begun

    async def _broker(self, broker_id: int) -> None:
        while True:
            about = await self._world.about(broker_id)
            self.brokers[broker_id].append(
                Sample(self.elapsed(), about.applied_offset, about.lowest_acknowledged_offset)
            )
            await asyncio.sleep(POLL_S)

    async def _controller(self) -> None:
        while True:
            described = await self._world.describe_brokers()
            self.lao.append((self.elapsed(), described.lowest_acknowledged_offset))
            await asyncio.sleep(POLL_S)

    async def stop(self) -> None:
        """End the watch."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@dataclass(slots=True)
class Writer:
    """A writer that writes one key after the other through any broker until it is stopped, and
    remembers the acknowledged writes.
    """

    world: World
    acknowledged: list[tuple[str, str, common_pb2.MetadataToken]] = field(default_factory=list)
    """The acknowledged writes as (name, value, token)."""
    unknown: int = 0
    refused: int = 0
    epoch: int = 0
    """Epoch of the controller that answered last."""
    since_reset_s: float = 0.0
    """Longest time between two acknowledged writes, in seconds, since this was last set to 0."""

    async def run(self) -> None:
        """Send one write after another until cancelled, and measure the gaps between them."""
        count = 0
        last = time.monotonic()
        while True:
            count += 1
            name, value = f"writer-{count:06d}", str(count)
            try:
                response = await self.world.all_brokers.write(
                    setting(name, value), timeout_s=WRITE_TIMEOUT_S, principal="writer"
                )
            except ApiError as error:
                if error.outcome_unknown:
                    self.unknown += 1
                else:
                    self.refused += 1
                await asyncio.sleep(0.005)
                continue
            now = time.monotonic()
            self.since_reset_s = max(self.since_reset_s, now - last)
            last, self.epoch = now, response.controller_epoch
            self.acknowledged.append((name, value, response.write.token))
            await asyncio.sleep(0.002)

    async def missing(self, broker_id: int) -> list[str]:
        """Return the acknowledged writes that a broker does not show."""
        client = self.world.client(self.world.node_of(broker_id))
        client.see(self.acknowledged[-1][2])
        missing: list[str] = []
        try:
            for start in range(0, len(self.acknowledged), 500):
                part = self.acknowledged[start : start + 500]
                resources = [
                    broker_pb2.DescribeConfigsResource(
                        resource_type=CLIENT_METRICS, resource_name=name
                    )
                    for name, _, _ in part
                ]
                response = await client.read(
                    broker_pb2.DescribeConfigsRequest(resources=resources), timeout_s=10.0
                )
                for (name, value, _), result in zip(
                    part, response.describe_configs.results, strict=True
                ):
                    if value not in [
                        config.value for config in result.configs if config.name == "match"
                    ]:
                        missing.append(name)
        finally:
            client.close()
        return missing


class LaoRecord:
    """LAO as announced by the controllers throughout the demo; it may be unknown, but must never
    decrease.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.highest = -1
        self.unknown_s = 0.0
        self.samples = 0
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            begun = time.monotonic()
            try:
                lao = (await self._world.describe_brokers()).lowest_acknowledged_offset
            except ApiError:
                lao = -1
            self.samples += 1
            await asyncio.sleep(0.01)
            if lao < 0:
                self.unknown_s += time.monotonic() - begun
            elif lao < self.highest:
                raise DemoError(f"LAO decreased from {self.highest} to {lao}")
            else:
                self.highest = lao

    async def stop(self) -> None:
        """Stop watching, and raise any error."""
        self._task.cancel()
        try:
            await self._task
        except asyncio.CancelledError:
            return
