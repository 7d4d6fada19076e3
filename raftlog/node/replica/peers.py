"""The dialing side of the links between quorum nodes: requests, responses, and the proof that a
peer's process is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from raftlog.clock import DeadlineTimer
from raftlog.endpoint import Voter
from raftlog.errors import ErrorCode
from raftlog.logger import get_logger
from raftlog.node.replica.peer_acceptor import FIELD_OF, within_limits
from raftlog.quorum import events as ev
from raftlog.quorum.config import QuorumConfig
from raftlog.transport.api import Conversation, Dialer, Link, LinkClosedError, Probe, Transport
from raftlog.wire.quorum.v1 import quorum_pb2 as pb


@dataclass(frozen=True, slots=True)
class PeerReach:
    """Reachability of a peer at one moment: for operators, used by no rule.

    ``reason``: the dialed address, and why the peer does not answer; empty if it does.
    """

    node_id: int
    reason: str = ""
    for_ms: int = 0
    """Time without a response, in ms."""

    @property
    def is_reachable(self) -> bool:
        """Whether the peer answers."""
        return not self.reason


MAX_PATIENCE_FACTOR = 8
"""Longest patience, as a multiple of the initial one; a slower link is useless to a quorum."""


class Silence:
    """A watchdog for an open link that delivers nothing although a response is due: the link is
    replaced.

    A keepalive detects the loss of a host or of a whole connection, but not a single stream that
    carries nothing, nor a process that has lost the stream. The patience doubles with each
    abandoned link, and is at least twice the last response time, so that a slow link or an absent
    peer is not dialed again and again. A request costs one comparison; a timer runs while a
    response is due.
    """

    def __init__(self, patience_s: float, silent: Callable[[], None]) -> None:
        """``silent``: called when the patience ends, and again after twice as long if the link
        still delivers nothing.
        """
        self._loop = asyncio.get_running_loop()
        self._shortest_s = self._patience_s = patience_s
        self._silent = silent
        self._since: float | None = None
        self._timer = DeadlineTimer(self._loop, self._look)

    def asked(self) -> None:
        """Record a request; every request has a response."""
        if self._since is None:
            self._since = self._loop.time()
            self._timer.arm(self._since + self._patience_s)

    def heard(self) -> None:
        """Record a message from the peer."""
        if self._since is not None:
            took_s, self._since = self._loop.time() - self._since, None
            self._patience_s = min(
                max(self._shortest_s, 2 * took_s), MAX_PATIENCE_FACTOR * self._shortest_s
            )

    @property
    def since(self) -> float | None:
        """Time of the oldest request without a later message, or None if no response is due."""
        return self._since

    def over(self) -> None:
        """Stop expecting a response, because the link is gone."""
        self._since = None

    def close(self) -> None:
        """Stop the watchdog."""
        self._since = None
        self._timer.cancel()

    def _look(self) -> None:
        if self._since is None:
            return
        now, due = self._loop.time(), self._since + self._patience_s
        if due <= now:
            self._patience_s = min(2 * self._patience_s, MAX_PATIENCE_FACTOR * self._shortest_s)
            due = now + self._patience_s
            self._silent()
        if self._since is not None:
            self._timer.arm(due)


SNAPSHOT_CONNECT_S = 1.0
"""Time to connect, in seconds, after which the waiting requests are reported unanswered."""
SNAPSHOT_IDLE_S = 5.0


class SnapshotAnswers(Protocol):
    """The receiver of a snapshot link's responses."""

    def answered(self, peer_id: int, correlation_id: int, response: Any) -> None:
        """Process a response, on the link of its request."""

    def unanswered(self, peer_id: int, correlation_id: int) -> None:
        """Process the failure of a request."""


