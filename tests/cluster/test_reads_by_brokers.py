"""Reads at several broker processes: monotonic, strict, and across a renegotiation."""

import asyncio
import contextlib
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import (
    CLIENT_METRICS,
    PATIENCE_S,
    cluster_of,
    controllers_of,
    raftlog,
    setting,
    until_true,
)
from mixed_builds import PINNED, MixedCluster

from raftlog.client.broker_client import BrokerClient
from raftlog.errors import ApiError
from raftlog.local.cluster import LocalCluster
from raftlog.metadata.versions import LATEST_METADATA_VERSION, METADATA_VERSION
from raftlog.transport.grpc_transport import GrpcTransport
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.common.v1 import common_pb2
from simulation.round_robin import RoundRobinClient

SETTINGS = {
    "broker.session.timeout.ms": 2_000,
    "broker.heartbeat.interval.ms": 300,
    "broker.fencing.timeout.ms": 4_000,
}
LEASE_MS = 1_500
VISIBLE, COMMITTED = common_pb2.ACKS_VISIBLE, common_pb2.ACKS_COMMITTED


cluster = cluster_of(controllers=1, brokers=3, settings=SETTINGS)


@asynccontextmanager
async def brokers_of(
    cluster: LocalCluster, *names: str, round_robin: bool = True
) -> AsyncIterator[BrokerClient]:
    transport = GrpcTransport()
    endpoints = [node.endpoint for node in cluster.brokers if not names or node.name in names]
    kind = RoundRobinClient if round_robin else BrokerClient
    client = kind(transport, endpoints, rng=random.Random(3))
    try:
        yield client
    finally:
        client.close()
        await transport.close()


def value(key: str) -> broker_pb2.DescribeConfigsRequest:
    resource = broker_pb2.DescribeConfigsResource(
        resource_type=CLIENT_METRICS, resource_name=key, configuration_keys=["match"]
    )
    return broker_pb2.DescribeConfigsRequest(resources=[resource])


def found(response: broker_pb2.BrokerResponse) -> int:
    configs = response.describe_configs.results[0].configs
    return int(configs[0].value) if configs and not configs[0].is_default else -1


async def strictly(client: BrokerClient) -> int:
    """Return what a client without a token reads strictly."""
    client.forget()
    mode = broker_pb2.STRICT
    return found(await client.read(value("strict"), mode=mode, timeout_s=2.0))


async def write_on(client: BrokerClient, key: str, stop: asyncio.Event, acks: Any) -> list[int]:
    """Count up in one key until stopped; return the acknowledged counts."""
    done = [-1]
    while not stop.is_set():
        result = await client.write(
            setting(key, str(done[-1] + 1)), acks=acks, timeout_s=PATIENCE_S
        )
        assert result.write.reached == acks
        done.append(done[-1] + 1)
    return done


async def test_reads_of_one_client_are_monotonic_across_brokers(cluster: LocalCluster) -> None:
    """[broker A has been told 100, B only 80: round-robin goes backwards]"""
    async with brokers_of(cluster) as writer, brokers_of(cluster) as reader:
        stop = asyncio.Event()
        writing = asyncio.create_task(write_on(writer, "counted", stop, COMMITTED))
        seen, offset, reads = -1, -1, 0
        while reads < 600 or seen <= 10:
            reads += 1
            mode = random.choice((broker_pb2.REPEATABLE, broker_pb2.LATEST))
            response = await reader.read(value("counted"), mode=mode, timeout_s=PATIENCE_S)
            assert (found(response), response.token.offset) >= (seen, offset)
            seen, offset = found(response), response.token.offset
        stop.set()
        done = await writing
        # Its own write, wherever it is read.
        assert writer.token is not None
        reader.see(writer.token)
        for _ in range(3):
            assert found(await reader.read(value("counted"), timeout_s=PATIENCE_S)) == done[-1] > 10


