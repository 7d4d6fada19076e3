"""A server, and callers whose links may move to lanes, in each conversation with lanes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import uvloop
from transport_worlds import LIMITS, Medium, Recorder, request, until

from raftlog.config_writes.writes import Framed
from raftlog.endpoint import LANE_PORT_OFFSET
from raftlog.transport.api import Acceptor, Conversation, Link, TransportLimits
from raftlog.transport.grpc_server import GrpcServerTransport
from raftlog.transport.grpc_transport import GrpcTransport
from raftlog.transport.lane_tickets import LaneListener, UnfinishedFrame
from raftlog.transport.lanes import HEADER_BYTES, Lane
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb
from raftlog.wire.quorum.v1 import quorum_pb2

BULK = 20_000_000


def lane_listener(server: GrpcServerTransport) -> LaneListener:
    """Return the lane port of the server's first listener."""
    listener = server._listeners[0]._lanes
    assert listener is not None
    return listener


def lane_of(link: Any) -> Any:
    return getattr(link, "_lane", None)


def unused_lane_of(link: Any) -> Lane | None:
    """Return the open lane that the link does not use yet."""
    lane: Lane | None = link._standing
    return lane


def frame(data: bytes) -> bytes:
    return len(data).to_bytes(HEADER_BYTES, "big") + data


@dataclass(frozen=True)
class Kind:
    """One conversation: its messages by number, and its callers' transport."""

    conversation: Conversation
    request: Callable[[int], Any]
    number: Callable[[Any], int]
    replies: Callable[[int], list[Any]]
    """The last of them answers the request."""
    client: Callable[[TransportLimits, bool], GrpcTransport]
    """Given limits, and whether it asks for lanes."""

    def answer(self, link: Link, messages: Sequence[Any]) -> None:
        for message in messages:
            for reply in self.replies(self.number(message)):
                link.send(reply)


FOLLOWER = Kind(
    Conversation.REPLICATION,
    lambda number: quorum_pb2.FetchRequest(correlation_id=number),
    lambda message: int(message.correlation_id),
    lambda number: [quorum_pb2.FetchResponse(correlation_id=number)],
    lambda limits, asks: GrpcServerTransport(
        limits, tls=Medium.tls, lane_port_offset=LANE_PORT_OFFSET if asks else 0
    ),
)
OBSERVER = Kind(
    Conversation.OBSERVER,
    lambda number: pb.MetadataFetchRequest(fetch_offset=number),
    lambda message: int(message.fetch_offset),
    # LAO alone, beside the fetch, and then records: what a lone write brings a broker.
    lambda number: [
        pb.MetadataFetchResponse(high_watermark=number, fetch_stands=stands)
        for stands in (True, False)
    ],
    lambda limits, asks: GrpcServerTransport(limits, tls=Medium.tls, asks_for_lanes=asks),
)
CLIENT = Kind(
    Conversation.CONTROLLER,
    request,
    lambda message: int(message.correlation_id),
    lambda number: [pb.ControllerResponse(correlation_id=number)],
    lambda limits, asks: GrpcTransport(limits, tls=Medium.tls, lanes=asks),
)
BROKERS_CLIENT = Kind(
    Conversation.BROKER,
    lambda number: broker_pb2.BrokerRequest(correlation_id=number),
    lambda message: int(message.correlation_id),
    lambda number: [broker_pb2.BrokerResponse(correlation_id=number)],
    CLIENT.client,
)


class Watching(Kind):
    def answer(self, link: Link, messages: Sequence[Any]) -> None:
        for message in messages:
            for reply in self.replies(self.number(message)):
                link.send(Framed.one(reply.SerializeToString()))


WATCHER = Watching(
    Conversation.WATCH_MANY,
    lambda number: broker_pb2.WatchManyRequest(watch_id=number, end=broker_pb2.EndWatch()),
    lambda message: int(message.watch_id),
    lambda number: [broker_pb2.WatchManyResponse(watch_ids=[number])],
    CLIENT.client,
)
KINDS = (FOLLOWER, OBSERVER, CLIENT, BROKERS_CLIENT, WATCHER)


