"""What one node knows whatever its role is, and how effects leave it."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from raftlog.quorum.config import QuorumConfig
from raftlog.quorum.events import (
    Effect,
    Fatal,
    HighWatermarkAdvanced,
    LeaderChanged,
    PersistVote,
    Reply,
    ReplyFetch,
    Send,
    SendFetch,
)
from raftlog.quorum.log_state import LogState
from raftlog.quorum.voters import VoterSet
from raftlog.storage.api import RecoveredLog, VoteState
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

ControlRequest = pb.VoteRequest | pb.BeginQuorumEpochRequest | pb.EndQuorumEpochRequest

SENDS = (Send, SendFetch, Reply, ReplyFetch)
"""Effects that wait for the votes before them to be durable."""

MIN_BACKOFF_S = 0.010
"""The shortest pause before a refused or split election is tried again."""


class NodeState:
    """State common to all roles. ``now`` is that of the step being made; ``out`` collects the step's effects."""

    def __init__(self, config: QuorumConfig, recovered: RecoveredLog, rng: random.Random, now: float) -> None:
        self.config = config
        self.voters = VoterSet(config.voters)
        self.is_voter = self.voters.includes(config.node_id, config.directory_id)
        self.peers = tuple(node_id for node_id in self.voters.ids if node_id != config.node_id)
        self.log = LogState(recovered)
        self.vote = recovered.vote
        """As last handed out to be persisted: what this node acts on."""
        self.durable_vote = recovered.vote
        """As last reported durable."""
        self.leader_id = -1
        """The leader of this epoch as far as known. ``vote.leader_id`` is who ever led it, itself included."""
        self.high_watermark = -1
        self.connected: set[int] = set()
        self.lost: set[int] = set()
        self.hurry = False
        """The epoch's leader is proven gone, or there never was one: ask for pre-votes soon, not after a timeout."""
        self.lost_leader = -1
        """The peer whose return ends the hurry; -1 if none does."""
        self.now = now
        self.out: list[Effect] = []
        self.halted = False
        self._rng = rng
        self._leader_unsaved = False
        self._announced = (-1, -1)
        self._correlation_id = 0

    @property
    def epoch(self) -> int:
        """The epoch this node is in."""
        return self.vote.epoch

    # --- durable state ------------------------------------------------------------------------------------------------

    def set_vote(self, vote: VoteState) -> None:
        """Change epoch or vote: whatever is sent from here on waits until that is durable."""
        self._drop_superseded_vote()
        self.vote = vote
        self._leader_unsaved = False
        self.out.append(PersistVote(vote))

    def _drop_superseded_vote(self) -> None:
        """One write is enough for an epoch and the vote given in it, if nothing is sent between the two."""
        for at in range(len(self.out) - 1, -1, -1):
            if isinstance(self.out[at], SENDS):
                return
            if isinstance(self.out[at], PersistVote):
                del self.out[at]
                return

    def set_leader(self, leader_id: int) -> None:
        """Note who leads this epoch.

        Saved at the end of the step, behind its sends: no promise rests on it. A restarted node that voted for itself
        keeps silent in that epoch anyway, and two leaders in one epoch are excluded by the votes alone.
        """
        self.leader_id = leader_id
        if leader_id != self.vote.leader_id:
            self.vote = replace(self.vote, leader_id=leader_id)
            self._leader_unsaved = True

    def announce_leader(self) -> None:
        """Tell the shell if (leader, epoch) is news."""
        known = (self.leader_id, self.vote.epoch)
        if known != self._announced:
            self._announced = known
            self.out.append(LeaderChanged(*known))

    def finish_step(self) -> list[Effect]:
        """Hand over the effects of the step. Nothing follows a Fatal."""
        if self._leader_unsaved:
            self._leader_unsaved = False
            self.out.append(PersistVote(self.vote))
        out, self.out = self.out, []
        if self.halted:
            del out[next(i for i, effect in enumerate(out) if isinstance(effect, Fatal)) + 1 :]
        return out

    # --- effects ------------------------------------------------------------------------------------------------------

    def send(self, peer_id: int, request: ControlRequest) -> int:
        """Send a request on the control link; returns its correlation id."""
        correlation_id = self.next_correlation_id()
        self.out.append(Send(peer_id, correlation_id, request))
        return correlation_id

    def next_correlation_id(self) -> int:
        """A number for a request, never used before in this process."""
        self._correlation_id += 1
        return self._correlation_id

    def advance_high_watermark(self, offset: int) -> None:
        """Raise the high watermark; it never goes down."""
        if offset > self.high_watermark:
            self.high_watermark = offset
            self.out.append(HighWatermarkAdvanced(offset))

    def fail(self, reason: str) -> None:
        """A rule of Raft is broken: nothing more leaves this node."""
        self.halted = True
        self.out.append(Fatal(reason))

    # --- time ---------------------------------------------------------------------------------------------------------

    def jitter_s(self) -> float:
        """What two nodes' timers are apart by."""
        return self._rng.random() * self.config.election_jitter_max_ms / 1000

    def election_deadline(self) -> float:
        """A fresh election timer, from now."""
        return self.now + self.config.election_timeout_ms / 1000 + self.jitter_s()

    def backoff_s(self) -> float:
        """A short pause before the next try: each voter has its slot between 10 ms and election_backoff_max_ms, by rank."""
        width = max(0.0, self.config.election_backoff_max_ms / 1000 - MIN_BACKOFF_S)
        rank = self.voters.rank(self.config.node_id) if self.is_voter else 0
        return MIN_BACKOFF_S + width * (rank + self._rng.random()) / len(self.voters)

    def random_index(self, length: int) -> int:
        """A place in a list."""
        return self._rng.randrange(length)

    # --- peers --------------------------------------------------------------------------------------------------------

    def majority_connected(self) -> bool:
        """Whether this voter has links to enough others for a majority."""
        return len(self.connected) + 1 >= self.voters.majority

    def begin_hurry(self, lost_leader: int = -1) -> None:
        """The leader is gone: ``lost_leader`` is the peer that may yet come back, -1 if it leads no more for certain."""
        self.hurry = True
        self.lost_leader = lost_leader

    def end_hurry(self) -> None:
        """Back to the ordinary timers."""
        self.hurry = False
        self.lost_leader = -1


NEVER = math.inf
"""The deadline of a timer that does not run."""
