"""The roles of a node that neither leads nor campaigns."""

from __future__ import annotations

from abc import ABC, abstractmethod

from typing_extensions import override

from raftlog.clock import NEVER
from raftlog.quorum.election_state import Heard
from raftlog.quorum.events import ResponseReceived
from raftlog.quorum.fetcher import FETCHED, Fetcher, Verdict
from raftlog.quorum.messages import process_response
from raftlog.quorum.node import Node, Role
from raftlog.wire.quorum.v1 import quorum_pb2 as pb


class Unattached(Role):
    """A voter that knows no leader in its epoch. It waits for a leader or a candidate; after the
    election timeout it requests pre-votes itself.
    """

    name = "unattached"

    def __init__(self, node: Node, timer: float) -> None:
        super().__init__(node)
        self._timer = timer
        self._has_granted = False
        self._fetcher: Fetcher | None = None

    @override
    def deadline(self) -> float:
        return self._timer

    @property
    @override
    def election_timer(self) -> float | None:
        return self._timer

    @override
    def postpone_election(self, until: float) -> None:
        self._timer = until

    @override
    def grants_pre_vote(self) -> bool:
        return True

    @override
    def grants_vote(self) -> bool:
        return True

    @override
    def on_vote_granted(self) -> None:
        # Give the candidate time to win.
        self._timer, self._has_granted = self.node.election_deadline(), True

    @override
    def on_vote_answered(self) -> None:
        # Fetch from the candidate now: it answers once it leads, with the first records of the
        # epoch, two hops sooner than if it first had to announce that it leads.
        node = self.node
        if self._fetcher is None and node.dials(node.vote.voted_id):
            self._fetcher = Fetcher(node, node.vote.voted_id)
            self._fetcher.pump()

    @override
    def on_flushed(self) -> None:
        # The end of the log may not have been flushed when the vote was granted.
        if self._fetcher is not None:
            self._fetcher.pump()

    def fetcher_of(self, leader_id: int) -> Fetcher | None:
        """Return the fetcher that sent a Fetch to this node before it led, or None."""
        fetcher = self._fetcher
        return fetcher if fetcher is not None and fetcher.peer_id == leader_id else None

    @override
    def on_response(self, event: ResponseReceived) -> None:
        fetcher, node = self._fetcher, self.node
        if (
            fetcher is None
            or not fetcher.awaits(event.peer_id, event.correlation_id)
            or not isinstance(event.response, FETCHED)
        ):
            return
        if (
            not process_response(node, event.response, event.peer_id)
            and node.leader_id == event.peer_id
        ):
            # The peer leads this epoch: the new role has taken over this fetcher, and processes the
            # response.
            node.role.on_response(event)
        elif node.role is self:
            self._fetcher = None

    @override
    def on_request_failed(self, peer_id: int, correlation_id: int) -> None:
        if self._fetcher is not None and self._fetcher.awaits(peer_id, correlation_id):
            self._fetcher = None

    @override
    def on_tick(self) -> None:
        if self.node.now >= self._timer:
            self.node.become_prospective()

    @override
    def on_peer_connected(self, peer_id: int) -> None:
        # A cold start with enough voters connected: wait only for a candidate that is about to
        # lead.
        if self.node.fast_election and not self._has_granted and self.node.majority_connected():
            self.node.become_prospective()


class FetchingRole(Role, ABC):
    """A role that fetches the log; subclasses decide what a response means for the leader."""

    _fetcher: Fetcher
    _hears_leader = False

    @override
    def enter(self) -> None:
        self._fetcher.pump()

    @override
    def leave(self) -> None:
        self._fetcher.drop_snapshot()

    @override
    def on_snapshot_stored(self, *, sound: bool) -> None:
        self._fetcher.on_snapshot_stored(sound=sound)

    @property
    @override
    def hears_leader(self) -> bool:
        return self._hears_leader

    @override
    def grants_pre_vote(self) -> bool:
        return not self._hears_leader

    @override
    def on_response(self, event: ResponseReceived) -> None:
        response = event.response
        if (
            self._fetcher.awaits(event.peer_id, event.correlation_id)
            and isinstance(response, FETCHED)
            and process_response(self.node, response, event.peer_id)
        ):
            self.on_fetched(response, self._fetcher.process(response, event.span))

    @abstractmethod
    def on_fetched(
        self, response: pb.FetchResponse | pb.FetchSnapshotResponse, verdict: Verdict
    ) -> None:
        """Handle the awaited response, which the fetcher has processed."""

    @override
    def on_request_failed(self, peer_id: int, correlation_id: int) -> None:
        if self._fetcher.awaits(peer_id, correlation_id):
            self.retry()

    @abstractmethod
    def retry(self) -> None:
        """Fetch again after a pause, because the last Fetch failed."""

    @override
    def on_flushed(self) -> None:
        self._fetcher.pump()

    @override
    def on_voters_changed(self) -> None:
        self._fetcher.pump()


