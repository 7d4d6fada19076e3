"""K3: one call that creates many partitions: the time until the reply, and until every broker has
applied them.

Measured twice: with brokers that keep the image but no replicas (the metadata path alone), and with
real broker processes, which also create the replicas.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import uvloop

from benchmarks.nodes import Quorum
from benchmarks.propagation import REST_S, observed
from raftlog.client.broker_client import BrokerClient
from raftlog.client.controller_client import ControllerClient
from raftlog.transport.grpc_transport import GrpcTransport
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb

BROKERS = 3
TIMEOUT_S = 60.0


def request(name: str, partitions: int) -> pb.CreateTopicsRequest:
    """Return a request for one topic with replication factor 3."""
    topic = pb.CreatableTopic(name=name, num_partitions=partitions, replication_factor=3)
    return pb.CreateTopicsRequest(topics=[topic])


async def _create(
    bootstrap: list[str], partitions: int, brokers: list[str]
) -> tuple[float, float, int, float]:
    """Return (sent, answered, offset, shown by the last of these brokers), where times are by the
    machine's monotonic clock.
    """
    transport = GrpcTransport()
    client = ControllerClient(transport, bootstrap, rng=random.Random(1))
    readers = [BrokerClient(transport, [one], rng=random.Random(1)) for one in brokers]
    warm = await client.call(request("warm", 100))
    await asyncio.gather(*(_shown(one, "warm", 100, warm.write.token) for one in readers))
    await asyncio.sleep(REST_S)
    sent = time.monotonic()
    response = await client.call(request("many", partitions), timeout_s=TIMEOUT_S)
    answered, token = time.monotonic(), response.write.token
    shown = await asyncio.gather(*(_shown(one, "many", partitions, token) for one in readers))
    await asyncio.sleep(0 if readers else 3 * REST_S)
    for reader in readers:
        reader.close()
    client.close()
    await transport.close()
    return sent, answered, token.offset, max(shown, default=answered)


async def _shown(
    reader: BrokerClient, topic: str, partitions: int, token: common_pb2.MetadataToken
) -> float:
    """Return the time at which a broker has answered with all partitions, each with a leader, from
    an image at the write's token or later.
    """
    reader.see(token)
    body = broker_pb2.MetadataRequest(topics=[topic])
    response = await reader.read(body, mode=broker_pb2.LATEST, timeout_s=TIMEOUT_S)
    shown = time.monotonic()
    (found,) = response.metadata.topics
    led = sum(one.leader_id >= 0 for one in found.partitions)
    if led != partitions:
        raise RuntimeError(f"only {led} of {partitions} partitions have a leader")
    return shown


def _result(kind: str, partitions: int, reply_s: float, everywhere_s: float) -> dict[str, Any]:
    return {
        "brokers": kind,
        "partitions": partitions,
        "reply_ms": round(reply_s * 1000, 1),
        "partitions_per_s_to_reply": round(partitions / reply_s),
        "everywhere_ms": round(everywhere_s * 1000, 1),
        "partitions_per_s_everywhere": round(partitions / everywhere_s),
    }


def on_images(quorum: Quorum, partitions: int) -> dict[str, Any]:
    """Measure with three brokers without a data plane, which record when they have applied it."""
    with observed(quorum, BROKERS) as watching:
        leader = quorum.endpoints[quorum.leader() - 1]
        sent, answered, offset, _ = uvloop.run(_create([leader], partitions, []))
        watching.stop()
    everywhere = watching.all_applied(offset) - sent
    return _result("without replicas", partitions, answered - sent, everywhere)


def on_brokers(quorum: Quorum, partitions: int) -> dict[str, Any]:
    """Measure with three real brokers, queried until each shows all partitions; they create the
    replicas meanwhile.
    """
    brokers, _ = quorum.start_brokers(BROKERS)
    leader = quorum.endpoints[quorum.leader() - 1]
    sent, answered, _, shown = uvloop.run(_create([leader], partitions, brokers))
    return _result("real", partitions, answered - sent, shown - sent)
