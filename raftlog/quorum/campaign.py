"""What asking for pre-votes and asking for votes have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from raftlog.quorum.events import ResponseReceived
from raftlog.quorum.node_state import NEVER
from raftlog.quorum.role import Role
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

if TYPE_CHECKING:
    from raftlog.quorum.transitions import Node


class Campaign(Role, ABC):
    """Sends VoteRequests to all other voters and counts the answers."""

    pre_vote: ClassVar[bool]

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.granted: set[int] = set()
        self.timer = NEVER
        self.retry_at = NEVER
        self._refused: set[int] = set()
        self._failed: set[int] = set()
        self._awaited: dict[int, int] = {}

    @abstractmethod
    def won(self) -> None:
        """A majority said yes."""

    def lost(self) -> None:
        """A majority can no longer say yes."""
        if self.node.hurry and self.retry_at == NEVER and self.node.majority_connected():
            self.retry_at = self.node.now + self.node.backoff_s()

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
        """Begin a round."""
        self.granted.clear()
        self._refused.clear()
        self._failed.clear()
        self.timer, self.retry_at = self.node.election_deadline(), NEVER
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
        )
        self._awaited[peer_id] = node.send(peer_id, request)

    @override
    def on_voters_changed(self) -> None:
        # What was granted was granted by another set's voters.
        self.node.become_unattached(self.epoch)

    def count(self) -> None:
        """Decide, if the answers so far do."""
        if len(self.granted) >= self.node.voters.majority:
            self.won()
        elif len(self.node.voters) - len(self._refused) - len(self._failed) < self.node.voters.majority:
            self.lost()

    @override
    def on_response(self, event: ResponseReceived) -> None:
        response = event.response
        if self._awaited.get(event.peer_id) != event.correlation_id or not isinstance(response, pb.VoteResponse):
            return
        del self._awaited[event.peer_id]
        if not self.node.heed(response):
            return
        sound = not response.error_code and response.leader_epoch == self.epoch and response.pre_vote == self.pre_vote
        if sound and response.vote_granted:
            self.granted.add(event.peer_id)
        else:
            self._refused.add(event.peer_id)
        self.count()

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