class Follower(FetchingRole):
    """A voter that follows the leader of its epoch. It requests pre-votes when the leader resigns,
    is proven gone, or is silent for the fetch timeout.

    Only the leader's *responses* reset the fetch timer: a leader that can send but cannot be
    reached must be replaced.
    """

    name = "follower"

    def __init__(self, node: Node, *, doubts: bool = False, early: Fetcher | None = None) -> None:
        """``early``: the fetcher that already sent a Fetch to the leader in this epoch, if any."""
        super().__init__(node)
        self._doubts = doubts
        self._leader_id = node.leader_id
        self._fetcher = early or Fetcher(node, node.leader_id)
        self._fetch_timeout_s = node.config.fetch_timeout_ms / 1000 + node.jitter_s() / 2
        self._fetch_deadline = node.now + self._fetch_timeout_s

    @override
    def enter(self) -> None:
        if self._leader_id in self.node.lost:
            # The leader is known to be gone: the node that named it has not yet noticed.
            self.node.start_fast_election(self._leader_id)
            self._expect_election(self.node.backoff_s())
        super().enter()

    @override
    def on_snapshot_stored(self, *, sound: bool) -> None:
        # The time that the disk took does not count as silence of the leader.
        self._fetch_deadline = max(self._fetch_deadline, self.node.now + self._fetch_timeout_s)
        super().on_snapshot_stored(sound=sound)

    @override
    def deadline(self) -> float:
        return min(self._fetch_deadline, self._fetcher.deadline())

    @property
    @override
    def election_timer(self) -> float | None:
        return self._fetch_deadline

    @override
    def postpone_election(self, until: float) -> None:
        self._hears_leader = False
        self._fetch_deadline = until

    @override
    def on_tick(self) -> None:
        if self.node.now >= self._fetch_deadline:
            self.node.become_prospective()
        else:
            self._fetcher.on_tick()

    @override
    def on_fetched(
        self, response: pb.FetchResponse | pb.FetchSnapshotResponse, verdict: Verdict
    ) -> None:
        node = self.node
        if verdict is Verdict.ACCEPTED:
            if not self._hears_leader:
                self._hears_leader, self._doubts = True, False
                node.election_deferred_at = None
            if node.fast_election:
                # The leader answers, so it is back, whatever the state of its control link.
                node.lost.discard(self._leader_id)
                node.end_fast_election()
            self._fetch_deadline = node.now + self._fetch_timeout_s
            node.heard = Heard(self.epoch, node.now, leading_ms=self._fetcher.leading_ms)
            self._fetcher.pump()
            self._process_successor(response)
        elif verdict is Verdict.REFUSED:
            self._fetcher.back_off()
        else:
            # The leader of this epoch no longer leads, and no node leads an epoch twice.
            preferred = tuple(getattr(response, "preferred_candidates", ()))
            if preferred:
                me = node.config.node_id
                place = preferred.index(me) if me in preferred else None
                self.on_end_quorum_epoch(place, len(preferred))
                return
            node.start_fast_election()
            self._fetcher.stop()
            self._expect_election(node.backoff_s())

    def _process_successor(self, response: pb.FetchResponse | pb.FetchSnapshotResponse) -> None:
        """Record whether the leader names this node as its successor: during a transfer, each
        response to a Fetch names the successor.
        """
        if type(response) is pb.FetchResponse:
            node, named = self.node, response.successor
            if (
                response.HasField("successor")
                and named.candidate_id == node.config.node_id
                and named.candidate_directory_id == node.config.directory_id
            ):
                node.named_by = self._leader_id, self.epoch
            else:
                node.named_by = -1, -1

    @override
    def retry(self) -> None:
        self._fetcher.back_off()

    @override
    def on_peer_lost(self, peer_id: int) -> None:
        if peer_id == self._leader_id:
            self.node.start_fast_election(peer_id)
            self.node.become_prospective()

    @override
    def on_doubter(self, peer_id: int) -> None:
        if self._doubts:
            self.node.become_prospective()

    @override
    def on_end_quorum_epoch(self, place: int | None, candidates: int) -> None:
        self.node.start_fast_election()
        self._fetcher.stop()
        if place == 0:
            if self._leader_id in self.node.peers:
                # A leader that resigns in favour of this node would grant it the pre-vote: no
                # request is needed.
                self.node.hints.note_supporter(self._leader_id, self.node.now)
            self.node.become_prospective()
            return
        longest_ms = self.node.config.election_backoff_max_ms
        slot_ms = longest_ms if place is None else (longest_ms >> (candidates - 1)) << (place - 1)
        self._expect_election(min(longest_ms, slot_ms) / 1000)

    def _expect_election(self, delay_s: float) -> None:
        """Treat the leader as gone: grant the next pre-vote, and request pre-votes after
        ``delay_s``.
        """
        self._hears_leader = False
        self._fetch_deadline = min(self._fetch_deadline, self.node.now + delay_s)


