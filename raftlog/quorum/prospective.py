"""A voter that asks whether an election could be won (KIP-996). Nothing of it is durable.

Why: docs/decisions/002-elections-by-proof-of-death.md
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from raftlog.deadline import NEVER
from raftlog.quorum.campaign import Campaign
from raftlog.quorum.node_state import MIN_BACKOFF_S
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

if TYPE_CHECKING:
    from raftlog.quorum.node import Node

SPREAD = 1.5
"""Of the election jitter: within this all that lose their leader together have said so, however far
they are.
"""


class Prospective(Campaign):
    """Keeps the leader and the vote of its epoch; a majority of pre-votes makes it a candidate of
    the next one.
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
        """Of those that lose their leader in the same instant all would win the pre-vote, and then
        split the vote.

        So one yields to those that go before it. With more than three voters some of these may not
        have been heard yet: then answers count at once, what was said before not.
        """
        node = self.node
        heard = self.supporters() | self.against() | node.hints.rivals(node.now)
        if (
            node.hurry
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
            # Whoever leads must have its log in its hands.
            self.timer = self._go_at = self.node.now + MIN_BACKOFF_S

    @override
    def lost(self) -> None:
        if self.node.hurry:
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
        elif node.hurry:
            self._begin_round()
        else:
            self._fall_back()

    @override
    def on_peer_lost(self, peer_id: int) -> None:
        if peer_id == self.node.leader_id:
            self.node.begin_hurry(peer_id)
            self.count()

    @override
    def on_end_quorum_epoch(self, place: int | None, candidates: int) -> None:
        self.node.begin_hurry()
        self.count()
