"""What asking for pre-votes and asking for votes have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from raftlog.deadline import NEVER
from raftlog.quorum.events import ResponseReceived
from raftlog.quorum.role import Role
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

if TYPE_CHECKING:
    from raftlog.quorum.node import Node

ROUND_TRIPS = 2
"""Of the slowest peer that answered: as long as others are waited for."""


class Campaign(Role, ABC):
    """Sends VoteRequests to all other voters and counts the answers.

    A round ends when it is won, when a majority can no longer say yes, or when the silent have had
    their time. ``silent_id`` is the leader that fell silent: it counts as refusing, so that a round
    without it is lost at once and not after a whole timeout.
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
        """A majority said yes."""

    @abstractmethod
    def lost(self) -> None:
        """A majority can no longer say yes."""

    def supporters(self) -> set[int]:
        """Who says yes."""
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
        """Begin a round."""
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
            # What it heard of the leader that it would replace.
            heard = node.heard
            request.heard_leading_ms = heard.leading_ms if heard.epoch == node.epoch else 0
        self._awaited[peer_id] = node.send(peer_id, request)

    def ask_again(self, peer_id: int) -> None:
        """A peer that said no, or nothing, may say yes now."""
        if peer_id in self._refused:
            self._refused.remove(peer_id)
            self._ask(peer_id)

    @override
    def on_voters_changed(self) -> None:
        # What was granted was granted by another set's voters.
        self.node.become_unattached(self.epoch)

    def has_majority(self) -> bool:
        """Whether enough have said yes."""
        return len(self.supporters()) >= self.node.votes_needed

    def against(self) -> set[int]:
        """Who said no, or can say nothing."""
        node = self.node
        # One that has resigned answers, and is known by that: the hurry. Of two voters both have
        # to.
        counts_silent = self._silent_id in node.peers and not node.hurry and len(node.voters) > 2
        silent = {self._silent_id} if counts_silent else set()
        return (self._refused | self._failed | silent) - self.supporters()

    def count(self) -> None:
        """Decide, if the answers so far do."""
        if self.has_majority():
            self.won()
        elif len(self.node.voters) - len(self.against()) < self.node.votes_needed:
            self.lost()

    def retry_soon(self, pause_s: float) -> None:
        """Ask again after a pause, if there is anybody to ask."""
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
        if not self.node.heed(response, event.peer_id):
            return
        self.node.hints.note_answer(event.peer_id, self.node.now - self.asked_at)
        self._bound_round()
        sound = (
            not response.error_code
            and response.leader_epoch == self.epoch
            and response.pre_vote == self.pre_vote
        )
        if sound and response.vote_granted:
            self.granted.add(event.peer_id)
            self.on_granted(event.peer_id, response)
        else:
            self._refused.add(event.peer_id)
        self.count()

    def on_granted(self, peer_id: int, response: pb.VoteResponse) -> None:
        """A peer said yes."""

    def _bound_round(self) -> None:
        """An answer came: whoever is to answer still does so within twice as long, or is silent.

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
