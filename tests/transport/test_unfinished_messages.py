"""Messages that are begun and never completed have a bounded cost."""

import asyncio
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lane_kit import FakeTransport, frame, lane_over, pair
from raw_http2 import RawHttp2
from scenarios import scenario
from test_bearer_tokens import DESCRIBE, run, serving
from test_hostile_peers import complaints
from transport_worlds import LIMITS, Recorder, World, connect, echo, request, run_real, until

from raftlog.bounds import ENVELOPE_MAX_ITEMS, STREAM_WINDOW_BYTES
from raftlog.transport.api import Conversation, TransportLimits
from raftlog.transport.bounds import (
    FEW_BYTES,
    LOOK_S,
    OPENING_BYTES,
    Bounds,
    Complaint,
    OpenCall,
    ReceivedBytes,
    UnfinishedMessages,
)
from raftlog.transport.grpc_link import FEW_BYTES as LINK_FEW_BYTES
from raftlog.transport.grpc_link import UNBUDGETED_BYTES, GrpcLink
from raftlog.transport.lane_link import ServedLanedLink
from raftlog.transport.lane_tickets import UnfinishedFrame
from raftlog.transport.lanes import HEADER_BYTES, READ_AHEAD_BYTES, Lane
from raftlog.wire.controller.v1 import controller_pb2

MIB = 1 << 20
TOTAL, TIMEOUT_S = 16 * MIB, 10.0
STRANGER = "10.0.0.6:5000"


@dataclass
class Kernel:
    counts: dict[str, int] = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)

    def of(self, peer: str) -> int | None:
        return None if peer in self.hidden else self.counts.get(peer, 0)

    def find(self) -> None:
        self.hidden.clear()


class Peers:
    """Calls and their connections, made by hand."""

    def __init__(self) -> None:
        self.kernel = Kernel()
        self.messages = UnfinishedMessages(self.kernel, TOTAL, TIMEOUT_S)
        self.now = 0.0
        self.cut: list[tuple[str, str]] = []

    def open(self, peer: str, max_bytes: int = 8 * MIB, name: str = "") -> OpenCall:
        def cut(why: str) -> None:
            self.cut.append((name or peer, why))
            self.messages.end(peer, call)

        call = self.messages.begin(peer, cut, max_bytes, self.now)
        return call

    def send(self, peer: str, count: int) -> None:
        self.kernel.counts[peer] = self.kernel.counts.get(peer, 0) + count

    def complete(self, peer: str, call: OpenCall, length: int) -> None:
        self.send(peer, length + 14)
        call.took(length)

    def look(self, after_s: float = LOOK_S) -> int:
        self.now += after_s
        self.messages.look(self.now)
        return self.messages.total_bytes


def test_complete_messages_are_never_aborted_however_many() -> None:
    peers = Peers()
    call = peers.open("a:1")
    for _ in range(2_000):
        for _ in range(20):
            peers.complete("a:1", call, MIB)
        assert peers.look() <= 20 * MIB * 0.01 + FEW_BYTES
    assert peers.cut == []


def test_keepalive_of_a_silent_stream_does_not_accumulate() -> None:
    peers = Peers()
    peers.open("a:1")
    for _ in range(10_000):
        peers.send("a:1", 2 * 17)
        peers.look(after_s=2.0)
    assert (peers.messages.total_bytes, peers.cut) == (0, [])


def test_flow_control_of_a_watched_stream_does_not_accumulate() -> None:
    peers = Peers()
    watch = peers.open("a:1")
    for _ in range(10_000):
        watch.counted_bytes += (1 << 20) >> 7
        peers.send("a:1", 64 * (13 + 29))
        peers.look()
    assert peers.messages.total_bytes == 0


def test_slow_message_ends_only_its_call() -> None:
    peers = Peers()
    stalled, other = peers.open("a:1", name="stalled"), peers.open("a:1", name="other")
    peers.send("a:1", OPENING_BYTES + 200_000)
    for _ in range(99):
        peers.complete("a:1", other, 50)
        peers.look()
    assert peers.cut == []
    for _ in range(5):
        peers.complete("a:1", other, 50)
        peers.look()
    assert peers.cut == [("stalled", "a message was not complete within 10 s")]
    assert stalled not in peers.messages._connections["a:1"].calls


