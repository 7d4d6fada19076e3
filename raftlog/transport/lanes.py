"""Lanes: TCP connections that carry the envelopes of one gRPC stream each.

A frame is the length of an envelope (four bytes, highest first) and the envelope. The announced
length is checked before any of the frame is kept.

The dialing side of a stream asks for a lane in the call's metadata. The server offers a port and a
ticket in its own metadata; the dialer connects to that port and presents the ticket. A ticket is a
random secret that is sent over the stream, after the stream was admitted. It is valid for one
connection and for this stream alone.

Each node has one listening socket for lanes beside its gRPC listener. A connection that does not
present a valid ticket within the handshake timeout is closed. Until then it costs a descriptor and
a hundred bytes; the number of such connections is bounded, and no address holds more of these
places than it leaves to others.

Why: docs/decisions/028-a-lane-beside-the-stream.md
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from raftlog.bounds import Shares
from raftlog.errors import ConfigError
from raftlog.logger import get_logger
from raftlog.transport.api import Conversation
from raftlog.transport.bounds import Bounds, Complaint, host_of

log = get_logger(__name__)

HEADER_BYTES = 4
JOINED_BYTES = 8 << 10
"""Largest envelope in bytes that is copied behind its length."""
READ_AHEAD_FRAMES, READ_AHEAD_BYTES = 4, 64 << 10
"""Number and bytes of unread frames above which nothing more is read from the kernel."""
CLOSED_BY_PEER = "the peer closed the lane"


class _Framed:
    """A cache of the last framed envelope: an envelope for many lanes is framed once."""

    def __init__(self) -> None:
        self.envelope = self.frame = b""

    def take(self, envelope: bytes) -> bytes:
        """Return an envelope behind its length, and keep both."""
        self.frame = len(envelope).to_bytes(HEADER_BYTES, "big") + envelope
        self.envelope = envelope
        return self.frame


_last = _Framed()


class FrameAccount(Protocol):
    """A limit on the partly received frames of one lane."""

    def begin(self, length: int) -> str:
        """Account for a frame of ``length`` bytes; returns the refusal, empty if it is accepted."""

    def end(self) -> None:
        """End the account of a frame: it is complete, or the lane is closed."""


class LaneError(Exception):
    """The lane is closed, or did not open; the text is the reason."""


class Lane(asyncio.Protocol):
    """One end of a lane.

    ``read`` and ``write`` are those of a gRPC stream; ``put`` and ``take`` are the short path for a
    message without queued ones before it.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        max_bytes: int,
        account: FrameAccount | None = None,
    ) -> None:
        """``max_bytes``: largest accepted envelope. ``account``: limit of the peer's frames; None:
        the peer is trusted.
        """
        self._loop = loop
        self._max_bytes = max_bytes
        self._account = account
        self._accounts = False
        """True while a frame has arrived in part."""
        self._transport: asyncio.Transport | None = None
        self._rest = bytearray()
        self._frames: deque[bytes] = deque()
        self._kept_bytes = 0
        """Size of the kept frames, in bytes."""
        self._reader: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._reads = True
        self._failure = ""
        self.writable = False
        """True if the kernel has accepted all written bytes."""
        self.take: Callable[[bytes], bool] | None = None
        """Callback for an envelope that finds a waiting reader; returns whether it accepted the
        envelope.
        """

    def begin(self, transport: asyncio.Transport) -> None:
        """Start the lane on its connection."""
        self._transport = transport
        # Whatever the kernel does not take at once pauses the writing.
        transport.set_write_buffer_limits(high=0)
        self.writable = True
        transport.set_protocol(self)

    def data_received(self, data: bytes) -> None:
        """Receive frames and parts of frames."""
        length = len(data) - HEADER_BYTES
        if (
            length == int.from_bytes(data[:HEADER_BYTES], "big")
            and not self._rest
            and length <= self._max_bytes
        ):
            # One whole frame, and a waiting reader: the usual case.
            take, reader = self.take, self._reader
            envelope = data[HEADER_BYTES:]
            if take is not None and reader is not None and not reader.done() and take(envelope):
                return
            self._keep(envelope)
        else:
            self._rest += data
            self._cut()
        self._pace()

    def _cut(self) -> None:
        """Cut frames from the received bytes, up to the limit of unread ones: an empty frame costs
        many times its size on the wire.
        """
        rest, begin = self._rest, 0
        while len(rest) - begin >= HEADER_BYTES and self._has_room():
            body = begin + HEADER_BYTES
            length = int.from_bytes(rest[begin:body], "big")
            if length > self._max_bytes:
                self.fail(f"a frame of {length} bytes; {self._max_bytes} are taken on a lane")
                break
            if len(rest) - body < length:
                if not self._accounts and self._account is not None:
                    self._accounts = True
                    if refusal := self._account.begin(length):
                        self.fail(refusal)
                break
            self._end_account()
            begin = body + length
            with memoryview(rest) as view:
                envelope = bytes(view[body:begin])
            self._arrived(envelope)
        del rest[:begin]

    def _end_account(self) -> None:
        if self._accounts and self._account is not None:
            self._accounts = False
            self._account.end()

    @property
    def reads(self) -> bool:
        """False while received frames have to be read first."""
        return self._reads

    def _arrived(self, envelope: bytes) -> None:
        take, reader = self.take, self._reader
        if take is None or reader is None or reader.done() or not take(envelope):
            self._keep(envelope)

    def _keep(self, envelope: bytes) -> None:
        """Keep an envelope until it is read."""
        reader = self._reader
        if reader is not None and not reader.done():
            reader.set_result(None)
        self._frames.append(envelope)
        self._kept_bytes += len(envelope)

    def _has_room(self) -> bool:
        return len(self._frames) < READ_AHEAD_FRAMES and self._kept_bytes < READ_AHEAD_BYTES

    def _pace(self) -> None:
        """Pause or resume reading from the kernel."""
        reads = self._has_room()
        if reads is not self._reads and self._transport is not None:
            self._reads = reads
            if reads:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    async def readable(self) -> None:
        """Wait for an envelope. Raises LaneError after the last one."""
        while not self._frames:
            self._check()
            self._reader = self._loop.create_future()
            await self._reader

    async def read(self) -> bytes:
        """Return the next envelope. Raises LaneError after the last one."""
        if not self._frames:
            await self.readable()
        envelope = self._frames.popleft()
        self._kept_bytes -= len(envelope)
        if self._rest:
            self._cut()
        self._pace()
        return envelope

    def put(self, envelope: bytes) -> None:
        """Write an envelope where the lane is ``writable``."""
        if self._transport is not None:
            if len(envelope) <= JOINED_BYTES:
                frame = _last.frame if envelope is _last.envelope else _last.take(envelope)
                self._transport.write(frame)
            else:
                self._transport.writelines((len(envelope).to_bytes(HEADER_BYTES, "big"), envelope))

    async def write(self, envelope: bytes) -> None:
        """Write an envelope; returns when the kernel has accepted all of it. Raises LaneError."""
        await self._drain()
        self.put(envelope)
        await self._drain()

    async def _drain(self) -> None:
        self._check()
        if not self.writable:
            self._drained = self._loop.create_future()
            await self._drained
            self._check()

    def _check(self) -> None:
        if self._transport is None:
            raise LaneError(self._failure)

    def pause_writing(self) -> None:
        """Mark the lane as unwritable: the kernel has not accepted all bytes."""
        self.writable = False

    def resume_writing(self) -> None:
        """Mark the lane as writable."""
        self.writable = True
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        """Process the end of the connection."""
        self._end_account()
        self._transport, self.writable = None, False
        self._failure = self._failure or (str(error) if error else CLOSED_BY_PEER)
        for waiter in (self._reader, self._drained):
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    def fail(self, reason: str) -> None:
        """Close the lane at once with a reason for the reader."""
        self._failure = self._failure or reason
        self.abort()

    def abort(self) -> None:
        """Close at once. Idempotent."""
        if self._transport is not None:
            self._transport.abort()


