"""Brokers fetch the log over TCP connections of their own: how such a link moves, and what keeps it
on gRPC.
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
from transport_worlds import LIMITS, Medium, Recorder, lane_listener, until

from raftlog.endpoint import LANE_PORT_OFFSET
from raftlog.errors import ApiError, ErrorCode
from raftlog.transport.api import Acceptor, Conversation, Link, TransportLimits
from raftlog.transport.bounds import Complaint
from raftlog.transport.conversations import WIRES
from raftlog.transport.grpc_server import GrpcServerTransport
from raftlog.transport.lane_tickets import DOOR_BYTES, GREETING
from raftlog.wire.controller.v1 import controller_pb2 as pb
from raftlog.wire.quorum.v1 import quorum_pb2

MANY = 200


def reply(offset: int, *, stands: bool = False) -> pb.MetadataFetchResponse:
    return pb.MetadataFetchResponse(high_watermark=offset, fetch_stands=stands)


def answer(link: Link, messages: Sequence[Any]) -> None:
    """LAO alone, beside the fetch, and then records: what a lone write brings a broker."""
    for message in messages:
        link.send(reply(message.fetch_offset, stands=True))
        link.send(reply(message.fetch_offset))


class Observer(Recorder):
    """A broker's end."""

    @property
    def heard(self) -> list[tuple[int, bool]]:
        return [
            (one.high_watermark, one.fetch_stands)
            for envelope in self.envelopes
            for one in envelope
        ]

    @property
    def answered(self) -> int:
        return sum(not stands for _, stands in self.heard)

    def fetch(self, offset: int) -> None:
        self.links[-1].send(pb.MetadataFetchRequest(fetch_offset=offset))

    async def ask(self, offset: int) -> None:
        """One fetch, and its answer."""
        before = self.answered
        self.fetch(offset)
        await until(lambda: self.answered > before)
        assert self.heard[-1] == (offset, False)

    async def ask_until_moved(self) -> int:
        """How often it has asked."""
        offset = 0
        link: Any = self.links[-1]
        async with asyncio.timeout(30):
            while link._lane is None:
                offset += 1
                await self.ask(offset)
        return offset


class Eager(Observer):
    """Asks before it can have a lane."""

    def opened(self, link: Link) -> None:
        super().opened(link)
        self.fetch(1)


class World:
    """A controller, and brokers that dial it."""

    def __init__(self, server: GrpcServerTransport, client: GrpcServerTransport) -> None:
        self.server, self.client = server, client
        self.controller, self.leader = Recorder(answer), Recorder()
        self.observers: list[Observer] = []

    async def listen(self) -> None:
        acceptors: dict[Conversation, Acceptor] = {
            Conversation.OBSERVER: self.controller.accept,
            Conversation.REPLICATION: self.leader.accept,
        }
        self.address = (await self.server.listen("127.0.0.1:0", acceptors)).address

    async def dial(self, kind: type[Observer] = Observer) -> Observer:
        observer = kind()
        self.client.dial(self.address, Conversation.OBSERVER, observer)
        self.observers.append(observer)
        await until(lambda: observer.links)
        return observer

    @property
    def lanes(self) -> tuple[int, int]:
        """Of observers, in use, as each end knows it."""
        of = Conversation.OBSERVER
        return self.server.bounds.lanes.served[of], self.client.bounds.lanes.dialed[of]

    @property
    def port(self) -> int:
        lanes = lane_listener(self.server)
        assert lanes is not None
        return lanes.port


@asynccontextmanager
async def world(
    served: int = LANE_PORT_OFFSET,
    limits: TransportLimits = LIMITS,
    *,
    asks: bool = True,
) -> AsyncIterator[World]:
    server = GrpcServerTransport(limits, tls=Medium.tls, lane_port_offset=served)
    client = GrpcServerTransport(limits, tls=Medium.tls, asks_for_lanes=asks)
    try:
        async with asyncio.timeout(60):
            made = World(server, client)
            await made.listen()
            yield made
    finally:
        await client.close()
        await server.close()
    await until(lambda: asyncio.all_tasks() <= {asyncio.current_task()})


pytestmark = pytest.mark.usefixtures("medium")


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario()

    uvloop.run(main())


@scenario(run)
async def test_a_broker_moves_to_its_lane_and_hears_everything_once_and_in_order() -> None:
    async with world() as at:
        broker = await at.dial()
        asked = await broker.ask_until_moved()
        for offset in range(asked + 1, asked + 200):
            await broker.ask(offset)
        expected = [(o, stands) for o in range(1, asked + 200) for stands in (True, False)]
        assert broker.heard == expected
        assert at.lanes == (1, 1)
        assert broker.events.count("opened") == len(at.controller.links) == 1
    assert at.lanes == (0, 0)