def test_silent_stream_has_the_whole_time_for_its_next_message() -> None:
    peers = Peers()
    call = peers.open("a:1")
    peers.complete("a:1", call, 10)
    peers.look()
    peers.look(after_s=100 * TIMEOUT_S)
    for _ in range(90):
        peers.send("a:1", 10_000)
        peers.look()
    call.took(900_000)
    assert peers.look() <= FEW_BYTES
    assert peers.cut == []


def test_greediest_address_is_disconnected_and_others_are_not() -> None:
    peers = Peers()
    greedy = [f"10.0.0.6:{port}" for port in range(1, 6)]
    modest = ["10.0.0.7:1", "10.0.0.8:1"]
    for peer in (*greedy, *modest):
        peers.open(peer)
    for peer in greedy:
        peers.send(peer, 2 * MIB)
    peers.send(greedy[2], MIB)
    for peer in modest:
        peers.send(peer, 2 * MIB)
    peers.look()
    # 11 MiB and 4: the largest is cut first, and others until 10 MiB are left to 6.
    assert [peer for peer, _ in peers.cut] == [greedy[2], greedy[0]]
    assert all(
        why.startswith("10.0.0.6 has ") and "unfinished messages" in why for _, why in peers.cut
    )


def test_address_with_many_small_messages_is_disconnected_before_the_largest_message() -> None:
    peers = Peers()
    greedy, modest = [f"10.0.0.6:{port}" for port in range(1, 6)], "10.0.0.7:1"
    for peer in (*greedy, modest):
        peers.open(peer)
        peers.send(peer, 2 * MIB)
    peers.send(modest, MIB)
    peers.look()
    assert [peer for peer, _ in peers.cut] == greedy[:2]


def test_small_messages_do_not_hide_a_large_one() -> None:
    peers = Peers()
    peers.open(STRANGER, name="large")
    small = peers.open(STRANGER, name="small")
    for _ in range(200):
        peers.send(STRANGER, 100_000)
        for _ in range(10):
            peers.complete(STRANGER, small, 5)
        peers.look()
        if peers.cut:
            break
    assert {name for name, _ in peers.cut} == {"large", "small"}
    assert peers.kernel.counts[STRANGER] < TOTAL


def test_oversized_message_is_aborted_before_it_is_complete() -> None:
    peers = Peers()
    peers.open("a:1", max_bytes=1_000)
    peers.send("a:1", OPENING_BYTES + 2 * FEW_BYTES)
    peers.look()
    assert "exceed the limit" in peers.cut[0][1]


def test_consecutive_calls_leave_nothing_behind() -> None:
    peers = Peers()
    for number in range(3_000):
        call = peers.open("a:1")
        peers.complete("a:1", call, 5_000)
        peers.messages.end("a:1", call)
        if number % 7 == 0:
            assert peers.look() == 0
    assert peers.cut == []


def test_unread_message_is_bounded_by_its_window() -> None:
    peers = Peers()
    watch = peers.open("a:1")
    peers.complete("a:1", watch, 300)
    watch.reads = False
    peers.send("a:1", 10 * MIB)
    assert peers.look() <= STREAM_WINDOW_BYTES


def test_call_that_reads_nothing_is_not_late() -> None:
    """A watch, beside a message that does not end."""
    peers = Peers()
    watch, _ = peers.open("a:1", name="watch"), peers.open("a:1", name="stalled")
    watch.reads = False
    peers.send("a:1", OPENING_BYTES + 200_000)
    for _ in range(105):
        peers.look()
    assert [name for name, _ in peers.cut] == ["stalled"]


def test_another_connection_from_the_same_port_starts_at_zero() -> None:
    peers = Peers()
    call = peers.open("a:1")
    for _ in range(10):
        peers.complete("a:1", call, MIB)
        peers.look()
    peers.messages.end("a:1", call)
    peers.look()
    peers.kernel.counts["a:1"] = 0
    call = peers.open("a:1")
    peers.send("a:1", 20_000)
    peers.complete("a:1", call, MIB)
    assert peers.look() <= FEW_BYTES
    peers.send("a:1", 9 * MIB)
    peers.look()
    assert len(peers.cut) == 1


