"""What one node knows whatever its role is, and how effects leave it."""

from __future__ import annotations

import random
from dataclasses import replace

from raftlog.metadata.log_generation import NO_GENERATION
from raftlog.quorum.admission import EpochAllowance, Refusal
from raftlog.quorum.campaign_reason import CampaignReason
from raftlog.quorum.config import QuorumConfig, Voter
from raftlog.quorum.election_hints import ElectionHints
from raftlog.quorum.events import (
    BindGeneration,
    Effect,
    Fatal,
    Flush,
    HighWatermarkAdvanced,
    LeaderChanged,
    LoadSnapshot,
    PeersChanged,
    PersistVote,
    Refused,
    Reply,
    ReplyFetch,
    ReplySnapshot,
    SaveLeader,
    Send,
    SendFetch,
    SendFetchSnapshot,
    VotersChanged,
)
from raftlog.quorum.heard import NEVER_HEARD
from raftlog.quorum.log_state import LogState
from raftlog.quorum.voter_history import VoterHistory
from raftlog.quorum.voters import VoterSet
from raftlog.storage.api import RecoveredLog, SnapshotId, VoteState
from raftlog.voter import VotersAt
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

ControlRequest = pb.VoteRequest | pb.BeginQuorumEpochRequest | pb.EndQuorumEpochRequest

SENDS = (Send, SendFetch, SendFetchSnapshot, Reply, ReplyFetch, ReplySnapshot)
"""Effects that wait for the votes before them to be durable."""

MIN_BACKOFF_S = 0.010
"""The shortest pause before a refused or split election is tried again."""


