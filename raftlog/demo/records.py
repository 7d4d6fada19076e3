"""Records for the demo, written to every partition of a topic throughout the failures, and read
back.
"""

from __future__ import annotations

import asyncio
import random
import time

from raftlog.client.consumer import EARLIEST, Consumer
from raftlog.client.producer import Producer
from raftlog.demo.world import DemoError, World
from raftlog.errors import ApiError
from raftlog.wire.controller.v1 import controller_pb2 as pb

PAUSE_S = 0.01
READ_WITHIN_S = 15.0
TOPIC_CONFIG = 2


class Records:
    """One writer per partition, which waits for each record to be acknowledged before it writes the
    next one; acks=all with at least two in-sync replicas.
    """

    def __init__(self, world: World, topic: str, partitions: int) -> None:
        self._world, self._topic, self._partitions = world, topic, partitions
        self._endpoints = [node.endpoint for node in world.cluster.brokers]
        self._producer = Producer(world.transport, self._endpoints, rng=random.Random())
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        """(partition, offset) -> value."""
        self.unknown = 0
        self.refused = 0
        self.longest_gap_s = 0.0
        """Longest time between two acknowledged records of one partition, in seconds."""

    async def begin(self) -> None:
        """Require two in-sync replicas, and start the writers. Raises DemoError."""
        config = pb.AlterableConfig(name="min.insync.replicas", value="2")
        resource = pb.AlterConfigsResource(
            resource_type=TOPIC_CONFIG, resource_name=self._topic, configs=[config]
        )
        request = pb.IncrementalAlterConfigsRequest(resources=[resource])
        response = await self._world.all_brokers.write(request, principal="demo")
        for result in response.incremental_alter_configs.results:
            if result.error.error_code:
                raise DemoError(
                    f"min.insync.replicas of {self._topic}: {result.error.error_message}"
                )
        self._tasks = [asyncio.create_task(self._write(index)) for index in range(self._partitions)]

    async def _write(self, index: int) -> None:
        count, last = 0, time.monotonic()
        while not self._stopping:
            count += 1
            value = b"record %d of partition %d" % (count, index)
            try:
                done = await self._producer.send(self._topic, value, partition=index)
            except ApiError as error:
                self.unknown += error.outcome_unknown
                self.refused += not error.outcome_unknown
                continue
            now = time.monotonic()
            self.longest_gap_s, last = max(self.longest_gap_s, now - last), now
            self.acknowledged[index, done.offset] = value
            await asyncio.sleep(PAUSE_S)

    async def stop(self) -> None:
        """Stop the writers, and wait for the records in flight."""
        self._stopping = True
        await asyncio.gather(*self._tasks)

    async def missing(self) -> list[bytes]:
        """Read all partitions from the beginning, and return the acknowledged records that are not
        at their reported offsets.
        """
        consumer = Consumer(self._world.transport, self._endpoints, rng=random.Random())
        consumer.assign(self._topic, offset=EARLIEST)
        left = dict(self.acknowledged)
        wrong: list[bytes] = []
        deadline = time.monotonic() + READ_WITHIN_S
        try:
            while left and time.monotonic() < deadline:
                for record in await consumer.poll(0.5):
                    value = left.pop((record.partition, record.offset), record.value)
                    if value is not None and value != record.value:
                        wrong.append(value)
        finally:
            consumer.close()
        return [*wrong, *left.values()]

    def close(self) -> None:
        """Stop everything."""
        for task in self._tasks:
            task.cancel()
        self._producer.close()