class Observer(FetchingRole):
    """A node that, according to its log, is not a voter. It fetches from the leader; while the
    leader is unknown, it fetches from one voter after another, and follows the leader that their
    refusals name.

    It never requests votes. It grants one if requested, as the candidate knows from a longer log
    that this node is a voter.
    """

    name = "observer"

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._asked = node.random_index(max(1, len(node.voters)))
        if node.leader_id != -1:
            peer_id = node.leader_id
            self._leader_deadline = node.now + node.config.fetch_timeout_ms / 1000 + node.jitter_s()
        else:
            peer_id = self._next_voter()
            self._leader_deadline = NEVER
        self._fetcher = Fetcher(node, peer_id)

    def _next_voter(self) -> int:
        """Return the next voter or bootstrap server, round robin. A voter with this node's id, on
        another disk, is skipped.
        """
        node = self.node
        ids = [*node.peers, *(peer.node_id for peer in node.config.bootstrap_peers)]
        self._asked += 1
        return ids[self._asked % len(ids)] if ids else -1

    @override
    def deadline(self) -> float:
        return min(self._leader_deadline, self._fetcher.deadline())

    @override
    def grants_vote(self) -> bool:
        return True

    @override
    def on_tick(self) -> None:
        if self.node.now >= self._leader_deadline:
            self._forget_leader()
        elif self._fetcher.overdue:
            self.retry()
        else:
            self._fetcher.on_tick()

    def _forget_leader(self) -> None:
        self.node.become_unattached(self.epoch)

    @override
    def on_fetched(
        self, response: pb.FetchResponse | pb.FetchSnapshotResponse, verdict: Verdict
    ) -> None:
        if verdict is Verdict.ACCEPTED:
            self._hears_leader = True
            self._leader_deadline = self.node.now + self.node.config.fetch_timeout_ms / 1000
            self._fetcher.pump()
        elif verdict is Verdict.NOT_LEADER and self.node.leader_id != -1:
            self._forget_leader()
        else:
            self.retry()

    @override
    def retry(self) -> None:
        self._fetcher.back_off(None if self.node.leader_id != -1 else self._next_voter())

    @override
    def on_voters_changed(self) -> None:
        if self.node.leader_id == -1 and not self.node.dials(self._fetcher.peer_id):
            self._fetcher.back_off(self._next_voter())
        super().on_voters_changed()

    @override
    def on_peer_lost(self, peer_id: int) -> None:
        if peer_id == self.node.leader_id:
            self._forget_leader()


class Resigned(Role):
    """A node that led or campaigned in its epoch, and no longer participates in it: it tells the
    other voters that it no longer leads, and requests pre-votes after the election timeout.
    """

    name = "resigned"

    def __init__(self, node: Node, timer: float, preferred: tuple[int, ...] = ()) -> None:
        super().__init__(node)
        self._timer = timer
        self._preferred = preferred
        self._awaited: dict[int, int] = {}

    @override
    def enter(self) -> None:
        if not self._preferred:
            return
        node = self.node
        request = pb.EndQuorumEpochRequest(
            cluster_id=node.config.cluster_id,
            leader_id=node.config.node_id,
            leader_epoch=node.epoch,
            preferred_candidates=[
                pb.PreferredCandidate(
                    candidate_id=node_id, candidate_directory_id=node.voters.directory_of(node_id)
                )
                for node_id in self._preferred
            ],
        )
        for peer_id in node.peers:
            self._awaited[peer_id] = node.send(peer_id, request)

    @override
    def deadline(self) -> float:
        return self._timer

    @override
    def postpone_election(self, until: float) -> None:
        self._timer = until

    @override
    def grants_pre_vote(self) -> bool:
        return True

    @override
    def on_tick(self) -> None:
        if self.node.now >= self._timer:
            self._move_on()

    def _move_on(self) -> None:
        if self.node.participates:
            self.node.become_prospective()
        else:
            self.node.become_unattached(self.epoch)

    @override
    def on_voters_changed(self) -> None:
        if not self.node.participates and not self._awaited:
            self._move_on()

    @override
    def on_response(self, event: ResponseReceived) -> None:
        if self._awaited.get(event.peer_id) == event.correlation_id and isinstance(
            event.response, pb.EndQuorumEpochResponse
        ):
            del self._awaited[event.peer_id]
            if process_response(self.node, event.response, event.peer_id):
                self.on_voters_changed()
