"""The purpose of KIP-343: a broker reachable by clients, not by the controllers."""

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cluster_kit import PATIENCE_S, controllers_of, setting, succeed, until_true
from cuttable_proxy import CuttableProxy
from tiers import nightly

from raftlog.client.broker_client import BrokerClient
from raftlog.errors import ErrorCode
from raftlog.local.cluster import LocalCluster, free_ports
from raftlog.transport.grpc_transport import GrpcTransport
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb

SESSION_S, FENCING_S = 2.0, 5.0
SETTINGS = {
    "broker.session.timeout.ms": int(SESSION_S * 1000),
    "broker.heartbeat.interval.ms": 300,
    "broker.fencing.timeout.ms": int(FENCING_S * 1000),
    # No lanes: a lane would reach the controller beside the proxy, and bring the broker the very
    # record that fences it.
    "lane.port.offset": 0,
}
WRITES = 40
AWAY = 3
"""The broker that is cut off, or sleeps."""


class Asked:
    """Requests to one broker, without a fallback to others."""

    def __init__(self, client: BrokerClient) -> None:
        self.client = client

    async def read(
        self, *, at_least: common_pb2.MetadataToken | None = None
    ) -> broker_pb2.BrokerResponse:
        """Return the newest metadata of all topics."""
        options = broker_pb2.ReadOptions(
            mode=broker_pb2.LATEST, at_least=at_least, timeout_ms=60_000
        )
        request = broker_pb2.BrokerRequest(read=options, metadata=broker_pb2.MetadataRequest())
        return await self.client.send(request, timeout_s=PATIENCE_S)

    async def refusal(self) -> str:
        """Return the reason why it refuses new requests; empty if it accepts them."""
        response = await self.read()
        return (
            response.error.error_message
            if response.error.error_code == ErrorCode.BROKER_FENCED
            else ""
        )

    async def about(self) -> broker_pb2.DescribeBrokerResponse:
        """Return the broker's description of itself, which it answers fenced or not."""
        request = broker_pb2.BrokerRequest(describe_broker=broker_pb2.DescribeBrokerRequest())
        return (await self.client.send(request, timeout_s=PATIENCE_S)).describe_broker


@asynccontextmanager
async def asked(cluster: LocalCluster, name: str) -> AsyncIterator[Asked]:
    transport = GrpcTransport()
    client = BrokerClient(transport, [cluster.node(name).endpoint], rng=random.Random(0))
    try:
        yield Asked(client)
    finally:
        client.close()
        await transport.close()


@asynccontextmanager
async def cluster_with_proxy(directory: Path) -> AsyncIterator[tuple[LocalCluster, CuttableProxy]]:
    """One controller, brokers 2 and 3; broker 3 reaches the controller only through the proxy. The
    controller advertises the proxy, as broker 3 also contacts the voters of the log.
    """
    cluster = LocalCluster(directory, controllers=1, brokers=2, settings=SETTINGS)
    cluster.generate()
    (controller,) = cluster.controllers
    (port,) = free_ports(1)
    proxy = CuttableProxy(port, controller.endpoint)
    for node in (controller.name, f"broker-{AWAY}"):
        config = cluster.config_path(node)
        voter = f"1@{controller.endpoint}"
        text = config.read_text()
        assert text.count(voter) == 1
        config.write_text(text.replace(voter, f"1@{proxy.address}"))
    with cluster.config_path(controller.name).open("a") as file:
        file.write(f'advertised.listeners = ["{proxy.address}"]\n')
    await proxy.open()
    try:
        await asyncio.to_thread(cluster.start_controllers)
        await asyncio.to_thread(cluster.start_brokers)
        await asyncio.to_thread(
            cluster.wait_ready, [node.name for node in cluster.nodes], PATIENCE_S
        )
        await asyncio.to_thread(succeed, "topics create t -p 2 -r 2", controllers=cluster)
        yield cluster, proxy
    finally:
        await proxy.close()
        await asyncio.to_thread(cluster.stop_all, 5)


def brokers_in(response: broker_pb2.BrokerResponse) -> list[int]:
    return [broker.node_id for broker in response.metadata.brokers]


