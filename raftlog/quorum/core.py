"""The quorum's state machine as the shell uses it (events and the time in, effects out), and the
invariants of a node, checked after every step.

The theory of operation is in ``transitions.py``.

Why: docs/decisions/001-pull-based-raft-as-a-state-machine.md
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from raftlog.endpoint import Voter
from raftlog.errors import InvariantError
from raftlog.metadata.control_records import Lineage
from raftlog.node.storage.api import RecoveredLog
from raftlog.quorum import messages
from raftlog.quorum.config import QuorumConfig
from raftlog.quorum.election_state import Heard
from raftlog.quorum.events import (
    Effect,
    Event,
    Flushed,
    LogStartAdvanced,
    PeerConnected,
    PeerLost,
    Proposed,
    ReadIndexRequested,
    RequestFailed,
    RequestReceived,
    ResignRequested,
    ResponseReceived,
    SnapshotFrozen,
    SnapshotStored,
    SpaceChanged,
    SuccessorChosen,
    Tick,
    VotePersisted,
)
from raftlog.quorum.leader import Leader, ReplicaProgress
from raftlog.quorum.node import Node, receive_fetch
from raftlog.quorum.transitions import RaftNode
from raftlog.wire.quorum.v1 import quorum_pb2 as pb


@dataclass(frozen=True, slots=True)
class ReplicaDescription:
    """The state of one replica as the leader knows it; -1 means unknown or never.

    ``directory_id`` is empty if unknown. ``max_metadata_version`` is 0 if unknown or not reported.
    ``spare_endpoint``: the endpoint of an observer that offers itself as a voter, or empty.
    """

    node_id: int
    directory_id: str
    log_end_offset: int
    last_fetch_age_ms: int
    last_caught_up_age_ms: int
    max_metadata_version: int = 0
    low_on_space: bool = False
    leader_priority: int = 0
    spare_endpoint: str = ""


@dataclass(frozen=True, slots=True)
class QuorumDescription:
    """The quorum state of one node, for operators and metrics.

    End offsets are exclusive; -1 means unknown or none. Only a leader knows the replicas, itself
    included.

    ``voters`` and ``observers``: the progress of each replica. ``voter_set``: the current voter set
    on this node, in effect since ``voters_offset`` (as in VotersAt; -1: the configured set).
    ``hears_leader``: the leader of this epoch has recently answered a Fetch, so this node would
    deny a pre-vote; False on the leader itself. ``parked_fetches``: the number of Fetches parked on
    the leader. ``votes_needed``: the number of votes that elect this node.
    """

    role: str
    epoch: int
    leader_id: int
    voted_id: int
    log_start_offset: int
    log_end_offset: int
    flushed_end_offset: int
    high_watermark: int
    epoch_start_offset: int
    voters: tuple[ReplicaDescription, ...]
    observers: tuple[ReplicaDescription, ...]
    voter_set: tuple[Voter, ...] = ()
    voters_offset: int = -1
    hears_leader: bool = False
    parked_fetches: int = 0
    votes_needed: int = 0


def describe(node: Node, now: float) -> QuorumDescription:
    """Return the quorum state of a node and, if it leads, of all replicas."""
    role, log = node.role, node.log
    voters: tuple[ReplicaDescription, ...] = ()
    observers: tuple[ReplicaDescription, ...] = ()
    parked_fetches = 0
    if isinstance(role, Leader):
        progress = role.progress
        voters = tuple(_replica(replica, now) for replica in progress.voters.values())
        observers = tuple(
            _replica(replica, now) for _, replica in sorted(progress.observers.items())
        )
        if progress.counts_leader:
            voters = tuple(sorted([_myself(node), *voters], key=lambda replica: replica.node_id))
        else:
            observers = (_myself(node), *observers)
        parked_fetches = role.parked_fetches
    return QuorumDescription(
        role=role.name,
        epoch=node.epoch,
        leader_id=node.leader_id,
        voted_id=node.vote.voted_id,
        log_start_offset=log.start,
        log_end_offset=log.end,
        flushed_end_offset=log.flushed_end,
        high_watermark=node.high_watermark,
        epoch_start_offset=role.start_offset,
        voters=voters,
        observers=observers,
        voter_set=node.voters.all,
        voters_offset=node.history.offset,
        hears_leader=role.hears_leader,
        parked_fetches=parked_fetches,
        votes_needed=node.votes_needed,
    )


def _myself(node: Node) -> ReplicaDescription:
    config = node.config
    return ReplicaDescription(
        config.node_id,
        config.directory_id,
        node.log.flushed_end,
        0,
        0,
        config.max_metadata_version,
        node.low_on_space,
        config.leader_priority,
    )


def _replica(replica: ReplicaProgress, now: float) -> ReplicaDescription:
    return ReplicaDescription(
        replica.node_id,
        replica.directory_id or "",
        replica.end_offset,
        _age_ms(replica.fetched_at, now),
        _age_ms(replica.caught_up_at, now),
        replica.max_metadata_version,
        replica.low_on_space,
        replica.leader_priority,
        replica.spare_endpoint,
    )


def _age_ms(then: float | None, now: float) -> int:
    return -1 if then is None else max(0, round((now - then) * 1000))


class Invariants:
    """Rules that hold in one node after every step.

    ``check_constant`` takes constant time, whatever the log's length and the number of voters. It
    runs after every step, in production too: the effects of the step are carried out only if it
    passes, so a node that contradicts itself stops before it sends anything. ``check`` also reads
    whole lists, for tests and simulations.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._vote = node.vote
        self._leader_confirmed = node.leader_confirmed
        self._high_watermark = node.high_watermark
        self._standing: tuple[object, ...] = ()
        self._least_end = 0
        """Lower bound of the log end while the other inputs of the rules are unchanged."""

    def check_constant(self) -> None:
        """Raise InvariantError for the first broken rule. O(1).

        Most steps change only the ends of the log. The inputs of the other rules are compared with
        those of the last check, and the rules are checked if an input differs.
        """
        node, log, high_watermark = self._node, self._node.log, self._node.high_watermark
        if not 0 <= log.start <= log.flushed_end <= log.end:
            raise InvariantError("log start <= flushed end <= log end")
        if not log.start <= high_watermark <= log.end and high_watermark != -1:
            raise InvariantError("log start <= HW <= log end")
        if high_watermark < self._high_watermark:
            raise InvariantError("the high watermark never goes down")
        standing = (
            node.vote,
            node.leader_confirmed,
            node.durable_vote,
            node.role,
            node.leader_id,
            node.voters,
            node.history.voters,
            node.history.record_offset,
            node.is_voter,
            node.participates,
            node.installing,
            log.start,
            log.epochs.last_epoch,
            log.start_epoch,
            log.snapshots,
        )
        if standing != self._standing or log.end < self._least_end:
            self._check_standing()
            self._standing = standing
        self._high_watermark = high_watermark

    def _check_standing(self) -> None:
        self._check_log()
        self._check_vote()
        self._check_role()
        node = self._node
        _require(
            node.voters is node.history.voters, "the current voter set is the newest in the log"
        )
        _require(
            node.history.record_offset < node.log.end,
            "the record of every voter set is in the log",
        )
        _require(node.participates or not node.is_voter, "every voter participates")
        self._vote, self._leader_confirmed = node.vote, node.leader_confirmed
        led_from = node.role.start_offset if isinstance(node.role, Leader) else 0
        self._least_end = max(led_from, node.history.record_offset + 1)

    def check(self) -> None:
        """Check all rules. Raises InvariantError."""
        self._check_lists()
        self._standing = ()
        self.check_constant()
        self._check_progress()

    def _check_log(self) -> None:
        log, high_watermark = self._node.log, self._node.high_watermark
        newest = log.snapshots[-1].end_offset if log.snapshots else 0
        _require(
            log.start <= newest <= max(0, high_watermark), "log start <= newest snapshot <= HW"
        )
        _require(
            log.last_epoch <= self._node.vote.epoch, "no record has a higher epoch than the node"
        )

    def _check_lists(self) -> None:
        log = self._node.log
        entries, snapshots = log.epochs.entries, log.snapshots
        _require(all(a < b for a, b in pairwise(snapshots)), "snapshots ascend")
        _require(
            log.start == 0 or snapshots[0].end_offset >= log.start,
            "no snapshot ends below the log start",
        )
        _require(
            not entries or entries[0][1] == log.start, "the epoch index begins at the log start"
        )
        _require(all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(entries)), "epochs ascend")
        _require(not entries or entries[-1][1] < log.end, "every epoch in the index has a record")

    def _check_vote(self) -> None:
        old, new = self._vote, self._node.vote
        _require(new.epoch >= old.epoch, "the epoch never goes down")
        if new.epoch == old.epoch:
            _require(
                old.voted_id in (-1, new.voted_id),
                "a vote is never changed or forgotten within its epoch",
            )
            held = not self._leader_confirmed or old.leader_id in (-1, new.leader_id)
            _require(held, "an epoch has one leader, once that leader has answered")
            me = self._node.config.node_id
            _require(
                me not in (old.leader_id, new.leader_id) or old.leader_id in (-1, new.leader_id),
                "a former leader of an epoch remembers that it led",
            )

    def _check_role(self) -> None:
        node, role = self._node, self._node.role
        me = node.config.node_id
        _require(
            role.epoch == node.epoch == node.vote.epoch, "the role belongs to the current epoch"
        )
        if role.name == "leader":
            _require(node.participates, "a node whose removal is committed does not lead")
        elif role.name != "resigned":
            _require(
                (role.name == "observer") != node.participates,
                "a node is an observer exactly if it does not participate",
            )
        _require(
            (role.name == "leader") == (node.leader_id == me),
            "a leader names itself as the leader",
        )
        _require(
            role.name != "follower" or node.leader_id not in (-1, me), "a follower has a leader"
        )
        if role.name in ("candidate", "leader"):
            _require(node.vote.voted_id == me, "a candidate has voted for itself")
        if isinstance(role, Leader):
            durable = node.durable_vote
            _require(
                (durable.epoch, durable.voted_id) == (node.epoch, me),
                "a leader has a durable vote for itself",
            )
            _require(role.start_offset <= node.log.end, "a leader never truncates")
            _require(node.installing is None, "a leader never loads a snapshot")

    def _check_progress(self) -> None:
        node, role, history = self._node, self._node.role, self._node.history
        if isinstance(role, Leader):
            progress = role.progress
            known = progress.majority_offset(node.log.flushed_end)
            _require(known <= node.log.end, "no replica is ahead of the leader")
            counted = (
                {*progress.voters, node.config.node_id}
                if progress.counts_leader
                else {*progress.voters}
            )
            _require(
                counted == set(node.voters.ids), "the leader counts the voters and no other replica"
            )
            _require(
                progress.counts_leader == node.is_voter, "the leader counts itself if it is a voter"
            )
            if history.before_logged and history.record_offset >= role.start_offset:
                changed = history.before.replicas_changed(history.voters)
                _require(changed <= 1, "consecutive voter sets differ by one replica")


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise InvariantError(rule)