class Caller(Recorder):
    """The dialing end of a link; ``eager``: its first request precedes any lane."""

    def __init__(self, kind: Kind, *, eager: bool = False) -> None:
        super().__init__()
        self.kind, self.eager, self.asked = kind, eager, 0

    def opened(self, link: Link) -> None:
        super().opened(link)
        if self.eager:
            self.send()

    @property
    def messages(self) -> list[Any]:
        return [message for envelope in self.envelopes for message in envelope]

    @property
    def expected(self) -> list[Any]:
        """Return the replies to all requests, in order."""
        return [reply for number in range(1, self.asked + 1) for reply in self.kind.replies(number)]

    def send(self, count: int = 1) -> None:
        for _ in range(count):
            self.asked += 1
            self.links[-1].send(self.kind.request(self.asked))

    async def ask(self, count: int = 1) -> None:
        """Send requests, and wait for the responses to all: each once and in order."""
        self.send(count)
        answers = self.asked * len(self.kind.replies(0))
        await until(lambda: sum(map(len, self.envelopes)) >= answers)
        assert self.envelopes[-1][-1] == self.kind.replies(self.asked)[-1]

    def moved(self) -> bool:
        return lane_of(self.links[-1]) is not None

    async def ask_until_moved(self) -> None:
        async with asyncio.timeout(30):
            while not self.moved():
                await self.ask()

    async def has_unused_lane(self) -> None:
        await until(lambda: unused_lane_of(self.links[-1]) is not None)


class Pair:
    """A caller and its server; other callers of any kind may follow."""

    def __init__(self, kind: Kind, server: GrpcServerTransport, client: GrpcTransport) -> None:
        self.kind, self.server, self.client = kind, server, client
        self.servers = {one: Recorder(one.answer) for one in KINDS}
        self.leader = self.servers[kind]
        self.caller = Caller(kind)

    async def listen(self, **options: Any) -> None:
        accepted: dict[Conversation, Acceptor] = {
            kind.conversation: recorder.accept for kind, recorder in self.servers.items()
        }
        listener = await self.server.listen("127.0.0.1:0", accepted, **options)
        self.address = listener.address

    async def dial(
        self, kind: Kind | None = None, *, client: GrpcTransport | None = None, eager: bool = False
    ) -> Caller:
        """Return another caller with its link."""
        caller = Caller(kind or self.kind, eager=eager)
        accepted = self.servers[caller.kind].links
        before = len(accepted)
        self.dialer = (client or self.client).dial(self.address, caller.kind.conversation, caller)
        await until(lambda: caller.links and len(accepted) > before)
        return caller

    @property
    def lanes(self) -> tuple[int, int]:
        """Return the number of lanes of the conversation, as each end counts them."""
        of = self.kind.conversation
        return self.server.bounds.lanes.served[of], self.client.bounds.lanes.dialed[of]

    async def ask(self) -> None:
        await self.caller.ask()

    async def ask_until_moved(self) -> None:
        await self.caller.ask_until_moved()
        await until(lambda: self.lanes == (1, 1))

    async def reconnected(self) -> None:
        """Wait for the second link of the caller, at both ends."""
        await until(lambda: len(self.caller.links) == 2 and len(self.leader.links) == 2)


class FakeTransport:
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


def lane_over(
    transport: FakeTransport, max_bytes: int = 64, account: UnfinishedFrame | None = None
) -> Lane:
    """Return a started lane for envelopes of this size."""
    lane = Lane(asyncio.get_running_loop(), max_bytes, account)
    lane.begin(transport)  # type: ignore[arg-type]
    return lane


@asynccontextmanager
async def pair(
    kind: Kind = FOLLOWER,
    *,
    served: int = LANE_PORT_OFFSET,
    asks: bool = True,
    limits: TransportLimits = LIMITS,
    silent: bool = False,
) -> AsyncIterator[Pair]:
    """``silent``: the caller sends a request at once, and the server does not answer."""
    server = GrpcServerTransport(limits, tls=Medium.tls, lane_port_offset=served)
    client = kind.client(limits, asks)
    try:
        async with asyncio.timeout(60):
            made = Pair(kind, server, client)
            if silent:
                made.leader.on_received = None
            await made.listen()
            made.caller = await made.dial(eager=silent)
            yield made
    finally:
        await client.close()
        await server.close()
    await until(lambda: asyncio.all_tasks() <= {asyncio.current_task()})


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario()

    uvloop.run(main())
