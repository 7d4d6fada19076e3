"""Collecting from real addresses: nodes, refusing ports and hanging ports."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from clusters import CLUSTER, broker, brokers, codes, described, voter
from google.protobuf import json_format
from google.protobuf.message import Message

from raftlog.client.security import ClientSecurity
from raftlog.node.observability.journal import Kind
from raftlog.ops.collector import GRACE, Collector, nodes_of
from raftlog.ops.evidence import BrokersAnswer, BrokerState, QuorumAnswer, Reach, Survey
from raftlog.ops.evidence import Timeline as Told
from raftlog.transport import grpc_runtime  # noqa: F401  (before grpc)
from raftlog.wire.controller.v1 import controller_pb2
from raftlog.wire.node.v1 import node_pb2
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

import grpc.aio  # isort: skip


@pytest.fixture
def silent() -> Iterator[str]:
    """A port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def dead() -> Iterator[str]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


class FakeNode:
    """A gRPC server with a scripted quorum description."""

    def __init__(self) -> None:
        self.server = grpc.aio.server()
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.answer = QuorumAnswer()
        self.brokers = BrokersAnswer(high_watermark=5)
        self.ahead_ms = self.overruled_ms = 0
        """Lead of its clock, and the part of it that the majority's clocks correct."""
        self.asked = asyncio.Event()
        self.late_s = 0.0
        self.about: node_pb2.DescribeNodeResponse | None = None
        """The node's description; None for a build without one."""
        for service, method, answer, request in (
            ("quorum.v1.Quorum", "DescribeQuorum", self._describe, pb.DescribeQuorumRequest),
            (
                "controller.v1.Controller",
                "DescribeBrokers",
                self._brokers,
                controller_pb2.DescribeBrokersRequest,
            ),
            ("node.v1.Node", "DescribeNode", self._node, node_pb2.DescribeNodeRequest),
            (
                "node.v1.Node",
                "DescribeNodeEvents",
                self._events,
                node_pb2.DescribeNodeEventsRequest,
            ),
        ):
            handler = grpc.unary_unary_rpc_method_handler(answer, request.FromString, _bytes)
            name = f"raftlog.wire.{service}"
            handlers = grpc.method_handlers_generic_handler(name, {method: handler})
            self.server.add_generic_rpc_handlers((handlers,))

    async def _describe(self, request: object, context: object) -> pb.DescribeQuorumResponse:
        answer = self.answer
        self.asked.set()
        await asyncio.sleep(self.late_s)
        return _wire(answer, pb.DescribeQuorumResponse())

    async def _brokers(
        self, request: object, context: object
    ) -> controller_pb2.DescribeBrokersResponse:
        return _wire(self.brokers, controller_pb2.DescribeBrokersResponse())

    async def _node(self, request: object, context: Any) -> node_pb2.DescribeNodeResponse:
        if self.about is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "not in this build")
        assert self.about is not None
        self.about.now_ms = time.time_ns() // 1_000_000 + self.ahead_ms
        self.about.time_ms = self.about.now_ms - self.overruled_ms
        return self.about

    async def _events(
        self, request: node_pb2.DescribeNodeEventsRequest, context: object
    ) -> node_pb2.DescribeNodeEventsResponse:
        now_ms = time.time_ns() // 1_000_000 + self.ahead_ms - self.overruled_ms
        event = node_pb2.NodeEvent(seq=1, at_ms=now_ms - request.max_age_ms, kind=Kind.STARTED)
        return node_pb2.DescribeNodeEventsResponse(
            node_id=self.answer.node_id, role="controller", time_ms=now_ms, events=[event]
        )

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


def _wire(answer: Any, message: Message) -> Any:
    return json_format.ParseDict(msgspec.to_builtins(answer), message)


def _bytes(message: Message) -> bytes:
    return message.SerializeToString()


