"""Clients that record acknowledged records, for data-plane tests with real processes."""

import asyncio
import itertools
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from cluster_kit import PATIENCE_S, on_files, until_true

from raftlog.client.broker_client import BrokerClient
from raftlog.client.consumer import EARLIEST, Consumer
from raftlog.client.log_reader import LogReader, committed_state
from raftlog.client.producer import Producer, ProducerSettings
from raftlog.errors import ApiError
from raftlog.local.cluster import LocalCluster
from raftlog.metadata.entities import Partition
from raftlog.transport.grpc_transport import GrpcTransport
from raftlog.wire.broker.v1 import broker_pb2

SETTINGS = {
    "broker.session.timeout.ms": 2_000,
    "broker.heartbeat.interval.ms": 300,
    "broker.fencing.timeout.ms": 4_000,
    "replica.lag.time.max.ms": 2_000,
}
TOPIC = "orders"
_loads = itertools.count()


class DataWorld:
    """Clients of a running cluster."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.transport = GrpcTransport()
        self.servers = [node.endpoint for node in cluster.brokers]
        self._metadata = BrokerClient(self.transport, self.servers, rng=random.Random())
        self._open: list[Any] = [self._metadata]

    def producer(self, *servers: str, **settings: Any) -> Producer:
        made = Producer(
            self.transport,
            servers or self.servers,
            rng=random.Random(),
            settings=ProducerSettings(**settings),
        )
        self._open.append(made)
        return made

    def consumer(self, partition: int = -1) -> Consumer:
        made = Consumer(self.transport, self.servers, rng=random.Random())
        made.assign(TOPIC, partition, EARLIEST)
        self._open.append(made)
        return made

    async def leader(self, index: int = 0) -> int:
        """Return the leader's broker id; -1: unknown."""
        request = broker_pb2.MetadataRequest(topics=[TOPIC])
        response = await self._metadata.read(request, mode=broker_pb2.LATEST, timeout_s=2.0)
        partitions = response.metadata.topics[0].partitions
        return partitions[index].leader_id if len(partitions) > index else -1

    async def committed(self, index: int = 0) -> Partition:
        """A partition of the topic, as the controllers' log has it."""
        addresses = [node.endpoint for node in self.cluster.controllers]
        reader = LogReader(self.transport, addresses, rng=random.Random())
        try:
            _, image = await committed_state(reader)
        finally:
            reader.close()
        return image.partitions[image.topic_ids[TOPIC], index]

    async def led_by(self, broker_id: int, *, other: bool = False) -> None:
        """Wait until this broker leads partition 0, or with ``other`` any other one."""

        async def found() -> bool:
            leader = await self.leader()
            return leader not in (broker_id, -1) if other else leader == broker_id

        await until_true(
            found, f"partition 0 is led by {'another than ' if other else ''}{broker_id}"
        )

    async def close(self) -> None:
        for client in self._open:
            client.close()
        await self.transport.close()


@asynccontextmanager
async def clients_of(cluster: LocalCluster) -> AsyncIterator[DataWorld]:
    world = DataWorld(cluster)
    try:
        yield world
    finally:
        await world.close()


async def in_sync(world: DataWorld, index: int = 0) -> None:
    """Wait until all brokers are in the committed ISR of a partition."""
    wanted = [node.node_id for node in world.cluster.brokers]

    async def found() -> bool:
        return sorted((await world.committed(index)).isr) == wanted

    await until_true(found, f"the ISR is {wanted}")


def replace_disk(cluster: LocalCluster, name: str) -> None:
    """Give a stopped broker an empty disk with a new directory id."""
    shutil.rmtree(cluster.data_path(name))
    on_files("storage format -c", cluster.config_path(name))


class Load:
    """Writers that run until stopped, and the outcomes of their records."""

    def __init__(self, producer: Producer, writers: int = 8) -> None:
        self._producer = producer
        self._number = next(_loads)
        self._stopping = False
        self.acknowledged: dict[bytes, tuple[int, int]] = {}
        self.refused: set[bytes] = set()
        self.unknown: set[bytes] = set()
        self._tasks = [asyncio.create_task(self._write(number)) for number in range(writers)]

    async def _write(self, number: int) -> None:
        count = 0
        while not self._stopping:
            count += 1
            value = b"%d-%d-%d" % (self._number, number, count)
            try:
                done = await self._producer.send(TOPIC, value)
            except ApiError as error:
                (self.unknown if error.outcome_unknown else self.refused).add(value)
            else:
                self.acknowledged[value] = (done.partition, done.offset)
            await asyncio.sleep(0.005)

    async def more(self, count: int) -> None:
        wanted = len(self.acknowledged) + count

        async def written() -> bool:
            return len(self.acknowledged) >= wanted

        await until_true(written, f"{count} more records are acknowledged")

    async def stop(self) -> None:
        self._stopping = True
        await asyncio.gather(*self._tasks)


class Reader:
    """Reads from the beginning, and checks that it sees one log."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._stopping = False
        self.seen: dict[int, list[bytes]] = {}
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while not self._stopping:
            for record in await self._consumer.poll(0.2):
                log = self.seen.setdefault(record.partition, [])
                assert record.offset == len(log), (
                    f"offset {record.offset} came after {len(log)} records"
                )
                assert record.value is not None
                log.append(record.value)

    async def until(self, ends: dict[int, int]) -> None:
        async def read() -> bool:
            if self._task.done():
                self._task.result()
            return all(len(self.seen.get(index, [])) >= end for index, end in ends.items())

        await until_true(read, f"everything up to {ends} is read", PATIENCE_S)

    async def stop(self) -> None:
        self._stopping = True
        await self._task


async def nothing_is_lost(world: DataWorld, load: Load, *readers: Reader) -> None:
    """Assert that every acknowledged record is at its offset, that no refused one exists, and that
    readers saw this log.
    """
    ends: dict[int, int] = {}
    for partition, offset in load.acknowledged.values():
        ends[partition] = max(ends.get(partition, 0), offset + 1)
    fresh = Reader(world.consumer())
    await fresh.until(ends)
    await fresh.stop()
    for value, (partition, offset) in load.acknowledged.items():
        assert fresh.seen[partition][offset] == value
    everything = [value for log in fresh.seen.values() for value in log]
    assert len(set(everything)) == len(everything)
    assert not load.refused & set(everything)
    for reader in readers:
        await reader.stop()
        for partition, log in reader.seen.items():
            assert fresh.seen[partition][: len(log)] == log