def test_bytes_are_counted_by_connection_even_if_a_descriptor_is_reused() -> None:
    counted, descriptors = ReceivedBytes(), set()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        for size in (1_000, 50):
            with socket.create_connection(listening.getsockname()) as client:
                served, _ = listening.accept()
                descriptors.add(served.fileno())
                peer = f"127.0.0.1:{client.getsockname()[1]}"
                assert counted.of(peer) is None
                client.sendall(b"x" * size)
                assert len(served.recv(size, socket.MSG_WAITALL)) == size
                counted.find()
                assert counted.of(peer) == size
                served.close()
    assert len(descriptors) == 1


# --- on real connections -------------------------------------------------------------------------


async def pump(stranger: RawHttp2, ended: Callable[[], bool], within_s: float = 20.0) -> None:
    """Attack in a thread until the condition holds."""

    def work() -> None:
        until_s = time.monotonic() + within_s
        while not ended():
            assert time.monotonic() < until_s, "the attack goes on"
            stranger.pump(0.01)

    await asyncio.to_thread(work)


def anybody(directory: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(directory / "node-1.ca"))
    context.set_alpn_protocols(["h2"])
    context.check_hostname = False
    return context


@pytest.mark.parametrize("path", [DESCRIBE, Conversation.CONTROLLER.value])
@scenario(run)
async def test_message_of_an_unknown_caller_is_not_read(*, tmp_path: Path, path: str) -> None:
    async with serving(tmp_path) as node:
        stranger = await asyncio.to_thread(RawHttp2, node.address, anybody(tmp_path))
        for _ in range(40):
            stranger.begin(path, metadata=[("authorization", "Bearer nothing")])
        await pump(stranger, lambda: not stranger.open)
        assert stranger.sent_bytes <= 40 * STREAM_WINDOW_BYTES
        assert node.complaints == 40
        assert not node.reached
        stranger.close()


@scenario(run)
async def test_health_requests_must_be_short(*, tmp_path: Path) -> None:
    async with serving(tmp_path) as node:
        stranger = await asyncio.to_thread(RawHttp2, node.address, anybody(tmp_path))
        stranger.begin("/grpc.health.v1.Health/Check", length=8 * MIB)
        await pump(stranger, lambda: not stranger.open)
        assert node.server.bounds.complaints.counts == {Complaint.UNFINISHED: 1}
        stranger.close()


@scenario(run_real, replace(LIMITS, max_unfinished_total_bytes=4 * MIB))
async def test_sum_of_unfinished_messages_is_bounded(world: World) -> None:
    server, client = Recorder(echo), Recorder()
    listener, _ = await connect(world, server, client)
    stranger = RawHttp2(listener.address)
    for _ in range(20):
        stranger.begin(Conversation.CONTROLLER.value, length=8 * MIB)
    await pump(stranger, lambda: not stranger.open)
    assert stranger.sent_bytes < 20 * (8 * MIB - 64)
    assert complaints(world) == {Complaint.UNFINISHED: 20}
    client.links[0].send(request(1))
    await until(lambda: client.ids == [1])
    assert client.reasons == []
    stranger.close()