LANED: dict[Conversation, Callable[[Any], bool]] = {
    Conversation.REPLICATION: lambda response: True,
    Conversation.OBSERVER: lambda response: not response.fetch_stands,
    Conversation.CONTROLLER: lambda response: bool(response.correlation_id),
}
"""Conversations that may have a lane, with a test whether a response answers a request.

On these each request has one answer, by which the dialing side knows that no request is unanswered
on the stream. An unsolicited notice of the server (that it no longer leads) answers nothing.
"""
OF_NODES = frozenset((Conversation.REPLICATION, Conversation.OBSERVER))
"""Conversations on which a node asks for a lane to the dialed server."""
OF_CLIENTS = frozenset((Conversation.CONTROLLER,))
"""Conversations on which a client asks for a lane: a broker forwards little, on three streams."""
LOOKS_AFTER_REQUESTS = {Conversation.CONTROLLER: 16}
"""Number of requests in the conversation after which the dialing side looks for its lane, 0 where
it is missing: a command with one request ends before a lane would pay.
"""
ASK_KEY = "raftlog-lane"
PORT_KEY = "raftlog-lane-port"
TICKET_KEY = "raftlog-lane-ticket-bin"
VERSION = "1"
"""Version of the frames and of the greeting; a request for another version gets no offer."""
TICKET_BYTES = 32
GREETING = b"RLLANE1\n"
"""Greeting of both ends; the dialing side adds the ticket."""
RETRY_MIN_S, RETRY_MAX_S = 1.0, 600.0
"""Shortest and longest pause between attempts to open a lane, in seconds; the stream carries all
messages meanwhile.
"""


