"""Links to the other nodes of the quorum: requests out, their answers back, and the evidence that a peer is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from raftlog.replica.snapshot_link import SnapshotLink
from raftlog.transport.api import Conversation, Dialer, Link, LinkClosedError, Probe, Transport
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

PROBE_TIMEOUT_S = 0.2
PROBE_AGAIN_S = 0.02
PROBES_MAX = 50
"""A dying process may still accept for a moment after its streams have broken: the first probe is not the last word."""

_REQUESTS = frozenset(("vote_request", "begin_quorum_epoch_request", "end_quorum_epoch_request"))
FIELD_OF: dict[type[Any], str] = {
    pb.VoteRequest: "vote_request",
    pb.VoteResponse: "vote_response",
    pb.BeginQuorumEpochRequest: "begin_quorum_epoch_request",
    pb.BeginQuorumEpochResponse: "begin_quorum_epoch_response",
    pb.EndQuorumEpochRequest: "end_quorum_epoch_request",
    pb.EndQuorumEpochResponse: "end_quorum_epoch_response",
}


class PeerObserver:
    """What happens on the links to one peer. The replica implements it."""

    def answered(self, peer_id: int, correlation_id: int, response: Any) -> None:
        """A response, on the link its request went out on."""

    def unanswered(self, peer_id: int, correlation_id: int) -> None:
        """This request gets no answer."""

    def connected(self, peer_id: int) -> None:
        """The control link is up."""

    def gone(self, peer_id: int) -> None:
        """A link broke and a raw connect was refused: no process listens there."""


class PeerLink:
    """One conversation with one peer, as its dialing side. Answers of an earlier link cannot reach the replica."""

    def __init__(self, peer: Peer, conversation: Conversation) -> None:
        self._peer = peer
        self._control = conversation is Conversation.QUORUM
        self._in_flight: set[int] = set()
        self._dialer: Dialer = peer.transport.dial(peer.endpoint, conversation, self)

    @property
    def is_up(self) -> bool:
        """Whether there is a live link."""
        return self._dialer.link is not None

    def send(self, correlation_id: int, request: Any) -> None:
        """Send, or report at once that there will be no answer."""
        link = self._dialer.link
        if link is not None:
            try:
                link.send(request)
            except LinkClosedError:
                link = None
        if link is None:
            self._peer.observer.unanswered(self._peer.node_id, correlation_id)
        else:
            self._in_flight.add(correlation_id)

    def opened(self, link: Link) -> None:
        """The link is up."""
        if self._control and not self._peer.hung_up:
            self._peer.observer.connected(self._peer.node_id)

    def received(self, link: Link, messages: Sequence[Any]) -> None:
        """Answers to what was sent on this link; anything else is dropped."""
        for message in messages:
            if message.correlation_id in self._in_flight:
                self._in_flight.discard(message.correlation_id)
                body = getattr(message, message.WhichOneof("body")) if self._control else message
                self._peer.observer.answered(self._peer.node_id, message.correlation_id, body)

    def closed(self, link: Link, reason: str) -> None:
        """No answer comes any more."""
        in_flight, self._in_flight = sorted(self._in_flight), set()
        self._peer.suspect()
        for correlation_id in in_flight:
            self._peer.observer.unanswered(self._peer.node_id, correlation_id)

    def close(self) -> None:
        """Stop for good."""
        self._dialer.close()


class Peer:
    """Another node: a control link for votes, and one for replication, never queued behind each other; one for snapshots at need."""

    def __init__(
        self,
        node_id: int,
        endpoint: str,
        transport: Transport,
        observer: PeerObserver,
        spawn: Callable[[Any], asyncio.Task[None]],
    ) -> None:
        self.node_id, self.endpoint, self.transport, self.observer = node_id, endpoint, transport, observer
        self._spawn = spawn
        self._probe: asyncio.Task[None] | None = None
        self._control = PeerLink(self, Conversation.QUORUM)
        self._replication = PeerLink(self, Conversation.REPLICATION)
        self._snapshots = SnapshotLink(node_id, endpoint, transport, observer)
        self.hung_up = False

    def send(self, correlation_id: int, request: Any) -> None:
        """Send a control request."""
        message = pb.QuorumMessage(correlation_id=correlation_id, **{FIELD_OF[type(request)]: request})
        self._control.send(correlation_id, message)

    def send_fetch(self, correlation_id: int, request: pb.FetchRequest) -> None:
        """Send a Fetch."""
        request.correlation_id = correlation_id
        self._replication.send(correlation_id, request)

    def send_fetch_snapshot(self, correlation_id: int, request: pb.FetchSnapshotRequest) -> None:
        """Send a FetchSnapshot."""
        self._snapshots.send(correlation_id, request)

    def suspect(self) -> None:
        """A link broke: find out whether the process is gone (mechanism: a dead process's port refuses at once)."""
        if self.hung_up:
            return
        if self._probe is None or self._probe.done():
            self._probe = self._spawn(self._find_out())

    async def _find_out(self) -> None:
        for _ in range(PROBES_MAX):
            if await self.transport.probe(self.endpoint, PROBE_TIMEOUT_S) is Probe.REFUSED:
                self.observer.gone(self.node_id)
                return
            await asyncio.sleep(PROBE_AGAIN_S)
            if self._control.is_up and self._replication.is_up:
                return

    def close(self) -> None:
        """Hang up for good: nothing is proved by that, and what was asked gets no answer."""
        self.hung_up = True
        if self._probe is not None:
            self._probe.cancel()
        self._control.close()
        self._replication.close()
        self._snapshots.close()


class PeerAcceptor:
    """The serving side of one link: requests in, with a handle to answer them by."""

    def __init__(self, conversation: Conversation, on_request: Callable[[Any, ReplyTo], None]) -> None:
        self._control = conversation is Conversation.QUORUM
        self._on_request = on_request

    def received(self, link: Link, messages: Sequence[Any]) -> None:
        """Requests of a peer; a message that is none is dropped."""
        for message in messages:
            if self._control:
                field = message.WhichOneof("body")
                if field in _REQUESTS:
                    self._on_request(getattr(message, field), ReplyTo(link, message.correlation_id))
            else:
                self._on_request(message, ReplyTo(link, message.correlation_id))

    def closed(self, link: Link, reason: str) -> None:
        """Nothing to do: a reply to a dead link is dropped."""


class ReplyTo:
    """Where an answer goes: the link its request came on."""

    __slots__ = ("_correlation_id", "_link")

    def __init__(self, link: Link, correlation_id: int) -> None:
        self._link = link
        self._correlation_id = correlation_id

    def send(self, response: Any) -> None:
        """Answer; a link that has closed meanwhile swallows it."""
        if isinstance(response, (pb.FetchResponse, pb.FetchSnapshotResponse)):
            response.correlation_id = self._correlation_id
            message: Any = response
        else:
            message = pb.QuorumMessage(correlation_id=self._correlation_id, **{FIELD_OF[type(response)]: response})
        try:
            self._link.send(message)
        except LinkClosedError:
            return