@scenario(run_real, replace(LIMITS, message_timeout_ms=300))
async def test_started_message_has_a_deadline(world: World) -> None:
    server, client = Recorder(echo), Recorder()
    listener, _ = await connect(world, server, client)
    stranger = RawHttp2(listener.address)
    few = RawHttp2(listener.address)
    few.begin(Conversation.CONTROLLER.value, length=10, sends=5)
    stranger.begin(Conversation.CONTROLLER.value, length=MIB, sends=MIB // 2)
    stranger.begin("/grpc.health.v1.Health/Check", length=10, sends=5)
    await pump(stranger, lambda: not stranger.open)
    assert complaints(world) == {Complaint.UNFINISHED: 2}
    await until(lambda: len(server.reasons) == 1)
    assert server.reasons == ["a message was not complete within 0.3 s"]
    # Five bytes that nothing follows are no reason to end a stream.
    await asyncio.to_thread(few.pump, 0.0)
    assert few.open == 1
    stranger.close()
    few.close()


# --- lanes ---------------------------------------------------------------------------------------


async def test_started_frames_are_bounded_and_have_a_deadline() -> None:
    limits = replace(LIMITS, max_unfinished_total_bytes=3_000, message_timeout_ms=50)
    async with pair(served=0, asks=False, limits=limits) as both:
        bounds = both.server.bounds

        def lane(peer: str) -> tuple[Lane, FakeTransport]:
            account, under = UnfinishedFrame(bounds, peer), FakeTransport()
            account.lane = lane_over(under, 1_000, account)
            return account.lane, under

        begun = frame(bytes(1_000))[: HEADER_BYTES + 1]
        lanes = [lane(f"10.0.0.6:{port}") for port in range(3)]
        for one, _ in lanes:
            one.data_received(begun)
        # Half of it, and half of what is left.
        assert [under.aborted for _, under in lanes] == [False, True, True]
        other, under_other = lane("10.0.0.7:1")
        other.data_received(begun)
        assert not under_other.aborted
        other.data_received(bytes(999))
        assert await other.read() == bytes(1_000)
        assert bounds.unfinished_frames.total == 1_000
        await until(lambda: lanes[0][1].aborted)
        lanes[0][0].connection_lost(None)
        assert bounds.unfinished_frames.total == 0
        assert not under_other.aborted
        assert bounds.complaints.counts == {Complaint.UNFINISHED: 3}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=12), st.lists(st.integers(1, 30), min_size=1))
def test_frames_are_reassembled_from_any_split(envelopes: list[bytes], cuts: list[int]) -> None:
    async def main() -> None:
        under = FakeTransport()
        lane = lane_over(under)
        stream = b"".join(map(frame, envelopes))
        position, turn = 0, 0
        while position < len(stream):
            size = cuts[turn % len(cuts)]
            lane.data_received(stream[position : position + size])
            position, turn = position + size, turn + 1
        assert [await lane.read() for _ in envelopes] == envelopes
        assert (under.aborted, under.paused) == (False, 0)

    asyncio.run(main())


@pytest.mark.parametrize("behind", [b"", b"x" * 65, b"x" * 100])
async def test_frame_beyond_the_limit_is_refused_before_it_is_buffered(behind: bytes) -> None:
    under = FakeTransport()
    lane = lane_over(under)
    lane.data_received((65).to_bytes(HEADER_BYTES, "big") + behind)
    assert under.aborted
    assert len(lane._frames) == 0


async def test_sender_that_is_faster_than_the_reader_waits_in_the_kernel() -> None:
    under = FakeTransport()
    lane = lane_over(under)
    frames = [frame(bytes((each,))) for each in range(200)]
    for each in frames[:6]:
        lane.data_received(each)
    assert under.paused == 1
    lane.data_received(b"".join(frames[6:]))
    assert len(lane._frames) == 4, "what may not wait is not taken apart"
    assert [await lane.read() for _ in frames] == [each[-1:] for each in frames]
    assert under.paused == 0


async def test_long_frames_do_not_accumulate_before_they_are_read() -> None:
    under = FakeTransport()
    lane = lane_over(under, 1 << 20)
    long = frame(b"x" * READ_AHEAD_BYTES)
    lane.data_received(long[:100])
    lane.data_received(long[100:] + long + long[:50])
    assert under.paused == 1
    assert len(lane._frames) == 1, "the next one is not taken apart"
    assert len(await lane.read()) == READ_AHEAD_BYTES
    assert under.paused == 1
    assert len(await lane.read()) == READ_AHEAD_BYTES
    assert under.paused == 0
    lane.data_received(long[50:])
    assert len(await lane.read()) == READ_AHEAD_BYTES


# --- What has piled up for a peer that did not read leaves in pieces -----------------------------


