"""The opening of a lane: offers, tickets, and the listening sockets.

The dialing side of a stream requests a lane in the call's metadata. The server offers a port and a
ticket in its own metadata. A ticket is a random secret that is sent over the stream, after the
stream was admitted. It is valid only for one lane of this stream, and is never sent on the lane:

1. The dialer connects to the port, and sends a greeting and the ticket's *door*, a hash of it. A
   connection that does not send a valid door is closed without a byte or a handshake.
2. If the stream has TLS, both sides perform a TLS handshake with the certificates of the stream.
   The server refuses a certificate other than the one presented on the stream.
3. Each side proves that it has the ticket, by a hash of the ticket and of the server's certificate
   on this connection. Frames follow.

Each gRPC listener has a separate port for lanes. A connection that has proved nothing within the
handshake timeout is closed. Until it sends a door it costs a descriptor and a hundred bytes; the
number of such connections is bounded, and no address holds more of these places than it leaves to
others. The bytes of handshakes count like unfinished frames.

Why: docs/decisions/028-a-lane-beside-the-stream.md
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from raftlog.bounds import MAX_FOLLOWERS, Shares
from raftlog.errors import ConfigError
from raftlog.identity import PeerIdentity
from raftlog.logger import get_logger
from raftlog.transport.api import Conversation
from raftlog.transport.bounds import Bounds, Complaint, host_of
from raftlog.transport.lane_tls import HANDSHAKE_MAX_BYTES, LaneTls, TlsTransport
from raftlog.transport.lanes import Lane, LaneError, LaneTransport

log = get_logger(__name__)

LANED: dict[Conversation, Callable[[Any], bool]] = {
    Conversation.REPLICATION: lambda response: True,
    Conversation.OBSERVER: lambda response: not response.fetch_stands,
    Conversation.CONTROLLER: lambda response: bool(response.correlation_id),
    Conversation.BROKER: lambda response: bool(response.correlation_id),
    Conversation.WATCH_MANY: lambda response: False,
}
"""Conversations that may have a lane, with a predicate that returns whether a response answers a
request.