@scenario(run)
async def test_a_fetch_that_stands_keeps_its_link_on_the_stream() -> None:
    async with world() as at:
        at.controller.on_received = None
        broker = await at.dial(Eager)
        link: Any = broker.links[0]
        await until(lambda: link._standing is not None and at.controller.envelopes)
        # LAO told beside the fetch is no answer to it: records may be on their way.
        at.controller.links[0].send(reply(1, stands=True))
        await until(lambda: len(broker.heard) == 1)
        broker.fetch(2)
        await until(lambda: len(at.controller.envelopes) == 2)
        assert at.lanes == (0, 0)
        for offset in (1, 2):
            at.controller.links[0].send(reply(offset))
        await until(lambda: len(broker.heard) == 3)
        broker.fetch(3)
        await until(lambda: len(at.controller.envelopes) == 3)
        assert at.lanes == (1, 1)


@scenario(run)
async def test_a_lane_that_breaks_ends_the_link_and_the_next_one_has_one_again() -> None:
    async with world() as at:
        broker = await at.dial()
        await broker.ask_until_moved()
        at.controller.links[0]._lane.abort()  # type: ignore[attr-defined]
        await until(lambda: broker.reasons and at.controller.reasons)
        assert at.controller.reasons == ["the peer closed the lane"]
        await until(lambda: len(broker.links) == 2)
        await broker.ask_until_moved()
        assert at.lanes == (1, 1)


@scenario(run)
async def test_hundreds_have_lanes_and_who_is_beyond_the_limit_fetches_over_grpc() -> None:
    # One address has half of the places.
    limits = replace(LIMITS, max_observer_lanes=2 * MANY)
    async with world(limits=limits) as at:
        brokers = [await at.dial() for _ in range(MANY)]
        for broker in brokers:
            await broker.ask_until_moved()
        assert at.lanes == (MANY, MANY)
        late = await at.dial()
        for offset in range(1, 20):
            await late.ask(offset)
        assert not hasattr(late.links[0], "_lane")
        assert at.client.bounds.lanes.failures == 0
        # One who goes leaves a place.
        brokers[0].links[0].close("enough")
        await until(lambda: len(brokers[0].links) == 2)
        await brokers[0].ask_until_moved()
        assert at.lanes == (MANY, MANY)


@pytest.mark.parametrize("places", [0, 2])
@scenario(run)
async def test_brokers_never_take_the_lanes_of_followers(*, places: int) -> None:
    async with world(limits=replace(LIMITS, max_observer_lanes=places)) as at:
        at.leader.on_received = lambda link, messages: link.send(
            quorum_pb2.FetchResponse(correlation_id=messages[-1].correlation_id)
        )
        brokers = [await at.dial() for _ in range(2)]
        for broker in brokers[: places // 2]:
            await broker.ask_until_moved()
        follower = Recorder()
        at.client.dial(at.address, Conversation.REPLICATION, follower)
        await until(lambda: follower.links)
        link: Any = follower.links[0]
        async with asyncio.timeout(30):
            while link._lane is None:
                link.send(quorum_pb2.FetchRequest(correlation_id=1))
                heard = len(follower.ids)
                await until(lambda heard=heard: len(follower.ids) > heard)  # type: ignore[misc]
        assert at.lanes[0] == places // 2


@pytest.mark.parametrize(("served", "asks"), [(0, True), (LANE_PORT_OFFSET, False), (0, False)])
@scenario(run)
async def test_an_older_broker_or_controller_has_no_lane(*, served: int, asks: bool) -> None:
    async with world(served, asks=asks) as at:
        broker = await at.dial()
        for offset in range(1, 20):
            await broker.ask(offset)
        assert not hasattr(broker.links[0], "_lane")
        assert at.client.bounds.lanes.failures == 0


@scenario(run)
async def test_a_stranger_without_a_ticket_takes_nothing_from_brokers() -> None:
    async with world() as at:
        broker = await at.dial()
        asked = await broker.ask_until_moved()
        reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
        writer.write(GREETING + bytes(DOOR_BYTES))
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()
        assert at.server.bounds.complaints.counts[Complaint.UNAUTHENTICATED] == 1
        await broker.ask(asked + 1)
        assert at.lanes == (1, 1)


def test_what_many_are_told_is_encoded_once() -> None:
    wire = WIRES[Conversation.OBSERVER].to_client
    told, equal = (pb.MetadataFetchResponse(records=b"x" * 100) for _ in range(2))
    data = wire.encode(told, 1_000)
    assert wire.encode(told, 1_000) is data
    assert wire.encode(equal, 1_000) == data
    other = pb.MetadataFetchResponse(records=b"y" * 100)
    assert wire.encode(other, 1_000) == other.SerializeToString()
    with pytest.raises(ApiError) as refused:
        wire.encode(other, 50)
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert wire.encode(told, 1_000) == data