@asynccontextmanager
async def started() -> AsyncIterator[FakeNode]:
    fake = FakeNode()
    await fake.server.start()
    try:
        yield fake
    finally:
        await fake.server.stop(None)


@pytest.fixture
async def node() -> AsyncIterator[FakeNode]:
    async with started() as fake:
        yield fake


@pytest.fixture
async def other() -> AsyncIterator[FakeNode]:
    async with started() as fake:
        yield fake


async def look(*addresses: str, timeout_s: float = 2.0) -> Survey:
    return await Collector(ClientSecurity()).survey(addresses, timeout_s)


async def test_unresolvable_host_name_is_reported() -> None:
    (one,) = (await look("no-such-host.invalid:1")).nodes
    assert (one.reach, one.node_id) == (Reach.UNRESOLVED, -1)
    assert one.failure.startswith("the host name no-such-host.invalid does not resolve: ")


async def test_unresponsive_name_server_is_distinguished_from_a_hanging_process(
    monkeypatch: pytest.MonkeyPatch, silent: str
) -> None:
    async def never(host: str, port: int) -> Any:
        if host == "slow.example":
            await asyncio.sleep(60)
        return []

    monkeypatch.setattr("raftlog.transport.probe._resolve", never)
    one, other = (await look("slow.example:1", silent)).nodes
    assert (one.endpoint, one.reach) == (silent, Reach.SILENT)
    assert (other.endpoint, other.reach) == ("slow.example:1", Reach.UNRESOLVED)


async def test_collector_distinguishes_refusing_from_silent_addresses(
    dead: str, silent: str
) -> None:
    seen = await look(dead, silent, timeout_s=0.3)
    reach = {one.endpoint: one.reach for one in seen.nodes}
    assert reach == {dead: Reach.REFUSES, silent: Reach.SILENT}
    assert seen.answers == []


async def test_voters_named_by_a_node_are_asked_and_a_hanging_one_is_not_waited_for(
    node: FakeNode, dead: str, silent: str
) -> None:
    voters = [voter(1, endpoint=node.address), voter(2, endpoint=dead), voter(3, endpoint=silent)]
    node.answer = described(1, "leader", voters, 1)
    begun = time.monotonic()
    seen = await look(node.address, timeout_s=2.0)
    took_s = time.monotonic() - begun
    assert [(one.node_id, one.reach) for one in seen.nodes] == [
        (1, Reach.ANSWERS),
        (2, Reach.REFUSES),
        (3, Reach.SILENT),
    ]
    assert seen.brokers is not None
    assert seen.brokers.high_watermark == 5
    assert took_s < 2.0, f"a share of {GRACE} of the time is enough once somebody answered"


async def test_cluster_without_a_leader_is_checked_again_before_down(node: FakeNode) -> None:
    """[A brief election was reported as an outage.]"""
    voters = [voter(1, endpoint=node.address)]
    node.answer = described(1, "prospective", voters)
    looks = asyncio.create_task(look(node.address, timeout_s=1.0))
    await node.asked.wait()
    node.answer = described(1, "leader", voters, 1)
    assert (await looks).leader is not None


async def test_slow_leader_is_waited_for(node: FakeNode, other: FakeNode, silent: str) -> None:
    """[The survey ended a tenth of the timeout after the first follower.]"""
    voters = [
        voter(1, endpoint=other.address),
        voter(2, endpoint=node.address),
        voter(3, endpoint=silent),
    ]
    node.answer = described(2, "follower", voters, 1)
    other.answer, other.late_s = described(1, "leader", voters, 1), 0.6
    assert (await look(node.address, timeout_s=2.0)).leader is not None


async def test_node_with_two_addresses_is_listed_once(node: FakeNode) -> None:
    node.answer = described(1, "follower", [voter(1, endpoint=node.address)])
    seen = await look(f"localhost:{node.port}", node.address)
    assert [one.endpoint for one in seen.nodes] == [node.address]
    assert seen.nodes[0].report is None, "a build without a description of itself"