Except on MARKED ones, each request has one response, so the dialing side knows when no request is
unanswered on the stream. An unsolicited notice from the server (that it no longer leads, that its
versions have changed) answers nothing.
"""
MARKED = frozenset((Conversation.WATCH_MANY,))
"""Conversations on which both ends send without a request: each direction moves to the lane after a
mark on the stream (lane_link.py).
"""
OF_NODES = frozenset((Conversation.REPLICATION, Conversation.OBSERVER))
"""Conversations for which a node requests a lane from the dialed server."""
OF_BROKERS = OF_NODES | {Conversation.CONTROLLER}
"""Conversations for which a broker requests a lane, as it also forwards client requests and sends
heartbeats.
"""
OF_CLIENTS = frozenset((Conversation.CONTROLLER, Conversation.BROKER, Conversation.WATCH_MANY))
"""Conversations for which a client requests a lane."""
LOOKS_AFTER_REQUESTS = {Conversation.CONTROLLER: 16, Conversation.BROKER: 16}
"""Number of requests after which the dialing side tries to open its lane; 0 for other
conversations. A command with one request finishes before a lane would pay off.
"""
LOOKS_AFTER_RESPONSES = 4
"""Number of responses after which the client of a MARKED conversation tries to open its lane, as a
watch that waits for a lock ends with its first change.
"""
ASK_KEY = "raftlog-lane"
PORT_KEY = "raftlog-lane-port"
TICKET_KEY = "raftlog-lane-ticket-bin"
VERSION = "1"
"""Version of the frames and of the greeting; a request for another version gets no offer."""
TICKET_BYTES = 32
GREETING = b"RLLANE1\n"
"""First bytes from the dialing side; the door follows."""
DOOR_BYTES = 16
PROOF_BYTES = 32
RETRY_MIN_S, RETRY_MAX_S = 1.0, 600.0
"""Shortest and longest pause between attempts to open a lane, in seconds; meanwhile the stream
carries all messages.
"""


LaneMetadata = tuple[tuple[str, str | bytes], ...]
"""The lane-related metadata of a call."""


class Offer(NamedTuple):
    """The port and the ticket for the lane of one stream."""

    port: int
    ticket: bytes

    def metadata(self) -> LaneMetadata:
        """Return the offer as metadata of a call."""
        return (PORT_KEY, str(self.port)), (TICKET_KEY, self.ticket)


def new_ticket() -> bytes:
    """Return a random ticket."""
    return secrets.token_bytes(TICKET_BYTES)


def door_of(ticket: bytes) -> bytes:
    """Return a name for a ticket that reveals nothing about it."""
    return hmac.digest(ticket, b"door", "sha256")[:DOOR_BYTES]


class Proofs(NamedTuple):
    """The proofs of both sides that they have the ticket, on a connection to the owner of the
    server's certificate.
    """

    of_client: bytes
    of_server: bytes

    @classmethod
    def of(cls, ticket: bytes, server: str) -> Proofs:
        """Return the proofs. ``server``: fingerprint of the server's certificate, or empty for
        plain text.
        """
        sides = (f"{side} {server}".encode() for side in ("client", "server"))
        return cls(*(hmac.digest(ticket, side, "sha256") for side in sides))


def asks_for_lane(metadata: Iterable[tuple[str, Any]]) -> bool:
    """Return whether the metadata of a call requests a lane."""
    return any(key == ASK_KEY and value == VERSION for key, value in metadata)


def offered(metadata: Mapping[str, Any]) -> Offer | None:
    """Return the server's offer, or None if there is no usable one."""
    port, ticket = metadata.get(PORT_KEY, ""), metadata.get(TICKET_KEY, b"")
    if not isinstance(port, str) or not (port.isascii() and port.isdigit() and len(port) <= 5):
        return None
    if not 0 < int(port) <= 65_535 or not isinstance(ticket, bytes) or len(ticket) != TICKET_BYTES:
        return None
    return Offer(int(port), ticket)


async def connect(
    host: str, offer: Offer, max_bytes: int, timeout_s: float, tls: LaneTls | None = None
) -> Lane:
    """Open a lane by proving a ticket. ``tls`` is None if the stream is in plain text. Raises
    LaneError.
    """
    loop = asyncio.get_running_loop()
    client = _TicketClient(Lane(loop, max_bytes), host, offer, tls)
    try:
        async with asyncio.timeout(timeout_s):
            await loop.create_connection(lambda: client, host, offer.port)
            await client.opened
    except (OSError, LaneError) as error:  # OSError includes TimeoutError.
        client.leave()
        why = (
            f"no response within {timeout_s:g} s" if isinstance(error, TimeoutError) else str(error)
        )
        raise LaneError(f"{host}:{offer.port}: {why}") from error
    except BaseException:
        client.leave()
        raise
    return client.lane


class _TicketClient(asyncio.Protocol):
    """The dialing side of a lane that is not open yet."""

    def __init__(self, lane: Lane, host: str, offer: Offer, tls: LaneTls | None) -> None:
        self.lane = lane
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._host, self._ticket, self._tls = host, offer.ticket, tls
        self._address = f"{host}:{offer.port}"
        self._transport: Any = None
        self._secure: TlsTransport | None = None
        self._heard = self._expected = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(GREETING + door_of(self._ticket))
        if self._tls is None:
            self._prove("")
            return
        secure = self._transport = self._secure = TlsTransport(
            transport,
            self,
            self._tls.context,
            lambda: self._prove(secure.peer_fingerprint),
            host=self._host,
            session=self._tls.sessions.get(self._address),
        )
        secure.begin(b"")

    def _prove(self, server: str) -> None:
        own, self._expected = Proofs.of(self._ticket, server)
        self._transport.write(own)

    def data_received(self, data: bytes) -> None:
        self._heard += data
        if len(self._heard) < PROOF_BYTES and self._expected.startswith(self._heard):
            return
        # A server sends nothing more before a request.
        if not hmac.compare_digest(self._heard, self._expected) or self.opened.done():
            self._end("the server there is another program, or does not have the ticket")
            self._transport.abort()
            return
        if self._tls is not None and self._secure is not None:
            self._tls.keep(self._address, self._secure.session)
        self.lane.begin(self._transport)
        self.opened.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(str(error) if error else "the server did not accept the ticket")

    def leave(self) -> None:
        """Close the connection."""
        self.opened.cancel()
        if self._transport is not None:
            self._transport.abort()

    def _end(self, why: str) -> None:
        if not self.opened.done():
            self.opened.set_exception(LaneError(why))


