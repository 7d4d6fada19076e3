"""Replication over a TCP connection of its own: how a link moves there, and what keeps it on gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st
from scenarios import scenario
from structlog.testing import capture_logs
from transport_worlds import LIMITS, Medium, Recorder, lane_listener, until

from raftlog.endpoint import LANE_PORT_OFFSET
from raftlog.errors import ConfigError
from raftlog.transport import lane_link
from raftlog.transport.api import Acceptor, Conversation, Link, LinkClosedError, TransportLimits
from raftlog.transport.bounds import Complaint
from raftlog.transport.grpc_server import GrpcServerTransport
from raftlog.transport.lane_tickets import OF_NODES
from raftlog.transport.lanes import HEADER_BYTES, Lane
from raftlog.wire.quorum.v1 import quorum_pb2

pytestmark = pytest.mark.usefixtures("medium")
BULK = 20_000_000


def answer(link: Link, messages: Sequence[Any]) -> None:
    for message in messages:
        link.send(quorum_pb2.FetchResponse(correlation_id=message.correlation_id))


def fetch(correlation_id: int, directory: str = "") -> quorum_pb2.FetchRequest:
    return quorum_pb2.FetchRequest(correlation_id=correlation_id, replica_directory_id=directory)


class Pair:
    """A follower's link to a leader."""

    def __init__(self, server: GrpcServerTransport, client: GrpcServerTransport) -> None:
        self.server, self.client = server, client
        self.leader, self.follower = Recorder(answer), Recorder()
        self.asked = 0

    async def connect(self) -> None:
        accepted: dict[Conversation, Acceptor] = {Conversation.REPLICATION: self.leader.accept}
        listener = await self.server.listen("127.0.0.1:0", accepted)
        self.address = listener.address
        self.dialer = self.client.dial(self.address, Conversation.REPLICATION, self.follower)
        await until(lambda: self.follower.links and self.leader.links)

    @property
    def lanes(self) -> tuple[int, int]:
        """In use, as each end knows it."""
        return self.server.bounds.lanes.served.total(), self.client.bounds.lanes.dialed.total()

    async def ask(self) -> None:
        """One request, and its answer."""
        self.asked += 1
        self.follower.links[-1].send(fetch(self.asked))
        await until(lambda: len(self.follower.ids) == self.asked)

    async def ask_until_moved(self) -> None:
        async with asyncio.timeout(30):
            while self.lanes != (1, 1):
                await self.ask()


@asynccontextmanager
async def pair(
    served: int = LANE_PORT_OFFSET,
    dialed: int = LANE_PORT_OFFSET,
    limits: TransportLimits = LIMITS,
    silent: bool = False,
) -> AsyncIterator[Pair]:
    """``silent``: the follower asks at once, and nobody answers."""
    server = GrpcServerTransport(limits, tls=Medium.tls, lane_port_offset=served)
    client = GrpcServerTransport(limits, tls=Medium.tls, lane_port_offset=dialed)
    try:
        async with asyncio.timeout(60):
            made = Pair(server, client)
            if silent:
                made.leader, made.follower = Recorder(), Eager()
            await made.connect()
            yield made
    finally:
        await client.close()
        await server.close()
    await until(lambda: asyncio.all_tasks() <= {asyncio.current_task()})


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario()

    uvloop.run(main())


@scenario(run)
async def test_a_link_moves_to_its_lane_and_loses_and_doubles_nothing() -> None:
    async with pair() as both:
        await both.ask_until_moved()
        for _ in range(500):
            await both.ask()
        assert both.follower.ids == both.leader.ids == list(range(1, both.asked + 1))
        assert both.follower.events.count("opened") == len(both.leader.links) == 1
    assert both.lanes == (0, 0)


class Eager(Recorder):
    """Asks before it can have a lane."""

    def opened(self, link: Link) -> None:
        super().opened(link)
        link.send(fetch(1))


@scenario(run)
async def test_a_link_stays_on_its_stream_as_long_as_a_request_there_has_no_answer() -> None:
    async with pair(silent=True) as both:
        standing: Any = both.follower.links[0]
        await until(lambda: standing._standing is not None and both.leader.ids == [1])
        # What overtakes a request that is under way would be a second link in one.
        standing.send(fetch(2))
        await until(lambda: both.leader.ids == [1, 2])
        assert both.lanes == (0, 0)
        for each in (1, 2):
            both.leader.links[0].send(quorum_pb2.FetchResponse(correlation_id=each))
        await until(lambda: both.follower.ids == [1, 2])
        standing.send(fetch(3))
        await until(lambda: both.leader.ids == [1, 2, 3])
        assert both.lanes == (1, 1)


