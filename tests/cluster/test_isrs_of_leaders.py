"""KIP-24 with real processes: the leaders' ISRs compared with the controller's."""

import asyncio
import random
from typing import Any

import pytest
from cluster_kit import cluster_of, raftlog, says, until
from command_runs import Ran

from raftlog.client.leaders import ask_leaders
from raftlog.client.log_reader import CommittedImage, LogReader
from raftlog.local.cluster import LocalCluster
from raftlog.ops.isr_compare import Compared, compare
from raftlog.transport.grpc_transport import GrpcTransport

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
    """Return the partition as its leader and the controller describe it."""

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
    """Return the ISR if the leader and the controller agree."""
    row = look(cluster)
    if row.differences or row.led is None or row.committed is None:
        return None
    assert sorted(one.broker_id for one in row.led.isr) == sorted(row.committed.isr)
    return sorted(row.committed.isr)


@pytest.mark.nightly
def test_leader_and_controller_agree_on_the_isr(cluster: LocalCluster) -> None:
    everyone = sorted(node.node_id for node in cluster.brokers)
    until(lambda: agreed(cluster) == everyone, "all are in sync")
    ran = isr(cluster, "--json")
    assert ran.code == 0, ran
    (row,) = ran.json["partitions"]
    assert row["topic"] == TOPIC
    assert row["partition"] == 0
    assert members(row["isr"]) == everyone
    assert row["proposed_isr"] is None
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
