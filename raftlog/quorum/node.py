"""One node of the quorum: its state, the output of its effects, and the base class of its roles.

The transitions between roles are abstract here; ``transitions.py`` has them, and the theory of
operation. The roles are in ``follower.py``, ``campaign.py`` and ``leader.py``; messages from peers
are processed in ``messages.py``.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from raftlog.clock import NEVER
from raftlog.endpoint import VotersAt
from raftlog.errors import ConfigError, ErrorCode
from raftlog.metadata.control_records import NO_GENERATION
from raftlog.node.storage.api import RecoveredLog, SnapshotId, VoteState
from raftlog.quorum.admission import (
    MAX_EPOCH,
    MAX_OFFSET,
    EpochAllowance,
    Refusal,
    is_directory_id,
    is_endpoint,
)
from raftlog.quorum.config import MAX_LEADER_PRIORITY, QuorumConfig, Voter
from raftlog.quorum.election_state import NEVER_HEARD, CampaignReason, ElectionHints
from raftlog.quorum.events import (
    BindGeneration,
    Effect,
    Fatal,
    Flush,
    HighWatermarkAdvanced,
    LeaderChanged,
    LoadSnapshot,
    LogSpan,
    PeersChanged,
    PersistVote,
    Refused,
    Reply,
    ReplyFetch,
    ReplySnapshot,
    ResponseReceived,
    SaveLeader,
    Send,
    SendFetch,
    SendFetchSnapshot,
    VotersChanged,
)
from raftlog.quorum.log_state import LogState
from raftlog.quorum.voters import VoterHistory, VoterSet
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

ControlRequest = pb.VoteRequest | pb.BeginQuorumEpochRequest | pb.EndQuorumEpochRequest

SENDS = (Send, SendFetch, SendFetchSnapshot, Reply, ReplyFetch, ReplySnapshot)
"""Effects that wait until all earlier votes are durable."""

MIN_BACKOFF_S = 0.010
"""Shortest pause before a refused or split election is repeated, in seconds."""


class Role:
    """One role in one epoch: it handles the events that concern it, and ignores the rest.

    Each transition creates a new object, so a late response no longer reaches the role that awaited
    it. The current time is ``node.now``. A handler that makes a transition must not use ``self``
    afterwards.
    """

    name: ClassVar[str]
    start_offset = -1
    """Offset at which a leader's epoch begins, or -1 in other roles."""
    nearer = True
    """Whether the deadline may have moved closer since it was last read."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.epoch = node.epoch

    def enter(self) -> None:
        """Start the role, which the node has just entered."""

    def leave(self) -> None:
        """Clean up, as the node is about to leave this role. ``node.epoch`` may already be the next
        epoch.
        """

    def deadline(self) -> float:
        """Return the time of the next tick that this role needs."""
        return NEVER

    @property
    def election_timer(self) -> float | None:
        """Time of the next election attempt, which a higher epoch does not postpone, or None to
        start a new timer.
        """
        return None

    @property
    def hears_leader(self) -> bool:
        """Whether the leader of this epoch has recently answered this node's Fetches."""
        return False

    def postpone_election(self, until: float) -> None:
        """Leave the election to other nodes until ``until``, and grant them pre-votes."""

    def grants_pre_vote(self) -> bool:
        """Return whether a candidate with a complete log gets a pre-vote."""
        return False

    def grants_vote(self) -> bool:
        """Return whether this role may grant a vote if none was granted in this epoch."""
        return False

    def outranks(self, candidate_id: int, last_epoch: int, end_offset: int) -> bool:
        """Return whether this node requests pre-votes itself and precedes that candidate."""
        return False

    def on_tick(self) -> None:
        """Act on deadlines that have passed."""

    def on_response(self, event: ResponseReceived) -> None:
        """Process a peer's response; the request may belong to an earlier role."""

    def on_request_failed(self, peer_id: int, correlation_id: int) -> None:
        """Handle a request that gets no response."""

    def on_peer_connected(self, peer_id: int) -> None:
        """Handle the connection of a peer's control link."""

    def on_peer_lost(self, peer_id: int) -> None:
        """Handle proof that a peer's process is gone."""

    def on_vote_persisted(self) -> None:
        """Handle a change of ``node.durable_vote``."""

    def on_flushed(self) -> None:
        """Handle a flush: ``node.log.flushed_end`` may have advanced."""

    def on_proposed(self, span: LogSpan, *, more_follows: bool) -> None:
        """Append a span that the shell proposes; only a leader does."""

    def on_read_index_requested(self) -> None:
        """Start a read-index round for the shell; only a leader can."""

    def on_resign_requested(self, reason: str, successor: int) -> None:
        """Stop leading. ``successor``: the voter that campaigns first, or -1 for the most complete
        one.
        """

    def on_successor_chosen(self, successor: int) -> None:
        """Announce the successor to the voters; only a leader does."""

    def on_vote_granted(self) -> None:
        """Handle that this node has granted its vote in this epoch to another node."""

    def on_vote_answered(self) -> None:
        """Handle that the response granting the vote was queued; it is sent once the vote is
        durable.
        """

    def on_doubter(self, peer_id: int) -> None:
        """Handle a voter that hears no leader and cannot lead itself, because its log is shorter or
        this node outranks it.
        """

    def on_end_quorum_epoch(self, place: int | None, candidates: int) -> None:
        """Handle the leader's resignation. ``place``: this node's index among the ``candidates``
        preferred candidates, or None if it is not one.
        """

    def on_snapshot_stored(self, *, sound: bool) -> None:
        """Handle that the fetched snapshot has replaced the log on disk, or was rejected (not
        ``sound``).
        """

    def on_snapshot_fetch(self, replica_id: int, directory_id: str) -> None:
        """Record that a replica in this epoch fetches a snapshot from this node; only a leader
        does.
        """

    def on_voters_changed(self) -> None:
        """Handle a new current voter set, or its commit, if the role stays the same."""

    def on_fetch(self, request: pb.FetchRequest, reply_to: Any) -> None:
        """Answer a valid Fetch in this epoch."""
        self.decline_fetch(request, reply_to)

    def decline_fetch(self, request: pb.FetchRequest, reply_to: Any) -> None:
        """Refuse a Fetch because this node does not lead."""
        self.refuse_fetch(request.correlation_id, reply_to, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def refuse_fetch(
        self,
        correlation_id: int,
        reply_to: Any,
        error: ErrorCode,
        preferred: tuple[int, ...] = (),
    ) -> None:
        """Answer a Fetch with an error and the known leader.

        ``preferred``: the candidates of the next election, if this node is a leader that resigns.
        """
        node = self.node
        response = pb.FetchResponse(
            error_code=error,
            leader_id=node.leader_id,
            leader_epoch=node.epoch,
            high_watermark=node.high_watermark,
            log_start_offset=node.log.start,
            correlation_id=correlation_id,
            leader_endpoint=node.leader_endpoint,
            preferred_candidates=preferred,
        )
        node.out.append(ReplyFetch(reply_to, response, offset=-1, max_bytes=0))


class Node(ABC):
    """A quorum node: the state that all roles share, and its current role.

    ``now``: the time of the current step. ``out``: the effects of the current step.
    """

    role: Role
    disk_busy_s: float | None = None
    """Duration of the current disk call as of the last tick, in seconds; None if unknown."""
    knew_leader = False
    """Whether a leader was known at some time since startup."""
    campaign_reason = CampaignReason.NONE
    """Reason for the campaign since the last leader; only for operators."""
    named_by = (-1, -1)
    """The leader that has named this node as its successor, and that leader's epoch."""
    high_watermark = -1
    generation = NO_GENERATION
    """Generation of the log at the high watermark."""
    log_conflict = ""
    """Why this node cannot follow the leader (their logs contradict each other), as text;
    or empty.
    """
    heard = NEVER_HEARD
    """The last leader that answered this node, or this node itself if it led."""
    succession = NEVER_HEARD
    """While this node leads: the last leader that its voters had heard."""

    def __init__(
        self, config: QuorumConfig, recovered: RecoveredLog, rng: random.Random, now: float
    ) -> None:
        self.config = config
        self.log = LogState(recovered)
        self.history = VoterHistory(config.voters, recovered)
        self.voters: VoterSet
        """The current voter set."""
        self.is_voter: bool
        self.participates: bool
        """Whether this node votes and campaigns, because it is a voter or its removal is not known
        to be committed. Otherwise it is an observer.
        """
        self.peers: tuple[int, ...]
        """Ids of the other voters, ascending."""
        self.endpoint = ""
        """This node's own endpoint, from its configuration or from the last voter set that
        contained it.
        """
        self.role_stale = False
        """Whether the voter set has changed, or its change was committed: the role is checked at
        the end of the step.
        """
        self.vote = self.durable_vote = recovered.vote
        """The vote by which this node acts. ``durable_vote``: the last vote reported durable."""
        self.epoch = recovered.vote.epoch
        self.leader_id = -1
        """The known leader of this epoch, or -1. ``vote.leader_id`` also remembers a leader that no
        longer leads the epoch, even if it is this node.
        """
        self.leader_confirmed = False
        """Whether the leader of this epoch has answered a Fetch as leader, or is this node; no
        other node is then believed to lead the epoch.
        """
        self.allowance = EpochAllowance(now)
        self.bound_generation = recovered.bound_generation
        """Generation to which this directory belongs; the node follows no log that does not descend
        from it.
        """
        self.low_on_space = self.truncation_unflushed = self.disk_hangs = False
        """``disk_hangs``: this node led, and its disk made no progress; it does not campaign until
        a flush completes.
        """
        self.election_deferred_at: float | None = None
        """Time since which this node leaves elections to nodes with more space, or None."""
        self.installing: SnapshotId | None = None
        """The snapshot by which the shell is about to replace the log, or None. Until it is
        installed this node neither fetches nor leads.
        """
        self.connected: set[int] = set()
        self.lost: set[int] = set()
        self.fast_election = False
        """Whether the epoch's leader is proven gone, or there never was one: pre-votes are
        requested after a short pause, not after a timeout.
        """
        self.lost_leader = -1
        """The peer whose return ends the fast election, or -1."""
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
        """Treat the content of a snapshot as committed."""
        self.high_watermark = snapshot_id.end_offset
        self.out.append(LoadSnapshot(snapshot_id))
        self.out.append(HighWatermarkAdvanced(snapshot_id.end_offset))
        self._note_generation()

    # --- transitions, see ``transitions.py`` -----------------------------------------------------

    @abstractmethod
    def settle_role(self) -> None:
        """Enter the role that fits the new voter set."""

    @abstractmethod
    def become_unattached(self, epoch: int) -> None:
        """Move to ``epoch``, this one or a higher one, without a known leader."""

    @abstractmethod
    def become_prospective(self) -> None:
        """Request pre-votes, or wait first if another node should campaign before this one."""

    @abstractmethod
    def become_candidate(self) -> None:
        """Begin the next epoch with a vote for this node."""

    @abstractmethod
    def become_leader(
        self, granting_voters: tuple[int, ...], early: Sequence[tuple[pb.FetchRequest, Any]] = ()
    ) -> None:
        """Become the leader, as a majority has voted for this node, and its own vote is durable.

        ``early``: the Fetches that arrived during the campaign, each with its reply_to.
        """

    @abstractmethod
    def become_resigned(self, preferred: tuple[int, ...]) -> None:
        """Stop leading, and notify the other voters; ``preferred``: the candidates that campaign
        first.
        """

    @abstractmethod
    def become_follower(
        self, leader_id: int, epoch: int, endpoint: str = "", *, doubts: bool = False
    ) -> None:
        """Follow the leader of ``epoch``, this one or a higher one.

        ``endpoint``: the leader's endpoint, or empty if unknown. ``doubts``: the leader was silent
        for the fetch timeout, and this node follows it only because it knows no other.
        """

    # --- durable state ---------------------------------------------------------------------------

    def set_vote(self, vote: VoteState) -> None:
        """Change the epoch or the vote; later messages wait until the change is durable."""
        self._drop_superseded_vote()
        self.adopt_vote(vote)
        self.out.append(PersistVote(vote))

    def adopt_vote(self, vote: VoteState) -> None:
        """Act on this epoch and vote; the caller persists it."""
        if vote.epoch > self.vote.epoch:
            self.leader_confirmed = False
            self.hints.clear()
        self.vote, self.epoch = vote, vote.epoch
        self.leader_unsaved = False

    def grant_vote(self, candidate_id: int, directory_id: str) -> None:
        """Grant this epoch's vote."""
        self.set_vote(replace(self.vote, voted_id=candidate_id, voted_directory_id=directory_id))
        self.role.on_vote_granted()

    def _drop_superseded_vote(self) -> None:
        """Drop a pending PersistVote if nothing is sent after it, so that an epoch and the vote
        granted in it are written in one go.
        """
        for at in range(len(self.out) - 1, -1, -1):
            if isinstance(self.out[at], SENDS):
                return
            if isinstance(self.out[at], PersistVote):
                del self.out[at]
                return

    def set_leader(self, leader_id: int, endpoint: str = "") -> None:
        """Record the leader of this epoch, and its endpoint if the voter set may not contain it.

        The leader is saved when the disk has time, as no promise depends on it: a restarted node
        that voted for itself stays silent in that epoch anyway, and the votes alone exclude two
        leaders in one epoch.
        """
        if leader_id != self.leader_id:
            # The hints are older than this leader's election.
            self.hints.clear()
        self.leader_id, self._leader_endpoint = leader_id, endpoint
        if leader_id != self.vote.leader_id:
            self.leader_confirmed = leader_id == self.config.node_id
            self.vote = replace(self.vote, leader_id=leader_id)
            self.leader_unsaved = True

    def announce_leader(self) -> None:
        """Notify the shell if (leader, epoch) has changed."""
        known = (self.leader_id, self.vote.epoch)
        if known != self._announced:
            self._announced = known
            self.out.append(LeaderChanged(*known))
            self.announce_peers()

    def finish_step(self) -> list[Effect]:
        """Return the effects of the step; none follows a Fatal."""
        if self.leader_unsaved:
            self.leader_unsaved = False
            self.out.append(SaveLeader(self.vote))
        out, self.out = self.out, []
        if self.halted:
            del out[next(i for i, effect in enumerate(out) if isinstance(effect, Fatal)) + 1 :]
        return out

    # --- voter sets (KIP-853) --------------------------------------------------------------------

    def append_voters(self, entries: tuple[VotersAt, ...]) -> None:
        """Make the last of these appended VotersRecords the current voter set."""
        for entry in entries:
            self.history.append(entry)
        self._adopt_voters()

    def truncate_voters(self, end_offset: int) -> None:
        """Drop the VotersRecords at or above the new log end."""
        if self.history.truncate(end_offset):
            self._adopt_voters()

    def install_snapshot(
        self, snapshot_id: SnapshotId, voters: tuple[Voter, ...], generations: tuple[int, ...]
    ) -> None:
        """Start over from the snapshot that has replaced the log, with its voters and
        generations.
        """
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
        # A removed leader must be able to lead until its removal is committed: it may be the only
        # node that has the record, and a node that lacks the record does not get the votes of
        # nodes that have it (Raft dissertation 4.2.2).
        self.participates = self.is_voter or (
            was_voter and history.record_offset >= self.high_watermark
        )
        self.peers = tuple(node_id for node_id in self.voters.ids if node_id != config.node_id)
        if config.endpoint:
            # The voter set may contain an old endpoint: other nodes could not fetch from there, so
            # the new endpoint would never be committed.
            self.endpoint = config.endpoint
        elif self.is_voter:
            self.endpoint = self.voters.endpoint_of(config.node_id)
        elif was_voter and not self.endpoint:
            self.endpoint = history.before.endpoint_of(config.node_id)
        self.hints = ElectionHints(config.fetch_timeout_ms / 2000)
        self.role_stale = True
        self.out.append(VotersChanged(history.offset, self.voters.all))
        self.announce_peers()

    def membership_obstacle(self) -> str:
        """Return why this node may not propose another voter set now, or empty if it may.

        The log of a leader that has committed nothing in its own epoch may have, or lack, a change
        that another leader may yet undo or complete; the result could be two voter sets without a
        common voter.
        """
        start_offset = self.role.start_offset
        if start_offset == -1:
            return "this node does not lead"
        if self.high_watermark <= start_offset:
            return f"no record of epoch {self.epoch} is committed yet"
        if self.history.record_offset >= self.high_watermark:
            record_offset = self.history.record_offset
            return f"the change to the voter set at {record_offset} is not committed yet"
        return ""

    def voters_refusal(self, span: LogSpan) -> str:
        """Return why the leader may not append the VotersRecords of this span, or empty if
        it may.
        """
        why = self.membership_obstacle()
        if why:
            return why
        if len(span.voters) > 1:
            return f"it contains {len(span.voters)} VotersRecords: propose one change at a time"
        entry = span.voters[0]
        if not entry.voters:
            return "it contains no voters"
        if not span.base_offset <= entry.offset < span.end_offset:
            return "its offset is outside the proposed span"
        try:
            proposed = VoterSet(entry.voters)
        except ConfigError as error:
            return str(error)
        # A configured set need not have the right directory ids: the first set in the log may
        # differ from it.
        if self.history.offset != -1 and self.voters.replicas_changed(proposed) > 1:
            return "it differs from the current voter set by more than one replica"
        return ""

    # --- peers -----------------------------------------------------------------------------------

    def announce_peers(self) -> None:
        """Notify the shell if the set of nodes to dial has changed."""
        dialed = {
            voter.node_id: voter
            for voter in self.voters.all
            if voter.node_id != self.config.node_id
        }
        if not self.participates:
            # The voters known to an observer may all be gone.
            dialed |= {peer.node_id: peer for peer in self.config.bootstrap_peers}
        leader_id, endpoint = self.leader_id, self._leader_endpoint
        if leader_id not in (-1, self.config.node_id):
            known = dialed.get(leader_id)
            if endpoint and (known is None or self.history.offset != -1):
                # A lagging log may not contain the leader, or may contain its old endpoint.
                dialed[leader_id] = Voter(leader_id, endpoint, known.directory_id if known else "")
            elif known is None and self._dialed is not None and leader_id in self._dialed:
                # The leader was removed, but leads until its removal is committed.
                dialed[leader_id] = self._dialed[leader_id]
        if dialed != self._dialed:
            self._dialed = dialed
            self.connected.intersection_update(dialed)
            self.lost.intersection_update(dialed)
            self.out.append(PeersChanged(tuple(dialed[node_id] for node_id in sorted(dialed))))

    def dials(self, node_id: int) -> bool:
        """Return whether the shell keeps links to this node."""
        return self._dialed is not None and node_id in self._dialed

    def is_proven(self, peer_id: int) -> bool:
        """Return whether this peer's link goes to its endpoint in the current voter set or in the
        configuration.
        """
        dialed = self._dialed.get(peer_id) if self._dialed is not None else None
        if dialed is None:
            return False
        if peer_id in self.voters:
            return dialed.endpoint == self.voters.endpoint_of(peer_id)
        return dialed in self.config.bootstrap_peers

    @property
    def leader_endpoint(self) -> str:
        """Endpoint of this epoch's leader, or empty if unknown."""
        if self.leader_id == self.config.node_id:
            return self.endpoint
        if self._dialed is None or self.leader_id not in self._dialed:
            return ""
        return self._dialed[self.leader_id].endpoint

    @property
    def votes_needed(self) -> int:
        """Number of votes that elect this node: a majority, or all voters to found a quorum.

        A configured voter set does not name its voters' disks. (Suppose two of three controllers
        get new disks and are formatted with the old configuration. If a majority sufficed, they
        could elect one of them before the third is heard, and found the quorum anew; its records
        would be lost.) A voter that has records never votes for an empty log, so votes from all
        voters prove that there are no records. The same holds for a restored log until its first
        leader has chosen a generation.
        """
        founds = self.log.end == 0 or self.log.lineage.ended
        if founds and any(not voter.directory_id for voter in self.voters.all):
            return len(self.voters)
        return self.voters.majority

    def majority_connected(self) -> bool:
        """Return whether enough other voters are connected for a majority."""
        reachable = sum(node_id in self.connected for node_id in self.peers)
        return reachable + self.is_voter >= self.votes_needed

    # --- effects ---------------------------------------------------------------------------------

    def send(self, peer_id: int, request: ControlRequest) -> int:
        """Send a request on the control link and return its correlation id."""
        correlation_id = self.next_correlation_id()
        self.out.append(Send(peer_id, correlation_id, request))
        return correlation_id

    def next_correlation_id(self) -> int:
        """Return a number that no earlier request of this process has used."""
        self._correlation_id += 1
        return self._correlation_id

    def advance_high_watermark(self, offset: int) -> None:
        """Raise the high watermark; a lower offset has no effect."""
        if offset > self.high_watermark:
            self.high_watermark = offset
            self.out.append(HighWatermarkAdvanced(offset))
            if self.generation != self.log.lineage.current:
                self._note_generation()
            if self.participates is not self.is_voter and offset > self.history.record_offset:
                # This node's removal is committed.
                self.participates, self.role_stale = False, True

    def _note_generation(self) -> None:
        """Bind the directory to the generation of the committed log."""
        self.generation = self.log.lineage.at(self.high_watermark)
        if self.generation not in (NO_GENERATION, self.bound_generation):
            self.bound_generation = self.generation
            self.out.append(BindGeneration(self.generation))

    def refuse(self, message: str, refusal: Refusal) -> None:
        """Report to the shell that a message of this type was refused."""
        self.out.append(Refused(message, refusal.field, refusal.reason, refusal.contradiction))

    def fail(self, reason: str) -> None:
        """Halt, because this node or its shell contradicts itself; never because of a message's
        content.
        """
        self.halted = True
        self.out.append(Fatal(reason))

    # --- timing of elections ---------------------------------------------------------------------

    def jitter_s(self) -> float:
        """Return a random part of the election jitter, in seconds."""
        return self._rng.random() * self.config.election_jitter_max_ms / 1000

    def election_deadline(self) -> float:
        """Return the end of an election timer that starts now."""
        return self.now + self.config.election_timeout_ms / 1000 + self.jitter_s()

    def backoff_s(self) -> float:
        """Return a short pause before the next attempt, in seconds: each voter has a slot between
        10 ms and election_backoff_max_ms, by rank.
        """
        width = max(0.0, self.config.election_backoff_max_ms / 1000 - MIN_BACKOFF_S)
        rank = self.voters.rank(self.config.node_id) if self.is_voter else 0
        return MIN_BACKOFF_S + width * (rank + self._rng.random()) / len(self.voters)

    def random_index(self, length: int) -> int:
        """Return a random index into a list of this length."""
        return self._rng.randrange(length)

    def election_backoff_until(self) -> float:
        """Return when this node may campaign: now, or later if another node should lead."""
        if self.disk_hangs:
            return self.now + self.config.election_timeout_ms / 1000
        if not self.low_on_space or (self.is_voter and not self.peers):
            return self.now
        if self.election_deferred_at is None:
            self.election_deferred_at = self.now
        return self.election_deferred_at + 2 * self.config.election_timeout_ms / 1000

    def start_fast_election(self, lost_leader: int = -1) -> None:
        """Shorten the timers, because the leader is gone. ``lost_leader``: the peer that may yet
        return, or -1 if the leader certainly no longer leads.
        """
        self.fast_election = True
        self.lost_leader = lost_leader

    def end_fast_election(self) -> None:
        """Return to the ordinary timers."""
        self.fast_election = False
        self.lost_leader = -1


def receive_fetch(node: Node, request: pb.FetchRequest, reply_to: Any) -> None:
    """Check a Fetch, then let the role answer it: only a leader serves Fetches."""
    epoch = request.current_leader_epoch
    error = ErrorCode.NONE
    if request.cluster_id != node.config.cluster_id:
        error = ErrorCode.INCONSISTENT_CLUSTER_ID
    elif (
        request.replica_id < 0
        or not 0 <= request.fetch_offset <= MAX_OFFSET
        or not 0 <= request.last_fetched_epoch <= epoch <= MAX_EPOCH
        or request.high_watermark < -1
        or request.max_wait_ms < 0
        or request.max_bytes <= 0
        or request.round < 0
        or request.max_metadata_version < 0
        or not 0 <= request.leader_priority <= MAX_LEADER_PRIORITY
        or not is_directory_id(request.replica_directory_id)
        or (request.spare_endpoint and not is_endpoint(request.spare_endpoint))
        or (
            request.replica_id == node.config.node_id
            and request.replica_directory_id == node.config.directory_id
        )
    ):
        error = ErrorCode.INVALID_REQUEST
    elif epoch < node.epoch:
        error = ErrorCode.FENCED_LEADER_EPOCH
    elif epoch > node.epoch:
        error = ErrorCode.UNKNOWN_LEADER_EPOCH
    if error:
        node.role.refuse_fetch(request.correlation_id, reply_to, error)
    else:
        node.role.on_fetch(request, reply_to)
