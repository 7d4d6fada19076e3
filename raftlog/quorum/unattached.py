"""A voter that knows no leader in its epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from raftlog.quorum.events import ResponseReceived
from raftlog.quorum.fetcher import FETCHED, Fetcher
from raftlog.quorum.role import Role

if TYPE_CHECKING:
    from raftlog.quorum.node import Node


class Unattached(Role):
    """Waits for a leader or a candidate, then asks for pre-votes itself."""

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
        # The candidate gets its time.
        self._timer, self._has_granted = self.node.election_deadline(), True

    @override
    def on_vote_told(self) -> None:
        # The candidate answers when it leads, with the first records of the epoch: two hops sooner
        # than when it first has to say that it leads.
        node = self.node
        if self._fetcher is None and node.dials(node.vote.voted_id):
            self._fetcher = Fetcher(node, node.vote.voted_id)
            self._fetcher.pump()

    @override
    def on_flushed(self) -> None:
        # What it led, or followed, until just now may still have been on its way to the disk.
        if self._fetcher is not None:
            self._fetcher.pump()

    @override
    def early_fetcher(self, leader_id: int) -> Fetcher | None:
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
        if not node.heed(event.response, event.peer_id) and node.leader_id == event.peer_id:
            # It leads this epoch: the new role has taken over who asked.
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
        # A cold start: whoever can be asked is there, so why wait. But for a candidate, which is
        # about to lead.
        if self.node.hurry and not self._has_granted and self.node.majority_connected():
            self.node.become_prospective()