class SlowStream:
    """Accepts no data until the test allows it."""

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.written: list[bytes] = []

    async def read(self) -> Any:
        await asyncio.Event().wait()

    async def write(self, message: bytes) -> None:
        self.written.append(message)
        await self.reads.wait()
        await asyncio.sleep(0)


async def test_backlog_is_sent_in_bounded_pieces_in_order() -> None:
    """[Twenty peers read again, and each one's 65,000 responses were joined in the same turn: the
    loop was blocked for a second.]
    """
    bounds = Bounds(asyncio.get_running_loop(), TransportLimits())
    stream = SlowStream()
    link = GrpcLink(stream, "a:1", Conversation.CONTROLLER, bounds, serves=True)
    joined: list[int] = []
    envelopes_of = link._outgoing.envelopes

    def join(items: list[bytes]) -> list[bytes]:
        joined.append(len(items))
        return envelopes_of(items)

    link._outgoing = SimpleNamespace(envelopes=join)  # type: ignore[assignment]
    running = asyncio.ensure_future(link.run())
    count = 10 * ENVELOPE_MAX_ITEMS + 7
    for number in range(count):
        link.send(controller_pb2.ControllerResponse(correlation_id=number))
        if number == 0:
            await asyncio.sleep(0.01)
    assert bounds.send_budget.total_bytes > 0
    stream.reads.set()
    async with asyncio.timeout(10):
        while bounds.send_budget.total_bytes:
            await asyncio.sleep(0)
    envelopes = [
        controller_pb2.ControllerResponses.FromString(one).responses for one in stream.written
    ]
    assert [one.correlation_id for envelope in envelopes for one in envelope] == list(range(count))
    assert max(joined) <= ENVELOPE_MAX_ITEMS
    link.close("the test is over")
    await running
    assert bounds.send_budget.total_bytes == 0


async def test_queued_short_messages_are_counted() -> None:
    """A kilobyte per link may be missing from the total of unsent bytes, for messages of any size."""
    bounds = Bounds(asyncio.get_running_loop(), TransportLimits())
    stream = SlowStream()
    link = GrpcLink(stream, "a:1", Conversation.CONTROLLER, bounds, serves=True)
    running = asyncio.ensure_future(link.run())
    for number in range(500):
        link.send(
            controller_pb2.ControllerResponse(correlation_id=number, leader_endpoint="x" * 90)
        )
        counted = bounds.send_budget.total_bytes
        assert link.unsent_bytes - UNBUDGETED_BYTES <= counted <= link.unsent_bytes
    link.close("the test is over")
    await running
    assert bounds.send_budget.total_bytes == 0


class OneMessage(SlowStream):
    def __init__(self, message: bytes) -> None:
        super().__init__()
        self._left = [message]

    async def read(self) -> Any:
        return self._left.pop() if self._left else await super().read()


@pytest.mark.parametrize("length", [10, 2 * LINK_FEW_BYTES], ids=["small", "large"])
async def test_message_waits_while_the_turn_is_used_up(length: int) -> None:
    bounds = Bounds(asyncio.get_running_loop(), TransportLimits())
    request = controller_pb2.ControllerRequest(cluster_id="c" * length)
    envelope = controller_pb2.ControllerRequests(requests=[request]).SerializeToString()
    stream = OneMessage(envelope)
    link = ServedLanedLink(stream, "a:1", Conversation.CONTROLLER, bounds)
    got: list[Any] = []
    link.attach(lambda _, messages: got.extend(messages), lambda *_: None)
    turns, given = bounds.turns[Conversation.CONTROLLER.name], asyncio.Event()
    busy = Mock(wraps=turns, busy=True, over=False, next=lambda peer: given.wait())
    link._turns = busy
    running = asyncio.ensure_future(link.run())
    for _ in range(20):
        await asyncio.sleep(0)
    assert got == []
    assert not link._take(envelope), "nor on a lane"
    given.set()
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(got) == 1
    busy.busy = False
    assert link._take(envelope) is (length <= LINK_FEW_BYTES)
    link.close("the test is over")
    await running
