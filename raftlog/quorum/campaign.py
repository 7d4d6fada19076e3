"""The roles of a voter that campaigns: it requests pre-votes (KIP-996), then votes.

Why: docs/decisions/002-elections-by-proof-of-death.md
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from typing_extensions import override

from raftlog.clock import NEVER
from raftlog.quorum.admission import is_directory_id
from raftlog.quorum.events import ResponseReceived
from raftlog.quorum.messages import process_response
from raftlog.quorum.node import MIN_BACKOFF_S, Node, Role
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

ROUND_TRIPS = 2
"""Time that a round waits for the remaining peers, in round trips of the slowest peer that has
answered.
"""


class Campaign(Role, ABC):
    """A role that sends VoteRequests to all other voters and counts the responses.

    A round ends when it is won, when a majority can no longer grant, or when its timer expires.
    ``silent_id``: the leader that fell silent. It counts as a refusal, so a round that cannot be
    won without it is lost at once, not after a whole timeout.
    """

    pre_vote: ClassVar[bool]

    def __init__(self, node: Node, silent_id: int) -> None:
        super().__init__(node)
        self.granted: set[int] = set()
        self.timer = NEVER
        self.retry_at = NEVER
        self.slowest_answer_s = 0.0
        self._silent_id = silent_id
        self.asked_at = node.now
        self._refused: set[int] = set()
        self._failed: set[int] = set()
        self._awaited: dict[int, int] = {}

    @abstractmethod
    def won(self) -> None:
        """Handle the end of a round in which a majority has granted the request."""

    @abstractmethod
    def lost(self) -> None:
        """Handle the end of a round in which a majority can no longer grant the request."""

    def supporters(self) -> set[int]:
        """Return the voters that count as granting."""
        return self.granted

    @override
    def deadline(self) -> float:
        return min(self.timer, self.retry_at)

    @property
    @override
    def election_timer(self) -> float | None:
        return self.timer

    @override
    def postpone_election(self, until: float) -> None:
        self.timer, self.retry_at = until, NEVER

    @override
    def grants_pre_vote(self) -> bool:
        return True

    def ask_all(self) -> None:
        """Begin a round: send a request to every other voter."""
        self.granted.clear()
        self._refused.clear()
        self._failed.clear()
        self.timer, self.retry_at = self.node.election_deadline(), NEVER
        self.asked_at, self.slowest_answer_s = self.node.now, 0.0
        for peer_id in self.node.peers:
            self._ask(peer_id)

    def _ask(self, peer_id: int) -> None:
        node = self.node
        request = pb.VoteRequest(
            cluster_id=node.config.cluster_id,
            voter_id=peer_id,
            voter_directory_id=node.voters.directory_of(peer_id),
            replica_epoch=node.epoch,
            replica_id=node.config.node_id,
            replica_directory_id=node.config.directory_id,
            last_offset_epoch=node.log.last_epoch,
            last_offset=node.log.end,
            pre_vote=self.pre_vote,
            generation=node.bound_generation,
        )
        if self.pre_vote:
            # How long the leader to be replaced had led when this node last heard it.
            heard = node.heard
            request.heard_leading_ms = heard.leading_ms if heard.epoch == node.epoch else 0
        self._awaited[peer_id] = node.send(peer_id, request)

    def ask_again(self, peer_id: int) -> None:
        """Repeat the request to a peer that refused, as it may grant it now."""
        if peer_id in self._refused:
            self._refused.remove(peer_id)
            self._ask(peer_id)

    @override
    def on_voters_changed(self) -> None:
        # The grants so far are from the voters of the previous set.
        self.node.become_unattached(self.epoch)

    def has_majority(self) -> bool:
        """Return whether enough voters grant the request."""
        return len(self.supporters()) >= self.node.votes_needed

    def against(self) -> set[int]:
        """Return the voters that refused or cannot answer."""
        node = self.node
        against = self._refused | self._failed
        if self._silent_id in node.peers and not node.fast_election and len(node.voters) > 2:
            # In a fast election a leader that has resigned answers. With two voters both must
            # grant.
            against.add(self._silent_id)
        return against - self.supporters()

    def count(self) -> None:
        """Win or lose the round if the responses so far decide it."""
        if self.has_majority():
            self.won()
        elif len(self.node.voters) - len(self.against()) < self.node.votes_needed:
            self.lost()

    def retry_soon(self, pause_s: float) -> None:
        """Start another round after ``pause_s`` if a majority is connected."""
        if self.retry_at == NEVER and self.node.majority_connected():
            self.retry_at = self.node.now + pause_s

    @override
    def on_response(self, event: ResponseReceived) -> None:
        response = event.response
        if self._awaited.get(event.peer_id) != event.correlation_id or not isinstance(
            response, pb.VoteResponse
        ):
            return
        del self._awaited[event.peer_id]
        if not process_response(self.node, response, event.peer_id):
            return
        self.node.hints.note_answer(event.peer_id, self.node.now - self.asked_at)
        self._bound_round()
        sound = (
            not response.error_code
            and response.leader_epoch == self.epoch
            and response.pre_vote == self.pre_vote
            and _is_of_voter(self.node, event.peer_id, response)
        )
        if sound and response.vote_granted:
            self.granted.add(event.peer_id)
            self.on_granted(event.peer_id, response)
        else:
            self._refused.add(event.peer_id)
        self.count()

    def on_granted(self, peer_id: int, response: pb.VoteResponse) -> None:
        """Handle a granted request."""

    def _bound_round(self) -> None:
        """Shorten the round after a response: wait for the remaining peers twice as long as the
        slowest response so far took, but at least half the election timeout. A fast response from
        one peer does not mean that a distant peer is as fast.
        """
        config, took_s = self.node.config, self.node.now - self.asked_at
        self.slowest_answer_s = max(self.slowest_answer_s, took_s)
        longest_s = max(ROUND_TRIPS * self.slowest_answer_s, config.election_timeout_ms / 2000)
        self.timer = min(self.timer, self.asked_at + longest_s)

    @override
    def on_request_failed(self, peer_id: int, correlation_id: int) -> None:
        if self._awaited.get(peer_id) == correlation_id:
            del self._awaited[peer_id]
            self.node.connected.discard(peer_id)
            self._failed.add(peer_id)
            self.count()

    @override
    def on_peer_connected(self, peer_id: int) -> None:
        if peer_id in self._failed:
            self._failed.remove(peer_id)
            self._ask(peer_id)


def _is_of_voter(node: Node, peer_id: int, response: pb.VoteResponse) -> bool:
    """Return whether the response comes from the requested voter, running on the directory in the
    voter set.

    A node with a replaced disk may answer at the voter's address, but the promises of the replica
    in the voter set are lost with the old disk.
    """
    directory_id = response.voter_directory_id
    return (
        response.voter_id == peer_id
        and directory_id != ""
        and is_directory_id(directory_id)
        and node.voters.includes(peer_id, directory_id)
    )


SPREAD = 1.5
"""Time, in units of the election jitter, within which all voters that lose their leader together
have requested pre-votes, however distant they are.
"""


class Prospective(Campaign):
    """A voter that requests pre-votes. It keeps the leader and the vote of its epoch; a majority of
    pre-votes makes it a candidate in the next epoch.
    """

    name = "prospective"
    pre_vote = True

    def __init__(self, node: Node) -> None:
        super().__init__(node, node.leader_id)
        self._go_at = NEVER
        self._outranks_until = node.now + node.config.election_timeout_ms / 1000

    @override
    def enter(self) -> None:
        self._begin_round()

    def _begin_round(self) -> None:
        if not (self.has_majority() and self.node.now >= self._may_go_at()):
            self.ask_all()
        # Otherwise enough voters had become supporters before this round.
        self.count()

    @override
    def supporters(self) -> set[int]:
        node = self.node
        return (
            self.granted
            | node.hints.supporters(node.now)
            | ({node.config.node_id} if node.is_voter else set())
        )

    @override
    def on_granted(self, peer_id: int, response: pb.VoteResponse) -> None:
        self.node.hints.note_supporter(peer_id, self.node.now)

    @override
    def on_doubter(self, peer_id: int) -> None:
        self.ask_again(peer_id)
        self.count()

    @override
    def outranks(self, candidate_id: int, last_epoch: int, end_offset: int) -> bool:
        # If two nodes request pre-votes from each other, only one may campaign, or they split the
        # vote: the one with the longer log, then the one with the lower id. It counts the other's
        # request as a grant. This is limited in time: it may be partitioned from a third voter that
        # the other node reaches.
        node = self.node
        return (
            node.is_voter
            and node.installing is None
            and node.now < self._outranks_until
            and (last_epoch, end_offset) == (node.log.last_epoch, node.log.end)
            and node.config.node_id < candidate_id
        )

    @override
    def grants_vote(self) -> bool:
        return True

    @override
    def on_vote_granted(self) -> None:
        self.node.become_unattached(self.epoch)

    @override
    def won(self) -> None:
        self._go_at = self._may_go_at()
        if self.node.now >= self._go_at:
            self._go()
        else:
            # Extend the round until then.
            self.timer, self.retry_at = max(self.timer, self._go_at), NEVER

    def _may_go_at(self) -> float:
        """Return the time at which this node may campaign.

        Voters that lose their leader at the same instant would all win the pre-vote, and then split
        the vote. So a node yields to the rivals that precede it. With more than three voters, some
        rivals may not have been heard yet, so earlier hints do not count at once, only responses
        do.
        """
        node = self.node
        heard = self.supporters() | self.against() | node.hints.rivals(node.now)
        if (
            node.fast_election
            or len(self.granted) + node.is_voter >= node.votes_needed
            or heard.issuperset(node.peers)
        ):
            wait_until = node.now
        else:
            wait_until = self.asked_at + SPREAD * node.config.election_jitter_max_ms / 1000
        # Limited in time: a rival may be partitioned from a third voter that this node reaches, or
        # a stranger may have forged its requests.
        return min(max(node.hints.yields_until(), wait_until), self._outranks_until)

    def _go(self) -> None:
        if self.node.installing is None:
            self.node.become_candidate()
        else:
            # A leader must have its whole log.
            self.timer = self._go_at = self.node.now + MIN_BACKOFF_S

    @override
    def lost(self) -> None:
        if self.node.fast_election:
            self.retry_soon(self.node.backoff_s())
        else:
            self._fall_back()

    def _fall_back(self) -> None:
        node = self.node
        if node.leader_id != -1:
            node.become_follower(node.leader_id, node.epoch, doubts=True)
        else:
            node.become_unattached(node.epoch)

    @override
    def deadline(self) -> float:
        return min(super().deadline(), self._go_at)

    @override
    def on_tick(self) -> None:
        node = self.node
        if node.now >= self._go_at:
            self._go_at = NEVER
            if self.has_majority():
                self.won()
        elif node.now < self.deadline():
            return
        elif self.has_majority():
            self.won()
        elif node.fast_election:
            self._begin_round()
        else:
            self._fall_back()

    @override
    def on_peer_lost(self, peer_id: int) -> None:
        if peer_id == self.node.leader_id:
            self.node.start_fast_election(peer_id)
            self.count()

    @override
    def on_end_quorum_epoch(self, place: int | None, candidates: int) -> None:
        self.node.start_fast_election()
        self.count()


class Candidate(Campaign):
    """A voter that has begun an epoch with a vote for itself, and becomes the leader of that epoch
    once a majority has voted for it. Its own vote counts when it is durable.
    """

    name = "candidate"
    pre_vote = False

    def __init__(self, node: Node, silent_id: int) -> None:
        super().__init__(node, silent_id)
        self._vote_durable = False
        self.heard = node.heard
        """The leader that this node or one of its voters heard last."""
        self._early: dict[int, tuple[pb.FetchRequest, Any]] = {}
        """Fetches that wait for the outcome of the election, at most one per voter, each with its
        reply_to.
        """

    @override
    def on_granted(self, peer_id: int, response: pb.VoteResponse) -> None:
        self.heard = self.heard.and_of(
            response.last_heard_epoch,
            response.last_heard_age_ms if response.HasField("last_heard_age_ms") else None,
            self.node.now,
        )

    @override
    def enter(self) -> None:
        self.ask_all()

    @override
    def on_vote_persisted(self) -> None:
        durable = self.node.durable_vote
        if durable.epoch == self.epoch and durable.voted_id == self.node.config.node_id:
            self._vote_durable = True
            if self.node.is_voter:
                self.granted.add(self.node.config.node_id)
            self.count()

    @override
    def won(self) -> None:
        # A majority may have answered while this node's own vote is still being written. If the
        # node led without that vote on disk, it could forget in a crash that it has led, and lead
        # the epoch a second time.
        if self._vote_durable:
            self.node.succession = self.heard
            early, self._early = tuple(self._early.values()), {}
            self.node.become_leader(tuple(sorted(self.granted)), early)

    @override
    def on_fetch(self, request: pb.FetchRequest, reply_to: Any) -> None:
        # Park the Fetch until the outcome of the election is known.
        if request.replica_id not in self.node.peers:
            self.decline_fetch(request, reply_to)
            return
        older = self._early.pop(request.replica_id, None)
        self._early[request.replica_id] = request, reply_to
        if older is not None:
            self.decline_fetch(*older)

    @override
    def leave(self) -> None:
        for request, reply_to in self._early.values():
            self.decline_fetch(request, reply_to)

    @override
    def lost(self) -> None:
        # Another candidate has the votes, or no candidate has: a leader would have announced itself
        # within the time of the slowest response. If a rival precedes this node, allow two more
        # round trips.
        trips = 3 if self.node.hints.yields_until() >= self.node.now else 1
        self.retry_soon(trips * self.slowest_answer_s + self.node.backoff_s())
        if self.retry_at < NEVER:
            self.timer = max(self.timer, self.retry_at)

    @override
    def on_tick(self) -> None:
        # The vote was lost or split: request pre-votes again before starting another epoch.
        if self.node.now >= self.deadline():
            self.node.become_prospective()
