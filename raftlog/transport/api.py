"""The network seam: ordered links of messages between two processes.

The real one is gRPC, the simulated one a queue.

A *conversation* is a kind of link (see :class:`Conversation`). A *link* is one stream of one
connection: it lives once, and a reconnect makes a new one, so that a late message of an old link
can be told by its link and dropped. Messages are protobuf objects; nobody changes one after it was
sent. Whatever waits when the stream can take a message goes into one. All callbacks run on the
event loop; none may block or raise.

Why: docs/decisions/021-three-seams-and-simulated-twins.md
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Protocol

from raftlog.bounds import TransportLimits
from raftlog.errors import RaftlogError
from raftlog.identity import CERTIFICATES_ALONE, Access, PeerIdentity

__all__ = [
    "WATCHES",
    "Acceptor",
    "Acceptors",
    "Conversation",
    "CountedLink",
    "DialHandler",
    "Dialer",
    "Link",
    "LinkClosedError",
    "LinkHandler",
    "Listener",
    "Probe",
    "ServerTransport",
    "Transport",
    "TransportLimits",
]


class Conversation(Enum):
    """The kinds of link; the value is the gRPC method.

    Each has its envelope and item types in conversations.py.
    """

    QUORUM = "/raftlog.wire.quorum.v1.Quorum/Converse"
    REPLICATION = "/raftlog.wire.quorum.v1.Quorum/Fetch"
    SNAPSHOT = "/raftlog.wire.quorum.v1.Quorum/FetchSnapshot"
    CONTROLLER = "/raftlog.wire.controller.v1.Controller/Converse"
    OBSERVER = "/raftlog.wire.controller.v1.Controller/MetadataFetch"
    BROKER = "/raftlog.wire.broker.v1.Broker/Converse"
    WATCH = "/raftlog.wire.broker.v1.Broker/Watch"
    WATCH_MANY = "/raftlog.wire.broker.v1.Broker/WatchMany"
    REPLICA_FETCH = "/raftlog.wire.data.v1.Data/ReplicaFetch"


WATCHES = (Conversation.WATCH, Conversation.WATCH_MANY)
"""Of clients that say little, and may read slowly: how much of a link is unsent counts."""


class LinkClosedError(RaftlogError):
    """The link is gone, or its queue is full: what was sent on it may or may not have arrived."""


class Link(Protocol):
    """One live stream. Created open; after ``closed`` was reported nothing more comes from it."""

    @property
    def peer(self) -> str:
        """The other side's address with its port: it names the connection, in logs and wherever
        connections share something fairly (``raftlog.bounds``).
        """

    @property
    def identity(self) -> PeerIdentity:
        """What the other side has proved about itself. Only the serving side knows."""

    @property
    def listener(self) -> str:
        """The name of the listener that the other side has come to; empty on the dialling side, and
        where the only listener has no name.
        """

    def send(self, message: Any) -> None:
        """Queue a message; it leaves in order, sharing an envelope with what else waits.

        Raises LinkClosedError.

        Also ApiError MESSAGE_TOO_LARGE above max_message_bytes: nothing is sent, and the link
        stays.
        """

    def close(self, reason: str = "") -> None:
        """End the stream; ``closed`` follows on the handler. Idempotent."""

    def unknown_kind(self, what: str) -> None:
        """The peer sent what this side has no name for: counted and logged, nothing else."""

    def malformed(self, what: str) -> None:
        """The peer sent what is beyond a limit: counted and logged, nothing else."""

    def forbidden(self, what: str) -> None:
        """The peer sent what it may not: counted and logged, nothing else."""

    def throttled(self, what: str) -> None:
        """The peer was told to wait: counted and logged, and what it sends next is read later, the
        later the more the refusal has cost.
        """


class CountedLink(Link, Protocol):
    """A link that says how much of it is under way."""

    @property
    def unsent_bytes(self) -> int:
        """Of what was sent here and has not left: who has much more to send waits."""


class LinkHandler(Protocol):
    """What reacts to one link."""

    def received(self, link: Link, messages: Sequence[Any]) -> None:
        """The messages of one envelope, in order."""

    def closed(self, link: Link, reason: str) -> None:
        """The link is gone. Called once."""


class DialHandler(LinkHandler, Protocol):
    """What reacts to the links that a dialer makes, one after the other, at most one alive.

    One with a method ``attempt_failed(reason, error)`` is told of each attempt that comes to
    nothing; ``error`` is the server's own, if it does not let in who connects, as its token does
    not count, else None. Further attempts follow all the same.
    """

    def opened(self, link: Link) -> None:
        """A new link is ready. Links before it have been reported closed."""


class Dialer(Protocol):
    """Keeps one link to one address alive, reconnecting with a bounded, spread backoff until it is
    closed.
    """

    @property
    def link(self) -> Link | None:
        """The live link, if there is one."""

    @property
    def last_failure(self) -> str:
        """Why the last attempt to connect failed; empty if none has since the last link."""

    def close(self) -> None:
        """Stop for good; a live link is closed."""


class Probe(Enum):
    """What a raw TCP connect to an address found. REFUSED proves that no process listens there."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    SILENT = "silent"


Acceptor = Callable[[Link], LinkHandler]
Acceptors = dict[Conversation, Acceptor]
"""What serves each conversation of a listener."""


class Listener(Protocol):
    """A bound server."""

    @property
    def address(self) -> str:
        """host:port, with the port really bound."""

    async def close(self, grace_s: float = 0.0) -> None:
        """Stop listening, close all links."""


class Transport(Protocol):
    """Makes links: all that a client needs."""

    def dial(self, address: str, conversation: Conversation, handler: DialHandler) -> Dialer:
        """Begin to keep a link to ``address``; ``handler`` hears of it later, never before this
        returns.

        ``address``: host:port; the network of a node takes ``NAME://host:port`` too, and of several
        of these (``raftlog.endpoint.endpoints_text``) the one that this node prefers.
        """

    async def probe(self, address: str, timeout_s: float) -> Probe:
        """Try a raw connect."""

    async def close(self) -> None:
        """Close everything."""


class ServerTransport(Transport, Protocol):
    """Takes links, too. One per process."""

    async def listen(
        self,
        address: str,
        acceptors: Acceptors,
        *,
        name: str = "",
        extra_handlers: Sequence[Any] = (),
        access: Access = CERTIFICATES_ALONE,
    ) -> Listener:
        """Serve these conversations. Raises ConfigError if the address cannot be bound.

        ``name``: of the listener; what it is secured with belongs to the transport.
        ``extra_handlers``: generic gRPC handlers for the same server (raftlog.transport.unary).
        ``access``: who may call it. A simulated one has no use for either.
        """
