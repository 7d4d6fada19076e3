"""K1, K2: create a topic with one partition, and alter one config of a topic, with one and with 64
in flight; for K1 also visible writes with pauses between them.

Uses three real brokers, which also open the replicas.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Iterator
from typing import Any

import uvloop

from benchmarks.load import Load, Requests, measure
from benchmarks.nodes import Quorum
from benchmarks.stats import latency_ms
from raftlog.client.controller_client import ControllerClient
from raftlog.client.requests import check_items
from raftlog.metadata.config_keys import ResourceType
from raftlog.transport.grpc_transport import GrpcTransport
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb

BROKERS = 3
FIRST_BROKER_ID = 4
"""Lowest broker id; the three controllers have the ids below it."""
TOPICS = 64
"""Number of topics whose configs are altered, in turn."""
PAUSE_S = 0.1
"""Pause between two visible writes, in seconds, in which no other write brings news to the
brokers.
"""


class Creations:
    """Requests that create topics with one partition and one replica, on each broker in turn."""

    def __init__(self, prefix: str) -> None:
        self._names = (f"{prefix}-{number}" for number in itertools.count())
        self._brokers = itertools.cycle(range(FIRST_BROKER_ID, FIRST_BROKER_ID + BROKERS))

    def next(self) -> pb.ControllerRequest:
        """Return a request for a topic that does not exist."""
        replicas = pb.CreatableReplicaAssignment(
            partition_index=0, broker_ids=(next(self._brokers),)
        )
        topic = pb.CreatableTopic(
            name=next(self._names),
            num_partitions=-1,
            replication_factor=-1,
            assignments=(replicas,),
        )
        return pb.ControllerRequest(create_topics=pb.CreateTopicsRequest(topics=(topic,)))


class Alterations:
    """Requests that change one config of each topic in turn."""

    def __init__(self, names: list[str]) -> None:
        self._names: Iterator[str] = itertools.cycle(names)
        self._values = itertools.count(1_000_000)

    def next(self) -> pb.ControllerRequest:
        """Return a request with a value that the topic does not have."""
        resource = pb.AlterConfigsResource(
            resource_type=ResourceType.TOPIC,
            resource_name=next(self._names),
            configs=(pb.AlterableConfig(name="retention.ms", value=str(next(self._values))),),
        )
        return pb.ControllerRequest(
            incremental_alter_configs=pb.IncrementalAlterConfigsRequest(resources=(resource,))
        )


async def _create_some(address: str) -> list[str]:
    transport = GrpcTransport()
    client = ControllerClient(transport, [address], rng=random.Random(1))
    creations, names = Creations("config"), []
    for _ in range(TOPICS):
        request = creations.next()
        names.append(request.create_topics.topics[0].name)
        await client.call(request)
    client.close()
    await transport.close()
    await asyncio.sleep(1)
    return names


async def _visible(address: str, names: list[str], seconds: float) -> dict[str, Any]:
    """Return the latencies of visible writes in an otherwise idle cluster."""
    transport = GrpcTransport()
    client = ControllerClient(transport, [address], rng=random.Random(1))
    requests, took_s = Alterations(names), list[float]()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        await asyncio.sleep(PAUSE_S)
        request = requests.next()
        request.acks = common_pb2.ACKS_VISIBLE
        begun = time.perf_counter()
        response = await client.call(request)
        took_s.append(time.perf_counter() - begun)
        assert response.write.reached == common_pb2.ACKS_VISIBLE
    client.close()
    await transport.close()
    return {"request": "a visible write", "in_flight": 1, "latency_ms": latency_ms(took_s)}


def topics(quorum: Quorum, in_flight: int, seconds: float) -> list[dict[str, Any]]:
    """Measure alterations, then creations, as the created topics would slow down the
    alterations.
    """
    _, brokers = quorum.start_brokers(BROKERS)
    address = quorum.endpoints[quorum.leader() - 1]
    pids = [*quorum.pids, *brokers]
    names = uvloop.run(_create_some(address))
    kinds: dict[str, Requests] = {
        "alter a topic's config": Alterations(names),
        "create a topic": Creations("new"),
    }
    visible = [uvloop.run(_visible(address, names, seconds))] if in_flight == 1 else []
    return [
        {"request": kind, "in_flight": in_flight}
        | uvloop.run(
            measure(
                Load(in_flight),
                [address],
                pids,
                seconds=seconds,
                writes=requests,
                check=check_items,
            )
        )
        for kind, requests in kinds.items()
    ] + visible
