"""A voter that asks whether an election could be won (KIP-996). Nothing of it is durable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from raftlog.quorum.campaign import Campaign
from raftlog.quorum.node_state import MIN_BACKOFF_S

if TYPE_CHECKING:
    from raftlog.quorum.transitions import Node


class Prospective(Campaign):
    """Keeps the leader and the vote of its epoch; a majority of pre-votes makes it a candidate of the next one."""

    name = "prospective"
    pre_vote = True

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._yield_until = node.now

    @override
    def enter(self) -> None:
        self._begin_round()

    def _begin_round(self) -> None:
        self.ask_all()
        if self.node.is_voter:
            self.granted.add(self.node.config.node_id)
        self.count()

    @override
    def grants_vote(self) -> bool:
        return True

    @override
    def on_vote_granted(self) -> None:
        self.node.become_unattached(self.epoch)

    @override
    def on_pre_vote_granted(self, candidate_id: int, last_epoch: int, end_offset: int) -> None:
        # Two followers that lose their leader in the same instant would both win the pre-vote and then split the vote.
        # So the one with the weaker claim lets the other go first for a moment.
        log, me = self.node.log, self.node.config.node_id
        if (last_epoch, end_offset, me) > (log.last_epoch, log.end, candidate_id):
            self._yield_until = self.node.now + self.node.backoff_s()

    @override
    def won(self) -> None:
        if self.node.now >= self._yield_until:
            self._go()
        else:
            self.retry_at = self._yield_until

    def _go(self) -> None:
        if self.node.installing is None:
            self.node.become_candidate()
        else:
            # Whoever leads must have its log in its hands.
            self.timer = self.retry_at = self.node.now + MIN_BACKOFF_S

    @override
    def lost(self) -> None:
        super().lost()
        if not self.node.hurry:
            self._fall_back()

    def _fall_back(self) -> None:
        node = self.node
        if node.leader_id != -1:
            node.become_follower(node.leader_id, node.epoch)
        else:
            node.become_unattached(node.epoch)

    @override
    def on_tick(self) -> None:
        node = self.node
        if node.now < self.deadline():
            return
        if len(self.granted) >= node.voters.majority:
            self._go()
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