class QuorumCore:
    """One node of the quorum, voter or observer.

    Deterministic: the same events, times and rng give the same effects. ``now`` is in seconds of a
    monotonic clock. After a Fatal effect every step returns nothing. Raises ConfigError if a voter
    set names a node twice.
    """

    def __init__(
        self, config: QuorumConfig, recovered: RecoveredLog, rng: random.Random, now: float
    ) -> None:
        self._node: Node = RaftNode(config, recovered, rng, now)
        self._invariants = Invariants(self._node)
        self.validate_each_step = False
        """True to check, after every step, also the rules whose cost grows with the log, for tests
        and simulations.
        """
        self.deadline_nearer = True
        """Whether ``next_deadline`` may have moved closer since it was last read."""
        self._handlers: dict[type, Callable[[Any], None]] = {
            Tick: self._tick,
            RequestReceived: self._request_received,
            ResponseReceived: self._response_received,
            RequestFailed: self._request_failed,
            PeerConnected: self._peer_connected,
            PeerLost: self._peer_lost,
            Proposed: self._proposed,
            Flushed: self._flushed,
            VotePersisted: self._vote_persisted,
            ReadIndexRequested: self._read_index_requested,
            ResignRequested: self._resign_requested,
            SuccessorChosen: self._successor_chosen,
            SnapshotFrozen: self._snapshot_frozen,
            LogStartAdvanced: self._log_start_advanced,
            SnapshotStored: self._snapshot_stored,
            SpaceChanged: self._space_changed,
        }

    def step(self, event: Event, now: float) -> list[Effect]:
        """Process one event and return the effects, to be carried out in order. The first step also
        returns the effects of starting up.

        Raises InvariantError if this node contradicts itself; no effect of the step may then be
        carried out.
        """
        node = self._node
        if node.halted:
            return []
        node.now = now
        self._handlers[type(event)](event)
        while node.role_stale and not node.halted:
            node.settle_role()
        if self.validate_each_step:
            self.validate()
        elif not node.halted:
            self._invariants.check_constant()
        self.deadline_nearer = node.role.nearer
        if node.leader_unsaved or node.halted:
            return node.finish_step()
        # Inlined finish_step: each write takes three steps.
        out, node.out = node.out, []
        return out

    def next_deadline(self) -> float:
        """Return the latest time of the next Tick, or math.inf if none is needed. It may be earlier
        than necessary; the Tick then does nothing.
        """
        node = self._node
        if node.out:
            return node.now
        return node.role.deadline()

    def validate(self) -> None:
        """Check the invariants of this node. Raises InvariantError."""
        if not self._node.halted:
            self._invariants.check()

    def describe(self, now: float) -> QuorumDescription:
        """Return the quorum state of this node and, if it leads, of all replicas."""
        return describe(self._node, now)

    # --- what the shell may read -----------------------------------------------------------------

    @property
    def succession(self) -> Heard:
        """The last leader that the voters of this leader had heard."""
        return self._node.succession

    @property
    def stepped_at(self) -> float:
        """Time of the last step."""
        return self._node.now

    @property
    def halted(self) -> bool:
        """True after a Fatal effect: later steps do nothing."""
        return self._node.halted

    @property
    def role(self) -> str:
        """Name of the role: unattached, prospective, candidate, leader, follower, resigned or
        observer.
        """
        return self._node.role.name

    @property
    def campaign_reason(self) -> str:
        """Why this node campaigns, or has campaigned since it last followed a leader; empty if it
        has not.
        """
        return self._node.campaign_reason.value

    @property
    def epoch(self) -> int:
        """The current epoch."""
        return self._node.epoch

    @property
    def leader_id(self) -> int:
        """Id of this epoch's leader, or -1 if unknown."""
        return self._node.leader_id

    @property
    def voted_id(self) -> int:
        """Id of the candidate that has this node's vote in this epoch, or -1 if none has."""
        return self._node.vote.voted_id

    @property
    def is_successor(self) -> bool:
        """Whether the leader of this epoch has named this node as its successor."""
        return self._node.named_by == (self._node.leader_id, self._node.epoch)

    @property
    def succeeds_leader(self) -> bool:
        """Whether the leader of the previous epoch named this node as its successor."""
        return self._node.named_by[1] == self._node.epoch - 1

    @property
    def high_watermark(self) -> int:
        """High watermark, exclusive, or -1 if not yet known since startup."""
        return self._node.high_watermark

    @property
    def generation(self) -> int:
        """Generation of the committed log, or NO_GENERATION if unknown."""
        return self._node.generation

    @property
    def log_conflict(self) -> str:
        """Why this node cannot follow the leader (their logs contradict each other), or empty."""
        return self._node.log_conflict

    @property
    def lineage(self) -> Lineage:
        """Generations of the log, both committed and uncommitted."""
        return self._node.log.lineage

    def divergence(self, end_offset: int, last_epoch: int) -> tuple[int, int] | None:
        """See :meth:`raftlog.quorum.log_state.LogEnds.divergence`."""
        return self._node.log.divergence(end_offset, last_epoch)

    @property
    def last_epoch(self) -> int:
        """Epoch of the last record ever in the log, even if it was dropped; 0 if there was none."""
        return self._node.log.last_epoch

    @property
    def log_start_offset(self) -> int:
        """First offset of the log."""
        return self._node.log.start

    @property
    def start_epoch(self) -> int:
        """Epoch of the record before the log start; 0 if the log starts at 0."""
        return self._node.log.start_epoch

    @property
    def log_end_offset(self) -> int:
        """End of the log, exclusive, including unflushed records."""
        return self._node.log.end

    def epoch_runs(self) -> Iterator[tuple[int, int, int]]:
        """Yield (epoch, first offset, end offset) for each run of equal epochs in the log."""
        log = self._node.log
        runs = log.epochs.entries
        for index, (epoch, start) in enumerate(runs):
            end = runs[index + 1][1] if index + 1 < len(runs) else log.end
            if max(start, log.start) < end:
                yield epoch, max(start, log.start), end

    @property
    def flushed_end_offset(self) -> int:
        """End of the durable log, exclusive."""
        return self._node.log.flushed_end

    @property
    def epoch_start_offset(self) -> int:
        """First offset of this leader's epoch, or -1 if this node does not lead."""
        return self._node.role.start_offset

    @property
    def voters(self) -> tuple[Voter, ...]:
        """The current voter set, committed or not, by ascending node id."""
        return self._node.voters.all

    @property
    def voters_offset(self) -> int:
        """Offset of the VotersRecord of the current voter set, or the end of the snapshot that
        contains the set; -1 for the configured set.
        """
        return self._node.history.offset

    @property
    def is_voter(self) -> bool:
        """Whether this replica is in the current voter set."""
        return self._node.is_voter

    def acknowledged(self, node_id: int, directory_id: str) -> tuple[int, float]:
        """Return the end offset that this voter has acknowledged in the epoch that this node leads,
        and the time of the voter's last Fetch; (-1, -inf) if it has not fetched.
        """
        role = self._node.role
        voter = role.progress.voters.get(node_id) if isinstance(role, Leader) else None
        if voter is None or voter.directory_id != directory_id or voter.fetched_at is None:
            return -1, -math.inf
        return voter.end_offset, voter.fetched_at

    @property
    def hears_leader(self) -> bool:
        """See ``Role``."""
        return self._node.role.hears_leader

    def membership_obstacle(self) -> str:
        """Return why this node may not propose another voter set now, or empty if it may."""
        return self._node.membership_obstacle()

    # --- events ----------------------------------------------------------------------------------

    def _tick(self, event: Tick) -> None:
        self._node.disk_busy_s = event.disk_busy_s
        self._node.role.on_tick()

    def _request_received(self, event: RequestReceived) -> None:
        # A Fetch is on the critical path of every write.
        handle = receive_fetch if type(event.request) is pb.FetchRequest else messages.handle
        handle(self._node, event.request, event.reply_to)

    def _response_received(self, event: ResponseReceived) -> None:
        self._node.role.on_response(event)

    def _request_failed(self, event: RequestFailed) -> None:
        self._node.role.on_request_failed(event.peer_id, event.correlation_id)

    def _peer_connected(self, event: PeerConnected) -> None:
        node = self._node
        node.lost.discard(event.peer_id)
        if node.dials(event.peer_id):
            node.connected.add(event.peer_id)
        if event.peer_id == node.lost_leader:
            node.end_fast_election()
        node.role.on_peer_connected(event.peer_id)

    def _peer_lost(self, event: PeerLost) -> None:
        node = self._node
        node.connected.discard(event.peer_id)
        node.hints.forget(event.peer_id)
        if node.dials(event.peer_id):
            node.lost.add(event.peer_id)
        node.role.on_peer_lost(event.peer_id)

    def _proposed(self, event: Proposed) -> None:
        if event.epoch == self._node.epoch:
            self._node.role.on_proposed(event.span, more_follows=event.more_follows)

    def _flushed(self, event: Flushed) -> None:
        self._node.log.flushed(event.end_offset)
        self._node.truncation_unflushed = self._node.disk_hangs = False
        self._node.role.on_flushed()

    def _vote_persisted(self, event: VotePersisted) -> None:
        self._node.durable_vote = event.vote
        self._node.role.on_vote_persisted()

    def _read_index_requested(self, _event: ReadIndexRequested) -> None:
        self._node.role.on_read_index_requested()

    def _resign_requested(self, event: ResignRequested) -> None:
        self._node.role.on_resign_requested(event.reason, event.successor)

    def _successor_chosen(self, event: SuccessorChosen) -> None:
        self._node.role.on_successor_chosen(event.successor)

    def _snapshot_frozen(self, event: SnapshotFrozen) -> None:
        node = self._node
        if event.snapshot_id.end_offset > node.high_watermark:
            node.fail(f"{event.snapshot_id} ends above the high watermark {node.high_watermark}")
        else:
            node.log.add_snapshot(event.snapshot_id)

    def _log_start_advanced(self, event: LogStartAdvanced) -> None:
        node, snapshot_id = self._node, event.snapshot_id
        if snapshot_id not in node.log.snapshots:
            node.fail(f"the log was dropped below {snapshot_id}, but there is no such snapshot")
        elif snapshot_id.end_offset > node.log.start:
            node.log.advance_start(snapshot_id)
            node.history.advance(snapshot_id.end_offset)

    def _snapshot_stored(self, event: SnapshotStored) -> None:
        node = self._node
        if event.snapshot_id != node.installing:
            return
        node.installing = None
        if not event.error:
            node.install_snapshot(event.snapshot_id, event.voters, event.generations)
        node.role.on_snapshot_stored(sound=not event.error)

    def _space_changed(self, event: SpaceChanged) -> None:
        self._node.low_on_space, self._node.election_deferred_at = event.low, None
