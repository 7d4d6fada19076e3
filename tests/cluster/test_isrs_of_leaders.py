"""KIP-24 with real processes: leaders are asked for their ISRs, and held against what the
controller has committed.
"""

import asyncio
import random
import signal
from typing import Any

import grpc.aio
import pytest
from cluster_kit import PATIENCE_S, cluster_of, raftlog, says, succeed, until
from command_runs import Ran

from raftlog.client.leaders import ask_leaders
from raftlog.client.log_reader import CommittedImage, LogReader
from raftlog.local.cluster import LocalCluster
from raftlog.ops.isr_compare import Compared, compare
from raftlog.transport.grpc_transport import GrpcTransport
from raftlog.wire.data.v1 import data_pb2 as pb

TOPIC = "orders"
SETTINGS = {
    "broker.session.timeout.ms": 8_000,
    "broker.heartbeat.interval.ms": 500,
    "broker.fencing.timeout.ms": 12_000,
    "replica.lag.time.max.ms": 1_500,
}


cluster = cluster_of(1, 3, f"topics create {TOPIC} -r 3 --acks visible", settings=SETTINGS)


def isr(cluster: LocalCluster, *options: object) -> Ran:
    return raftlog(f"partitions isr {TOPIC}", *options, brokers=cluster)


def compared(cluster: LocalCluster, *options: object) -> Ran:
    return raftlog(f"partitions isr {TOPIC} --compare --timeout 2", *options, controllers=cluster)


def members(states: list[dict[str, Any]]) -> list[int]:
    return sorted(one["broker_id"] for one in states)


def look(cluster: LocalCluster) -> Compared:
    """The partition, as its leader and the controller say."""

    async def asked() -> Compared:
        transport = GrpcTransport()
        reader = LogReader(
            transport, [node.endpoint for node in cluster.controllers], rng=random.Random(1)
        )
        try:
            endpoints = {node.node_id: node.endpoint for node in cluster.brokers}
            answers = await ask_leaders(transport, endpoints, timeout_s=1.0)
            (row,) = compare(await CommittedImage(reader).read(), answers)
            return row
        finally:
            reader.close()
            await transport.close()

    return asyncio.run(asked())


def agreed(cluster: LocalCluster) -> list[int] | None:
    """The ISR, if the leader and the controller say the same."""
    row = look(cluster)
    if row.differences or row.led is None or row.committed is None:
        return None
    assert sorted(one.broker_id for one in row.led.isr) == sorted(row.committed.isr)
    return sorted(row.committed.isr)


def leader_of(cluster: LocalCluster) -> int:
    return look(cluster).leader_id


@pytest.mark.nightly
def test_leader_and_controller_agree(cluster: LocalCluster) -> None:
    everyone = sorted(node.node_id for node in cluster.brokers)
    until(lambda: agreed(cluster) == everyone, "all are in sync")
    ran = isr(cluster, "--json")
    assert ran.code == 0, ran
    (row,) = ran.json["partitions"]
    assert (row["topic"], row["partition"], members(row["isr"]), row["proposed_isr"]) == (
        TOPIC,
        0,
        everyone,
        None,
    )
    assert all(one["broker_epoch"] > 0 for one in row["isr"])
    assert sorted(one["replica_id"] for one in row["followers"]) == [
        one for one in everyone if one != row["leader_id"]
    ]
    says(
        isr(cluster).out,
        "TOPIC +PARTITION +LEADER +LEADER EPOCH +PARTITION EPOCH +ISR",
        rf"orders +0 +{row['leader_id']} ",
    )
    says(
        compared(cluster).out,
        "COMMITTED ISR +DIFFERENCES",
        "1 partition compared at offset [0-9]+, 0 differ",
    )


@pytest.mark.nightly
def test_foreign_clients_ask_by_a_unary_call(cluster: LocalCluster) -> None:
    leader = leader_of(cluster)

    async def ask(endpoint: str) -> pb.BrokerMetadataResponse:
        async with grpc.aio.insecure_channel(endpoint) as channel:
            call = channel.unary_unary(
                "/raftlog.wire.broker.v1.Broker/BrokerMetadata",
                request_serializer=pb.BrokerMetadataRequest.SerializeToString,
                response_deserializer=pb.BrokerMetadataResponse.FromString,
            )
            response: pb.BrokerMetadataResponse = await call(
                pb.BrokerMetadataRequest(), timeout=PATIENCE_S
            )
            return response

    for node in cluster.brokers:
        answer = asyncio.run(ask(node.endpoint))
        assert answer.broker_id == node.node_id
        assert [one.topic_name for one in answer.partitions] == (
            [TOPIC] if node.node_id == leader else []
        )


@pytest.mark.nightly
def test_follower_that_sleeps_leaves_the_isr_at_both_and_comes_back(cluster: LocalCluster) -> None:
    leader = leader_of(cluster)
    everyone = sorted(node.node_id for node in cluster.brokers)
    sleeper = next(one for one in everyone if one != leader)
    cluster.kill(f"broker-{sleeper}", signal.SIGSTOP)
    awake = [one for one in everyone if one != sleeper]
    # Something to lag behind.
    succeed(f"produce {TOPIC} --value x", brokers=cluster.node(f"broker-{leader}").endpoint)
    until(lambda: agreed(cluster) == awake, "it has left the ISR")
    cluster.kill(f"broker-{sleeper}", signal.SIGCONT)
    until(lambda: agreed(cluster) == everyone, "it is in sync again")


@pytest.mark.nightly
def test_leader_that_cannot_be_asked_is_a_difference_that_lasts(cluster: LocalCluster) -> None:
    leader = leader_of(cluster)
    cluster.kill(f"broker-{leader}", signal.SIGSTOP)
    ran = compared(cluster, "--moment", 1, "--json")
    assert ran.code == 3, ran
    says(ran.err, "leaders and controller have differed for 1 s in 1 ways")
    (row,) = ran.json["partitions"]
    assert [(one["why"], one["lasting"]) for one in row["differences"]] == [("no answer", True)]
    says(row["differences"][0]["text"], f"broker {leader}: REQUEST_TIMED_OUT")
    # Its session is over: another one leads, and agrees with the controller.
    until(lambda: agreed(cluster) is not None, "another leader tells the same as the controller")
    row = look(cluster)
    assert row.leader_id not in (leader, -1)
    assert row.committed is not None
    assert leader not in row.committed.isr
    cluster.kill(f"broker-{leader}", signal.SIGCONT)
    everyone = sorted(node.node_id for node in cluster.brokers)
    until(lambda: agreed(cluster) == everyone, "the old leader is in sync again")