LaneMetadata = tuple[tuple[str, str | bytes], ...]
"""Metadata of a call that concerns lanes."""


class Offer(NamedTuple):
    """Address and ticket of the lane of one stream."""

    port: int
    ticket: bytes

    def metadata(self) -> LaneMetadata:
        """Return the offer as metadata of a call."""
        return (PORT_KEY, str(self.port)), (TICKET_KEY, self.ticket)


def new_ticket() -> bytes:
    """Return a random ticket."""
    return secrets.token_bytes(TICKET_BYTES)


def asks_for_lane(metadata: Iterable[tuple[str, Any]]) -> bool:
    """Return whether the metadata of a call asks for a lane."""
    return any(key == ASK_KEY and value == VERSION for key, value in metadata)


def offered(metadata: Mapping[str, Any]) -> Offer | None:
    """Return the server's offer; None: there is no usable offer."""
    port, ticket = metadata.get(PORT_KEY, ""), metadata.get(TICKET_KEY, b"")
    if not isinstance(port, str) or not (port.isascii() and port.isdigit() and len(port) <= 5):
        return None
    if not 0 < int(port) <= 65_535 or not isinstance(ticket, bytes) or len(ticket) != TICKET_BYTES:
        return None
    return Offer(int(port), ticket)


async def connect(host: str, offer: Offer, max_bytes: int, timeout_s: float) -> Lane:
    """Open a lane by presenting a ticket. Raises LaneError."""
    loop = asyncio.get_running_loop()
    greeted: asyncio.Future[None] = loop.create_future()
    lane = Lane(loop, max_bytes)
    transport: asyncio.Transport | None = None
    try:
        async with asyncio.timeout(timeout_s):
            transport, _ = await loop.create_connection(
                lambda: _TicketClient(lane, offer.ticket, greeted), host, offer.port
            )
            await greeted
    except (OSError, LaneError) as error:  # TimeoutError is among them.
        greeted.cancel()
        if transport is not None:
            transport.abort()
        why = f"no answer within {timeout_s:g} s" if isinstance(error, TimeoutError) else str(error)
        raise LaneError(f"{host}:{offer.port}: {why}") from error
    except BaseException:
        greeted.cancel()
        if transport is not None:
            transport.abort()
        raise
    return lane


