"""A node that led or campaigned in its epoch, and takes no more part in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from raftlog.quorum.events import ResponseReceived
from raftlog.quorum.role import Role
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

if TYPE_CHECKING:
    from raftlog.quorum.node import Node


class Resigned(Role):
    """Tells the others that it leads no more, and waits for a new epoch; after the election timeout
    it asks for one.
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
        if self.node.takes_part:
            self.node.become_prospective()
        else:
            self.node.become_unattached(self.epoch)

    @override
    def on_voters_changed(self) -> None:
        if not self.node.takes_part and not self._awaited:
            self._move_on()

    @override
    def on_response(self, event: ResponseReceived) -> None:
        if self._awaited.get(event.peer_id) == event.correlation_id and isinstance(
            event.response, pb.EndQuorumEpochResponse
        ):
            del self._awaited[event.peer_id]
            if self.node.heed(event.response, event.peer_id):
                self.on_voters_changed()