async def live_through_a_partition(directory: Path, way: str) -> None:
    async with (
        cluster_with_proxy(directory) as (cluster, proxy),
        controllers_of(cluster) as controllers,
        asked(cluster, f"broker-{AWAY}") as away,
        asked(cluster, "broker-2") as other,
    ):

        async def seen() -> pb.DescribedBroker:
            response = await controllers.call(pb.DescribeBrokersRequest(), timeout_s=PATIENCE_S)
            return next(one for one in response.describe_brokers.brokers if one.broker_id == AWAY)

        async def inactive() -> bool:
            return (await seen()).state == pb.INACTIVE

        before = await seen()
        assert before.state == pb.ACTIVE
        served = await away.read()
        # What it has taken before must be finished, though it takes nothing new meanwhile.
        ahead = common_pb2.MetadataToken(
            generation=served.token.generation,
            epoch=served.token.epoch,
            offset=served.token.offset + WRITES,
        )
        taken = asyncio.ensure_future(away.read(at_least=ahead))
        await asyncio.sleep(0.1)
        begun = time.monotonic()
        await (proxy.cut() if way == "cut" else proxy.swallow())

        await until_true(inactive, "the controller declares it inactive", 10)
        assert time.monotonic() - begun >= SESSION_S - 0.5
        assert (await seen()).reason == "session timed out"
        # The controller was first, as it should be. Clients still reach the broker, which serves
        # what it has.
        assert not (await away.about()).self_fenced
        assert await away.refusal() == ""

        async def gone_from_metadata() -> bool:
            response = await other.read()
            leaders = {one.leader_id for one in response.metadata.topics[0].partitions}
            return brokers_in(response) == [2] and leaders == {2}

        await until_true(gone_from_metadata, "clients of other brokers are not sent to it")

        async def fenced() -> bool:
            return bool(await away.refusal())

        await until_true(fenced, "it fences itself", 10)
        assert time.monotonic() - begun >= FENCING_S - 0.5
        assert (await away.about()).self_fenced
        assert "no controller answered for" in await away.refusal()
        write = broker_pb2.BrokerRequest(
            write=pb.ControllerRequest(incremental_alter_configs=setting("k", "v"))
        )
        response = await away.client.send(write, timeout_s=PATIENCE_S)
        assert response.error.error_code == ErrorCode.BROKER_FENCED
        assert not response.error.outcome_unknown
        assert not taken.done()

        await proxy.heal()

        async def serves() -> bool:
            return not await away.refusal() and brokers_in(await away.read()) == [2, 3]

        await until_true(serves, "it recovers by itself")
        for number in range(WRITES):
            await controllers.call(setting(f"k{number}", "v"), timeout_s=PATIENCE_S)
        finished = await asyncio.wait_for(taken, PATIENCE_S)
        assert not finished.HasField("error")
        assert finished.token.offset >= ahead.offset
        after = await seen()
        # The same process: the same registration.
        assert (after.state, after.broker_epoch) == (pb.ACTIVE, before.broker_epoch)


@pytest.mark.parametrize("way", ["cut", nightly("swallow")])
def test_partitioned_broker_serves_no_stale_reads(tmp_path: Path, way: str) -> None:
    asyncio.run(live_through_a_partition(tmp_path / "c", way))


async def sleep_through_both_timeouts(directory: Path) -> None:
    async with (
        cluster_with_proxy(directory) as (cluster, _),
        controllers_of(cluster) as controllers,
        asked(cluster, f"broker-{AWAY}") as away,
    ):
        before = await away.about()
        assert await away.refusal() == ""
        cluster.kill(f"broker-{AWAY}", signal.SIGSTOP)
        # Asked while it sleeps: the first thing it does when it wakes must not be to serve from
        # days ago.
        await asyncio.sleep(0.5)
        first = asyncio.ensure_future(away.read())
        await asyncio.sleep(FENCING_S + 1)
        cluster.kill(f"broker-{AWAY}", signal.SIGCONT)
        response = await asyncio.wait_for(first, PATIENCE_S)
        assert response.error.error_code == ErrorCode.BROKER_FENCED, response

        async def serves() -> bool:
            return not await away.refusal()

        await until_true(serves, "it recovers by itself")
        assert (await away.about()).broker_epoch == before.broker_epoch
        found = await controllers.call(pb.DescribeBrokersRequest(), timeout_s=PATIENCE_S)
        assert [one.state for one in found.describe_brokers.brokers] == [pb.ACTIVE, pb.ACTIVE]


@pytest.mark.nightly
def test_broker_that_slept_past_both_timeouts_serves_nothing_before_contact(tmp_path: Path) -> None:
    asyncio.run(sleep_through_both_timeouts(tmp_path / "c"))