class _TicketClient(asyncio.Protocol):
    """The dialing side of a lane: presents the ticket, and waits for the greeting."""

    def __init__(self, lane: Lane, ticket: bytes, greeted: asyncio.Future[None]) -> None:
        self._lane, self._ticket, self._greeted = lane, ticket, greeted
        self._heard = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(GREETING + self._ticket)

    def data_received(self, data: bytes) -> None:
        self._heard += data
        if len(self._heard) < len(GREETING) and GREETING.startswith(self._heard):
            return
        if self._heard != GREETING or self._greeted.done():
            # A server says nothing more until it is asked.
            self._end("another program answers there")
            self._transport.abort()
            return
        self._lane.begin(self._transport)
        self._greeted.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(str(error) if error else "the ticket was not taken")

    def _end(self, why: str) -> None:
        if not self._greeted.done():
            self._greeted.set_exception(LaneError(why))


CONFIG_KEY = "controller.quorum.fetch.port"
MAX_PENDING_CONNECTIONS = 64
"""Most connections without a ticket at a time: all brokers connect to a new leader at once."""
MAX_FOLLOWERS = 64
"""Most replication streams with a lane or an offer: a quorum has few members. Observers and clients
have places of their own, and never use those.
"""
RECEIVE_BUFFER_BYTES = 64 << 10
"""Receive buffer of a lane in the kernel, in bytes: requests are short."""


class OfferedLink(Protocol):
    """A link that was offered a lane."""

    @property
    def peer(self) -> str:
        """Peer address of its stream."""

    def lane_max_bytes(self) -> int:
        """Largest accepted envelope, in bytes."""

    def lane_opened(self, lane: Lane) -> None:
        """Process the lane that the peer has opened."""

    def lane_ended(self) -> None:
        """Process the end of the lane."""


class LaneListener:
    """The listening socket of a node for lanes, and the tickets that it has offered."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.pending_places = Shares(MAX_PENDING_CONNECTIONS)
        self._places = {
            Conversation.REPLICATION: Shares(MAX_FOLLOWERS),
            Conversation.OBSERVER: Shares(bounds.limits.max_observer_lanes),
            Conversation.CONTROLLER: Shares(bounds.limits.max_client_lanes),
        }
        self._offered: dict[bytes, OfferedLink] = {}
        self._servers: list[asyncio.Server] = []
        self._pending: set[PendingConnection] = set()
        self.port = 0

    async def open(self, host: str, port: int) -> None:
        """Begin to listen; port 0: any port. Raises ConfigError."""
        loop = asyncio.get_running_loop()
        try:
            for bound in await _bind(host, port):
                self.port = bound.getsockname()[1]
                self._servers.append(
                    await loop.create_server(
                        lambda: PendingConnection(self), sock=bound, backlog=64
                    )
                )
        except OSError as error:
            why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            raise ConfigError(f"{CONFIG_KEY}: cannot listen on {host}:{port}: {why}") from error
        log.debug("listening beside gRPC", host=host, port=self.port)

    def close(self) -> None:
        """Stop listening, and close connections without a ticket. Lanes belong to their links."""
        for server in self._servers:
            server.close()
        for connection in list(self._pending):
            connection.leave()

    @contextmanager
    def offered(self, link: OfferedLink, conversation: Conversation) -> Iterator[LaneMetadata]:
        """Offer a lane while the link is open; yields the metadata for its peer, empty if no place
        is free.
        """
        host, places = host_of(link.peer), self._places[conversation]
        if not places.take(host):
            yield ()
            return
        ticket = new_ticket()
        self._offered[ticket] = link
        try:
            yield Offer(self.port, ticket).metadata()
        finally:
            self._offered.pop(ticket, None)
            places.give_back(host)
            link.lane_ended()

    def redeem(self, ticket: bytes, transport: asyncio.Transport) -> bool:
        """Make the connection a lane if the ticket is valid; return whether it is."""
        link = self._offered.pop(ticket, None)
        if link is None:
            return False
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        account = UnfinishedFrame(self.bounds, link.peer)
        lane = Lane(asyncio.get_running_loop(), link.lane_max_bytes(), account)
        account.lane = lane
        lane.begin(transport)
        transport.write(GREETING)
        link.lane_opened(lane)
        return True

    def add_pending(self, connection: PendingConnection) -> None:
        """Remember a connection that has not presented its ticket yet."""
        self._pending.add(connection)

    def discard_pending(self, connection: PendingConnection) -> None:
        """Forget a connection that was closed, or has presented its ticket."""
        self._pending.discard(connection)


class UnfinishedFrame:
    """The frame of one lane that has arrived in part."""

    lane: Lane

    def __init__(self, bounds: Bounds, peer: str) -> None:
        self._bounds, self._peer, self._host = bounds, peer, host_of(peer)
        self._timeout_s = bounds.limits.message_timeout_ms / 1000
        self._length = 0
        self._deadline: asyncio.TimerHandle | None = None

    def begin(self, length: int) -> str:
        """See :class:`FrameAccount`."""
        if not self._bounds.unfinished_frames.take(self._host, length):
            held = self._bounds.unfinished_frames.held(self._host)
            return self._complain(f"{held} bytes of unfinished messages from {self._host}")
        self._length = length
        self._wait()
        return ""

    def end(self) -> None:
        """See :class:`FrameAccount`."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
            self._bounds.unfinished_frames.give_back(self._host, self._length)

    def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(self._timeout_s, self._late)

    def _late(self) -> None:
        if not self.lane.reads:
            # The rest may be in the kernel.
            self._wait()
            return
        why = f"a message was not complete within {self._timeout_s:g} s"
        self.lane.fail(self._complain(why))

    def _complain(self, why: str) -> str:
        self._bounds.complaints.add(Complaint.UNFINISHED, self._peer, why)
        return why


