"""Requests that no client of ours makes, to all brokers at once: each is answered, none stops a
broker, and the data stay.
"""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from data_cluster import DataCluster, Load, on_cluster
from scenarios import scenario

from raftlog.transport.api import Conversation, Dialer, Link
from raftlog.transport.rpc_client import RpcClient
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.data.v1 import data_pb2 as pb
from simulation.hosts import CLUSTER_ID

REQUESTS = 1500
INT32 = (-(1 << 31), -2, -1, 0, 1, 2, 100, (1 << 31) - 1)
INT64 = (*INT32, -(1 << 63), 1 << 40, (1 << 63) - 1)
EPOCHS = (-1, 0, 0, 1, 5)


class Requests:
    """Draws them. Half of what they name is there."""

    def __init__(self, rng: random.Random, topic_id: bytes) -> None:
        self._rng = rng
        self._topics = (topic_id, topic_id, topic_id, b"", bytes(16), topic_id + b"x", b"x" * 15)
        self._records = (
            b"",
            b"\xff\xff",
            pb.DataRecord(value=b"odd").SerializeToString(),
            b"z" * 500,
        )

    def _one(self, choices: Sequence[Any]) -> Any:
        return self._rng.choice(choices)

    def _key(self) -> dict[str, Any]:
        return {
            "topic_id": self._one(self._topics),
            "partition_index": self._one((0, 0, 0, 1, *INT32)),
        }

    def _some(self, make: Any) -> list[Any]:
        return [make() for _ in range(self._rng.randrange(4))]

    def produce(self) -> pb.ProduceRequest:
        def partition() -> pb.ProducePartition:
            records = [self._one(self._records) for _ in range(self._rng.randrange(3))]
            return pb.ProducePartition(
                **self._key(), current_leader_epoch=self._one(EPOCHS), records=records
            )

        # Only acks=1 and what is wrong: nobody is to wait here.
        acks = self._one((1, 1, 0, 2, -2))
        return pb.ProduceRequest(
            acks=acks, timeout_ms=self._one((0, 1, 50, -1)), partitions=self._some(partition)
        )

    def fetch(self) -> pb.FetchRequest:
        def partition() -> pb.FetchPartition:
            return pb.FetchPartition(
                **self._key(),
                current_leader_epoch=self._one(EPOCHS),
                fetch_offset=self._one(INT64),
                partition_max_bytes=self._one(INT32),
            )

        return pb.FetchRequest(
            max_wait_ms=self._one((-1, 0, 10, 200)),
            min_bytes=self._one(INT32),
            max_bytes=self._one(INT32),
            partitions=self._some(partition),
        )

    def list_offsets(self) -> pb.ListOffsetsRequest:
        def partition() -> pb.ListOffsetsPartition:
            return pb.ListOffsetsPartition(
                **self._key(), current_leader_epoch=self._one(EPOCHS), timestamp=self._one(INT64)
            )

        return pb.ListOffsetsRequest(partitions=self._some(partition))

    def broker_metadata(self) -> pb.BrokerMetadataRequest:
        return pb.BrokerMetadataRequest(
            partitions=self._some(lambda: pb.PartitionKey(**self._key()))
        )

    def any(self) -> broker_pb2.BrokerRequest:
        name = self._one(("produce", "fetch", "list_offsets", "broker_metadata"))
        return broker_pb2.BrokerRequest(**{name: getattr(self, name)()})

    def replica_fetch(self, number: int) -> pb.ReplicaFetchRequest:
        def partition() -> pb.ReplicaFetchPartition:
            return pb.ReplicaFetchPartition(
                **self._key(),
                current_leader_epoch=self._one(EPOCHS),
                fetch_offset=self._one(INT64),
                last_fetched_epoch=self._one(EPOCHS),
            )

        # Of no broker that there is: what one of these said would count.
        state = pb.ReplicaState(replica_id=self._one((-1, 9, 999)), replica_epoch=self._one(INT64))
        return pb.ReplicaFetchRequest(
            correlation_id=number,
            cluster_id=self._one((CLUSTER_ID, CLUSTER_ID, "", "another")),
            replica_state=state,
            leader_id=self._one((101, 102, 103, -1)),
            max_wait_ms=self._one((0, 10, -1)),
            max_bytes=self._one(INT32),
            partitions=self._some(partition),
            forgotten=[pb.PartitionKey(**self._key())],
        )


class Stranger:
    """A link of somebody who says he is a follower."""

    def __init__(self, cluster: DataCluster, endpoint: str) -> None:
        self.answers = 0
        self.dialer: Dialer = cluster.transport.dial(endpoint, Conversation.REPLICA_FETCH, self)

    def opened(self, link: Link) -> None:
        pass

    def received(self, link: Link, messages: Sequence[Any]) -> None:
        self.answers += len(messages)

    def closed(self, link: Link, reason: str) -> None:
        pass


@scenario(on_cluster)
async def test_any_request_is_answered_and_none_stops_a_broker(cluster: DataCluster) -> None:
    await cluster.create(min_insync_replicas="2")
    load = Load(cluster, cluster.producer(), writers=2)
    await load.more(20)
    partition = cluster.partition()
    assert partition is not None
    rng = random.Random(5)
    requests = Requests(rng, partition.topic_id)
    endpoints = [host.endpoint for host in cluster.brokers.values()]
    callers = [
        RpcClient(cluster.transport, endpoint, Conversation.BROKER) for endpoint in endpoints
    ]
    strangers = [Stranger(cluster, endpoint) for endpoint in endpoints]
    await cluster.until(lambda: all(one.dialer.link for one in strangers), "all links are up")
    calls = []
    for number in range(REQUESTS):
        calls.append(rng.choice(callers).call(requests.any(), 5.0))
        link = rng.choice(strangers).dialer.link
        if link is not None:
            link.send(requests.replica_fetch(number))
        if number % 20 == 0:
            await asyncio.sleep(0.01)
            cluster.check()
    answers = await asyncio.gather(*calls)
    assert len(answers) == REQUESTS
    assert all(one.WhichOneof("body") or one.HasField("error") for one in answers)
    await cluster.until(
        lambda: sum(one.answers for one in strangers) > REQUESTS / 2, "strangers are answered"
    )
    await load.more(20)
    await load.stop()
    assert (load.refused, load.unknown) == ({}, {})
    for one in callers:
        one.close()
    for stranger in strangers:
        stranger.dialer.close()
    assert cluster.isr() == (101, 102, 103)
    end = max(offset for _, offset in load.acknowledged.values()) + 1
    assert end > len(load.acknowledged), "strange records are there, too"
    await still_there(cluster, load)


async def still_there(cluster: DataCluster, load: Load) -> None:
    """Check as ``nothing_is_lost``, but allow that unauthorized clients wrote the same value more
    than once.
    """
    consumer = cluster.consumer(0)
    left = {offset: value for value, (_, offset) in load.acknowledged.items()}
    while left:
        for record in await consumer.poll(5.0):
            assert left.pop(record.offset, record.value) == record.value