def test_strict_reads_miss_nothing_while_a_broker_oversleeps(cluster: LocalCluster) -> None:
    async def test() -> None:
        sleeper = cluster.brokers[-1].name
        others = [node.name for node in cluster.brokers[:-1]]
        async with (
            brokers_of(cluster, *others) as writer,
            brokers_of(cluster) as reader,
            brokers_of(cluster, sleeper) as at_sleeper,
        ):
            acknowledged = -1
            strict: dict[str, Any] = {"mode": broker_pb2.STRICT, "timeout_s": PATIENCE_S}

            async def write() -> None:
                nonlocal acknowledged
                more = setting("strict", str(acknowledged + 1))
                await writer.write(more, acks=VISIBLE, timeout_s=PATIENCE_S)
                acknowledged += 1

            async def count(upto: int) -> None:
                while acknowledged < upto:
                    await write()
                    # Another client, without a token, at whichever broker's turn it is.
                    assert await strictly(reader) >= acknowledged

            await count(30)
            about = (await at_sleeper.read(broker_pb2.DescribeBrokerRequest())).describe_broker
            assert 0 < about.read_lease_ms <= LEASE_MS
            assert cluster.kill(sleeper, signal.SIGSTOP)
            # Asked while it sleeps; it answers when it wakes, and then knows more than it did.
            asleep = asyncio.create_task(at_sleeper.read(value("strict"), **strict))
            await asyncio.sleep(0.2)
            await write()
            before = acknowledged
            assert cluster.kill(sleeper, signal.SIGCONT)
            # Or it was fenced meanwhile, and says so.
            with contextlib.suppress(ApiError):
                assert found(await asleep) >= before - 1, (
                    "what was acknowledged before it was asked"
                )

            async def strict_again() -> bool:
                assert await strictly(at_sleeper) >= before
                return True

            await until_true(strict_again, "the sleeper reads strictly again")
            await count(60)

    asyncio.run(test())


@pytest.mark.nightly
def test_client_renegotiates_between_two_builds_without_a_failed_call(tmp_path: Path) -> None:
    """One broker of the older build and one of this one; then both of this one; the level is raised
    while the client reads at both in turn.
    """
    mixed = MixedCluster(tmp_path / "c", PINNED, controllers=1, brokers=2, settings=SETTINGS)
    mixed.generate()
    old, new = (node.name for node in mixed.brokers)

    async def test() -> None:
        told: list[int] = []
        async with brokers_of(mixed) as client, controllers_of(mixed) as writer:

            async def level() -> int:
                offered = await client.api_versions(PATIENCE_S)
                return next(
                    one.level for one in offered.finalized_features if one.name == METADATA_VERSION
                )

            async def read_until(done: asyncio.Event) -> None:
                while not done.is_set():
                    told.append(await level())
                    await client.read(value("k"), mode=broker_pb2.STRICT, timeout_s=PATIENCE_S)

            async def reading(work: Any) -> Any:
                done = asyncio.Event()
                reads = asyncio.create_task(read_until(done))
                try:
                    return await work
                finally:
                    done.set()
                    await reads

            def raise_level() -> Any:
                return raftlog(
                    f"cluster features upgrade metadata.version={LATEST_METADATA_VERSION}",
                    controllers=mixed,
                )

            refused = await reading(asyncio.to_thread(raise_level))
            assert refused.code != 0, refused
            assert "supports metadata.version 1 to 1, not 2" in refused.err
            await reading(asyncio.to_thread(mixed.change, old, to_other=False))
            await asyncio.to_thread(mixed.wait_ready, [old, new], PATIENCE_S)
            assert set(told) == {1}
            raised = await reading(asyncio.to_thread(raise_level))
            assert raised.code == 0, raised.err
            await writer.call(setting("k", "1"), acks=VISIBLE, timeout_s=PATIENCE_S)

            async def heard() -> bool:
                return await level() == LATEST_METADATA_VERSION

            await until_true(heard, "the client has heard of the level")
            await reading(asyncio.sleep(1.0))
            assert told[-1] == LATEST_METADATA_VERSION

    try:
        mixed.of_other.discard(new)
        mixed.start_controllers()
        mixed.start_brokers()
        mixed.wait_ready([node.name for node in mixed.nodes], PATIENCE_S)
        # The log has begun at the level before.
        mixed.change(mixed.controllers[0].name, to_other=False)
        mixed.wait_ready([node.name for node in mixed.nodes], PATIENCE_S)
        asyncio.run(test())
    finally:
        mixed.stop_all(timeout_s=5)
