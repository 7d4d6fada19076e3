"""A voter that follows the leader of its epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from raftlog.quorum.events import ResponseReceived
from raftlog.quorum.fetcher import FETCHED, Fetcher, Verdict
from raftlog.quorum.heard import Heard
from raftlog.quorum.role import Role
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

if TYPE_CHECKING:
    from raftlog.quorum.node import Node


class Follower(Role):
    """Fetches.

    Asks for pre-votes when the leader is silent for the fetch timeout, resigns, or is proven gone.

    Only what the leader *answers* resets the fetch timer: one that can send but not be reached must
    be replaced.
    """

    name = "follower"

    def __init__(self, node: Node, *, doubts: bool = False, early: Fetcher | None = None) -> None:
        """``early``: who has asked the leader in this epoch already."""
        super().__init__(node)
        self._doubts = doubts
        self._leader_id = node.leader_id
        self._fetcher = early or Fetcher(node, node.leader_id)
        self._fetch_timeout_s = node.config.fetch_timeout_ms / 1000 + node.jitter_s() / 2
        self._fetch_deadline = node.now + self._fetch_timeout_s
        self._hears_leader = False

    @override
    def enter(self) -> None:
        if self._leader_id in self.node.lost:
            # Told of a leader that is known to be gone: somebody has yet to notice.
            self.node.begin_hurry(self._leader_id)
            self._expect_end(self.node.backoff_s())
        self._fetcher.pump()

    @override
    def leave(self) -> None:
        self._fetcher.drop_snapshot()

    @override
    def on_snapshot_stored(self, *, sound: bool) -> None:
        # How long the disk took is not the leader's fault.
        self._fetch_deadline = max(self._fetch_deadline, self.node.now + self._fetch_timeout_s)
        self._fetcher.on_snapshot_stored(sound=sound)

    @override
    def deadline(self) -> float:
        return min(self._fetch_deadline, self._fetcher.deadline())

    @property
    @override
    def election_timer(self) -> float | None:
        return self._fetch_deadline

    @property
    @override
    def hears_leader(self) -> bool:
        return self._hears_leader

    @override
    def postpone_election(self, until: float) -> None:
        self._hears_leader = False
        self._fetch_deadline = until

    @override
    def grants_pre_vote(self) -> bool:
        return not self._hears_leader

    @override
    def on_tick(self) -> None:
        if self.node.now >= self._fetch_deadline:
            self.node.become_prospective()
        else:
            self._fetcher.on_tick()

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
            if not self._hears_leader:
                self._hears_leader, self._doubts = True, False
                self.node.wished_at = None
            if self.node.hurry:
                # It answers, so it is back, whatever its control link says.
                self.node.lost.discard(self._leader_id)
                self.node.end_hurry()
            self._fetch_deadline = self.node.now + self._fetch_timeout_s
            self.node.heard = Heard(self.epoch, self.node.now, leading_ms=self._fetcher.leading_ms)
            self._fetcher.pump()
            self._process_successor(response)
        elif verdict is Verdict.REFUSED:
            self._fetcher.back_off()
        else:
            # It says itself that it leads this epoch no more, and no one leads an epoch twice.
            preferred = tuple(getattr(response, "preferred_candidates", ()))
            if preferred:
                me = self.node.config.node_id
                place = preferred.index(me) if me in preferred else None
                self.on_end_quorum_epoch(place, len(preferred))
                return
            self.node.begin_hurry()
            self._fetcher.stop()
            self._expect_end(self.node.backoff_s())

    def _process_successor(self, response: pb.FetchResponse | pb.FetchSnapshotResponse) -> None:
        """Note whether the leader names this node as its successor: while a transfer is under way,
        each answer to a Fetch names one.
        """
        if type(response) is pb.FetchResponse:
            node, named = self.node, response.successor
            if (
                response.HasField("successor")
                and named.candidate_id == node.config.node_id
                and named.candidate_directory_id == node.config.directory_id
            ):
                node.named_by = self._leader_id, self.epoch
            else:
                node.named_by = -1, -1

    @override
    def on_request_failed(self, peer_id: int, correlation_id: int) -> None:
        if self._fetcher.awaits(peer_id, correlation_id):
            self._fetcher.back_off()

    @override
    def on_flushed(self) -> None:
        self._fetcher.pump()

    @override
    def on_voters_changed(self) -> None:
        self._fetcher.pump()

    @override
    def on_peer_lost(self, peer_id: int) -> None:
        if peer_id == self._leader_id:
            self.node.begin_hurry(peer_id)
            self.node.become_prospective()

    @override
    def on_doubter(self, peer_id: int) -> None:
        if self._doubts:
            self.node.become_prospective()

    @override
    def on_end_quorum_epoch(self, place: int | None, candidates: int) -> None:
        self.node.begin_hurry()
        self._fetcher.stop()
        if place == 0:
            if self._leader_id in self.node.peers:
                # Who resigns and names this node would grant it the pre-vote: no need to ask.
                self.node.hints.note_supporter(self._leader_id, self.node.now)
            self.node.become_prospective()
            return
        longest_ms = self.node.config.election_backoff_max_ms
        slot_ms = longest_ms if place is None else (longest_ms >> (candidates - 1)) << (place - 1)
        self._expect_end(min(longest_ms, slot_ms) / 1000)

    def _expect_end(self, delay_s: float) -> None:
        """The leader is gone: whoever asks next gets the pre-vote, and this node asks itself after
        ``delay_s``.
        """
        self._hears_leader = False
        self._fetch_deadline = min(self._fetch_deadline, self.node.now + delay_s)
