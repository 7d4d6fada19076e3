"""A voter that knows no leader in its epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

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
    def on_tick(self) -> None:
        if self.node.now >= self._timer:
            self.node.become_prospective()

    @override
    def on_peer_connected(self, peer_id: int) -> None:
        # A cold start: whoever can be asked is there, so why wait. But for a candidate, which is
        # about to lead.
        if self.node.hurry and not self._has_granted and self.node.majority_connected():
            self.node.become_prospective()