class SnapshotLink:
    """The bulk conversation with one peer: dialed for a FetchSnapshot request, closed when idle. A
    silent link is closed, too: the next request dials a new one.
    """

    def __init__(
        self,
        peer_id: int,
        endpoint: str,
        transport: Transport,
        answers: SnapshotAnswers,
        answer_s: float,
    ) -> None:
        """``answer_s``: longest response time, in seconds."""
        self._loop = asyncio.get_running_loop()
        self._peer_id, self._endpoint, self._transport, self._answers = (
            peer_id,
            endpoint,
            transport,
            answers,
        )
        self._dialer: Dialer | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: list[pb.FetchSnapshotRequest] = []
        # Correlation ids, in the order of the requests.
        self._in_flight: dict[int, None] = {}
        self._silence = Silence(answer_s, self.close)

    def send(self, correlation_id: int, request: pb.FetchSnapshotRequest) -> None:
        """Send a request once there is a link; each request is either answered or reported
        unanswered.
        """
        request.correlation_id = correlation_id
        if self._dialer is None:
            self._dialer = self._transport.dial(self._endpoint, Conversation.SNAPSHOT, self)
        link = self._dialer.link
        if link is None:
            self._waiting.append(request)
            self._arm(SNAPSHOT_CONNECT_S, self._no_link)
        else:
            self._send(link, request)

    def _send(self, link: Link, request: pb.FetchSnapshotRequest) -> None:
        self._stop_timer()
        self._in_flight[request.correlation_id] = None
        try:
            link.send(request)
        except LinkClosedError:
            self._unanswered([request.correlation_id])
        else:
            self._silence.asked()

    def opened(self, link: Link) -> None:
        """Send the waiting requests."""
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            self._send(link, request)
        self._arm_if_idle()

    def received(self, link: Link, messages: Sequence[pb.FetchSnapshotResponse]) -> None:
        """Process the responses to requests on this link; drop any other message."""
        self._silence.heard()
        for message in messages:
            if message.correlation_id in self._in_flight:
                del self._in_flight[message.correlation_id]
                self._answers.answered(self._peer_id, message.correlation_id, message)
        self._arm_if_idle()

    def closed(self, link: Link, reason: str) -> None:
        """Report the outstanding requests unanswered."""
        self._silence.over()
        self._unanswered(list(self._in_flight))
        self._arm_if_idle()

    def close(self) -> None:
        """Close the link; the waiting requests are reported unanswered."""
        self._stop_timer()
        self._silence.over()
        dialer, self._dialer = self._dialer, None
        if dialer is not None:
            dialer.close()
        waiting, self._waiting = self._waiting, []
        self._unanswered([*self._in_flight, *(request.correlation_id for request in waiting)])

    def _no_link(self) -> None:
        self._timer = None
        if self._waiting:
            self.close()

    def _unanswered(self, correlation_ids: list[int]) -> None:
        for correlation_id in correlation_ids:
            self._in_flight.pop(correlation_id, None)
        for correlation_id in correlation_ids:
            self._answers.unanswered(self._peer_id, correlation_id)

    def _arm_if_idle(self) -> None:
        if self._dialer is not None and not self._in_flight and not self._waiting:
            self._arm(SNAPSHOT_IDLE_S, self.close)

    def _arm(self, delay_s: float, call: Callable[[], None]) -> None:
        self._stop_timer()
        self._timer = self._loop.call_later(delay_s, call)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


log = get_logger(__name__)

PROBE_TIMEOUT_S = 0.2
PROBE_AGAIN_MIN_S, PROBE_AGAIN_MAX_S = 0.002, 0.02
ELSEWHERE_AFTER_S = 1.0
"""Time for which an address is tried before another address of the peer, in seconds."""
PROBES_MAX = 50
"""Maximum number of probes of a dying process.

After its streams have broken it still accepts connections for some milliseconds, until the kernel
closes its listening socket, so the first probe is not conclusive. The second one follows soon, as
there may be no leader meanwhile; later ones follow at growing intervals.
"""
_REFUSALS = {
    int(ErrorCode.INCONSISTENT_CLUSTER_ID): "it refuses this node, which belongs to another cluster"
    " (INCONSISTENT_CLUSTER_ID): compare cluster.id",
    int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED): "it does not accept this node's certificate:"
    " compare node.principal.rule there with tls.certificate.file on this node",
    int(ErrorCode.DIRECTORY_SET_BACK): "it knows later starts of this node's data directory, which"
    " is an older copy (DIRECTORY_SET_BACK)",
    int(ErrorCode.INVALID_VOTER_KEY): "it runs with another data directory than the voter that this"
    " node knows, so it does not vote (INVALID_VOTER_KEY)",
}
"""Errors whose sender does not count as reached. (Otherwise it would look as if enough voters for
an election could be reached, although one belongs to another cluster or has a replaced disk.)
"""


class PeerListener:
    """The receiver of the events on the links to one peer: the replica."""

    def answered(self, peer_id: int, correlation_id: int, response: Any) -> None:
        """See ``SnapshotAnswers``."""

    def unanswered(self, peer_id: int, correlation_id: int) -> None:
        """See ``SnapshotAnswers``."""

    def connected(self, peer_id: int) -> None:
        """Process a new control link."""

    def gone(self, peer_id: int) -> None:
        """Process proof that a peer's process is gone: a link broke and a raw connect was refused,
        so no process listens there.
        """


