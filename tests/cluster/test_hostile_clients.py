"""Attacks with plain gRPC and sockets; other clients are served within a second."""

import asyncio
import socket
import threading
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest
from cluster_kit import PATIENCE_S, running, succeed
from probe_kit import probing
from raw_http2 import RawHttp2
from tiers import in_gate

from raftlog.errors import ErrorCode
from raftlog.local.cluster import LocalCluster, Node
from raftlog.transport.api import Conversation
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.common.v1 import common_pb2

import grpc  # isort: skip
import grpc.aio  # isort: skip

AT_LEAST_S = 0.3
"""Shortest duration of an attack beside the probe, in seconds."""
OPEN_FILES = 512
"""File descriptor limit of each node: lower than the number of silent connections."""
TOPICS, PARTITIONS = 4, 500


class FewFiles(LocalCluster):
    """Nodes with a low limit of open files."""

    def program(self, name: str) -> list[str]:
        return ["/bin/sh", "-c", f'ulimit -n {OPEN_FILES}; exec "$@"', "sh", *super().program(name)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    made = FewFiles(tmp_path_factory.mktemp("hostile") / "c", controllers=1, brokers=1)
    with running(made):
        for number in range(TOPICS):
            succeed(f"topics create t{number} -p", PARTITIONS, "-r", 1, brokers=made)
        yield made


def channel_to(node: Node, **more: Any) -> Any:
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
    return grpc.aio.insecure_channel(node.endpoint, options=options, **more)


Attack = Callable[[Node, Node], Awaitable[None]]


async def drain(stream: Any) -> None:
    """Read a stream to its end or error."""
    try:
        while await stream.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError:
        pass


async def send(stream: Any, *messages: bytes) -> None:
    """Send as many messages as the node accepts."""
    try:
        for message in messages:
            await stream.write(message)
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        pass


def metadata_requests(count: int, **fields: Any) -> bytes:
    one = broker_pb2.BrokerRequest(metadata=broker_pb2.MetadataRequest(), **fields)
    return broker_pb2.BrokerRequests(requests=[one] * count).SerializeToString()


async def empty_requests(controller: Node, broker: Node) -> None:
    """Send a megabyte of empty requests per message, up to the limit, repeatedly."""
    for node, conversation in (
        (controller, Conversation.CONTROLLER),
        (broker, Conversation.BROKER),
    ):
        for count in (1 << 19, 16_000):
            async with channel_to(node) as channel:
                streams = [channel.stream_stream(conversation.value)() for _ in range(10)]
                await asyncio.gather(
                    *(send(stream, *[b"\x0a\x00" * count] * 3) for stream in streams)
                )
                if count > 16_384:
                    await asyncio.gather(*(drain(stream) for stream in streams))
                else:
                    await asyncio.sleep(1.0)


async def all_metadata(controller: Node, broker: Node) -> None:
    """566 requests for everything in less than 4 KB, on several streams, and by unary calls."""
    async with channel_to(broker) as channel:
        streams = [channel.stream_stream(Conversation.BROKER.value)() for _ in range(4)]
        readers = [asyncio.ensure_future(drain(stream)) for stream in streams]
        await asyncio.gather(*(send(stream, metadata_requests(566)) for stream in streams))
        method = channel.unary_unary("/raftlog.wire.broker.v1.Broker/Metadata")
        await asyncio.gather(*(method(b"") for _ in range(100)), return_exceptions=True)
        for reader in readers:
            reader.cancel()


async def compressed_bombs(controller: Node, broker: Node) -> None:
    """Send compressed messages that would each inflate to 64 MiB."""
    for node, conversation in (
        (controller, Conversation.CONTROLLER),
        (broker, Conversation.BROKER),
    ):
        async with channel_to(node, compression=grpc.Compression.Gzip) as channel:
            for _ in range(3):
                stream = channel.stream_stream(conversation.value)()
                await send(stream, bytes(32 << 20))
                await drain(stream)


async def silent_connections(controller: Node, broker: Node) -> None:
    """Open more connections than there are descriptors, on all ports."""
    held: list[socket.socket] = []
    try:
        for node in (controller, broker):
            for port in (node.port, node.http_port):
                for _ in range(OPEN_FILES + 100):
                    one = socket.socket()
                    one.setblocking(False)
                    held.append(one)
                    one.connect_ex(("127.0.0.1", port))
                await asyncio.sleep(0.2)
        await asyncio.sleep(1.0)
    finally:
        for one in held:
            one.close()


async def garbage(controller: Node, broker: Node) -> None:
    """Send thousands of unparsable messages to conversations, methods, health and reflection."""
    services = ("grpc.health.v1.Health/Check", "raftlog.wire.broker.v1.Broker/Metadata")
    for node in (controller, broker):
        async with channel_to(node) as channel:
            for conversation in Conversation:
                streams = [channel.stream_stream(conversation.value)() for _ in range(40)]
                await asyncio.gather(*(send(stream, b"\x0a\xff\xff\xff\xff") for stream in streams))
                await asyncio.gather(*(drain(stream) for stream in streams))
            calls = [
                channel.unary_unary(f"/{name}")(b"\xff" * 9)
                for name in services
                for _ in range(300)
            ]
            await asyncio.gather(*calls, return_exceptions=True)


async def very_many_streams(controller: Node, broker: Node) -> None:
    """Fill all metadata stream slots; above 1,000 pending calls gRPC itself drops some."""
    channels = [channel_to(controller) for _ in range(40)]
    streams = []
    try:
        for channel in channels:
            streams += [channel.stream_stream(Conversation.OBSERVER.value)() for _ in range(100)]
            await asyncio.sleep(0.1)
        await asyncio.sleep(1.0)
    finally:
        for channel in channels:
            await channel.close()


async def waiting_for_ever(controller: Node, broker: Node) -> None:
    """Send reads at an offset that never exists, with timeouts of weeks; others' reads wait beside
    them, and they end with their link.
    """
    async with channel_to(broker) as channel:
        stream = channel.stream_stream(Conversation.BROKER.value)()
        await stream.write(metadata_requests(1))
        (now,) = broker_pb2.BrokerResponses.FromString(await stream.read()).responses
        stream.cancel()
    token = common_pb2.MetadataToken(generation=now.token.generation, epoch=1, offset=1 << 62)
    for_weeks = broker_pb2.ReadOptions(mode=broker_pb2.LATEST, at_least=token, timeout_ms=2**31 - 1)
    shortly = broker_pb2.ReadOptions(mode=broker_pb2.LATEST, at_least=token, timeout_ms=1)

    async def codes(channel: Any, count: int) -> set[int]:
        stream = channel.stream_stream(Conversation.BROKER.value)()
        await stream.write(metadata_requests(count, read=shortly))
        got: list[int] = []
        while len(got) < count:
            envelope = await asyncio.wait_for(stream.read(), PATIENCE_S)
            got += [
                one.error.error_code
                for one in broker_pb2.BrokerResponses.FromString(envelope).responses
            ]
        stream.cancel()
        return set(got)

    async with channel_to(broker) as greedy, channel_to(broker) as other:
        stream = greedy.stream_stream(Conversation.BROKER.value)()
        await stream.write(metadata_requests(10_000, read=for_weeks))
        refused = broker_pb2.BrokerResponses.FromString(await stream.read()).responses[0].error
        assert refused.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert refused.throttle_time_ms > 0
        assert await codes(other, 1_000) == {ErrorCode.REQUEST_TIMED_OUT}
        stream.cancel()
        await asyncio.sleep(0.5)
        # What the link held is free again.
        assert await codes(other, 4_000) == {ErrorCode.REQUEST_TIMED_OUT}


@contextmanager
def growing_at_most(node: Node, most_bytes: int) -> Iterator[None]:
    """Sample the memory of a node's process throughout."""
    pid = next(
        one.pid
        for one in psutil.net_connections()
        if one.laddr and one.laddr.port == node.port and one.pid
    )
    process, peaks, over = psutil.Process(pid), [0], threading.Event()
    before = process.memory_info().rss

    def look() -> None:
        while not over.wait(0.02):
            peaks.append(process.memory_info().rss - before)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()
    assert max(peaks) < most_bytes, f"{max(peaks) >> 20} MiB more"


async def never_reading(controller: Node, broker: Node) -> None:
    """Send large requests and read no response."""
    channels = [channel_to(broker) for _ in range(5)]
    try:
        with growing_at_most(broker, 300 << 20):
            for channel in channels:
                stream = channel.stream_stream(Conversation.BROKER.value)()
                await send(stream, metadata_requests(566), metadata_requests(566))
            await asyncio.sleep(4.0)
    finally:
        for channel in channels:
            await channel.close()


async def unfinished_messages(controller: Node, broker: Node) -> None:
    """Send all but the end of 32 MiB on many calls of several connections."""
    paths = (Conversation.BROKER.value, "/raftlog.wire.broker.v1.Broker/Metadata")
    strangers = [RawHttp2(broker.endpoint) for _ in range(3)]

    def attack() -> None:
        until_s = time.monotonic() + 8.0
        while time.monotonic() < until_s:
            for stranger, path in zip(strangers, (*paths, *paths), strict=False):
                if not stranger.open and not stranger.closed:
                    for _ in range(40):
                        stranger.begin(path)
                stranger.pump(0.001)

    try:
        with growing_at_most(broker, 400 << 20):
            await asyncio.to_thread(attack)
        assert sum(stranger.sent_bytes for stranger in strangers) > 400 << 20
    finally:
        for stranger in strangers:
            stranger.close()


ATTACKS = (
    empty_requests,
    all_metadata,
    compressed_bombs,
    silent_connections,
    garbage,
    very_many_streams,
    waiting_for_ever,
    never_reading,
    unfinished_messages,
)


@pytest.mark.parametrize("attack", in_gate(ATTACKS, (garbage,)), ids=lambda attack: attack.__name__)
async def test_clients_are_served_during_an_attack(cluster: LocalCluster, attack: Attack) -> None:
    (controller,), (broker,) = cluster.controllers, cluster.brokers
    async with probing(controller, broker) as probed:
        until = time.monotonic() + AT_LEAST_S
        async with asyncio.timeout(PATIENCE_S):
            await attack(controller, broker)
            while time.monotonic() < until:
                # It was refused at once: the probe has hardly begun.
                await attack(controller, broker)
    probed.check()


def test_logs_are_short_and_metrics_count_the_attacks_afterwards(cluster: LocalCluster) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for node in cluster.nodes:
        log = cluster.log_path(node.name).read_text()
        assert "Traceback" not in log
        assert log.count("malformed message") <= 100
        with opener.open(f"{node.http}/metrics", timeout=PATIENCE_S) as response:
            lines = response.read().decode().splitlines()
        (malformed,) = [
            line
            for line in lines
            if line.startswith('raftlog_transport_complaints_total{kind="malformed"}')
        ]
        assert float(malformed.split()[-1]) >= 300