@scenario(run)
async def test_long_answers_and_short_ones_stay_in_order() -> None:
    async with pair() as both:
        await both.ask_until_moved()
        before = both.asked
        link = both.leader.links[0]
        for each in range(10):
            records = b"x" * (BULK if each in (0, 9) else each)
            link.send(quorum_pb2.FetchResponse(correlation_id=each, records=records))
            await asyncio.sleep(0)
        await until(lambda: len(both.follower.ids) == before + 10)
        assert both.follower.ids[before:] == list(range(10))
        assert len(both.follower.envelopes[-1][0].records) == BULK
        assert link.unsent_bytes == 0  # type: ignore[attr-defined]
        assert both.server.bounds.send_budget.total_bytes == 0


@pytest.mark.parametrize("closes", ["leader", "follower"])
@scenario(run)
async def test_the_end_of_a_link_is_told_at_once_and_the_next_one_has_a_lane_again(
    *, closes: str
) -> None:
    async with pair() as both:
        await both.ask_until_moved()
        ends = both.leader if closes == "leader" else both.follower
        ends.links[0].close("enough")
        await until(lambda: both.leader.reasons and both.follower.reasons)
        assert both.lanes == (0, 0)
        await until(lambda: len(both.follower.links) == 2 and len(both.leader.links) == 2)
        await both.ask_until_moved()


@scenario(run)
async def test_a_lane_that_breaks_ends_its_link() -> None:
    async with pair() as both:
        await both.ask_until_moved()
        both.leader.links[0]._lane.abort()  # type: ignore[attr-defined]
        await until(lambda: both.leader.reasons and both.follower.reasons)
        assert both.leader.reasons == ["the peer closed the lane"]
        await until(lambda: len(both.follower.links) == 2 and len(both.leader.links) == 2)


@scenario(run)
async def test_each_end_notices_by_itself_that_its_lane_is_gone() -> None:
    async with pair() as both:
        await both.ask_until_moved()
        link: Any = both.follower.links[0]
        link._lane.connection_lost(None)
        await until(lambda: both.follower.reasons)
        assert both.follower.reasons == ["the peer closed the lane"]


@scenario(run)
async def test_nothing_overtakes_what_waits_for_the_kernel() -> None:
    async with pair() as both:
        await both.ask_until_moved()
        before = both.asked
        link: Any = both.leader.links[0]
        resumed = link._lane.resume_writing

        def resume_and_send() -> None:
            resumed()
            if link._lane.resume_writing is resume_and_send:
                del link._lane.resume_writing
                link.send(quorum_pb2.FetchResponse(correlation_id=3))

        link._lane.resume_writing = resume_and_send
        link.send(quorum_pb2.FetchResponse(correlation_id=1, records=b"x" * BULK))
        await until(lambda: not link._lane.writable)
        link.send(quorum_pb2.FetchResponse(correlation_id=2))
        await until(lambda: len(both.follower.ids) == before + 3)
        assert both.follower.ids[before:] == [1, 2, 3]


@scenario(run)
async def test_a_lane_that_breaks_before_it_was_used_is_forgotten() -> None:
    async with pair() as both:
        link: Any = both.leader.links[0]
        await until(lambda: link._standing is not None)
        link._standing.abort()
        await until(lambda: both.follower.links[0]._standing is None)  # type: ignore[attr-defined]
        for _ in range(3):
            await both.ask()
        assert both.lanes == (0, 0)
        assert both.follower.events.count("closed") == 0


@pytest.mark.parametrize(("served", "dialed"), [(0, 1_000), (1_000, 0), (0, 0)])
@scenario(run)
async def test_a_build_or_a_node_without_lanes_replicates_over_grpc(
    *, served: int, dialed: int
) -> None:
    async with pair(served, dialed) as both:
        for _ in range(20):
            await both.ask()
        assert both.lanes == (0, 0)
        assert both.client.bounds.lanes.failures == 0
        assert not hasattr(both.follower.links[0], "_lane")


