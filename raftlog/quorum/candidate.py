"""A voter that has opened a new epoch with a vote for itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import override

from raftlog.deadline import NEVER
from raftlog.quorum.campaign import Campaign
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

if TYPE_CHECKING:
    from raftlog.quorum.node import Node


class Candidate(Campaign):
    """Leads as soon as a majority has voted for it, its own vote counted when it is durable."""

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
        # Another has the votes, or nobody has: a leader would have said so within the time that the
        # slowest answer took. A rival that goes first gets two round trips more.
        trips = 3 if self.node.hints.yields_until() >= self.node.now else 1
        self.retry_soon(trips * self.slowest_answer_s + self.node.backoff_s())
        if self.retry_at < NEVER:
            self.timer = max(self.timer, self.retry_at)

    @override
    def on_tick(self) -> None:
        # Lost or split: first ask again whether another epoch is worth it.
        if self.node.now >= self.deadline():
            self.node.become_prospective()