class PendingConnection(asyncio.Protocol):
    """A connection that has not presented a ticket yet."""

    def __init__(self, lanes: LaneListener) -> None:
        self._lanes = lanes
        self._said = b""
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._address = ""

    def connection_made(self, transport: Any) -> None:
        """Accept the connection if there is a place; else close it."""
        peername = transport.get_extra_info("peername")
        self._address = str(peername[0]) if peername else ""
        bounds, places = self._lanes.bounds, self._lanes.pending_places
        if not places.take(self._address):
            message = f"{places.total} connections have shown no ticket yet"
            bounds.complaints.add(Complaint.TOO_MANY_CONNECTIONS, self._address, message)
            transport.abort()
            return
        self._transport = transport
        self._lanes.add_pending(self)
        self._deadline = asyncio.get_running_loop().call_later(
            bounds.limits.handshake_timeout_ms / 1000, self.leave
        )

    def data_received(self, data: bytes) -> None:
        """Accept a greeting and a ticket, and nothing behind them."""
        transport = self._transport
        if transport is None:
            return
        said = self._said = self._said + data[: len(GREETING) + TICKET_BYTES + 1]
        wanted = len(GREETING) + TICKET_BYTES
        if not said.startswith(GREETING[: len(said)]) or len(said) > wanted:
            self._refuse(Complaint.MALFORMED, "no greeting of a lane")
        elif len(said) == wanted:
            self._stop_waiting()
            if not self._lanes.redeem(said[len(GREETING) :], transport):
                self._complain(Complaint.UNAUTHENTICATED, "a ticket that does not count")
                transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """The peer has closed the connection."""
        self._stop_waiting()

    def leave(self) -> None:
        """Close the connection."""
        transport = self._transport
        self._stop_waiting()
        if transport is not None:
            transport.abort()

    def _refuse(self, complaint: Complaint, message: str) -> None:
        self._complain(complaint, message)
        self.leave()

    def _complain(self, complaint: Complaint, message: str) -> None:
        self._lanes.bounds.complaints.add(complaint, self._address, message)

    def _stop_waiting(self) -> None:
        if self._transport is None:
            return
        self._transport = None
        if self._deadline is not None:
            self._deadline.cancel()
        self._lanes.pending_places.give_back(self._address)
        self._lanes.discard_pending(self)


async def _bind(host: str, port: int) -> list[socket.socket]:
    """Return a socket for each address of the host, all on one port. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    bound: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            if bound:
                port = bound[0].getsockname()[1]
            # As gRPC does it: the wildcard of IPv6 takes IPv4, too.
            both = family == socket.AF_INET6 and address[0] == "::" and socket.has_dualstack_ipv6()
            bound.append(
                socket.create_server((str(address[0]), port), family=family, dualstack_ipv6=both)
            )
    except OSError:
        for one in bound:
            one.close()
        raise
    return bound