async def test_collector_keeps_nodes_with_one_id_in_two_clusters_apart(
    node: FakeNode, other: FakeNode
) -> None:
    node.answer = described(1, "leader", [voter(1, endpoint=node.address)], 1)
    other.answer = described(
        1, "leader", [voter(1, endpoint=other.address)], 1, cluster_id="another"
    )
    seen = await look(node.address, other.address)
    assert {one.cluster_id for one in seen.answers} == {node.answer.cluster_id, "another"}


async def test_other_service_at_an_address_is_detected(node: FakeNode) -> None:
    stranger = grpc.aio.server()
    port = stranger.add_insecure_port("127.0.0.1:0")
    await stranger.start()
    try:
        (one,) = (await look(f"127.0.0.1:{port}")).nodes
        assert one.reach is Reach.OTHER
        assert "Method not found" in one.failure
    finally:
        await stranger.stop(None)


async def test_clocks_disks_and_builds_of_all_nodes_are_shown(
    node: FakeNode, other: FakeNode, silent: str
) -> None:
    node.answer = described(1, "leader", [voter(1, endpoint=node.address)], 1)
    node.about = node_pb2.DescribeNodeResponse(cluster_id=CLUSTER, version="1")
    other.about = node_pb2.DescribeNodeResponse(
        cluster_id=CLUSTER, version="2", disk_free_bytes=5, disk_total_bytes=100
    )
    other.ahead_ms = 60_000
    node.brokers = brokers(
        broker(4, endpoint=other.address),
        broker(5, endpoint=silent),
        broker(6, endpoint=silent, state=BrokerState.INACTIVE),
    )
    begun = time.monotonic()
    seen = await look(node.address, timeout_s=2.0)
    assert time.monotonic() - begun < 2.0, "a broker that hangs is not waited for"
    (one,) = (one for one in seen.nodes if one.report)
    assert one.report is not None
    assert abs(one.report.ahead_ms) < 1_000
    (told,) = seen.broker_reports
    assert (told.name, told.node.version) == ("broker 4", "2")
    assert abs(told.ahead_ms - 60_000) < 1_000
    assert {"CLOCKS_DIFFER", "DISK_NEARLY_FULL", "MIXED_BUILDS"} <= set(codes(seen))


@pytest.mark.parametrize(
    ("leads_by_ms", "overruled_ms", "follows_by_ms"),
    [(0, 0, 0), (7_200_000, 0, -7_200_000), (7_200_000, 7_200_000, -7_200_000)],
)
async def test_times_follow_the_leaders_clock_whatever_the_local_one_shows(
    node: FakeNode, other: FakeNode, leads_by_ms: int, overruled_ms: int, follows_by_ms: int
) -> None:
    """[A machine whose clock was two seconds behind saw neither the log's end nor the journals'.]"""
    voters = [voter(1, endpoint=node.address), voter(2, endpoint=other.address)]
    node.answer, other.answer = (
        described(1, "leader", voters, 1),
        described(2, "follower", voters, 1),
    )
    node.about = node_pb2.DescribeNodeResponse(cluster_id=CLUSTER)
    other.about = node_pb2.DescribeNodeResponse(cluster_id=CLUSTER)
    node.ahead_ms, other.ahead_ms = leads_by_ms, follows_by_ms
    node.overruled_ms = overruled_ms
    seen = await look(node.address)
    now_ms = time.time_ns() // 1_000_000 + leads_by_ms - overruled_ms
    assert abs(seen.at_ms - now_ms) < 1_000
    told = await Collector(ClientSecurity()).journals(seen, nodes_of(seen), 60_000, 2.0)
    assert [one.name for one in told] == ["controller-1", "controller-2"]
    for one in told:
        assert abs(one.events[0].at_ms - (now_ms - 60_000)) < 2_000
    kept = Told.until_now(seen.at_ms - 70_000, seen.at_ms, tuple(told)).events()
    assert len(list(kept)) == 2
