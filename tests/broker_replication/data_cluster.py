"""A simulated cluster with partitions."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from broker.partition.host import PartitionSettings
from broker.settings import ReplicationSettings
from controller.settings import ControllerSettings
from raftlog.client.controller_client import ControllerClient
from raftlog.client.producer import Producer, ProducerSettings
from raftlog.metadata.entities import Partition
from raftlog.metadata.image import Image
from raftlog.metadata.versions import LATEST_METADATA_VERSION
from raftlog.quorum.config import QuorumConfig, Voter
from raftlog.wire.controller.v1 import controller_pb2 as pb
from simulation.hosts import CLUSTER_ID, BrokerHost, ControllerHost, broker_settings
from simulation.twins.loop import run
from simulation.twins.network import SimNetwork
from simulation.twins.partition_disk import SimPartitionDisk
from simulation.watching import Watch

TOPIC = "orders"
SESSION_MS = 3000


class DataCluster:
    """Controllers 1 to 3, brokers from 101 on."""

    def __init__(
        self, brokers: int = 3, seed: int = 1, *, reserve_bytes: int = 0, **partitions: Any
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.rng = random.Random(seed)
        self.network = SimNetwork(self._split())
        self.failures: list[BaseException] = []
        watch = Watch([], self.failures.append)
        voters = tuple(Voter(i, f"c{i}:9093") for i in (1, 2, 3))
        settings = ControllerSettings(
            broker_session_timeout_ms=SESSION_MS, free_space_reserve_bytes=reserve_bytes
        )
        replication = ReplicationSettings(free_space_reserve_bytes=reserve_bytes)
        self.controllers = [
            ControllerHost(
                self.network,
                QuorumConfig(
                    CLUSTER_ID, i, f"dir-{i}", voters, max_metadata_version=LATEST_METADATA_VERSION
                ),
                settings,
                self._split(),
                lambda host, what: None,
                watch,
            )
            for i in (1, 2, 3)
        ]  # fmt: skip
        self.brokers = {
            broker_id: BrokerHost(
                self.network,
                replace(
                    broker_settings(
                        broker_id,
                        tuple(voter.endpoint for voter in voters),
                        session_timeout_ms=SESSION_MS,
                    ),
                    replication=replication,
                    partitions=PartitionSettings(
                        broker_id, CLUSTER_ID, **{"replica_lag_time_max_ms": 2000, **partitions}
                    ),
                ),
                self._split(),
                watch,
                disk=SimPartitionDisk(f"data-{broker_id}", self._split()),
            )
            for broker_id in range(101, 101 + brokers)
        }
        self.transport = self.network.transport_for("client")
        self.controller = ControllerClient(
            self.transport, [voter.endpoint for voter in voters], rng=self._split()
        )
        self._producers: list[Producer] = []

    def _split(self) -> random.Random:
        return random.Random(self.rng.getrandbits(64))

    @property
    def hosts(self) -> list[Any]:
        return [*self.controllers, *self.brokers.values()]

    async def start(self) -> None:
        for host in self.hosts:
            host.start()
        await self.until(
            lambda: all(self.serves(broker_id) for broker_id in self.brokers), "all brokers serve"
        )

    async def create(self, partitions: int = 1, replicas: int = 3, **configs: str) -> None:
        entries = [
            pb.ConfigEntry(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ]
        topic = pb.CreatableTopic(
            name=TOPIC, num_partitions=partitions, replication_factor=replicas, configs=entries
        )
        await self.controller.call(pb.CreateTopicsRequest(topics=[topic]))
        await self.until(lambda: self.partition(0) is not None, "the topic is there")

    # --- what is ---------------------------------------------------------------------------------

    def serves(self, broker_id: int) -> bool:
        service = self.brokers[broker_id].service
        return service is not None and not service.why_fenced()

    def partition(self, index: int = 0) -> Partition | None:
        images = [host.service.image for host in self.brokers.values() if host.service is not None]
        image = max(images, key=lambda one: one.offset, default=Image())
        topic_id = image.topic_ids.get(TOPIC)
        return image.partitions.get((topic_id, index)) if topic_id is not None else None

    def leader(self, index: int = 0) -> int:
        partition = self.partition(index)
        return partition.leader if partition is not None else -1

    def isr(self, index: int = 0) -> tuple[int, ...]:
        partition = self.partition(index)
        return tuple(sorted(partition.isr)) if partition is not None else ()

    async def until(
        self,
        condition: Callable[[], object],
        what: str,
        within_s: float = 60.0,
        *,
        checked: bool = True,
    ) -> None:
        deadline = self.loop.time() + within_s
        while not condition():
            if checked:
                self.check()
            assert self.loop.time() < deadline, f"not within {within_s:g} s: {what}"
            await asyncio.sleep(0.01)

    def check(self) -> None:
        """Assert that no handler failed and no broker met an unexpected error."""
        assert self.network.handler_failures == []
        assert self.failures == []
        for host in self.brokers.values():
            assert host.fatal is None, host.fatal

    # --- clients ---------------------------------------------------------------------------------

    def bootstrap(self) -> list[str]:
        return [host.endpoint for host in self.brokers.values()]

    def producer(self, **settings: Any) -> Producer:
        made = Producer(
            self.transport,
            self.bootstrap(),
            rng=self._split(),
            settings=ProducerSettings(**settings),
        )
        self._producers.append(made)
        return made

    def close(self) -> None:
        for producer in self._producers:
            producer.close()
        self.controller.close()


def on_cluster(test: Callable[[DataCluster], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        cluster = DataCluster(**settings)
        await cluster.start()
        await test(cluster)
        cluster.check()
        cluster.close()

    run(main())
