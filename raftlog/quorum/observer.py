"""A node that is no voter, as far as its log says: it keeps a log like a follower's, and counts for
nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from raftlog.deadline import NEVER
from raftlog.quorum.events import ResponseReceived
from raftlog.quorum.fetcher import FETCHED, Fetcher, Verdict
from raftlog.quorum.role import Role

if TYPE_CHECKING:
    from raftlog.quorum.node import Node


class Observer(Role):
    """Fetches from the leader; while it knows none, from one voter after the other, and follows
    what their refusals say.

    It never asks for votes. It grants one if asked: who asks it knows from a longer log that it is
    a voter.
    """

    name = "observer"

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._asked = node.random_index(max(1, len(node.voters)))
        self._hears_leader = False
        if node.leader_id != -1:
            peer_id = node.leader_id
            self._leader_deadline = node.now + node.config.fetch_timeout_ms / 1000 + node.jitter_s()
        else:
            peer_id = self._next_voter()
            self._leader_deadline = NEVER
        self._fetcher = Fetcher(node, peer_id)

    def _next_voter(self) -> int:
        """Round robin over voters and bootstrap servers.

        A voter may have this node's id, on another disk: not to be asked.
        """
        node = self.node
        ids = [*node.peers, *(peer.node_id for peer in node.config.bootstrap_peers)]
        self._asked += 1
        return ids[self._asked % len(ids)] if ids else -1

    @override
    def enter(self) -> None:
        self._fetcher.pump()

    @override
    def leave(self) -> None:
        self._fetcher.drop_snapshot()

    @override
    def on_snapshot_stored(self, *, sound: bool) -> None:
        self._fetcher.on_snapshot_stored(sound=sound)

    @override
    def deadline(self) -> float:
        return min(self._leader_deadline, self._fetcher.deadline())

    @property
    @override
    def hears_leader(self) -> bool:
        return self._hears_leader

    @override
    def grants_pre_vote(self) -> bool:
        return not self._hears_leader

    @override
    def grants_vote(self) -> bool:
        return True

    @override
    def on_tick(self) -> None:
        if self.node.now >= self._leader_deadline:
            self._forget_leader()
        elif self._fetcher.overdue:
            self._ask_on()
        else:
            self._fetcher.on_tick()

    def _forget_leader(self) -> None:
        self.node.become_unattached(self.epoch)

    @override
    def on_response(self, event: ResponseReceived) -> None:
        response = event.response
        if not self._fetcher.awaits(event.peer_id, event.correlation_id) or not isinstance(
            response, FETCHED
        ):
            return
        if not self.node.heed(response, event.peer_id):
            return
        verdict = self._fetcher.take(response, event.span)
        if verdict is Verdict.ACCEPTED:
            self._hears_leader = True
            self._leader_deadline = self.node.now + self.node.config.fetch_timeout_ms / 1000
            self._fetcher.pump()
        elif verdict is Verdict.NOT_LEADER and self.node.leader_id != -1:
            self._forget_leader()
        else:
            self._ask_on()

    def _ask_on(self) -> None:
        self._fetcher.back_off(None if self.node.leader_id != -1 else self._next_voter())

    @override
    def on_request_failed(self, peer_id: int, correlation_id: int) -> None:
        if self._fetcher.awaits(peer_id, correlation_id):
            self._ask_on()

    @override
    def on_flushed(self) -> None:
        self._fetcher.pump()

    @override
    def on_voters_changed(self) -> None:
        if self.node.leader_id == -1 and not self.node.dials(self._fetcher.peer_id):
            self._fetcher.back_off(self._next_voter())
        self._fetcher.pump()

    @override
    def on_peer_lost(self, peer_id: int) -> None:
        if peer_id == self.node.leader_id:
            self._forget_leader()
