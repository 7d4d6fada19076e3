"""Raw sockets at the lane port: unknown peers cost a bounded amount, and other connections nothing."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
import uvloop
from lane_kit import FOLLOWER, WATCHER, Pair, frame, lane_listener, pair
from scenarios import scenario
from transport_worlds import LIMITS, Medium, until

from raftlog.bounds import MAX_FOLLOWERS
from raftlog.transport.api import Conversation, TransportLimits
from raftlog.transport.bounds import Complaint, host_of
from raftlog.transport.lane_link import MARK
from raftlog.transport.lane_tickets import (
    ASK_KEY,
    DOOR_BYTES,
    GREETING,
    MAX_PENDING_CONNECTIONS,
    PORT_KEY,
    PROOF_BYTES,
    TICKET_BYTES,
    TICKET_KEY,
    Offer,
    PendingConnection,
    Proofs,
    asks_for_lane,
    connect,
    door_of,
    offered,
)
from raftlog.transport.lane_tls import fingerprint_of
from raftlog.transport.lanes import HEADER_BYTES, LaneError
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.quorum.v1 import quorum_pb2

import grpc  # isort: skip
import grpc.aio  # isort: skip

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9)
pytestmark = pytest.mark.usefixtures("medium")
BRIEF = replace(LIMITS, handshake_timeout_ms=300)


def run(scenario: Callable[[Pair], Awaitable[None]], limits: TransportLimits = LIMITS) -> None:
    async def main() -> None:
        async with pair(limits=limits) as both:
            await both.ask_until_moved()
            await scenario(both)
            # Whatever strangers do, a follower fetches on.
            for _ in range(3):
                await both.ask()
            assert both.lanes == (1, 1)
            assert both.caller.events.count("closed") == 0

    uvloop.run(main())


def port_of(both: Pair) -> int:
    return lane_listener(both.server).port


def complaints(both: Pair, complaint: Complaint) -> int:
    return both.server.bounds.complaints.counts[complaint]


@asynccontextmanager
async def knock(both: Pair) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(both))
    try:
        yield reader, writer
    finally:
        writer.close()


async def hung_up(reader: asyncio.StreamReader) -> bytes:
    """Return the bytes received before the connection ended."""
    try:
        return await asyncio.wait_for(reader.read(), 30)
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize(
    "said",
    [
        b"\x00" * 40,
        PREFACE,
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xff\xff\xff" + b"x" * 60,
        GREETING[:-1] + b"2" + bytes(DOOR_BYTES),
    ],
    ids=["zeros", "http2", "http1", "huge", "other version"],
)
@scenario(run)
async def test_lane_closes_on_another_protocol(both: Pair, *, said: bytes) -> None:
    async with knock(both) as (reader, writer):
        writer.write(said)
        assert await hung_up(reader) == b""
    assert complaints(both, Complaint.MALFORMED) == 1
    assert both.server._lanes.pending_places.total == 0


@pytest.mark.parametrize("behind", [b"", bytes(PROOF_BYTES), b"x" * 100_000])
@scenario(run)
async def test_ticket_that_was_never_issued_does_not_count(both: Pair, *, behind: bytes) -> None:
    async with knock(both) as (reader, writer):
        writer.write(GREETING + bytes(DOOR_BYTES) + behind)
        assert await hung_up(reader) == b""
    assert complaints(both, Complaint.UNAUTHENTICATED) == 1


@pytest.mark.parametrize("said", [b"", GREETING, GREETING + bytes(DOOR_BYTES - 1)])
@scenario(run, BRIEF)
async def test_lane_closes_when_the_ticket_is_late(both: Pair, *, said: bytes) -> None:
    async with knock(both) as (reader, writer):
        for each in said:
            writer.write(bytes((each,)))
            await asyncio.sleep(0)
        assert await hung_up(reader) == b""
    assert both.server._lanes.pending_places.total == 0


@scenario(run)
async def test_unknown_peers_take_only_their_slots(both: Pair) -> None:
    lanes: Any = both.server._lanes
    sockets = [
        await asyncio.open_connection("127.0.0.1", port_of(both))
        for _ in range(2 * MAX_PENDING_CONNECTIONS)
    ]
    await until(lambda: complaints(both, Complaint.TOO_MANY_CONNECTIONS))
    # One address leaves places to others.
    assert lanes.pending_places.total == MAX_PENDING_CONNECTIONS // 2
    for _, writer in sockets:
        writer.close()
    await until(lambda: lanes.pending_places.total == 0)


class Stream:
    """A hand-made replication stream with its ticket."""

    def __init__(self, call: Any, offer: Offer | None) -> None:
        self.call, self.offer = call, offer

    @property
    def ticket(self) -> bytes:
        assert self.offer is not None
        return self.offer.ticket


async def show(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ticket: bytes) -> bool:
    """Prove a ticket; return whether the server proves it, too."""
    writer.write(GREETING + door_of(ticket))
    server = ""
    try:
        if Medium.tls is not None:
            context = Medium.tls.rereading_credentials()().lane.context
            await writer.start_tls(context, server_hostname="127.0.0.1")
            server = fingerprint_of(writer.get_extra_info("ssl_object").getpeercert(True))
        proofs = Proofs.of(ticket, server)
        writer.write(proofs.of_client)
        return await reader.readexactly(PROOF_BYTES) == proofs.of_server
    except (OSError, asyncio.IncompleteReadError):
        return False


def channel_to(both: Pair) -> Any:
    if Medium.tls is None:
        return grpc.aio.insecure_channel(both.address)
    return grpc.aio.secure_channel(both.address, Medium.tls.channel_credentials())


@asynccontextmanager
async def stream_to(
    both: Pair, *metadata: tuple[str, str], conversation: Conversation = Conversation.REPLICATION
) -> AsyncIterator[Stream]:
    async with channel_to(both) as channel:
        call = channel.stream_stream(conversation.value)(metadata=metadata)
        yield Stream(call, offered(await call.initial_metadata()))
        call.cancel()


@scenario(run)
async def test_ticket_counts_once_and_no_longer_than_its_stream(both: Pair) -> None:
    async with stream_to(both, (ASK_KEY, "1")) as stream, knock(both) as (reader, writer):
        assert await show(reader, writer, stream.ticket)
        async with knock(both) as (other, again):
            assert not await show(other, again, stream.ticket)
    async with stream_to(both, (ASK_KEY, "1")) as stream:
        late = stream.ticket
    await until(lambda: len(lane_listener(both.server)._tickets) == 0)
    async with knock(both) as (reader, writer):
        assert not await show(reader, writer, late)
    assert complaints(both, Complaint.UNAUTHENTICATED) == 2


def fetch(number: int) -> bytes:
    data: bytes = FOLLOWER.request(number).SerializeToString()
    return data


@scenario(run)
async def test_hand_made_lane_is_answered_and_ends_with_its_stream(both: Pair) -> None:
    async with stream_to(both, (ASK_KEY, "1")) as stream, knock(both) as (reader, writer):
        assert await show(reader, writer, stream.ticket)
        writer.write(frame(fetch(77)))
        size = int.from_bytes(await reader.readexactly(HEADER_BYTES), "big")
        told = quorum_pb2.FetchResponse.FromString(await reader.readexactly(size))
        assert told.correlation_id == 77
        stream.call.cancel()
        assert await hung_up(reader) == b""


@pytest.mark.parametrize(
    ("sent", "complaint"),
    [
        ((70_000).to_bytes(HEADER_BYTES, "big"), None),
        ((4).to_bytes(HEADER_BYTES, "big") + b"\xff" * 4, Complaint.MALFORMED),
    ],
    ids=["too long", "no message"],
)
@scenario(run)
async def test_invalid_frame_ends_only_its_link(
    both: Pair, *, sent: bytes, complaint: Complaint | None
) -> None:
    async with stream_to(both, (ASK_KEY, "1")) as stream, knock(both) as (reader, writer):
        assert await show(reader, writer, stream.ticket)
        writer.write(frame(fetch(1)))
        await reader.readexactly(HEADER_BYTES)
        writer.write(sent)
        await hung_up(reader)
        assert await stream.call.code() is grpc.StatusCode.UNAVAILABLE
        details = await stream.call.details()
        assert "70000 bytes" in details if complaint is None else "malformed" in details
    if complaint is not None:
        assert complaints(both, complaint) == 1


@scenario(run)
async def test_stream_is_closed_when_a_moved_link_sends_on_it(both: Pair) -> None:
    async with stream_to(both, (ASK_KEY, "1")) as stream, knock(both) as (reader, writer):
        assert await show(reader, writer, stream.ticket)
        writer.write(frame(fetch(1)))
        await reader.readexactly(HEADER_BYTES)
        await stream.call.write(fetch(2))
        assert "after the link moved to its lane" in await stream.call.details()
    assert complaints(both, Complaint.MALFORMED) == 1


def watch(number: int) -> bytes:
    data: bytes = broker_pb2.WatchManyRequests(
        requests=[WATCHER.request(number)]
    ).SerializeToString()
    return data


def told(envelope: bytes) -> list[int]:
    return [
        int(number)
        for one in broker_pb2.WatchManyResponses.FromString(envelope).responses
        for number in one.watch_ids
    ]


@scenario(run)
async def test_watches_move_only_after_the_mark_of_each_end(both: Pair) -> None:
    stream_of_watches = stream_to(both, (ASK_KEY, "1"), conversation=Conversation.WATCH_MANY)
    async with stream_of_watches as stream, knock(both) as (reader, writer):
        assert await show(reader, writer, stream.ticket)
        # A frame before the mark waits for what is still on the stream.
        writer.write(frame(watch(2)))
        await stream.call.write(watch(1))
        assert told(await stream.call.read()) == [1]
        assert len(both.servers[WATCHER].envelopes) == 1
        await stream.call.write(MARK)
        assert await stream.call.read() == MARK
        size = int.from_bytes(await reader.readexactly(HEADER_BYTES), "big")
        assert told(await reader.readexactly(size)) == [2]
        stream.call.cancel()
        assert await hung_up(reader) == b""


async def details(call: Any) -> str:
    """Return the text of the status of a call, after reading its messages."""
    with suppress(grpc.aio.AioRpcError):
        while await call.read() is not grpc.aio.EOF:
            pass
    return str(await call.details())


@pytest.mark.parametrize("behind", [MARK, watch(1)], ids=["a second mark", "a request"])
@scenario(run)
async def test_watch_stream_is_closed_after_its_mark(both: Pair, *, behind: bytes) -> None:
    stream_of_watches = stream_to(both, (ASK_KEY, "1"), conversation=Conversation.WATCH_MANY)
    async with stream_of_watches as stream, knock(both) as (reader, writer):
        assert await show(reader, writer, stream.ticket)
        for message in (MARK, behind):
            await stream.call.write(message)
        assert "after the link moved to its lane" in await details(stream.call)
        await hung_up(reader)
    assert complaints(both, Complaint.MALFORMED) == 1
    assert both.server.bounds.lanes.served[Conversation.WATCH_MANY] == 0


@pytest.mark.parametrize("asks", [True, False], ids=["offered", "not asked for"])
@scenario(run)
async def test_mark_without_a_lane_moves_nothing(both: Pair, *, asks: bool) -> None:
    metadata = ((ASK_KEY, "1"),) if asks else ()
    async with stream_to(both, *metadata, conversation=Conversation.WATCH_MANY) as stream:
        await stream.call.write(MARK)
        if asks:
            assert "without a lane" in await stream.call.details()
        else:
            # An envelope without requests, as ever.
            await stream.call.write(watch(1))
            assert told(await stream.call.read()) == [1]
    assert complaints(both, Complaint.MALFORMED) == asks


@scenario(run)
async def test_lane_is_offered_only_for_its_version(both: Pair) -> None:
    async with stream_to(both) as silent, stream_to(both, (ASK_KEY, "2")) as newer:
        assert silent.offer is newer.offer is None


@pytest.mark.parametrize("stream", ["10.0.0.1:1", "[2001:db8::1]:1"])
@scenario(run)
async def test_connection_counts_for_the_host_of_its_stream(both: Pair, *, stream: str) -> None:
    """[One host has two shares: of handshakes, and of frames.]"""
    host, listener = host_of(stream), lane_listener(both.server)
    for shown in {host.strip("[]"), "::ffff:10.0.0.1" if "." in host else host.strip("[]")}:
        transport = Mock(get_extra_info={"peername": (shown, 1)}.get)
        connection = PendingConnection(listener)
        connection.connection_made(transport)
        assert both.server._lanes.pending_places.held(host) == 1
        connection.leave()
        assert both.server._lanes.pending_places.held(host) == 0


@scenario(run)
async def test_streams_leave_lanes_to_other_addresses(both: Pair) -> None:
    lanes: Any = both.server._lanes
    async with channel_to(both) as channel:
        calls = [
            channel.stream_stream(Conversation.REPLICATION.value)(metadata=((ASK_KEY, "1"),))
            for _ in range(MAX_FOLLOWERS)
        ]
        offers = [offered(await call.initial_metadata()) for call in calls]
        assert (
            lanes.places[Conversation.REPLICATION].total
            == sum(1 for one in offers if one is not None) + 1
        )
        assert lanes.places[Conversation.REPLICATION].total <= MAX_FOLLOWERS // 2 + 1
        for call in calls:
            call.cancel()
    await until(lambda: lanes.places[Conversation.REPLICATION].total == 1)


@pytest.mark.parametrize("said", [b"", b"RLLANE2\n", bytes(PROOF_BYTES), b"HTTP/1.1 400\r\n"])
async def test_program_that_is_not_the_leader_offers_no_lane(said: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(GREETING) + DOOR_BYTES + PROOF_BYTES)
        writer.write(said)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(LaneError, match=r"another program|did not accept the ticket"):
        await connect("127.0.0.1", Offer(port, bytes(TICKET_BYTES)), 64, 30)
    server.close()
    await server.wait_closed()


async def test_silent_lane_port_is_abandoned_in_time() -> None:
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(LaneError, match="no response within"):
        await connect("127.0.0.1", Offer(port, bytes(TICKET_BYTES)), 64, 0.05)
    server.close()


GOOD = {PORT_KEY: "4711", TICKET_KEY: bytes(TICKET_BYTES)}


@pytest.mark.parametrize(
    "wrong",
    [
        {PORT_KEY: "0"},
        {PORT_KEY: "65536"},
        {PORT_KEY: "-1"},
        {PORT_KEY: "٣"},
        {PORT_KEY: b"4711"},
        {PORT_KEY: ""},
        {PORT_KEY: "9" * 5_000},
        {TICKET_KEY: bytes(TICKET_BYTES - 1)},
        {TICKET_KEY: "x" * TICKET_BYTES},
        {TICKET_KEY: b""},
    ],
)
def test_invalid_offer_is_ignored(wrong: dict[str, Any]) -> None:
    assert offered(GOOD) == Offer(4711, bytes(TICKET_BYTES))
    assert offered({**GOOD, **wrong}) is None
    assert not asks_for_lane([(ASK_KEY, "2"), ("other", "1")])
