"""Asking for pre-votes (KIP-996) and for votes: the roles of a voter that campaigns.

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
"""Round trips of the slowest peer that answered, for which the others are awaited."""


class Campaign(Role, ABC):
    """A role that sends VoteRequests to all other voters and counts the answers.

    A round ends when it is won, when a majority can no longer grant, or when its timer ends.
    ``silent_id`` is the leader that fell silent: it counts as refusing, so that a round without it
    is lost at once and not after a whole timeout.
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
        """A majority has granted the request."""

    @abstractmethod
    def lost(self) -> None:
        """A majority can no longer grant it."""

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
        """Begin a round: ask all other voters."""
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
            # How long the leader that it would replace had led when it was last heard.
            heard = node.heard
            request.heard_leading_ms = heard.leading_ms if heard.epoch == node.epoch else 0
        self._awaited[peer_id] = node.send(peer_id, request)

    def ask_again(self, peer_id: int) -> None:
        """Ask a peer that refused once more: it may grant now."""
        if peer_id in self._refused:
            self._refused.remove(peer_id)
            self._ask(peer_id)

    @override
    def on_voters_changed(self) -> None:
        # The grants so far are those of another set's voters.
        self.node.become_unattached(self.epoch)

    def has_majority(self) -> bool:
        """Return whether enough voters grant."""
        return len(self.supporters()) >= self.node.votes_needed

    def against(self) -> set[int]:
        """Return the voters that refused, or cannot answer."""
        node = self.node
        against = self._refused | self._failed
        if self._silent_id in node.peers and not node.fast_election and len(node.voters) > 2:
            # In a fast election a leader that has resigned answers. Of two voters both have to.
            against.add(self._silent_id)
        return against - self.supporters()

    def count(self) -> None:
        """Win or lose the round, if the answers so far decide it."""
        if self.has_majority():
            self.won()
        elif len(self.node.voters) - len(self.against()) < self.node.votes_needed:
            self.lost()

    def retry_soon(self, pause_s: float) -> None:
        """Ask again after a pause, if a majority is connected."""
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
        """A peer has granted the request."""

    def _bound_round(self) -> None:
        """After an answer, wait for the others twice as long as for the slowest one so far.

        Half the election timeout at least: one that answers at once says nothing of another that is
        far away.
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
    """Return whether the answer is from the voter that was asked, on the directory that the set
    names.

    [A node with another disk answers at the voter's address: its vote would be that of a replica
    whose promises are lost.]
    """
    directory_id = response.voter_directory_id
    return (
        response.voter_id == peer_id
        and directory_id != ""
        and is_directory_id(directory_id)
        and node.voters.includes(peer_id, directory_id)
    )


SPREAD = 1.5
"""Of the election jitter: within this all that lose their leader together have said so, however far
they are.
"""


class Prospective(Campaign):
    """A voter that asks for pre-votes. It keeps the leader and the vote of its epoch; a majority of
    pre-votes makes it a candidate of the next one.
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
        # Else enough said so before this node asked.
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
        # Of two that ask each other one must go, or they split the vote: the one with the longer
        # log, the lower id. It counts the other's question as a yes. Not for ever: it may be cut
        # off from a third that the other reaches.
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
            # The round lasts until then.
            self.timer, self.retry_at = max(self.timer, self._go_at), NEVER

    def _may_go_at(self) -> float:
        """Return when this node may campaign. Voters that lose their leader in the same instant
        would all win the pre-vote, and then split the vote.

        So one yields to those that go before it. With more than three voters some of these may not
        have been heard yet: then answers count at once, what was said before not.
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
        # Not for ever: one that goes before this node may be cut off from a third that this one
        # reaches, or be a stranger's invention.
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
    """A voter that has begun an epoch with a vote for itself, and leads it as soon as a majority
    has voted for it. Its own vote counts when it is durable.
    """

    name = "candidate"
    pre_vote = False

    def __init__(self, node: Node, silent_id: int) -> None:
        super().__init__(node, silent_id)
        self._vote_durable = False
        self.heard = node.heard
        """Of this node and of those that have voted for it, what was heard last."""
        self._early: dict[int, tuple[pb.FetchRequest, Any]] = {}
        """The Fetches of its voters that wait for the outcome, at most one of each voter, with
        their reply_to.
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
        # Others may have answered while the own vote is still on its way to the disk. Without it
        # this node would forget in a crash that it has led, and lead the epoch a second time.
        if self._vote_durable:
            self.node.succession = self.heard
            early, self._early = tuple(self._early.values()), {}
            self.node.become_leader(tuple(sorted(self.granted)), early)

    @override
    def on_fetch(self, request: pb.FetchRequest, reply_to: Any) -> None:
        # Answered when it is known whether this node leads.
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
        # Another candidate has the votes, or none has: a leader would have announced itself within
        # the time of the slowest answer. A rival that precedes this node gets two round trips more.
        trips = 3 if self.node.hints.yields_until() >= self.node.now else 1
        self.retry_soon(trips * self.slowest_answer_s + self.node.backoff_s())
        if self.retry_at < NEVER:
            self.timer = max(self.timer, self.retry_at)

    @override
    def on_tick(self) -> None:
        # Lost or split: first ask again whether another epoch is worth it.
        if self.node.now >= self.deadline():
            self.node.become_prospective()