CONFIG_KEY = "lane.port.offset"
MAX_PENDING_CONNECTIONS = 64
"""Maximum number of connections that have not sent a door yet; all brokers connect to a new leader
at once.
"""
RECEIVE_BUFFER_BYTES = 64 << 10
"""The kernel's receive buffer of a lane, in bytes; requests are short."""


class OfferedLink(Protocol):
    """A link that was offered a lane."""

    @property
    def peer(self) -> str:
        """Peer address of its stream."""

    @property
    def identity(self) -> PeerIdentity:
        """Identity that the peer has proved on the stream."""

    def lane_max_bytes(self) -> int:
        """Largest accepted envelope, in bytes."""

    def lane_opened(self, lane: Lane) -> None:
        """Handle the lane that the peer has opened."""

    def lane_ended(self) -> None:
        """Handle the end of the lane."""


class _Ticket:
    """A ticket that was offered and has not been used yet."""

    __slots__ = ("connection", "link", "secret")

    def __init__(self, link: OfferedLink) -> None:
        self.link, self.secret = link, new_ticket()
        self.connection: PendingConnection | None = None
        """The connection that has sent this ticket's door, or None; there is one at a time."""


class Lanes:
    """State shared by the lanes of all listeners of a node: places, and open connections."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.pending_places = Shares(MAX_PENDING_CONNECTIONS)
        self.places = {
            Conversation.REPLICATION: Shares(MAX_FOLLOWERS),
            Conversation.OBSERVER: Shares(bounds.limits.max_observer_lanes),
            Conversation.CONTROLLER: Shares(bounds.limits.max_client_lanes),
            Conversation.BROKER: Shares(bounds.limits.max_client_lanes),
            Conversation.WATCH_MANY: Shares(bounds.limits.max_watch_lanes),
        }
        self.pending: set[PendingConnection] = set()
        """Connections that have not proved a ticket yet."""
        self._servers: list[asyncio.Server] = []

    async def listen(
        self, host: str, port: int, tls: Callable[[], LaneTls] | None = None
    ) -> LaneListener:
        """Return a listener; port 0 means any port. ``tls`` returns the settings for the next
        connection; it is None for PLAINTEXT. Raises ConfigError.
        """
        loop, listener = asyncio.get_running_loop(), LaneListener(self, tls)
        try:
            for bound in await _bind(host, port):
                listener.port = bound.getsockname()[1]
                self._servers.append(
                    await loop.create_server(
                        lambda: PendingConnection(listener), sock=bound, backlog=64
                    )
                )
        except OSError as error:
            why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            raise ConfigError(f"{CONFIG_KEY}: cannot listen on {host}:{port}: {why}") from error
        log.debug("listening for lanes", host=host, port=listener.port)
        return listener

    def close(self) -> None:
        """Stop listening, and close connections without a proof. Open lanes belong to their
        links.
        """
        for server in self._servers:
            server.close()
        for connection in list(self.pending):
            connection.leave()


class LaneListener:
    """The port for the lanes of one gRPC listener, and the tickets of its streams."""

    def __init__(self, lanes: Lanes, tls: Callable[[], LaneTls] | None) -> None:
        self.lanes, self.tls = lanes, tls
        self._tickets: dict[bytes, _Ticket] = {}
        self.port = 0

    @contextmanager
    def offered(self, link: OfferedLink, conversation: Conversation) -> Iterator[LaneMetadata]:
        """Offer a lane while the link is open; yields the metadata for its peer, or empty if no
        place is free.
        """
        host, places = host_of(link.peer), self.lanes.places[conversation]
        if not places.take(host):
            yield ()
            return
        ticket = _Ticket(link)
        door = door_of(ticket.secret)
        self._tickets[door] = ticket
        try:
            yield Offer(self.port, ticket.secret).metadata()
        finally:
            self._tickets.pop(door, None)
            if ticket.connection is not None:
                ticket.connection.leave()
            places.give_back(host)
            link.lane_ended()

    def at_door(self, door: bytes) -> _Ticket | None:
        """Return the ticket with this door, or None if it was never offered, is used or being used,
        or its stream has ended.
        """
        ticket = self._tickets.get(door)
        return None if ticket is None or ticket.connection is not None else ticket

    def redeem(self, ticket: _Ticket, transport: LaneTransport, proof: bytes) -> None:
        """Make a connection that has proved its ticket the lane of the ticket's stream."""
        del self._tickets[door_of(ticket.secret)]
        ticket.connection = None
        link, bounds = ticket.link, self.lanes.bounds
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        account = UnfinishedFrame(bounds, link.peer)
        lane = Lane(asyncio.get_running_loop(), link.lane_max_bytes(), account)
        account.lane = lane
        lane.begin(transport)
        transport.write(proof)
        link.lane_opened(lane)