class PeerLink:
    """The dialing side of one conversation with one peer.

    Responses on an earlier link cannot reach the replica. For a silent link a second one is dialed,
    which replaces it once it is up. If the first link delivers a message before that, it is kept,
    so that no link is given up for one that cannot be opened.
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
        """Return the time since which this link has delivered nothing or only refusals, and why;
        None if it works.
        """
        if self._dialer.link is None:
            return self._down_since, self._dialer.last_failure or "not connected yet"
        if self._refusal:
            return self._refused_since, self._refusal
        since = self._silence.since
        if since is None or self._peer.now() - since < self._peer.answer_s:
            return None
        return since, "it is connected but does not answer"

    def send(self, correlation_id: int, request: Any) -> None:
        """Send a request, or report at once that it gets no response."""
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
        """Process a new link, or the one that replaces a silent one."""
        if self._other is not None and self._other.link is link:
            log.info(
                "a silent link is replaced",
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
        """See ``SnapshotLink.received``."""
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
                    # A node that is not the peer does not lead. [An observer requests no votes, so
                    # it never learned the node's id, and kept fetching from it.]
                    self._peer.not_reached(self._down_since)
                    self._peer.listener.unanswered(self._peer.node_id, message.correlation_id)
                    continue
                if error or self._refusal:
                    self._refused(error)
                # Nearly every response has only records, without a field that has a limit.
                plain = type(body) is pb.FetchResponse and not (
                    body.leader_endpoint
                    or body.preferred_candidates
                    or body.known_starts
                    or body.error_message
                    or body.HasField("successor")
                )
                if plain or (within_limits(link, body) and not (self._control and kind is None)):
                    self._peer.listener.answered(self._peer.node_id, message.correlation_id, body)
                else:
                    self._peer.listener.unanswered(self._peer.node_id, message.correlation_id)

    def closed(self, link: Link, reason: str) -> None:
        """Report the outstanding requests unanswered, and suspect the peer.

        The end of a replaced link, or of a replacement, proves nothing.
        """
        if self._dialer.link is None:
            self._down_since = self._peer.now()
            self._drop_other()
            self._peer.suspect()
            self._give_up()

    def attempt_failed(self, reason: str, error: object) -> None:
        """Process a failed connection attempt."""
        if self._control:
            self._peer.not_reached(self._down_since)

    def _refused(self, error: int) -> None:
        """Log a refusal once, and again only after another kind of response, as repeated refusals
        are all the same.
        """
        refusal = _REFUSALS.get(error, "")
        if refusal and refusal != self._refusal:
            self._refused_since = self._peer.now()
            log.error(
                "a node refuses all requests from this node",
                reason=refusal,
                peer=self._peer.node_id,
                endpoint=self._peer.address,
                link=self._conversation.name,
            )
        self._refusal = refusal
        if refusal:
            self._peer.not_reached(self._refused_since)

    def close(self) -> None:
        """Close the link for good. Outstanding requests are not reported."""
        self._silence.close()
        self._drop_other()
        self._dialer.close()

    def redial(self) -> None:
        """Dial the peer's current address; outstanding requests get no response."""
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
        """Report the outstanding requests unanswered."""
        self._silence.over()
        in_flight, self._in_flight = sorted(self._in_flight), set()
        for correlation_id in in_flight:
            self._peer.listener.unanswered(self._peer.node_id, correlation_id)


