"""Links to the other nodes of the quorum: requests out, their answers back, and the evidence that a
peer is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from raftlog.errors import ErrorCode
from raftlog.logger import get_logger
from raftlog.replica.peer_acceptor import FIELD_OF, within_limits
from raftlog.replica.peer_reach import PeerReach
from raftlog.replica.silence import Silence
from raftlog.replica.snapshot_link import SnapshotLink
from raftlog.transport.api import Conversation, Dialer, Link, LinkClosedError, Probe, Transport
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

log = get_logger(__name__)

PROBE_TIMEOUT_S = 0.2
PROBE_AGAIN_MIN_S, PROBE_AGAIN_MAX_S = 0.002, 0.02
ELSEWHERE_AFTER_S = 1.0
"""So long an address is tried before another one is at which the peer may be."""
PROBES_MAX = 50
"""A dying process still accepts for some milliseconds after its streams have broken, until the
kernel comes to its listening socket: the first probe is not the last word. The second comes soon,
as there is no leader meanwhile; those after it less and less soon.
"""
_REFUSALS = {
    int(ErrorCode.INCONSISTENT_CLUSTER_ID): "it refuses this node, which is of another cluster"
    " (INCONSISTENT_CLUSTER_ID): compare cluster.id",
    int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED): "it does not take this node's certificate for its"
    " own: compare node.principal.rule there with tls.certificate.file here",
}
"""Of answers: who gives them does not count as reached [3 of 3 voters could be reached, which is
enough for an election, said a node of another cluster]."""


class PeerListener:
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
    """One conversation with one peer, as its dialing side.

    Answers of an earlier link cannot reach the replica.

    A link that says nothing is replaced: another one is dialed beside it, and takes its place when
    it is up. Should the first speak before, it stays: no link is given up for one that cannot be
    had.
    """

    def __init__(self, peer: Peer, conversation: Conversation) -> None:
        self._peer = peer
        self._conversation = conversation
        self._control = conversation is Conversation.QUORUM
        self._in_flight: set[int] = set()
        self._silence = Silence(peer.answer_s, self._dial_another)
        self._other: Dialer | None = None
        self._refusal = ""
        self._refused_since = 0.0
        self._down_since = peer.now()
        self._dialer = self._dial()

    def _dial(self) -> Dialer:
        return self._peer.transport.dial(self._peer.address, self._conversation, self)

    @property
    def is_up(self) -> bool:
        """Whether there is a live link."""
        return self._dialer.link is not None

    def unanswered_since(self) -> tuple[float, str] | None:
        """Since when this link has brought nothing, or refusals alone, and why; None: nothing is
        wrong with it.
        """
        if self._dialer.link is None:
            return self._down_since, self._dialer.last_failure or "not connected yet"
        if self._refusal:
            return self._refused_since, self._refusal
        since = self._silence.since
        if since is None or self._peer.now() - since < self._peer.answer_s:
            return None
        return since, "it is connected and does not answer"

    def send(self, correlation_id: int, request: Any) -> None:
        """Send, or report at once that there will be no answer."""
        link = self._dialer.link
        if link is not None:
            try:
                link.send(request)
            except LinkClosedError:
                link = None
        if link is None:
            self._peer.listener.unanswered(self._peer.node_id, correlation_id)
        else:
            self._in_flight.add(correlation_id)
            self._silence.asked()

    def opened(self, link: Link) -> None:
        """The link is up, or another one that takes the place of the one that says nothing."""
        if self._other is not None and self._other.link is link:
            log.info(
                "a link that said nothing is replaced",
                peer=self._peer.node_id,
                link=self._conversation.name,
            )
            silent, self._dialer, self._other = self._dialer, self._other, None
            silent.close()
            self._give_up()
        self._refusal = ""
        if self._control and not self._peer.hung_up:
            self._peer.listener.connected(self._peer.node_id)

    def received(self, link: Link, messages: Sequence[Any]) -> None:
        """Answers to what was sent on this link; anything else is dropped."""
        if link is not self._dialer.link:
            return
        self._silence.heard()
        if self._other is not None:
            self._drop_other()
        for message in messages:
            if message.correlation_id in self._in_flight:
                self._in_flight.discard(message.correlation_id)
                kind = message.WhichOneof("body") if self._control else None
                body = message if kind is None else getattr(message, kind)
                if type(body) is pb.VoteResponse:
                    self._peer.answers_as(body.voter_id)
                error = getattr(body, "error_code", 0)
                if error == ErrorCode.NOT_LEADER_OR_FOLLOWER and not self._peer.is_proven:
                    # Another node does not lead. [an observer, which asks for no votes and so
                    # hears no id, asked it for ever]
                    self._peer.not_reached(self._down_since)
                    self._peer.listener.unanswered(self._peer.node_id, message.correlation_id)
                    continue
                if error or self._refusal:
                    self._refused(error)
                # Nearly every answer has records, and nothing that has a limit here.
                plain = type(body) is pb.FetchResponse and not (
                    body.leader_endpoint or body.preferred_candidates or body.HasField("successor")
                )
                if plain or (within_limits(link, body) and not (self._control and kind is None)):
                    self._peer.listener.answered(self._peer.node_id, message.correlation_id, body)
                else:
                    self._peer.listener.unanswered(self._peer.node_id, message.correlation_id)

    def closed(self, link: Link, reason: str) -> None:
        """No answer comes any more.

        One that was replaced, or was to replace another, proves nothing.
        """
        if self._dialer.link is None:
            self._down_since = self._peer.now()
            self._drop_other()
            self._peer.suspect()
            self._give_up()

    def attempt_failed(self, reason: str, error: object) -> None:
        """There is no connection."""
        if self._control:
            self._peer.not_reached(self._down_since)

    def _refused(self, error: int) -> None:
        """Said once, and again after an answer that is none: each answer to come will be the
        same.
        """
        refusal = _REFUSALS.get(error, "")
        if refusal and refusal != self._refusal:
            self._refused_since = self._peer.now()
            log.error(
                "a node refuses all that this one asks",
                reason=refusal,
                peer=self._peer.node_id,
                endpoint=self._peer.address,
                link=self._conversation.name,
            )
        self._refusal = refusal
        if refusal:
            self._peer.not_reached(self._refused_since)

    def close(self) -> None:
        """Stop for good. What was asked gets no answer, and nobody is told."""
        self._silence.close()
        self._drop_other()
        self._dialer.close()

    def redial(self) -> None:
        """Dial the peer at another address. What was asked gets no answer."""
        self.close()
        self._silence = Silence(self._peer.answer_s, self._dial_another)
        self._refusal = ""
        self._dialer = self._dial()
        self._give_up()

    def _dial_another(self) -> None:
        if self._other is None and self._dialer.link is not None:
            self._other = self._dial()

    def _drop_other(self) -> None:
        other, self._other = self._other, None
        if other is not None:
            other.close()

    def _give_up(self) -> None:
        """What was asked gets no answer."""
        self._silence.over()
        in_flight, self._in_flight = sorted(self._in_flight), set()
        for correlation_id in in_flight:
            self._peer.listener.unanswered(self._peer.node_id, correlation_id)


class Peer:
    """Another node: a control link for votes, and one for replication, never queued behind each
    other; one for snapshots at need.
    """

    def __init__(
        self,
        node_id: int,
        endpoint: str,
        transport: Transport,
        listener: PeerListener,
        spawn: Callable[[Any], asyncio.Task[None]],
        answer_s: float,
        *,
        elsewhere: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """``endpoint``: where the voter set has it; ``answer_s``: how long an answer may take;
        ``elsewhere``: other addresses at which it may be, if nobody answers there.
        """
        self.answer_s = answer_s
        self.node_id, self.endpoint, self.transport, self.listener = (
            node_id,
            endpoint,
            transport,
            listener,
        )
        self.address = endpoint
        """Where it is dialed."""
        self._proven = ""
        """Where it answered by its id, last."""
        self._spawn, self._elsewhere = spawn, elsewhere
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self._tried: set[str] = set()
        """Addresses that were dialed in vain since it was last reached, or the last round."""
        self._dialed_at = self.now()
        self._probe: asyncio.Task[None] | None = None
        self.hung_up = False
        self._control = PeerLink(self, Conversation.QUORUM)
        self._replication = PeerLink(self, Conversation.REPLICATION)
        self._snapshots = self._snapshot_link()

    def _snapshot_link(self) -> SnapshotLink:
        return SnapshotLink(
            self.node_id, self.address, self.transport, self.listener, self.answer_s
        )

    def send(self, correlation_id: int, request: Any) -> None:
        """Send a control request."""
        message = pb.QuorumMessage(
            correlation_id=correlation_id, **{FIELD_OF[type(request)]: request}
        )
        self._control.send(correlation_id, message)

    def send_fetch(self, correlation_id: int, request: pb.FetchRequest) -> None:
        """Send a Fetch."""
        request.correlation_id = correlation_id
        self._replication.send(correlation_id, request)

    def send_fetch_snapshot(self, correlation_id: int, request: pb.FetchSnapshotRequest) -> None:
        """Send a FetchSnapshot."""
        self._snapshots.send(correlation_id, request)

    def reach(self) -> PeerReach:
        """Whether it answers votes and fetches."""
        failing = [
            found
            for found in (self._control.unanswered_since(), self._replication.unanswered_since())
            if found is not None
        ]
        if not failing:
            return PeerReach(self.node_id)
        since, reason = min(failing)
        for_ms = max(0, round((self.now() - since) * 1000))
        known = f"; the log has it at {self.endpoint}" if self.address != self.endpoint else ""
        return PeerReach(self.node_id, f"{self.address}: {reason}{known}", for_ms)

    # --- where it is -----------------------------------------------------------------------------

    def stays_at(self, endpoint: str) -> bool:
        """Take note of its endpoint in the voter set; False: it has to be dialed anew."""
        if endpoint not in (self.endpoint, self.address):
            return False
        self.endpoint = endpoint
        return True

    def not_reached(self, since: float) -> None:
        """There is no connection to its address, or another node refuses what it is asked there."""
        if self.now() - max(since, self._dialed_at) >= ELSEWHERE_AFTER_S:
            self.is_elsewhere()

    @property
    def is_proven(self) -> bool:
        """Whether the node at its address is known to be this one: the voter set has it there, or
        it has said so [another node, at an address of the configuration, said that it did not
        lead, and was taken for the leader, which did].
        """
        return self.address in (self.endpoint, self._proven)

    def answers_as(self, node_id: int) -> None:
        """A node with this id answers at its address."""
        if node_id == self.node_id:
            self._proven = self.address
        else:
            self.is_elsewhere()

    def is_elsewhere(self) -> None:
        """It is not at this address: dial the next at which it may be, after the last one the first
        again.
        """
        self._loop.call_soon(self._dial_next, self.address)

    def _dial_next(self, address: str) -> None:
        if self.hung_up or address != self.address:
            return
        self._tried.add(address)
        known = dict.fromkeys((self.endpoint, *self._elsewhere()))
        left = [one for one in known if one not in self._tried]
        if not left:
            self._tried = {address}
            left = [one for one in known if one != address]
        self._dialed_at = self.now()
        if left:
            self.address = left[0]
            for link in (self._control, self._replication):
                link.redial()
            self._snapshots.close()
            self._snapshots = self._snapshot_link()

    def suspect(self) -> None:
        """A link broke: find out whether the process is gone (mechanism: a dead process's port
        refuses at once).
        """
        if self.hung_up:
            return
        if self._probe is None or self._probe.done():
            self._probe = self._spawn(self._find_out())

    async def _find_out(self) -> None:
        again_s = PROBE_AGAIN_MIN_S
        for _ in range(PROBES_MAX):
            if await self.transport.probe(self.address, PROBE_TIMEOUT_S) is Probe.REFUSED:
                self.listener.gone(self.node_id)
                return
            await asyncio.sleep(again_s)
            again_s = min(2 * again_s, PROBE_AGAIN_MAX_S)
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
