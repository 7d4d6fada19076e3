"""Producers and consumers of partitions: permanent topics with one to three replicas, and temporary
ones. A producer's acks, and whether it repeats unknown outcomes, are drawn.
"""

import asyncio
from typing import Any

from broker.partition.leader import RETENTION_BYTES
from raftlog.client.consumer import EARLIEST, LATEST, Consumer, ConsumerSettings
from raftlog.client.controller_client import ControllerClient
from raftlog.client.leaders import ask_leader
from raftlog.client.producer import Producer, ProducerSettings
from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.config_keys import UNCLEAN_ELECTION
from raftlog.node.storage.partition_api import PartitionKey
from raftlog.wire.controller.v1 import controller_pb2 as pb
from simulation.checks.api import CheckFailedError, Operation
from simulation.world import Actors, World

PRODUCERS = 2
CONSUMERS = 2
UNDER_WAY_MAX = 20
CREATE_TRIES = 100
OTHERS_SHARE = 0.1
"""Share of the records that go to short-lived topics."""
BURST = 8
LAST_READ = 3
"""Number of records at the end of each partition that are read after the healing."""


class DataWorkload(Actors):
    """All producers and consumers. Without brokers that keep partitions it does nothing."""

    def __init__(self, world: World) -> None:
        on = bool(world.config.data_per_s and world.members)
        self._producers = [f"producer{number}" for number in range(PRODUCERS)] * on
        self._consumers = [f"consumer{number}" for number in range(CONSUMERS)] * on
        others = ["data-admin", "last-producer"] * on
        super().__init__(world, *self._producers, *self._consumers, *others)
        self._rng = world.rng("data")
        self._clients: list[Producer | Consumer] = []
        self.topics: dict[str, bytes] = {}
        self._values = 0

    def begin(self) -> None:
        if self._hosts:
            self.spawn(self._create(), "data-admin")
        for name in self._producers:
            self.spawn(self._produce(name), name)
        for number, name in enumerate(self._consumers):
            self.spawn(self._consume(name, number), name)

    def stop(self) -> None:
        """Stop the producers; consumers continue to read."""
        for task in self._tasks:
            if not task.get_name().startswith("consumer"):
                task.cancel()
        for client in self._clients:
            if isinstance(client, Producer):
                client.close()

    async def _create(self) -> None:
        world, rng = self._world, self._rng
        client = world.controller_client("data-admin")
        brokers = len(world.members)
        for number in range(rng.randint(1, 3)):
            replicas = min(brokers, rng.choice((1, 2, 3, 3, 3)))
            configs = {"min.insync.replicas": str(rng.randint(1, min(2, replicas)))}
            if world.config.data_kept_bytes:
                configs[RETENTION_BYTES] = str(world.config.data_kept_bytes)
            if world.config.unclean_topics:
                configs[UNCLEAN_ELECTION] = "true"
            topic = pb.CreatableTopic(name=f"data-{number}", replication_factor=replicas)
            topic.num_partitions = rng.randint(1, 2)
            for key, value in configs.items():
                topic.configs.add(name=key, value=value)
            await self._create_one(client, topic)
        client.close()

    async def _create_one(self, client: ControllerClient, topic: pb.CreatableTopic) -> None:
        operation = self._world.operation(
            client="data-admin", kind="create_topic", key=topic.name, acks=0
        )
        found = None
        for _ in range(CREATE_TRIES):
            try:
                response = await client.call(
                    pb.CreateTopicsRequest(topics=[topic]), timeout_s=3.0, raise_refused=False
                )
            except ApiError:
                await asyncio.sleep(0.3)
                continue
            result = response.create_topics.topics[0]
            found = result.error.error_code if result.HasField("error") else 0
            if not found or found == ErrorCode.TOPIC_ALREADY_EXISTS:
                break
            await asyncio.sleep(0.3)
        # Several calls may have gone out for it: which of them did it nobody knows.
        operation.outcome = "unknown"
        self._world.returned(operation)
        topic_id = None
        while topic_id is None:
            images = [
                host.service.image for host in self._world.members if host.service is not None
            ]
            topic_id = next(
                (image.topic_ids[topic.name] for image in images if topic.name in image.topic_ids),
                None,
            )
            await asyncio.sleep(0.05)
        self.topics[topic.name] = topic_id

    def producer(self, name: str, only: list[str] | None = None, **settings: Any) -> Producer:
        """Return a producer on a host. ``only``: names of the brokers that it knows at first."""
        world = self._world
        endpoints = [host.endpoint for host in world.members if only is None or host.name in only]
        made = Producer(
            world.network.transport_for(name), endpoints, rng=world.rng(f"{name} client"),
            settings=ProducerSettings(**settings),
        )  # fmt: skip
        self._clients.append(made)
        return made

    async def _produce(self, name: str) -> None:
        world = self._world
        rng = world.rng(name)
        timeout_ms = int(world.config.timeout_s * 1000)
        acks, again = rng.choice((-1, -1, -1, 1)), rng.random() < 0.3
        producer = self.producer(
            name, acks=acks, retry_unknown=again, request_timeout_ms=timeout_ms,
            delivery_timeout_ms=timeout_ms * rng.choice((1, 5)),
        )  # fmt: skip
        under_way: set[asyncio.Task[Any]] = set()
        while True:
            many = rng.choice((1, 1, 1, BURST))
            await asyncio.sleep(
                rng.expovariate(world.config.data_per_s / PRODUCERS / (0.75 + BURST / 4))
            )
            topic = self._topic(rng)
            for _ in range(many):
                if topic and len(under_way) < UNDER_WAY_MAX:
                    task = world.spawn(
                        self.send(name, producer, topic, acks, again=again), name, name
                    )
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)

    def _topic(self, rng: Any) -> str:
        if rng.random() < OTHERS_SHARE:
            running = [
                host.service.image for host in self._world.members if host.service is not None
            ]
            names = sorted(running[0].topic_ids) if running else []
            return rng.choice(names) if names else ""
        return rng.choice(sorted(self.topics)) if self.topics else ""

    async def send(
        self,
        name: str,
        producer: Producer,
        topic: str,
        acks: int,
        *,
        again: bool,
        partition: int = -1,
    ) -> Operation:
        self._values += 1
        value = f"{name}.{self._values}"
        operation = self._world.operation(
            client=name, kind="produce", key=topic, value=value, acks=acks, mode=int(again)
        )
        try:
            done = await producer.send(
                topic, value.encode(), key=value.encode(), partition=partition
            )
        except ApiError as error:
            operation.refused(error)
        else:
            operation.outcome, operation.record_offset = "ok", done.offset
            operation.reached = done.partition
            if topic in self.topics:
                operation.response = self.topics[topic], done.partition
        self._world.returned(operation)
        return operation

    def _consumer(
        self, host: str, name: str, timeout_s: float, only: list[str] | None = None, **settings: Any
    ) -> Consumer:
        world = self._world
        endpoints = [one.endpoint for one in world.members if only is None or one.name in only]
        timeout_ms = int(timeout_s * 1000)
        return Consumer(
            world.network.transport_for(host), endpoints, rng=world.rng(name),
            settings=ConsumerSettings(request_timeout_ms=timeout_ms, **settings),
        )  # fmt: skip

    async def _consume(self, name: str, number: int) -> None:
        """Read all permanent topics: one consumer always from the beginning, the other onwards."""
        world = self._world
        rng = world.rng(name)
        count = 0
        while True:
            count += 1
            client = f"{name}.{count}"
            consumer = self._consumer(name, client, world.config.timeout_s)
            self._clients.append(consumer)
            topics = dict(self.topics)
            for topic in topics:
                consumer.assign(
                    topic, offset=EARLIEST if number == 0 or rng.random() < 0.5 else LATEST
                )
            until = world.now() + rng.uniform(2.0, 10.0)
            while world.now() < until:
                try:
                    records = await consumer.poll(1.0)
                except ApiError as error:
                    if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                        world.watch.tell("consumer_out_of_range", client)
                    break
                for record in records:
                    world.watch.tell("consumed", client, topics[record.topic], record)
                world.count("consumed", len(records))
            consumer.close()
            await asyncio.sleep(0.1)

    async def last_records(
        self, brokers: list[str], partitions: list[tuple[str, PartitionKey]]
    ) -> dict[PartitionKey, str]:
        """Send a record to each partition through these brokers. Return the errors by partition."""
        name = "last-producer"
        # Leaders may still be moved, which makes outcomes unknown: those are retried.
        producer = self.producer(
            name, brokers, delivery_timeout_ms=20_000, request_timeout_ms=5_000, retry_unknown=True
        )
        sends = [
            self.send(name, producer, topic, -1, again=True, partition=key[1])
            for topic, key in partitions
        ]
        done = await asyncio.gather(*sends)
        producer.close()
        return {
            key: f"{one.key}: {one.error}"
            for (_, key), one in zip(partitions, done, strict=True)
            if one.outcome != "ok"
        }

    async def last_reads(
        self, brokers: list[str], wanted: dict[tuple[str, PartitionKey], int], within_s: float
    ) -> tuple[set[tuple[str, PartitionKey]], str]:
        """Return the partitions that a consumer could read to their ends, and its last error."""
        world = self._world
        self._values += 1
        client = f"last-consumer.{self._values}"
        consumer = self._consumer("last-producer", client, within_s, brokers, offset_reset=EARLIEST)
        for (topic, key), end in wanted.items():
            consumer.assign(topic, key[1], max(0, end - LAST_READ))
        left, why, until = dict(wanted), "", world.now() + within_s
        ids = {topic: key[0] for topic, key in wanted}
        while left and not why and (remaining_s := until - world.now()) > 0:
            try:
                for record in await consumer.poll(remaining_s):
                    world.watch.tell("consumed", client, ids[record.topic], record)
            except ApiError as error:
                why = str(error)
            left = {
                place: end
                for place, end in left.items()
                if consumer.position(place[0], place[1][1]) < end
            }
        why = why or str(consumer.failing() or consumer.unknown_topics or consumer.failure)
        consumer.close()
        return set(wanted) - set(left), why


HOST = "isr-asker"
EVERY_S = 0.5
TIMEOUT_S = 1.0


class IsrQueries(Actors):
    """The query client. Without brokers that keep partitions it does nothing."""

    def __init__(self, world: World) -> None:
        super().__init__(world, *[HOST] * bool(world.config.data_per_s and world.members))

    async def _live(self) -> None:
        world = self._world
        rng = world.rng(HOST)
        transport = world.network.transport_for(HOST)
        while True:
            await asyncio.sleep(rng.expovariate(1 / EVERY_S))
            host = rng.choice(world.members)
            try:
                pages = await ask_leader(transport, host.endpoint, timeout_s=TIMEOUT_S)
            except ApiError as error:
                if error.code is ErrorCode.UNKNOWN_SERVER_ERROR:
                    raise CheckFailedError(
                        f"{host.name} answered {error} to BrokerMetadata"
                    ) from error
                world.count("broker_metadata failed")
                continue
            world.count("broker_metadata ok")
            proposals = sum(bool(one.proposed_isr) for page in pages for one in page.partitions)
            if proposals:
                world.count("broker_metadata proposed", proposals)
