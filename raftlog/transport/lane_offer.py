"""How a link comes to its lane: who dials a stream asks for one in the call's metadata, the server
offers a port and a ticket in its own, and who connects to that port shows the ticket.

The ticket is a random secret that was told over the stream, to whom the stream has let in. It is
good for one connection, and for this stream alone.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from raftlog.logger import get_logger
from raftlog.transport.api import Conversation
from raftlog.transport.lane import Lane, LaneError

log = get_logger(__name__)

LANED: dict[Conversation, Callable[[Any], bool]] = {
    Conversation.REPLICATION: lambda response: True,
    Conversation.OBSERVER: lambda response: not response.fetch_stands,
    Conversation.CONTROLLER: lambda response: bool(response.correlation_id),
}
"""Conversations that may have a lane, and whether a response is the answer to a request. On these
each request has one answer: that is how who dials knows when nothing is under way on the stream.
What a server says unasked (that it leads no more) answers nothing."""
OF_NODES = frozenset((Conversation.REPLICATION, Conversation.OBSERVER))
"""Those on which a node asks for a lane where it dials."""
OF_CLIENTS = frozenset((Conversation.CONTROLLER,))
"""Those on which a client does: what a broker passes on is little, and has three streams."""
LOOKS_AFTER_REQUESTS = {Conversation.CONTROLLER: 16}
"""So many requests into the conversation who dials looks for its lane, else at once: a command that
asks once is gone before it would pay."""
ASK_KEY = "raftlog-lane"
PORT_KEY = "raftlog-lane-port"
TICKET_KEY = "raftlog-lane-ticket-bin"
VERSION = "1"
"""Of the frames and of the greeting: who asks for another one gets no offer."""
TICKET_BYTES = 32
GREETING = b"RLLANE1\n"
"""Said by both ends; whoever connects says the ticket with it."""
RETRY_MIN_S, RETRY_MAX_S = 1.0, 600.0
"""Between attempts to have a lane, while the stream carries everything."""
MAX_SAID = 64
"""Reasons that are remembered as said."""


LaneMetadata = tuple[tuple[str, str | bytes], ...]
"""Metadata of a call that concerns lanes."""


class Offer(NamedTuple):
    """Where the lane of one stream is to be had."""

    port: int
    ticket: bytes

    def metadata(self) -> LaneMetadata:
        """As a server sends it."""
        return (PORT_KEY, str(self.port)), (TICKET_KEY, self.ticket)


def new_ticket() -> bytes:
    """Nobody guesses it."""
    return secrets.token_bytes(TICKET_BYTES)


def asks_for_lane(metadata: Iterable[tuple[str, Any]]) -> bool:
    """Whether who dials wants a lane."""
    return any(key == ASK_KEY and value == VERSION for key, value in metadata)


def offered(metadata: Mapping[str, Any]) -> Offer | None:
    """What a server offers; None: nothing that could be used."""
    port, ticket = metadata.get(PORT_KEY, ""), metadata.get(TICKET_KEY, b"")
    if not isinstance(port, str) or not (port.isascii() and port.isdigit() and len(port) <= 5):
        return None
    if not 0 < int(port) <= 65_535 or not isinstance(ticket, bytes) or len(ticket) != TICKET_BYTES:
        return None
    return Offer(int(port), ticket)


class LaneCounts:
    """Of one transport: how many links use a lane, and what has come of asking for one."""

    def __init__(self) -> None:
        self.served: Counter[Conversation] = Counter()
        self.dialed: Counter[Conversation] = Counter()
        self.failures = 0
        self._said: set[tuple[str, str]] = set()

    def failed(self, address: str, reason: str, *, loses_fetches: bool = True) -> None:
        """Count an attempt; said once for each reason until there is a lane again.

        ``loses_fetches``: it is the log that has to go over gRPC, which an operator may want to
        mend; else it is requests of a client.
        """
        self.failures += 1
        said = address, reason
        if said not in self._said and len(self._said) < MAX_SAID:
            self._said.add(said)
            (log.warning if loses_fetches else log.debug)(
                "no TCP connection beside gRPC is to be had: that stays in use, and it is tried"
                " again",
                address=address,
                reason=reason,
            )

    def had(self, address: str) -> None:
        """There is a lane to this address: the next failure is news."""
        self._said = {one for one in self._said if one[0] != address}


async def connect(host: str, offer: Offer, max_bytes: int, timeout_s: float) -> Lane:
    """Show a ticket. Raises LaneError."""
    loop = asyncio.get_running_loop()
    greeted: asyncio.Future[None] = loop.create_future()
    lane = Lane(loop, max_bytes)
    transport: asyncio.Transport | None = None
    try:
        async with asyncio.timeout(timeout_s):
            transport, _ = await loop.create_connection(
                lambda: _Visitor(lane, offer.ticket, greeted), host, offer.port
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


class _Visitor(asyncio.Protocol):
    """Shows a ticket, and waits to be greeted."""

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