class UnfinishedFrame:
    """The partially received frame of one lane."""

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
            return self._complain(f"{self._host} already has {held} bytes of unfinished messages")
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
            # Reading is paused: the rest of the frame may be in the kernel.
            self._wait()
            return
        why = f"a message was not complete within {self._timeout_s:g} s"
        self.lane.fail(self._complain(why))

    def _complain(self, why: str) -> str:
        self._bounds.complaints.add(Complaint.UNFINISHED, self._peer, why)
        return why


class PendingConnection(asyncio.Protocol):
    """A connection that has not proved a ticket yet."""

    def __init__(self, listener: LaneListener) -> None:
        self._listener, self._lanes = listener, listener.lanes
        self._unparsed = b""
        self._transport: LaneTransport | None = None
        """The connection, under TLS once its door is known; None after it was refused or became a
        lane.
        """
        self._deadline: asyncio.TimerHandle | None = None
        self._address = ""
        self._held: tuple[Shares, int] | None = None
        """The places for pending connections, or bytes for handshakes, that this connection holds;
        None if it holds none.
        """
        self._ticket: _Ticket | None = None
        """The ticket whose door the peer has sent, or None."""
        self._proofs: Proofs | None = None

    def connection_made(self, transport: Any) -> None:
        """Accept the connection if a place is free, or close it."""
        self._address = _host_of(transport.get_extra_info("peername"))
        bounds, places = self._lanes.bounds, self._lanes.pending_places
        if not places.take(self._address):
            message = f"{places.total} connections have not presented a ticket yet"
            bounds.complaints.add(Complaint.TOO_MANY_CONNECTIONS, self._address, message)
            transport.abort()
            return
        self._transport, self._held = transport, (places, 1)
        self._lanes.pending.add(self)
        self._deadline = asyncio.get_running_loop().call_later(
            bounds.limits.handshake_timeout_ms / 1000, self.leave
        )

    def data_received(self, data: bytes) -> None:
        """Accept a greeting and a door, then a proof, and nothing after it."""
        if self._transport is None:
            return
        if self._ticket is not None:
            self._proof(data)
            return
        data_so_far = self._unparsed + data
        if not data_so_far.startswith(GREETING[: len(data_so_far)]):
            self._refuse(
                Complaint.MALFORMED, "the connection does not begin with the greeting of a lane"
            )
        elif len(data_so_far) < len(GREETING) + DOOR_BYTES:
            self._unparsed = data_so_far
        else:
            self._unparsed = b""
            begin = len(GREETING)
            self._door(data_so_far[begin : begin + DOOR_BYTES], data_so_far[begin + DOOR_BYTES :])

    def _door(self, door: bytes, rest: bytes) -> None:
        """Start the handshake of a connection that has sent a door."""
        ticket, transport = self._listener.at_door(door), self._transport
        if ticket is None or transport is None:
            self._refuse(Complaint.UNAUTHENTICATED, "unknown or used ticket")
            return
        # The peer is known, and such peers are bounded by the number of lanes: free its place for
        # the next stranger.
        self._give_back()
        handshakes = self._lanes.bounds.unfinished_frames
        if not handshakes.take(self._address, HANDSHAKE_MAX_BYTES):
            self._refuse(Complaint.UNFINISHED, "the memory for handshakes is used up")
            return
        self._held = handshakes, HANDSHAKE_MAX_BYTES
        self._ticket, ticket.connection = ticket, self
        if self._listener.tls is None:
            self._expect("", "")
            self._proof(rest)
            return
        tls = self._listener.tls()
        secure = self._transport = TlsTransport(
            transport,
            self,
            tls.context,
            lambda: self._expect(secure.peer_fingerprint, tls.fingerprint),
        )
        secure.begin(rest)

    def _expect(self, client: str, server: str) -> None:
        """Compare the certificates with those of the stream, and expect the matching proof."""
        assert self._ticket is not None
        if client != self._ticket.link.identity.fingerprint:
            self._refuse(
                Complaint.UNAUTHENTICATED, "the certificate differs from that of the stream"
            )
        else:
            self._proofs = Proofs.of(self._ticket.secret, server)

    def _proof(self, data: bytes) -> None:
        """Collect the proof, and make the connection a lane if the proof is right."""
        data_so_far = self._unparsed = self._unparsed + data[: PROOF_BYTES + 1]
        ticket, proofs, transport = self._ticket, self._proofs, self._transport
        if ticket is None or proofs is None or transport is None or len(data_so_far) < PROOF_BYTES:
            return
        if hmac.compare_digest(data_so_far, proofs.of_client):
            self._stop_waiting()
            self._listener.redeem(ticket, transport, proofs.of_server)
        elif len(data_so_far) > PROOF_BYTES:
            self._refuse(Complaint.MALFORMED, "data after the proof of a ticket")
        else:
            self._refuse(Complaint.UNAUTHENTICATED, "wrong proof of a ticket")

    def connection_lost(self, error: Exception | None) -> None:
        """Clean up, as the peer has closed the connection or its handshake has failed."""
        if isinstance(error, LaneError) and self._transport is not None:
            self._complain(Complaint.UNAUTHENTICATED, str(error))
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
        if self._ticket is not None and self._ticket.connection is self:
            self._ticket.connection = None
        self._give_back()
        self._lanes.pending.discard(self)

    def _give_back(self) -> None:
        if self._held is not None:
            shares, amount = self._held
            self._held = None
            shares.give_back(self._address, amount)


def _host_of(peername: Any) -> str:
    """Return the host of a connection in the notation of ``host_of`` for its stream."""
    host = str(peername[0]).removeprefix("::ffff:") if peername else ""
    return f"[{host}]" if ":" in host else host


async def _bind(host: str, port: int) -> list[socket.socket]:
    """Return a socket for each address of the host, all on one port. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    bound: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            if bound:
                port = bound[0].getsockname()[1]
            # As in gRPC, the IPv6 wildcard accepts IPv4, too.
            both = family == socket.AF_INET6 and address[0] == "::" and socket.has_dualstack_ipv6()
            bound.append(
                socket.create_server((str(address[0]), port), family=family, dualstack_ipv6=both)
            )
    except OSError:
        for one in bound:
            one.close()
        raise
    return bound
