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

    @override
    def on_granted(self, peer_id: int, response: pb.VoteResponse) -> None:
        self.heard = self.heard.and_of(
            response.last_heard_epoch,
            response.last_heard_age_ms if response.HasField("last_heard_age_ms") else None,
            self.node.now,
        )

    @override
    def enter(self) -> None:
        self._count_given()
        if self.node.role is self:
            self.ask_all()
            self._count_given()

    def _count_given(self) -> None:
        """Its own vote may have been stored ahead, and the leader before may have given its one
        unasked: with a majority of those there is nobody to ask.
        """
        if self.node.given is not None:
            peer_id, response = self.node.given
            if response.leader_epoch == self.epoch and peer_id in self.node.peers:
                self.granted.add(peer_id)
                self.on_granted(peer_id, response)
        self.on_vote_persisted()

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
            early, self.node.early = tuple(self.node.early.values()), {}
            self.node.become_leader(tuple(sorted(self.granted)), early)

    @override
    def on_fetch(self, request: pb.FetchRequest, reply_to: Any) -> None:
        # Answered when it is known whether this node leads.
        if request.replica_id in self.node.peers:
            self.node.keep_early(request, reply_to)
        else:
            super().on_fetch(request, reply_to)

    @override
    def leave(self) -> None:
        self.node.refuse_early()

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