class Peer:
    """Another node, with a control link for votes and a link for replication, so that neither
    queues behind the other. A third link for snapshots is dialed when needed.
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
        """``endpoint``: the peer's endpoint in the voter set. ``answer_s``: longest response time,
        in seconds. ``elsewhere`` returns other addresses of the peer, which are used if it does not
        answer there.
        """
        self.answer_s = answer_s
        self.node_id, self.endpoint, self.transport, self.listener = (
            node_id,
            endpoint,
            transport,
            listener,
        )
        self.address = endpoint
        self._proven = ""
        """The last address at which the peer answered with its own id."""
        self._spawn, self._elsewhere = spawn, elsewhere
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self._tried: set[str] = set()
        """Addresses that failed since the peer was last reached, or since the last round."""
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
        """Return whether the peer can be reached for votes and fetches."""
        failing = [
            found
            for found in (self._control.unanswered_since(), self._replication.unanswered_since())
            if found is not None
        ]
        if not failing:
            return PeerReach(self.node_id)
        since, reason = min(failing)
        for_ms = max(0, round((self.now() - since) * 1000))
        known = (
            f"; its address in the log is {self.endpoint}" if self.address != self.endpoint else ""
        )
        return PeerReach(self.node_id, f"{self.address}: {reason}{known}", for_ms)

    # --- where it is -----------------------------------------------------------------------------

    def stays_at(self, endpoint: str) -> bool:
        """Record the peer's endpoint in the voter set. Return False if it must be redialed."""
        if endpoint not in (self.endpoint, self.address):
            return False
        self.endpoint = endpoint
        return True

    def not_reached(self, since: float) -> None:
        """Process a failed connection, or refusals by another node at the address."""
        if self.now() - max(since, self._dialed_at) >= ELSEWHERE_AFTER_S:
            self.is_elsewhere()

    @property
    def is_proven(self) -> bool:
        """Whether the node at the dialed address is known to be this peer, from the voter set or
        from its own response.

        Otherwise another node at a configured address, which answers that it does not lead, could
        be mistaken for the leader.
        """
        return self.address in (self.endpoint, self._proven)

    def answers_as(self, node_id: int) -> None:
        """Process a response from a node with this id at the dialed address."""
        if node_id == self.node_id:
            self._proven = self.address
        else:
            self.is_elsewhere()

    def is_elsewhere(self) -> None:
        """Dial the next address, round robin, because the peer is not at this one."""
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
        """Probe a peer after a broken link: the port of a dead process refuses at once."""
        if self.hung_up:
            return
        if self._probe is None or self._probe.done():
            self._probe = self._spawn(self._probe_process())

    async def _probe_process(self) -> None:
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
        """Close the links. This proves nothing about the peer; outstanding requests get no
        response.
        """
        self.hung_up = True
        if self._probe is not None:
            self._probe.cancel()
        self._control.close()
        self._replication.close()
        self._snapshots.close()


class DialedPeers:
    """The peers that the quorum tells this node to dial, by id."""

    def __init__(self, config: QuorumConfig, transport: Transport, listener: PeerListener) -> None:
        self._config, self._transport, self._observer = config, transport, listener
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.by_id: dict[int, Peer] = {}

    def dial(self, peers: tuple[Voter, ...]) -> None:
        """Keep links to exactly these peers: close others, and redial peers whose address has
        changed.
        """
        own_id, answer_s = self._config.node_id, self._config.request_timeout_ms / 1000
        wanted = {peer.node_id: peer.endpoint for peer in peers if peer.node_id != own_id}
        for node_id, peer in list(self.by_id.items()):
            if not peer.stays_at(wanted.get(node_id, "")):
                del self.by_id[node_id]
                peer.close()
        for node_id, endpoint in wanted.items():
            if endpoint and node_id not in self.by_id:
                self.by_id[node_id] = Peer(
                    node_id,
                    endpoint,
                    self._transport,
                    self._observer,
                    self._spawn,
                    answer_s,
                    elsewhere=partial(self._elsewhere, node_id),
                )

    def _elsewhere(self, node_id: int) -> list[str]:
        """Return the addresses in the configuration at which a voter may be: those at which no
        other peer answers.

        The node there proves by its id and directory id that it is the voter.
        """
        config = self._config
        if node_id < 0:
            # A bootstrap server is itself an address in the configuration.
            return []
        named = [voter.endpoint for voter in config.configured_voters if voter.node_id == node_id]
        others = {
            peer.address
            for other_id, peer in self.by_id.items()
            if other_id != node_id and peer.reach().is_reachable
        }
        return [one for one in (*named, *config.bootstrap_servers) if one not in others]

    def send(self, effect: ev.Send | ev.SendFetch | ev.SendFetchSnapshot) -> bool:
        """Send a request on the link for its kind. Return False if that peer is not dialed."""
        peer = self.by_id.get(effect.peer_id)
        if peer is None:
            return False
        if isinstance(effect, ev.SendFetch):
            peer.send_fetch(effect.correlation_id, effect.request)
        elif isinstance(effect, ev.SendFetchSnapshot):
            peer.send_fetch_snapshot(effect.correlation_id, effect.request)
        else:
            peer.send(effect.correlation_id, effect.request)
        return True

    def reach(self) -> tuple[PeerReach, ...]:
        """Return the reachability of each peer, by id."""
        return tuple(peer.reach() for _, peer in sorted(self.by_id.items()))

    def close(self) -> None:
        """Close all links."""
        for peer in list(self.by_id.values()):
            peer.close()
        for task in list(self._tasks):
            task.cancel()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(coroutine)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task
