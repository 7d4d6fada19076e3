"""The network seam: ordered links of messages between two processes, real (gRPC) or simulated (a
queue).

A *conversation* is a kind of link (see :class:`Conversation`). A *link* is one stream of one
connection: it is never reopened, and a reconnect creates a new link, so that a late message of an
old link can be recognised and dropped. Messages are protobuf objects; none is changed after it was
sent. All messages queued when the stream can accept data share one envelope. All callbacks run on
the event loop; none may block or raise.

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
    """The kinds of link; the value is the gRPC method. The envelope and item types of each are in
    conversations.py.
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
"""Conversations of watching clients, which send little and may read slowly, so that their unsent
bytes are counted.
"""


class LinkClosedError(RaftlogError):
    """The link is closed or its queue is full: a message sent on it may or may not have arrived."""


class Link(Protocol):
    """One live stream, open when created; it delivers nothing after ``closed`` was reported."""

    @property
    def peer(self) -> str:
        """The peer's address with its port, which identifies the connection in logs and in fair
        sharing (``raftlog.bounds``).
        """

    @property
    def identity(self) -> PeerIdentity:
        """Identity that the peer has proved; set only on the serving side."""

    @property
    def listener(self) -> str:
        """Name of the listener that accepted the link; empty on the dialing side, and if the only
        listener has no name.
        """

    def send(self, message: Any) -> None:
        """Queue a message. Messages are sent in order; all queued messages share an envelope.

        Raises LinkClosedError. Raises ApiError MESSAGE_TOO_LARGE if the peer does not accept
        messages of this size; nothing is then sent, and the link stays open.
        """

    def close(self, reason: str = "") -> None:
        """End the stream; the handler's ``closed`` follows. Idempotent."""

    def unknown_kind(self, what: str) -> None:
        """Count and log a message of an unknown kind from the peer."""

    def malformed(self, what: str) -> None:
        """Count and log a message from the peer that exceeds a limit."""

    def forbidden(self, what: str) -> None:
        """Count and log a request that the peer is not permitted to send."""

    def throttled(self, what: str) -> None:
        """Count and log that the peer was throttled, and delay its next message in proportion to
        the cost of the refusal.
        """


class CountedLink(Link, Protocol):
    """A link that reports its unsent bytes."""

    @property
    def unsent_bytes(self) -> int:
        """Size of the queued messages that are not sent yet, in bytes: a sender of large data waits
        until it decreases.
        """


class LinkHandler(Protocol):
    """Callbacks of one link."""

    def received(self, link: Link, messages: Sequence[Any]) -> None:
        """Process the messages of one envelope, in order."""

    def closed(self, link: Link, reason: str) -> None:
        """Process the end of the link. Called once."""


class DialHandler(LinkHandler, Protocol):
    """Callbacks of the successive links of a dialer, of which at most one is alive.

    A handler with a method ``attempt_failed(reason, error)`` is notified of each failed attempt;
    ``error`` is the server's refusal of an invalid token, or None. In both cases further attempts
    follow.
    """

    def opened(self, link: Link) -> None:
        """Process a new link. All earlier links have been reported closed."""


class Dialer(Protocol):
    """A keeper of one link to one address: it reconnects with a bounded, random back-off until it
    is closed.
    """

    @property
    def link(self) -> Link | None:
        """The live link, or None."""

    @property
    def last_failure(self) -> str:
        """Why the last connection attempt failed, or empty if none has failed since the
        last link.
        """

    def close(self) -> None:
        """Stop permanently, and close the live link."""


class Probe(Enum):
    """Result of a raw TCP connect. REFUSED proves that no process listens at the address."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    SILENT = "silent"


Acceptor = Callable[[Link], LinkHandler]
Acceptors = dict[Conversation, Acceptor]
"""The acceptor for each conversation of a listener."""


class Listener(Protocol):
    """A bound server."""

    @property
    def address(self) -> str:
        """host:port, with the port actually bound."""

    async def close(self, grace_s: float = 0.0) -> None:
        """Stop listening, and close all links."""


class Transport(Protocol):
    """A factory of links: the whole network of a client."""

    def dial(self, address: str, conversation: Conversation, handler: DialHandler) -> Dialer:
        """Start keeping a link to ``address``. ``handler`` is never called before this returns.

        ``address``: host:port; a node's transport also accepts ``NAME://host:port``, or several of
        these (``raftlog.endpoint.endpoints_text``), of which it dials the one that this node
        prefers.
        """

    async def probe(self, address: str, timeout_s: float) -> Probe:
        """Try a raw TCP connect."""

    async def close(self) -> None:
        """Close all links."""


class ServerTransport(Transport, Protocol):
    """A transport that also accepts links. One per process."""

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

        ``name``: the listener's name, by which the transport selects its security.
        ``extra_handlers``: generic gRPC handlers for the same server (raftlog.transport.unary).
        ``access``: the admitted callers. A simulated transport ignores the last two.
        """
