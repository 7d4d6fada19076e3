"""D1: produce with acks=all to partitions with three replicas on three brokers: the latency of one
record, and the throughput of many.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import uvloop

from benchmarks.nodes import Quorum
from benchmarks.stats import cpu_s, latency_ms
from raftlog.client.broker_client import BrokerClient
from raftlog.client.producer import Producer
from raftlog.errors import ApiError
from raftlog.transport.grpc_transport import GrpcTransport
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb

TOPIC = "bench"
PARTITIONS = 6
WARM_UP_S = 1.0
SHAPES = ((1, 100), (64, 100), (1000, 100), (1000, 1000))
"""(Records in flight, bytes per record)."""


def produce(quorum: Quorum, seconds: float) -> list[dict[str, Any]]:
    """Run all shapes, one after the other, on the same three brokers."""
    endpoints, pids = quorum.start_brokers(3)
    return uvloop.run(_all(endpoints, quorum.pids + pids, seconds))


async def _all(endpoints: list[str], pids: list[int], seconds: float) -> list[dict[str, Any]]:
    transport = GrpcTransport()
    client = BrokerClient(transport, endpoints, rng=random.Random(1))
    producer = Producer(transport, endpoints, rng=random.Random(2))
    try:
        await client.write(_topic(), acks=common_pb2.ACKS_VISIBLE)
        return [await _shape(producer, *shape, pids, seconds) for shape in SHAPES]
    finally:
        producer.close()
        client.close()
        await transport.close()


def _topic() -> pb.CreateTopicsRequest:
    topic = pb.CreatableTopic(
        name=TOPIC,
        num_partitions=PARTITIONS,
        replication_factor=3,
        configs=[pb.ConfigEntry(name="min.insync.replicas", value="2")],
    )
    return pb.CreateTopicsRequest(topics=[topic])


async def _shape(
    producer: Producer, in_flight: int, size: int, pids: list[int], seconds: float
) -> dict[str, Any]:
    value = random.Random(size).randbytes(size)
    times: list[float] = []
    failed = 0
    began = time.perf_counter() + WARM_UP_S
    until = began + seconds

    async def one(number: int) -> None:
        nonlocal failed
        while (sent := time.perf_counter()) < until:
            try:
                await producer.send(TOPIC, value, partition=number % PARTITIONS)
            except ApiError:
                failed += 1
            else:
                if sent >= began:
                    times.append(time.perf_counter() - sent)

    tasks = [asyncio.create_task(one(number)) for number in range(in_flight)]
    await asyncio.sleep(WARM_UP_S)
    cpu = cpu_s(pids)
    await asyncio.gather(*tasks)
    return {
        "records in flight": in_flight,
        "bytes": size,
        "records/s": round(len(times) / seconds),
        "ms": latency_ms(times),
        "failed": failed,
        "nodes' CPU, cores": round((cpu_s(pids) - cpu) / seconds, 2),
    }