@scenario(run)
async def test_a_port_that_cannot_be_reached_is_said_once_and_tried_again(
    *, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_link, "RETRY_MIN_S", 0.01)
    monkeypatch.setattr(lane_link, "RETRY_MAX_S", 0.02)

    with capture_logs() as logs:
        async with pair(dialed=0) as both:
            lanes: Any = lane_listener(both.server)
            both.server._lanes.close()
            both.client._laned = OF_NODES
            both.dialer.close()
            both.follower = Recorder()
            both.client.dial(both.address, Conversation.REPLICATION, both.follower)
            await until(lambda: both.follower.links)
            for _ in range(3):
                await both.ask()
            await until(lambda: both.client.bounds.lanes.failures >= 3)
            assert both.lanes == (0, 0)
            again = await both.server._lanes.listen("127.0.0.1", lanes.port, lanes.tls)
            again._tickets = lanes._tickets
            await both.ask_until_moved()
    said = [one for one in logs if one["event"].startswith("no TCP connection beside gRPC")]
    assert len(said) == 1
    assert said[0]["log_level"] == "warning"


@scenario(run)
async def test_a_port_in_use_is_a_mistake_of_the_configuration() -> None:
    async with pair() as both:
        lanes: Any = lane_listener(both.server)
        other = GrpcServerTransport(LIMITS, lane_port_offset=1)
        with pytest.raises(ConfigError, match=r"lane\.port\.offset: cannot listen"):
            await other.listen(
                f"127.0.0.1:{lanes.port - 1}", {Conversation.REPLICATION: Recorder().accept}
            )
        await other.close()


@scenario(run)
async def test_a_follower_that_does_not_read_is_cut() -> None:
    limits = replace(LIMITS, max_queued_bytes=7 * BULK // 2, max_queued_total_bytes=10 * BULK)
    async with pair(limits=limits) as both:
        await both.ask_until_moved()
        reader: Any = both.follower.links[0]
        reader._lane._transport.pause_reading()
        link = both.leader.links[0]
        bulk = quorum_pb2.FetchResponse(records=b"x" * BULK)
        for _ in range(3):
            link.send(bulk)
            await asyncio.sleep(0)
        # What the kernel has not taken counts as what waits here does.
        assert both.server.bounds.send_budget.total_bytes > 2 * BULK
        with pytest.raises(LinkClosedError, match="does not keep up"):
            link.send(bulk)
        await until(lambda: both.leader.reasons and both.follower.reasons)
        assert both.server.bounds.complaints.counts[Complaint.SLOW_READER] == 1
        assert both.server.bounds.send_budget.total_bytes == 0


class Taken:
    """What stands for a connection under a lane."""

    def __init__(self) -> None:
        self.aborted = False
        self.paused = 0

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.paused += 1

    def resume_reading(self) -> None:
        self.paused -= 1

    def set_write_buffer_limits(self, high: int) -> None:
        assert high == 0

    def set_protocol(self, protocol: Any) -> None:
        pass


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=12), st.lists(st.integers(1, 30), min_size=1))
def test_frames_come_out_as_they_went_in_however_they_are_cut(
    envelopes: list[bytes], cuts: list[int]
) -> None:
    async def main() -> None:
        lane, under = Lane(asyncio.get_running_loop(), 64), Taken()
        lane.begin(under)  # type: ignore[arg-type]
        stream = b"".join(len(one).to_bytes(HEADER_BYTES, "big") + one for one in envelopes)
        position, turn = 0, 0
        while position < len(stream):
            size = cuts[turn % len(cuts)]
            lane.data_received(stream[position : position + size])
            position, turn = position + size, turn + 1
        assert [await lane.read() for _ in envelopes] == envelopes
        assert (under.aborted, under.paused) == (False, 0)

    asyncio.run(main())


@pytest.mark.parametrize("behind", [b"", b"x" * 65, b"x" * 100])
async def test_a_frame_beyond_the_limit_is_refused_before_it_is_kept(behind: bytes) -> None:
    lane, under = Lane(asyncio.get_running_loop(), 64), Taken()
    lane.begin(under)  # type: ignore[arg-type]
    lane.data_received((65).to_bytes(HEADER_BYTES, "big") + behind)
    assert under.aborted
    assert lane._frames.__len__() == 0


async def test_who_sends_faster_than_it_is_read_waits_in_the_kernel() -> None:
    lane, under = Lane(asyncio.get_running_loop(), 64), Taken()
    lane.begin(under)  # type: ignore[arg-type]
    frames = [(1).to_bytes(HEADER_BYTES, "big") + bytes((each,)) for each in range(200)]
    for frame in frames[:6]:
        lane.data_received(frame)
    assert under.paused == 1
    lane.data_received(b"".join(frames[6:]))
    assert len(lane._frames) == 4, "what may not wait is not taken apart"
    assert [await lane.read() for _ in frames] == [frame[-1:] for frame in frames]
    assert under.paused == 0
