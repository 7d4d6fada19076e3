"""Clients' requests to a controller move to a TCP connection of their own: when, what keeps them on
gRPC, and that each is answered once, in order, wherever it went.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import uvloop
from scenarios import scenario
from transport_worlds import LIMITS, Medium, Recorder, echo, request, until

from raftlog.config_writes.writes import ConfigReplies, ConfigWrite, ConfigWrites
from raftlog.endpoint import LANE_PORT_OFFSET
from raftlog.transport import lane_link
from raftlog.transport.api import Acceptor, Conversation, Link, TransportLimits
from raftlog.transport.grpc_server import GrpcServerTransport
from raftlog.transport.grpc_transport import GrpcTransport
from raftlog.transport.lane_tickets import LOOKS_AFTER_REQUESTS
from raftlog.transport.lanes import HEADER_BYTES, READ_AHEAD_BYTES, Lane
from raftlog.wire.controller.v1 import controller_pb2 as pb

pytestmark = pytest.mark.usefixtures("medium")
FEW = LOOKS_AFTER_REQUESTS[Conversation.CONTROLLER]


class Client(Recorder):
    """Its end."""

    asked = 0

    def send(self, count: int = 1) -> None:
        """Requests, with numbers that count up."""
        for _ in range(count):
            self.asked += 1
            self.links[-1].send(request(self.asked))

    async def ask(self, count: int = 1) -> None:
        """Requests, and their answers: those of all before, each once and in order."""
        self.send(count)
        await until(lambda: len(self.ids) == self.asked)
        assert self.ids == list(range(1, self.asked + 1))

    def moved(self) -> bool:
        return getattr(self.links[-1], "_lane", None) is not None

    async def ask_until_moved(self) -> None:
        async with asyncio.timeout(30):
            while not self.moved():
                await self.ask()


class World:
    """A controller, and a client that dials it."""

    def __init__(self, server: GrpcServerTransport, client: GrpcTransport) -> None:
        self.server, self.client = server, client
        self.controller, self.caller = Recorder(echo), Client()

    async def dial(self) -> None:
        acceptors: dict[Conversation, Acceptor] = {Conversation.CONTROLLER: self.controller.accept}
        address = (await self.server.listen("127.0.0.1:0", acceptors)).address
        self.client.dial(address, Conversation.CONTROLLER, self.caller)
        await until(lambda: self.caller.links and self.controller.links)

    @property
    def lanes(self) -> tuple[int, int]:
        """In use, as each end knows it."""
        of = Conversation.CONTROLLER
        return self.server.bounds.lanes.served[of], self.client.bounds.lanes.dialed[of]


@asynccontextmanager
async def world(
    served: int = LANE_PORT_OFFSET,
    limits: TransportLimits = LIMITS,
) -> AsyncIterator[World]:
    server = GrpcServerTransport(limits, tls=Medium.tls, lane_port_offset=served)
    client = GrpcTransport(limits, tls=Medium.tls)
    try:
        async with asyncio.timeout(60):
            made = World(server, client)
            await made.dial()
            yield made
    finally:
        await client.close()
        await server.close()
    await until(lambda: asyncio.all_tasks() <= {asyncio.current_task()})


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario()

    uvloop.run(main())


async def stands(caller: Client) -> None:
    """Wait until the lane is at hand, and not used yet."""
    link: Any = caller.links[-1]
    await until(lambda: link._standing is not None)


@scenario(run)
async def test_a_client_moves_and_is_answered_once_and_in_order() -> None:
    async with world() as at:
        await at.caller.ask_until_moved()
        assert at.lanes == (1, 1)
        for count in (1, 2, 63, 1_000, 1):
            await at.caller.ask(count)
        served: Any = at.controller.links[0]
        assert (at.controller.ids, served.unsent_bytes) == (at.caller.ids, 0)


@scenario(run)
async def test_who_asks_a_few_times_looks_for_no_lane() -> None:
    async with world() as at:
        link: Any = at.caller.links[0]
        for _ in range(FEW - 1):
            await at.caller.ask()
        await asyncio.sleep(0.1)
        assert link._standing is None
        await at.caller.ask()
        await stands(at.caller)


@scenario(run)
async def test_requests_of_one_turn_share_an_envelope_on_a_lane_as_well() -> None:
    async with world() as at:
        await at.caller.ask_until_moved()
        before = len(at.controller.envelopes)
        await at.caller.ask(50)
        assert len(at.controller.envelopes) - before <= 2


@scenario(run)
async def test_a_group_of_writes_is_one_object_and_its_replies_one_frame() -> None:
    def reply(link: Link, messages: Sequence[Any]) -> None:
        for message in messages:
            if type(message) is ConfigWrites:
                link.send(ConfigReplies(message.correlation_ids, message.counts, 10, 1, 3, 0))
            else:
                echo(link, [message])

    async with world() as at:
        at.controller.on_received = reply
        await at.caller.ask_until_moved()
        link = at.caller.links[0]
        for _ in range(40):
            at.caller.asked += 1
            write = ConfigWrite([(16, "a", "match", "v")], correlation_id=at.caller.asked)
            link.send(write)
        await at.caller.ask()
        groups = [one for got in at.controller.envelopes for one in got]
        assert [len(one.counts) for one in groups if type(one) is ConfigWrites] == [40]


@scenario(run)
async def test_a_request_that_waits_keeps_those_behind_it_on_the_stream_for_a_moment_only() -> None:
    """One request waits for its answer all the time: others are held, and go on without a lane."""
    waiting: list[tuple[Link, int]] = []

    def all_but_first(link: Link, messages: Sequence[Any]) -> None:
        for message in messages:
            if message.correlation_id == 1:
                waiting.append((link, 1))
            else:
                echo(link, [message])

    async with world() as at:
        caller, link = at.caller, at.caller.links[0]
        at.controller.on_received = all_but_first
        caller.send(FEW)
        await stands(caller)
        for count in range(400):
            caller.send()
            await until(lambda wanted=FEW + count: len(caller.ids) == wanted)  # type: ignore[misc]
        assert not caller.moved()
        assert getattr(link, "_hold_every") > lane_link.HOLD_AFTER_REQUESTS  # noqa: B009
        link_of, number = waiting[0]
        link_of.send(pb.ControllerResponse(correlation_id=number))
        await until(lambda: len(caller.ids) == caller.asked)
        assert sorted(caller.ids) == list(range(1, caller.asked + 1))
        assert caller.ids[-1] == 1
        caller.send()
        assert caller.moved(), "nothing is under way any more"
        await until(lambda: len(caller.ids) == caller.asked)


@scenario(run)
async def test_who_always_has_a_request_under_way_moves_all_the_same(
    *, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_link, "HOLD_MAX_S", 10.0)

    async with world() as at:
        caller = at.caller
        caller.send(FEW)
        await stands(caller)

        def go_on(link: Link, messages: Sequence[Any]) -> None:
            # As many again as were answered: without holding, the stream is never empty.
            if caller.asked < 3_000:
                caller.send(len(messages))

        caller.on_received = go_on
        caller.send(3)
        await until(caller.moved)
        await until(lambda: caller.asked >= 3_000 and len(caller.ids) == caller.asked)
        assert caller.ids == list(range(1, caller.asked + 1))
        assert at.controller.ids == caller.ids


@scenario(run)
async def test_what_is_held_when_the_link_ends_is_lost_with_it(
    *, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_link, "HOLD_MAX_S", 10.0)
    monkeypatch.setattr(lane_link, "HOLD_AFTER_REQUESTS", 1)

    async with world() as at:
        caller = at.caller
        at.controller.on_received = None
        caller.send(FEW)
        await stands(caller)
        await until(lambda: len(at.controller.ids) == FEW)
        caller.send()
        await until(lambda: len(at.controller.ids) == FEW + 1)
        link: Any = caller.links[0]
        await until(lambda: link._wake is not None)  # Else its write goes on with what comes.
        caller.send(5)
        assert link._asleep is not None
        assert link.unsent_bytes > 0
        link.close("enough")
        await until(lambda: caller.reasons)
        assert caller.reasons == ["enough"]


@scenario(run)
async def test_what_a_controller_says_unasked_answers_nothing() -> None:
    def notice_first(link: Link, messages: Sequence[Any]) -> None:
        for _ in messages:
            link.send(pb.ControllerResponse(leader_id=2))

    async with world() as at:
        caller = at.caller
        at.controller.on_received = notice_first
        caller.send(FEW)
        await stands(caller)
        await until(lambda: caller.ids == [0] * FEW)
        caller.send()
        assert not caller.moved()


@pytest.mark.parametrize("end", ["client", "server"])
@scenario(run)
async def test_a_lane_that_breaks_ends_its_link(*, end: str) -> None:
    async with world() as at:
        await at.caller.ask_until_moved()
        link: Any = (at.caller if end == "client" else at.controller).links[0]
        link._lane.abort()
        await until(lambda: at.caller.reasons and at.controller.reasons)
        await until(lambda: at.lanes == (0, 0))


@pytest.mark.parametrize("why", ["port", "places"])
@scenario(run)
async def test_a_client_that_can_have_no_lane_stays_on_grpc(*, why: str) -> None:
    limits = replace(LIMITS, max_client_lanes=0) if why == "places" else LIMITS

    served = 0 if why == "port" else LANE_PORT_OFFSET
    async with world(served, limits) as at:
        for _ in range(2 * FEW):
            await at.caller.ask()
        assert not hasattr(at.caller.links[0], "_lane")
        assert at.client.bounds.lanes.failures == 0


@scenario(run)
async def test_a_node_asks_for_no_lane_of_a_client() -> None:
    async with world() as at:
        broker = GrpcServerTransport(LIMITS, tls=Medium.tls, asks_for_lanes=True)
        caller = Client()
        address = at.caller.links[0].peer
        broker.dial(address, Conversation.CONTROLLER, caller)
        await until(lambda: caller.links)
        for _ in range(2 * FEW):
            await caller.ask()
        assert not hasattr(caller.links[0], "_lane")
        await broker.close()


async def test_long_frames_do_not_pile_up_before_they_are_read() -> None:
    class Under:
        paused = 0

        def pause_reading(self) -> None:
            self.paused += 1

        def resume_reading(self) -> None:
            self.paused -= 1

        def set_write_buffer_limits(self, high: int) -> None:
            pass

        def set_protocol(self, protocol: Any) -> None:
            pass

    lane, under = Lane(asyncio.get_running_loop(), 1 << 20), Under()
    lane.begin(under)  # type: ignore[arg-type]
    frame = READ_AHEAD_BYTES.to_bytes(HEADER_BYTES, "big") + b"x" * READ_AHEAD_BYTES
    lane.data_received(frame[:100])
    lane.data_received(frame[100:] + frame + frame[:50])
    assert under.paused == 1
    assert len(lane._frames) == 1, "the next one is not taken apart"
    assert len(await lane.read()) == READ_AHEAD_BYTES
    assert under.paused == 1
    assert len(await lane.read()) == READ_AHEAD_BYTES
    assert under.paused == 0
    lane.data_received(frame[50:])
    assert len(await lane.read()) == READ_AHEAD_BYTES
