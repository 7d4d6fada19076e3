"""The leader role: it appends proposals, serves Fetches, moves the high watermark, and confirms
read-index rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from typing_extensions import override

from raftlog.clock import NEVER
from raftlog.errors import ErrorCode
from raftlog.node.storage.api import SnapshotId
from raftlog.quorum.admission import Refusal
from raftlog.quorum.election_state import Heard
from raftlog.quorum.events import (
    Append,
    BecameLeader,
    Flush,
    LogSpan,
    LostLeadership,
    ReadIndexConfirmed,
    ReadIndexStarted,
    ReplyFetch,
    ResponseReceived,
)
from raftlog.quorum.messages import process_response
from raftlog.quorum.node import Node, Role
from raftlog.quorum.voters import VoterSet
from raftlog.wire.quorum.v1 import quorum_pb2 as pb


class Rounds:
    """Read-index rounds of one epoch: proof that this node leads *now*, without clocks.

    The leader sends a number in its responses; a follower echoes the highest one that it has seen
    in its next Fetch. Echoes of n from a majority mean that a majority was still in this epoch
    after round n began, so no other node had been elected before then. Counting Fetches would prove
    nothing, as a delayed Fetch may have been sent before its sender voted for another node. Round 0
    is never started.

    Why: docs/decisions/003-read-index-rounds.md
    """

    def __init__(self) -> None:
        self.current = 0
        self.confirmed = 0
        self.last_shown = 0

    def request(self) -> int:
        """Return a round that begins now: the last one if no voter has seen it yet, otherwise a new
        one.
        """
        if self.last_shown >= self.current:
            self.current += 1
        return self.current

    def show(self) -> None:
        """Record that a voter has seen the current number, so that later requests need a
        new one.
        """
        self.last_shown = self.current

    def confirm(self, number: int) -> bool:
        """Record that a majority has echoed ``number``. Return False if it was already
        confirmed.
        """
        if number <= self.confirmed:
            return False
        self.confirmed = number
        return True


OBSERVER_FORGOTTEN_AFTER_S = 300.0
MAX_OBSERVERS = 1000
"""Maximum number of observers that are tracked; above it, the one that has been silent longest is
dropped.
"""


class ReplicaProgress:
    """The progress of one replica, as reported by its Fetches.

    ``end_offset``: durable end, exclusive; -1 if unknown. Times are in monotonic seconds, or None
    if never.
    """

    __slots__ = (
        "caught_up_at",
        "directory_id",
        "echoed_round",
        "end_offset",
        "fetched_at",
        "is_voter",
        "leader_end_at",
        "leader_end_then",
        "leader_priority",
        "low_on_space",
        "max_metadata_version",
        "node_id",
        "spare_endpoint",
    )

    def __init__(self, node_id: int, directory_id: str | None, *, is_voter: bool) -> None:
        self.node_id = node_id
        self.directory_id = directory_id
        self.is_voter = is_voter
        self.end_offset = -1
        self.echoed_round = 0
        self.fetched_at: float | None = None
        self.caught_up_at: float | None = None
        self.leader_end_then = -1
        self.leader_end_at: float | None = None
        self.max_metadata_version = self.leader_priority = 0
        self.low_on_space = False
        self.spare_endpoint = ""

    def acknowledge(self, end_offset: int, leader_end: int, now: float) -> None:
        """Record a valid Fetch: everything below ``end_offset`` is durable at the replica.

        A replica is caught up if it has everything that the leader has now, or had at the previous
        Fetch.
        """
        if end_offset >= leader_end:
            self.caught_up_at = now
        elif self.leader_end_then != -1 and end_offset >= self.leader_end_then:
            self.caught_up_at = self.leader_end_at
        self.end_offset = end_offset
        self.leader_end_then = leader_end
        self.leader_end_at = self.fetched_at = now


class Progress:
    """The progress of all replicas in one epoch of a leader.

    A voter is matched by id and directory id. If the voter set does not contain the directory id,
    the first directory that fetches with that id in this epoch is the voter, and the same id on
    another disk is just an observer, which has promised nothing. The leader counts if it is a
    voter.
    """

    def __init__(
        self, voters: VoterSet, leader_id: int, now: float, *, counts_leader: bool = True
    ) -> None:
        self._leader_id = leader_id
        self.voters: dict[int, ReplicaProgress] = {}
        self.observers: dict[tuple[int, str], ReplicaProgress] = {}
        self.set_voters(voters, now, counts_leader=counts_leader)

    def set_voters(self, voters: VoterSet, now: float, *, counts_leader: bool) -> None:
        """Count these voters from now on. The known progress of a replica is kept, whether it was a
        voter or an observer.
        """
        old, self.voters = self.voters, {}
        self._majority, self._since, self.counts_leader = voters.majority, now, counts_leader
        for node_id in voters.ids:
            if node_id != self._leader_id:
                self.voters[node_id] = self._known(
                    old.get(node_id), node_id, voters.directory_of(node_id) or None
                )
        for node_id, replica in old.items():
            if self.voters.get(node_id) is not replica and replica.directory_id is not None:
                replica.is_voter = False
                self.observers[(node_id, replica.directory_id)] = replica
        self._voter_list = list(self.voters.values())

    def _known(
        self, voter: ReplicaProgress | None, node_id: int, directory_id: str | None
    ) -> ReplicaProgress:
        if voter is not None and (
            None in (directory_id, voter.directory_id) or voter.directory_id == directory_id
        ):
            voter.directory_id = voter.directory_id or directory_id
            return voter
        replica = (
            self.observers.pop((node_id, directory_id), None) if directory_id is not None else None
        )
        if replica is None:
            replica = ReplicaProgress(node_id, directory_id, is_voter=True)
        replica.is_voter = True
        return replica

    def heard_from(self, node_id: int, directory_id: str) -> ReplicaProgress:
        """Return the progress of the replica that sent this Fetch."""
        voter = self.voters.get(node_id)
        if voter is not None:
            if voter.directory_id is None:
                voter.directory_id = directory_id
            if voter.directory_id == directory_id:
                return voter
        observer = self.observers.get((node_id, directory_id))
        if observer is None:
            if len(self.observers) >= MAX_OBSERVERS:
                del self.observers[
                    min(
                        self.observers, key=lambda key: (self.observers[key].fetched_at or 0.0, key)
                    )
                ]
            observer = ReplicaProgress(node_id, directory_id, is_voter=False)
            self.observers[(node_id, directory_id)] = observer
        return observer

    def forget_silent_observers(self, now: float) -> None:
        """Drop observers that have not fetched for OBSERVER_FORGOTTEN_AFTER_S."""
        for key, replica in list(self.observers.items()):
            if replica.fetched_at is None or now - replica.fetched_at >= OBSERVER_FORGOTTEN_AFTER_S:
                del self.observers[key]

    def majority_offset(self, own_flushed_end: int) -> int:
        """Return the highest offset that is durable at a majority, counting the leader up to its
        flushed end; -1 if unknown.
        """
        offsets = [own_flushed_end] if self.counts_leader else []
        # Not a comprehension, which costs a call: this runs for each Fetch and each flush.
        for replica in self._voter_list:
            offsets.append(replica.end_offset)  # noqa: PERF401
        offsets.sort()
        return offsets[-self._majority]

    def majority_round(self, own_round: int) -> int:
        """Return the highest read-index round that a majority, including the leader, has echoed."""
        rounds = [replica.echoed_round for replica in self._voter_list]
        if self.counts_leader:
            rounds.append(own_round)
        rounds.sort()
        return rounds[-self._majority]

    def majority_heard_at(self, now: float) -> float:
        """Return the latest time since which a majority, including the leader, has fetched."""
        times = [
            self._since if replica.fetched_at is None else replica.fetched_at
            for replica in self._voter_list
        ]
        if self.counts_leader:
            times.append(now)
        times.sort()
        return times[-self._majority]

    def silent_voters(self, since: float) -> list[int]:
        """Return the ids of the voters that have not fetched since then."""
        return [r.node_id for r in self._voter_list if r.fetched_at is None or r.fetched_at < since]

    def preferred_candidates(self) -> tuple[int, ...]:
        """Return the other voters, most complete first."""
        return tuple(
            sorted(self.voters, key=lambda node_id: (-self.voters[node_id].end_offset, node_id))
        )


CHECK_QUORUM_FACTOR = 1.5
"""The check-quorum timeout, as a multiple of the fetch timeout: followers must notice a silent
leader before it resigns (KAFKA-15489).
"""

MORE_WITHIN_S = 0.002
"""Time in seconds that a proposal waits for the one that follows it."""
MAX_PARKED = 1024
"""Maximum number of parked Fetches; further ones get an empty response at once."""


class ParkedFetch(msgspec.Struct, eq=False):
    """A Fetch at the log end that waits for new data, a new round or a new high watermark."""

    reply_to: Any
    correlation_id: int
    offset: int
    max_bytes: int
    is_voter: bool
    expires: float


class Leader(Role):
    """The leader of an epoch: it appends proposals, serves Fetches, and commits what a majority has
    flushed.
    """

    name = "leader"

    def __init__(
        self,
        node: Node,
        granting_voters: tuple[int, ...],
        early: Sequence[tuple[pb.FetchRequest, Any]] = (),
    ) -> None:
        """``early``: the Fetches that arrived during the campaign, with their reply_to."""
        super().__init__(node)
        self.start_offset = node.log.end
        self._since = node.now
        self.progress = Progress(
            node.voters, node.config.node_id, node.now, counts_leader=node.is_voter
        )
        self.rounds = Rounds()
        self._granting_voters = granting_voters
        self._early = early
        self._preferred: tuple[int, ...] = ()
        self._successor: pb.PreferredCandidate | None = None
        self._parked: dict[tuple[int, str], ParkedFetch] = {}
        self._parked_until = NEVER
        self._more_until = 0.0
        self._linger_s = node.config.high_watermark_linger_ms / 1000
        self._begin_interval_s = node.config.fetch_timeout_ms / 2000
        self._begin_at = node.now
        self._check_interval_s = CHECK_QUORUM_FACTOR * node.config.fetch_timeout_ms / 1000
        self._check_at = node.now + self._check_interval_s
        self._lost_reason = "a higher epoch has begun"
        self._awaited: dict[int, int] = {}
        self._flushed_end = node.log.flushed_end
        self._flush_awaited_since = node.now

    @override
    def enter(self) -> None:
        # A replica whose Fetch has already arrived learns of the leader from the response, with
        # this epoch's first record.
        asked = {request.replica_id for request, _ in self._early}
        # The other voters wait for this, so it is sent first.
        self._begin_epoch([peer_id for peer_id in self.node.peers if peer_id not in asked])
        self.node.out.append(BecameLeader(self.epoch, self._granting_voters))
        for request, reply_to in self._early:
            self.on_fetch(request, reply_to)
        self._begin_at = self.node.now + self._begin_interval_s

    @override
    def leave(self) -> None:
        # The leadership ends when a majority last heard from it: nothing it did later has an
        # effect.
        heard_at = self.progress.majority_heard_at(self.node.now)
        leading_ms = int((self.node.now - self._since) * 1000)
        self.node.heard = Heard(self.epoch, heard_at, leading_ms=leading_ms)
        self.node.out.append(LostLeadership(self.epoch, self._lost_reason))
        parked, self._parked = self._parked, {}
        for fetch in parked.values():
            self.refuse_fetch(
                fetch.correlation_id,
                fetch.reply_to,
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                self._preferred,
            )

    @property
    def parked_fetches(self) -> int:
        """Number of parked Fetches, at most MAX_PARKED."""
        return len(self._parked)

    # --- time: notify silent voters, check for a majority, release parked fetches ----------------

    @override
    def deadline(self) -> float:
        self.nearer = False
        return min(self._begin_at, self._check_at, self._parked_until)

    @override
    def on_tick(self) -> None:
        # The timer has expired and must be set again.
        self.nearer, now = True, self.node.now
        if now >= self._parked_until:
            self._release_expired()
        if now >= self._check_at:
            # Computed only when the timer ends, not at each Fetch.
            self._check_at = self.progress.majority_heard_at(now) + self._check_interval_s
            if now >= self._check_at:
                self._resign(
                    "no majority of the voters has fetched within the check-quorum timeout"
                )
                return
        if now >= self._begin_at:
            if self._disk_hangs():
                self.node.disk_hangs = True
                self._resign(
                    "the disk hangs: a flush has made no progress within the check-quorum timeout"
                )
                return
            self._begin_at = now + self._begin_interval_s
            self._begin_epoch(self.progress.silent_voters(now - self._begin_interval_s))
            self.progress.forget_silent_observers(now)

    def _disk_hangs(self) -> bool:
        """Return whether an append has waited too long for this node's disk, so that another leader
        could commit.

        An append that waits because the process is busy does not count, as no single disk call then
        takes that long.
        """
        log, busy_s = self.node.log, self.node.disk_busy_s
        waits = (
            log.flushed_end < log.end
            and self.node.now - self._flush_awaited_since >= self._check_interval_s
        )
        return waits and (busy_s is None or busy_s >= self._check_interval_s)

    def _begin_epoch(self, peers: tuple[int, ...] | list[int]) -> None:
        node = self.node
        for peer_id in peers:
            request = pb.BeginQuorumEpochRequest(
                cluster_id=node.config.cluster_id,
                voter_id=peer_id,
                voter_directory_id=node.voters.directory_of(peer_id),
                leader_id=node.config.node_id,
                leader_epoch=self.epoch,
                leader_endpoint=node.endpoint,
            )
            self._awaited[peer_id] = node.send(peer_id, request)

    @override
    def on_peer_connected(self, peer_id: int) -> None:
        # A voter has reconnected, perhaps after a restart: announce the leader now, without
        # waiting for the timer.
        if peer_id in self.progress.voters:
            self._begin_epoch([peer_id])

    @override
    def on_response(self, event: ResponseReceived) -> None:
        if self._awaited.get(event.peer_id) == event.correlation_id and isinstance(
            event.response, pb.BeginQuorumEpochResponse
        ):
            del self._awaited[event.peer_id]
            process_response(self.node, event.response, event.peer_id)

    @override
    def on_request_failed(self, peer_id: int, correlation_id: int) -> None:
        if self._awaited.get(peer_id) == correlation_id:
            del self._awaited[peer_id]
            self.node.connected.discard(peer_id)

    @override
    def on_resign_requested(self, reason: str, successor: int) -> None:
        self._resign(reason, successor)

    @override
    def on_successor_chosen(self, successor: int) -> None:
        chosen = self.progress.voters.get(successor)
        if chosen is None or not chosen.directory_id:
            self._successor = None
            return
        self._successor = pb.PreferredCandidate(
            candidate_id=successor, candidate_directory_id=chosen.directory_id
        )
        self._release_voters()

    def _resign(self, reason: str, successor: int = -1) -> None:
        self._lost_reason = reason
        # A chosen successor is alone on the list: it campaigns at once, and all other voters wait
        # for the longest pause.
        chosen = (
            (successor,)
            if successor in self.progress.voters
            else self.progress.preferred_candidates()
        )
        self._preferred = chosen
        self.node.become_resigned(chosen)

    # --- fetches ---------------------------------------------------------------------------------

    @override
    def on_fetch(self, request: pb.FetchRequest, reply_to: Any) -> None:
        node, log = self.node, self.node.log
        offset = request.fetch_offset
        if request.round > self.rounds.current:
            self.refuse_fetch(request.correlation_id, reply_to, ErrorCode.INVALID_REQUEST)
            return
        if request.generation and request.generation not in log.lineage:
            reason = (
                f"node {request.replica_id} belongs to generation {request.generation}, from which"
                " this node's log does not descend"
            )
            code = ErrorCode.INCONSISTENT_GENERATION
            node.refuse("FetchRequest", Refusal(code, "generation", reason, contradiction=True))
            self.refuse_fetch(request.correlation_id, reply_to, code)
            return
        key = (request.replica_id, request.replica_directory_id)
        if key in self._parked:
            # One parked Fetch per replica. Answer the parked one rather than drop it: if this
            # Fetch is a duplicate or late, the replica awaits the parked one.
            self._release(self._parked.pop(key))
        replica = self.progress.heard_from(*key)
        if offset <= log.start or request.last_fetched_epoch < log.start_epoch:
            snapshot_id = log.snapshot_for(offset, request.last_fetched_epoch)
            if snapshot_id is not None:
                replica.fetched_at = node.now
                self._reply_snapshot(request, reply_to, snapshot_id)
                return
        diverging = log.divergence(offset, request.last_fetched_epoch)
        if diverging is None and request.HasField("last_batch"):
            diverging = request.last_fetched_epoch, request.last_batch.base_offset
        if diverging is not None:
            replica.fetched_at = node.now
            self._reply_diverging(request, reply_to, diverging)
            return
        moved = offset != replica.end_offset
        replica.acknowledge(offset, log.end, node.now)
        replica.max_metadata_version = request.max_metadata_version
        replica.low_on_space = request.low_on_space
        replica.leader_priority = request.leader_priority
        replica.spare_endpoint = request.spare_endpoint
        if replica.is_voter:
            if request.round > replica.echoed_round:
                self._echoed(replica, request.round)
            if moved and node.high_watermark < log.end:
                self._commit()
        self._answer(request, reply_to, replica)

    def _answer(self, request: pb.FetchRequest, reply_to: Any, replica: ReplicaProgress) -> None:
        """Answer a Fetch at once if there is data or a round for it, soon if only the high
        watermark is new (KIP-1166); otherwise park it.
        """
        node = self.node
        wait_ms = min(request.max_wait_ms, node.config.fetch_max_wait_ms)
        if node.high_watermark > request.high_watermark:
            wait_ms = min(wait_ms, node.config.high_watermark_linger_ms)
        parked = ParkedFetch(
            reply_to,
            request.correlation_id,
            request.fetch_offset,
            min(request.max_bytes, node.config.fetch_max_bytes),
            replica.is_voter,
            node.now + wait_ms / 1000,
        )
        has_data = request.fetch_offset < node.log.end
        if has_data and node.now < self._more_until:
            # Send the data together with the proposal that is about to follow.
            parked.expires = min(parked.expires, self._more_until)
            has_data = False
        if (
            has_data
            or wait_ms == 0
            or len(self._parked) >= MAX_PARKED
            or (replica.is_voter and replica.echoed_round < self.rounds.current)
        ):
            self._release(parked)
        else:
            self._parked[replica.node_id, request.replica_directory_id] = parked
            if parked.expires < self._parked_until:
                self._parked_until, self.nearer = parked.expires, True

    def _release(self, fetch: ParkedFetch) -> None:
        node, rounds, number = self.node, self.rounds, 0
        if fetch.is_voter:
            # Observers do not see round numbers: if an observer became a voter, its echo of a round
            # that requests can still join would prove nothing.
            number = rounds.current
            if rounds.last_shown < number:
                rounds.show()
        response = pb.FetchResponse(
            leader_id=node.config.node_id,
            leader_epoch=self.epoch,
            high_watermark=node.high_watermark,
            log_start_offset=node.log.start,
            round=number,
            correlation_id=fetch.correlation_id,
            leading_ms=int((node.now - self._since) * 1000),
        )
        if fetch.is_voter and self._successor is not None:
            response.successor.CopyFrom(self._successor)
        if not fetch.is_voter:
            # An observer may know this node only as a bootstrap server.
            response.leader_endpoint = node.endpoint
        max_bytes = fetch.max_bytes if fetch.offset < node.log.end else 0
        node.out.append(ReplyFetch(fetch.reply_to, response, fetch.offset, max_bytes))

    def _release_all(self) -> None:
        parked, self._parked = self._parked, {}
        for fetch in parked.values():
            self._release(fetch)

    def _release_within(self, seconds: float) -> None:
        """Answer the parked Fetches with the next data or round, but after ``seconds`` at the
        latest.
        """
        if not seconds:
            self._release_all()
            return
        until = self.node.now + seconds
        for fetch in self._parked.values():
            if until < fetch.expires:
                fetch.expires = until
                if until < self._parked_until:
                    self._parked_until, self.nearer = until, True

    def _release_expired(self) -> None:
        """Answer the parked Fetches whose time is up.

        ``_parked_until`` may be too early, never too late, as other releases do not change it.
        """
        now, until = self.node.now, NEVER
        for key, fetch in list(self._parked.items()):
            if fetch.expires <= now:
                del self._parked[key]
                self._release(fetch)
            elif fetch.expires < until:
                until = fetch.expires
        self._parked_until = until

    def _reply_diverging(
        self, request: pb.FetchRequest, reply_to: Any, diverging: tuple[int, int]
    ) -> None:
        self._reply_without_data(
            request,
            reply_to,
            diverging_epoch=pb.EpochEndOffset(epoch=diverging[0], end_offset=diverging[1]),
        )

    def _reply_snapshot(
        self, request: pb.FetchRequest, reply_to: Any, snapshot_id: SnapshotId
    ) -> None:
        self._reply_without_data(
            request,
            reply_to,
            snapshot_id=pb.SnapshotId(end_offset=snapshot_id.end_offset, epoch=snapshot_id.epoch),
        )

    def _reply_without_data(self, request: pb.FetchRequest, reply_to: Any, **where: Any) -> None:
        node = self.node
        response = pb.FetchResponse(
            leader_id=node.config.node_id,
            leader_epoch=self.epoch,
            high_watermark=node.high_watermark,
            log_start_offset=node.log.start,
            leader_endpoint=node.endpoint,
            correlation_id=request.correlation_id,
            leading_ms=int((node.now - self._since) * 1000),
            **where,
        )
        node.out.append(ReplyFetch(reply_to, response, request.fetch_offset, max_bytes=0))

    @override
    def on_snapshot_fetch(self, replica_id: int, directory_id: str) -> None:
        self.progress.heard_from(replica_id, directory_id).fetched_at = self.node.now

    # --- proposals and commits -------------------------------------------------------------------

    @override
    def on_proposed(self, span: LogSpan, *, more_follows: bool) -> None:
        node, log = self.node, self.node.log
        if not log.accepts(span, self.epoch) or span.epochs != ((self.epoch, span.base_offset),):
            node.fail(
                f"proposed [{span.base_offset}, {span.end_offset}) with epochs {span.epochs}: "
                f"the log ends at {log.end} and the epoch is {self.epoch}"
            )
            return
        if span.voters:
            refused = node.voters_refusal(span)
            if refused:
                node.fail(f"proposed a VotersRecord at {span.voters[0].offset}: {refused}")
                return
        if log.flushed_end == log.end:
            self._flush_awaited_since = node.now
        log.append(span)
        node.out.append(Append(span))
        # Before the flush, so that followers write while this node does.
        if more_follows:
            self._more_until = node.now + MORE_WITHIN_S
            self._release_within(MORE_WITHIN_S)
        else:
            self._more_until = 0.0
            self._release_all()
        node.out.append(Flush())
        if span.voters:
            node.append_voters(span.voters)

    @override
    def on_voters_changed(self) -> None:
        # No parked Fetch has an outdated is_voter: the proposal has released them all.
        node = self.node
        self.progress.set_voters(node.voters, node.now, counts_leader=node.is_voter)
        if not node.participates:
            self._resign("removed from the voter set")
            return
        self._commit()
        self._confirm()

    @override
    def on_flushed(self) -> None:
        flushed_end = self.node.log.flushed_end
        if flushed_end > self._flushed_end:
            self._flushed_end, self._flush_awaited_since = flushed_end, self.node.now
        if self.node.high_watermark < self.node.log.end:
            # Otherwise the other voters had committed everything before this node's disk was done.
            self._commit()

    def _commit(self) -> None:
        """Advance the high watermark to what a majority has flushed, once that includes a record of
        this epoch (Raft 5.4.2).
        """
        node = self.node
        offset = self.progress.majority_offset(node.log.flushed_end)
        if offset > node.high_watermark and offset > self.start_offset:
            node.advance_high_watermark(offset)
            self._release_within(self._linger_s)

    # --- read-index rounds ------------------------------------------------------------------------

    @override
    def on_read_index_requested(self) -> None:
        number = self.rounds.request()
        self.node.out.append(ReadIndexStarted(number))
        if any(fetch.is_voter for fetch in self._parked.values()):
            self._release_voters()
        self._confirm()

    def _release_voters(self) -> None:
        for key, fetch in list(self._parked.items()):
            if fetch.is_voter:
                del self._parked[key]
                self._release(fetch)

    def _echoed(self, replica: ReplicaProgress, number: int) -> None:
        replica.echoed_round = number
        self._confirm()

    def _confirm(self) -> None:
        number = self.progress.majority_round(self.rounds.current)
        if self.rounds.confirm(number):
            self.node.out.append(ReadIndexConfirmed(number))
