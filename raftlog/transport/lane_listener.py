"""The port at which lanes are had: one a node, beside its gRPC listener.

Only who shows a ticket stays. A stranger may be silent for as long as at the gRPC listener, and
costs a descriptor and a hundred bytes until then; so many are let in at a time, and no address has
more of these places than it leaves to others.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from raftlog.errors import ConfigError
from raftlog.logger import get_logger
from raftlog.shares import Shares
from raftlog.transport.api import Conversation
from raftlog.transport.bounds import Bounds
from raftlog.transport.complaints import Complaint
from raftlog.transport.connections import host_of
from raftlog.transport.lane import Lane
from raftlog.transport.lane_offer import GREETING, TICKET_BYTES, LaneMetadata, Offer, new_ticket

log = get_logger(__name__)

PORT_KEY = "controller.quorum.fetch.port"
MAX_STRANGERS = 64
"""Connections that have not shown a ticket yet: all brokers come to a new leader at once."""
MAX_FOLLOWERS = 64
"""Streams of replication that have a lane, or may come for one: a quorum has few members. Observers
and clients have places of their own, so that they never take those."""
RECEIVE_BUFFER_BYTES = 64 << 10
"""What the kernel takes of a lane before it is read: requests are short."""


class Taker(Protocol):
    """A link that was offered a lane."""

    @property
    def peer(self) -> str:
        """The other side of its stream."""

    def lane_max_bytes(self) -> int:
        """The largest envelope that it takes."""

    def lane_stands(self, lane: Lane) -> None:
        """Its peer has come for the lane."""

    def lane_over(self) -> None:
        """The link has ended."""


class LaneListener:
    """Made by :func:`listen_for_lanes`."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.strangers = Shares(MAX_STRANGERS)
        self._places = {
            Conversation.REPLICATION: Shares(MAX_FOLLOWERS),
            Conversation.OBSERVER: Shares(bounds.limits.max_observer_lanes),
            Conversation.CONTROLLER: Shares(bounds.limits.max_client_lanes),
        }
        self._offered: dict[bytes, Taker] = {}
        self._servers: list[asyncio.Server] = []
        self._guests: set[Stranger] = set()
        self.port = 0

    async def open(self, host: str, port: int) -> None:
        """Begin to listen; port 0: on any. Raises ConfigError."""
        loop = asyncio.get_running_loop()
        try:
            for bound in await _bind(host, port):
                self.port = bound.getsockname()[1]
                self._servers.append(
                    await loop.create_server(lambda: Stranger(self), sock=bound, backlog=64)
                )
        except OSError as error:
            why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            raise ConfigError(f"{PORT_KEY}: cannot listen on {host}:{port}: {why}") from error
        log.debug("listening beside gRPC", host=host, port=self.port)

    def close(self) -> None:
        """Listen no more, and let go of who has shown no ticket. Lanes belong to their links."""
        for server in self._servers:
            server.close()
        for guest in list(self._guests):
            guest.leave()

    @contextmanager
    def offered(self, link: Taker, conversation: Conversation) -> Iterator[LaneMetadata]:
        """Offer a lane as long as the link lives; yields what its peer is told, nothing where there
        is no place.
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
            link.lane_over()

    def redeem(self, ticket: bytes, transport: asyncio.Transport) -> bool:
        """Whether the ticket counts: then the connection is a lane."""
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
        link.lane_stands(lane)
        return True

    def came(self, guest: Stranger) -> None:
        """Somebody has connected."""
        self._guests.add(guest)

    def went(self, guest: Stranger) -> None:
        """It is gone, or no stranger any more."""
        self._guests.discard(guest)


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


class Stranger(asyncio.Protocol):
    """A connection that has shown no ticket yet."""

    def __init__(self, lanes: LaneListener) -> None:
        self._lanes = lanes
        self._said = b""
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._address = ""

    def connection_made(self, transport: Any) -> None:
        """Let it in, if there is a place."""
        peername = transport.get_extra_info("peername")
        self._address = str(peername[0]) if peername else ""
        bounds, strangers = self._lanes.bounds, self._lanes.strangers
        if not strangers.take(self._address):
            message = f"{strangers.total} connections have shown no ticket yet"
            bounds.complaints.add(Complaint.TOO_MANY_CONNECTIONS, self._address, message)
            transport.abort()
            return
        self._transport = transport
        self._lanes.came(self)
        self._deadline = asyncio.get_running_loop().call_later(
            bounds.limits.handshake_timeout_ms / 1000, self.leave
        )

    def data_received(self, data: bytes) -> None:
        """A greeting and a ticket, and nothing behind them."""
        transport = self._transport
        if transport is None:
            return
        said = self._said = self._said + data[: len(GREETING) + TICKET_BYTES + 1]
        wanted = len(GREETING) + TICKET_BYTES
        if not said.startswith(GREETING[: len(said)]) or len(said) > wanted:
            self._refuse(Complaint.MALFORMED, "no greeting of a lane")
        elif len(said) == wanted:
            self._leave_strangers()
            if not self._lanes.redeem(said[len(GREETING) :], transport):
                self._complain(Complaint.UNAUTHENTICATED, "a ticket that does not count")
                transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """It has hung up."""
        self._leave_strangers()

    def leave(self) -> None:
        """Hang up."""
        transport = self._transport
        self._leave_strangers()
        if transport is not None:
            transport.abort()

    def _refuse(self, complaint: Complaint, message: str) -> None:
        self._complain(complaint, message)
        self.leave()

    def _complain(self, complaint: Complaint, message: str) -> None:
        self._lanes.bounds.complaints.add(complaint, self._address, message)

    def _leave_strangers(self) -> None:
        if self._transport is None:
            return
        self._transport = None
        if self._deadline is not None:
            self._deadline.cancel()
        self._lanes.strangers.give_back(self._address)
        self._lanes.went(self)


async def _bind(host: str, port: int) -> list[socket.socket]:
    """A socket for each address of the host, all on one port. Raises OSError."""
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