class NodeState:
    """State common to all roles.

    ``now`` is that of the step being made; ``out`` collects the step's effects.
    """

    disk_busy_s: float | None = None
    """For how long the disk has been at one call, as of the last tick. None: not known."""
    knew_leader = False
    """Since the start."""
    campaign_reason = CampaignReason.NONE
    """Of the campaign since the last leader; told to operators alone."""

    named_by = (-1, -1)
    """The leader that has named this node as its successor, and the leader's epoch."""

    high_watermark = -1
    generation = NO_GENERATION
    """The generation below the high watermark."""
    log_conflict = ""
    """Why this node cannot follow the leader: their logs contradict each other. For people; empty:
    it can.
    """

    heard = NEVER_HEARD
    """The leader that has last answered this node, or that it was itself."""
    succession = NEVER_HEARD
    """While it leads: of those that have elected it, what was heard last."""

    def __init__(
        self, config: QuorumConfig, recovered: RecoveredLog, rng: random.Random, now: float
    ) -> None:
        self.config = config
        self.log = LogState(recovered)
        self.history = VoterHistory(config.voters, recovered)
        self.voters: VoterSet
        """The set in force."""
        self.is_voter: bool
        """Whether this replica is of the set in force."""
        self.takes_part: bool
        """Whether it votes and campaigns: a voter, or one whose removal is not known to be
        committed. Else it observes.
        """
        self.peers: tuple[int, ...]
        """The other voters, by id."""
        self.endpoint = ""
        """Where this node listens: as it knows itself, else as the last set that had it says."""
        self.role_stale = False
        """The voter set has changed, or its change is committed: the role is to be looked at when
        the step ends.
        """
        self.vote = self.durable_vote = recovered.vote
        """As last handed out to be persisted, which is what this node acts on; and as last reported
        durable.
        """
        self.epoch = recovered.vote.epoch
        """The epoch this node is in."""
        self.leader_id = -1
        """The leader of this epoch as far as known.

        ``vote.leader_id`` is who ever led it, itself included.
        """
        self.leader_confirmed = False
        """The leader of this epoch has answered a Fetch as such, or is this node: no other is
        believed to lead it.
        """
        self.allowance = EpochAllowance(now)
        """What unproven claims may still raise the epoch by."""
        self.bound_generation = recovered.bound_generation
        """The generation that this directory belongs to: it follows no log that does not descend
        from it.
        """
        self.low_on_space = self.truncation_unflushed = self.disk_hangs = False
        """``disk_hangs``: it led, and its disk made no progress; until a flush is done it does not
        campaign.
        """
        self.wished_at: float | None = None
        """Since when it would campaign, but leaves it to others, which have more space; None: it
        does not.
        """
        self.installing: SnapshotId | None = None
        """All of it was handed to the shell, which is about to replace the log by it: until then
        nothing is fetched, nor led.
        """
        self.connected: set[int] = set()
        self.lost: set[int] = set()
        self.hurry = False
        """The epoch's leader is proven gone, or there never was one: ask for pre-votes soon, not
        after a timeout.
        """
        self.lost_leader = -1
        """The peer whose return ends the hurry; -1 if none does."""
        self.now = now
        self.out: list[Effect] = []
        self.halted = self.leader_unsaved = False
        self._rng = rng
        self._announced = (-1, -1)
        self._correlation_id = 0
        self._leader_endpoint = ""
        self._dialed: dict[int, Voter] | None = None
        if recovered.snapshots:
            self._load(recovered.snapshots[-1])
        self._adopt_voters()

    def _load(self, snapshot_id: SnapshotId) -> None:
        """What a snapshot holds is committed."""
        self.high_watermark = snapshot_id.end_offset
        self.out.append(LoadSnapshot(snapshot_id))
        self.out.append(HighWatermarkAdvanced(snapshot_id.end_offset))
        self._note_generation()

    # --- durable state ---------------------------------------------------------------------------

    def set_vote(self, vote: VoteState) -> None:
        """Change epoch or vote: whatever is sent from here on waits until that is durable."""
        self._drop_superseded_vote()
        self.take_vote(vote)
        self.out.append(PersistVote(vote))

    def take_vote(self, vote: VoteState) -> None:
        """Act on this epoch and vote; the caller has it persisted."""
        if vote.epoch > self.vote.epoch:
            self.leader_confirmed = False
            self.hints.clear()
        self.vote, self.epoch = vote, vote.epoch
        self.leader_unsaved = False

    def _drop_superseded_vote(self) -> None:
        """One write is enough for an epoch and the vote given in it, if nothing is sent between the
        two.
        """
        for at in range(len(self.out) - 1, -1, -1):
            if isinstance(self.out[at], SENDS):
                return
            if isinstance(self.out[at], PersistVote):
                del self.out[at]
                return

    def set_leader(self, leader_id: int, endpoint: str = "") -> None:
        """Note who leads this epoch, and where it listens if the voter set may not know.

        Saved when the disk has time: no promise rests on it. A restarted node that voted for itself
        keeps silent in that epoch anyway, and two leaders in one epoch are excluded by the votes
        alone.
        """
        if leader_id != self.leader_id:
            # Who asked did so before this one was elected.
            self.hints.clear()
        self.leader_id, self._leader_endpoint = leader_id, endpoint
        if leader_id != self.vote.leader_id:
            self.leader_confirmed = leader_id == self.config.node_id
            self.vote = replace(self.vote, leader_id=leader_id)
            self.leader_unsaved = True

    def announce_leader(self) -> None:
        """Tell the shell if (leader, epoch) is news."""
        known = (self.leader_id, self.vote.epoch)
        if known != self._announced:
            self._announced = known
            self.out.append(LeaderChanged(*known))
            self.announce_peers()

    def finish_step(self) -> list[Effect]:
        """Hand over the effects of the step. Nothing follows a Fatal."""
        if self.leader_unsaved:
            self.leader_unsaved = False
            self.out.append(SaveLeader(self.vote))
        out, self.out = self.out, []
        if self.halted:
            del out[next(i for i, effect in enumerate(out) if isinstance(effect, Fatal)) + 1 :]
        return out

    # --- who votes -------------------------------------------------------------------------------

    def append_voters(self, entries: tuple[VotersAt, ...]) -> None:
        """VotersRecords were appended: the last one is in force from now on (KIP-853)."""
        for entry in entries:
            self.history.append(entry)
        self._adopt_voters()

    def truncate_voters(self, end_offset: int) -> None:
        """The log was truncated, and VotersRecords with it, perhaps."""
        if self.history.truncate(end_offset):
            self._adopt_voters()

    def install_snapshot(
        self, snapshot_id: SnapshotId, voters: tuple[Voter, ...], generations: tuple[int, ...]
    ) -> None:
        """The shell has replaced the log by a snapshot with these voters and generations."""
        self.log.reset(snapshot_id, generations)
        self._load(snapshot_id)
        self.history.reset(snapshot_id.end_offset, voters)
        self._adopt_voters()
        self.out.append(Flush())

    def _adopt_voters(self) -> None:
        config, history = self.config, self.history
        self.voters = history.voters
        self.is_voter = self.voters.includes(config.node_id, config.directory_id)
        was_voter = history.before.includes(config.node_id, config.directory_id)
        # Who is removed must be able to lead on until that is committed: perhaps it alone has the
        # record, and nobody who lacks it gets the vote of those who do (Raft, dissertation 4.2.2).
        self.takes_part = self.is_voter or (
            was_voter and history.record_offset >= self.high_watermark
        )
        self.peers = tuple(node_id for node_id in self.voters.ids if node_id != config.node_id)
        if config.endpoint:
            # What the set says may be where it was before: the others could not fetch from it, and
            # so never commit where it is.
            self.endpoint = config.endpoint
        elif self.is_voter:
            self.endpoint = self.voters.endpoint_of(config.node_id)
        elif was_voter and not self.endpoint:
            self.endpoint = history.before.endpoint_of(config.node_id)
        self.hints = ElectionHints(config.fetch_timeout_ms / 2000)
        self.role_stale = True
        self.out.append(VotersChanged(history.offset, self.voters.all))
        self.announce_peers()

    def announce_peers(self) -> None:
        """Tell the shell if it should talk to others than before."""
        dialed = {
            voter.node_id: voter
            for voter in self.voters.all
            if voter.node_id != self.config.node_id
        }
        if not self.takes_part:
            # Who observes may know voters that are all gone.
            dialed |= {peer.node_id: peer for peer in self.config.bootstrap_peers}
        leader_id, endpoint = self.leader_id, self._leader_endpoint
        if leader_id not in (-1, self.config.node_id):
            known = dialed.get(leader_id)
            if endpoint and (known is None or self.history.offset != -1):
                # A log that lags may not know the leader, or may know it by an endpoint it has
                # left.
                dialed[leader_id] = Voter(leader_id, endpoint, known.directory_id if known else "")
            elif known is None and self._dialed is not None and leader_id in self._dialed:
                # Removed, but it leads until that is committed.
                dialed[leader_id] = self._dialed[leader_id]
        if dialed != self._dialed:
            self._dialed = dialed
            self.connected.intersection_update(dialed)
            self.lost.intersection_update(dialed)
            self.out.append(PeersChanged(tuple(dialed[node_id] for node_id in sorted(dialed))))

    def dials(self, node_id: int) -> bool:
        """Whether the shell was told to keep links to this node."""
        return self._dialed is not None and node_id in self._dialed

    def is_proven(self, peer_id: int) -> bool:
        """Whether an answer of this peer comes from where the voter set in force, or the
        configuration, has it.
        """
        dialed = self._dialed.get(peer_id) if self._dialed is not None else None
        if dialed is None:
            return False
        if peer_id in self.voters:
            return dialed.endpoint == self.voters.endpoint_of(peer_id)
        return dialed in self.config.bootstrap_peers

    @property
    def leader_endpoint(self) -> str:
        """Where the leader of this epoch listens; empty if not known."""
        if self.leader_id == self.config.node_id:
            return self.endpoint
        if self._dialed is None or self.leader_id not in self._dialed:
            return ""
        return self._dialed[self.leader_id].endpoint

    # --- effects ---------------------------------------------------------------------------------

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
            if self.generation != self.log.lineage.current:
                self._note_generation()
            if self.takes_part is not self.is_voter and offset > self.history.record_offset:
                # Removed, and now for certain.
                self.takes_part, self.role_stale = False, True

    def _note_generation(self) -> None:
        """What is committed says which log this directory belongs to."""
        self.generation = self.log.lineage.at(self.high_watermark)
        if self.generation not in (NO_GENERATION, self.bound_generation):
            self.bound_generation = self.generation
            self.out.append(BindGeneration(self.generation))

    def refuse(self, message: str, refusal: Refusal) -> None:
        """A message of this type is not believed: tell the shell."""
        self.out.append(Refused(message, refusal.field, refusal.reason, refusal.contradiction))

    def fail(self, reason: str) -> None:
        """This node or its shell contradicts itself: nothing more leaves this node.

        Never because of what a message says.
        """
        self.halted = True
        self.out.append(Fatal(reason))

    # --- time ------------------------------------------------------------------------------------

    def jitter_s(self) -> float:
        """What two nodes' timers are apart by."""
        return self._rng.random() * self.config.election_jitter_max_ms / 1000

    def election_deadline(self) -> float:
        """A fresh election timer, from now."""
        return self.now + self.config.election_timeout_ms / 1000 + self.jitter_s()

    def backoff_s(self) -> float:
        """A short pause before the next try: each voter has its slot between 10 ms and
        election_backoff_max_ms, by rank.
        """
        width = max(0.0, self.config.election_backoff_max_ms / 1000 - MIN_BACKOFF_S)
        rank = self.voters.rank(self.config.node_id) if self.is_voter else 0
        return MIN_BACKOFF_S + width * (rank + self._rng.random()) / len(self.voters)

    def random_index(self, length: int) -> int:
        """A place in a list."""
        return self._rng.randrange(length)

    def stands_back_until(self) -> float:
        """When this node may campaign: now, or later if another one is better fit to lead."""
        if self.disk_hangs:
            return self.now + self.config.election_timeout_ms / 1000
        if not self.low_on_space or (self.is_voter and not self.peers):
            return self.now
        if self.wished_at is None:
            self.wished_at = self.now
        return self.wished_at + 2 * self.config.election_timeout_ms / 1000

    # --- peers -----------------------------------------------------------------------------------

    @property
    def votes_needed(self) -> int:
        """The votes that elect this node: those of a majority, or of all voters to found a quorum.

        A configured set does not say on which disks its voters are. [Two of three controllers get
        new disks and are formatted with the configuration of old. With a majority they elect one
        of them before the third is heard, and found the quorum anew: its records are gone.] A
        voter that has records votes for no empty log, so all votes prove that there are none. The
        same holds for a restored log until its first leader has chosen a generation.
        """
        founds = self.log.end == 0 or self.log.lineage.ended
        if founds and any(not voter.directory_id for voter in self.voters.all):
            return len(self.voters)
        return self.voters.majority

    def majority_connected(self) -> bool:
        """Whether there are links to enough other voters for a majority."""
        reachable = sum(node_id in self.connected for node_id in self.peers)
        return reachable + self.is_voter >= self.votes_needed

    def begin_hurry(self, lost_leader: int = -1) -> None:
        """The leader is gone: ``lost_leader`` is the peer that may yet come back, -1 if it leads no
        more for certain.
        """
        self.hurry = True
        self.lost_leader = lost_leader

    def leads_still(self) -> None:
        """The leader of this epoch says that it leads: a hurry because it led no more is over."""
        if self.lost_leader == -1:
            self.end_hurry()

    def end_hurry(self) -> None:
        """Back to the ordinary timers."""
        self.hurry = False
        self.lost_leader = -1
