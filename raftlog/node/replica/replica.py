"""One node's copy of the log: it carries out the decisions of the quorum's state machine, on a disk
and a network.

Theory of operation. Everything that happens becomes an event of :class:`QuorumCore`, whose effects
are carried out in order. Two things need care, and are the reason for this class:

* *persist before send*: after a PersistVote every message waits until the vote is durable. The
  leader's id is saved later, after the new leader's first commits, which would otherwise find the
  disk busy.
* *overlap*: when the leader appends, it answers its parked fetches before its own disk has the
  chunk, see ``local_log.py``.

Any disk error stops the replica: it does not resign, it answers nothing, and it notifies its
listener. Any exception has the same effect: a state machine that stopped in the middle of a step
cannot be trusted, and a process that continued with it would look healthy from outside.

Why: docs/decisions/001-pull-based-raft-as-a-state-machine.md
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from raftlog import batch
from raftlog.clock import AGAIN_S, DeadlineTimer, QuorumTime
from raftlog.endpoint import VotersAt
from raftlog.errors import (
    CorruptLogError,
    FatalError,
    InvariantError,
    StorageError,
    fatal,
)
from raftlog.logger import get_logger
from raftlog.metadata.control_records import GenerationAt, Lineage, new_generation
from raftlog.metadata.records import UnknownRecordError, record
from raftlog.node.observability.figures import Latency
from raftlog.node.replica.directory_starts import StartChecks
from raftlog.node.replica.listener import Refusals, ReplicaBacklog, ReplicaListener
from raftlog.node.replica.local_log import LocalLog
from raftlog.node.replica.peer_acceptor import FetchAddresses, PeerAcceptor, ReplyTo
from raftlog.node.replica.peers import DialedPeers, PeerListener, PeerReach
from raftlog.node.replica.snapshots import ReplicaSnapshots
from raftlog.node.storage.api import LogStore, SnapshotId, VoteState
from raftlog.quorum import events as ev
from raftlog.quorum.config import QuorumConfig
from raftlog.quorum.core import QuorumCore, QuorumDescription
from raftlog.quorum.leader import MORE_WITHIN_S
from raftlog.step_tracer import StepTracer, traced
from raftlog.transport.api import Acceptor, Conversation, Transport
from raftlog.wire.quorum.v1 import quorum_pb2 as pb
from raftlog.wire.records.v1 import records_pb2

log = get_logger(__name__)

SAVE_LEADER_AFTER_S = 0.1
"""Delay before the leader is saved, in seconds: without it, a restarted node only has to look for
the leader.
"""

LINE_AFTER_S = 0.005
"""Delay of a log line about an election, in seconds."""

_SENDS = (ev.Send, ev.SendFetch, ev.SendFetchSnapshot, ev.Reply)
"""The core's ``SENDS`` after ``_carry_out`` has replaced ReplyFetch and ReplySnapshot by Reply."""


class Replica(PeerListener):
    """One node's copy of the log; see the module. Call ``start`` once; other methods only after
    ``start`` or ``recover``.
    """

    def __init__(
        self,
        config: QuorumConfig,
        store: LogStore,
        transport: Transport,
        listener: ReplicaListener,
        *,
        rng: random.Random,
        wall_clock_ms: Callable[[], int],
        tracer: StepTracer[ev.Event, ev.Effect] | None = None,
    ) -> None:
        """``tracer``: traces every step of the quorum's state machine."""
        self._config = config
        self._store = store
        self._listener = listener
        self._rng = rng
        self._wall_clock_ms = wall_clock_ms
        self._tracer = tracer
        self._loop = asyncio.get_running_loop()
        self._inbox: deque[ev.Event] = deque()
        self._recovered = self._stepping = self._closed = False
        self._log = LocalLog(store, step=self._step, fail=self._fail)
        self.snapshots = ReplicaSnapshots(
            store,
            self._log,
            config.cluster_id,
            step=self._step,
            fail=self._fail,
            now=self._loop.time,
        )
        self._timer = DeadlineTimer(self._loop, self._tick)
        self.stepped: Callable[[], None] | None = None
        """Called after each event, if set."""
        # Effects that wait for a vote to become durable; each PersistVote in the queue marks where
        # a wait begins.
        self._held: deque[Any] = deque()
        self._leader_save: asyncio.TimerHandle | None = None
        self._flush_inline, self._flush_within_s = False, 0.0
        self._round = 0
        self._proposed: deque[tuple[int, float]] = deque()
        self.sync_latency = self._log.sync_latency
        self.commit_latency = Latency()
        """Times from a proposal until the high watermark covers it, on the leader."""
        self.refusals = Refusals()
        self.dropped_committed = ""
        """Description of the committed records that this log has lost to a leader without them, or
        empty.
        """
        self._voters = config.voters
        self._voter_ids = tuple(voter.node_id for voter in config.voters)
        self._time = QuorumTime(wall_clock_ms, self._loop.time, config.node_id)
        self._clock_sent_at = -AGAIN_S
        self._fetch_addresses = FetchAddresses()
        self._peers = DialedPeers(config, transport, self)

    @property
    def disk_busy_s(self) -> float:
        """How long the current sync or vote has lasted, in seconds; 0 if none."""
        return self._store.busy_s

    # --- lifecycle -------------------------------------------------------------------------------

    def recover(self) -> None:
        """Recover the log: from then on requests may arrive, but nothing is sent yet. Raises
        StorageError, CorruptLogError.
        """
        recovered = self._store.recover()
        self.core = QuorumCore(self._config, recovered, self._rng, self._loop.time())
        self._step_core = traced(self.core.step, self._tracer)
        self._log.recovered(recovered)
        self.snapshots.ids = recovered.snapshots
        self._store.begin_start()
        self._starts = StartChecks(
            self._store, self._config, self._fetch_addresses, self.refusals, self._loop.time
        )
        self._starts.set_voters(self.core.voters)
        self._recovered = True

    def start(self) -> None:
        """Join the quorum; recover the log first if that was not done. Raises StorageError,
        CorruptLogError.
        """
        if not self._recovered:
            self.recover()
        self._step(ev.Tick())

    def acceptors(self) -> dict[Conversation, Acceptor]:
        """Return the conversations to serve on this node's listener."""

        def serve(conversation: Conversation) -> Acceptor:
            return lambda _link: PeerAcceptor(conversation, self._requested, self._fetch_addresses)

        return {
            c: serve(c)
            for c in (Conversation.QUORUM, Conversation.REPLICATION, Conversation.SNAPSHOT)
        }

    def close(self) -> None:
        """Stop sending and storing. The store stays open."""
        self._closed = True
        self._timer.cancel()
        self._forget_leader_save()
        self._log.cancel_flush()
        self.snapshots.close()
        self._peers.close()

    # --- for the listener ------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        """First offset of the log."""
        return self._log.start_offset

    @property
    def log_end_offset(self) -> int:
        """End of the log, exclusive: the offset of the next proposal."""
        return self._log.end_offset

    @property
    def last_epoch(self) -> int:
        """See ``QuorumCore``."""
        return self.core.last_epoch

    @property
    def lineage(self) -> Lineage:
        """See ``QuorumCore``."""
        return self.core.lineage

    @property
    def generation(self) -> int:
        """Generation of the committed log, or NO_GENERATION if no committed record is known."""
        return self.core.generation

    def divergence(self, end_offset: int, last_epoch: int) -> tuple[int, int] | None:
        """Return None if a log that ends at ``end_offset`` in ``last_epoch`` is a prefix of this
        one; otherwise the (epoch, end offset) up to which it may be.
        """
        return self.core.divergence(end_offset, last_epoch)

    def may_have_batch(self, base_offset: int, end_offset: int, crc: int) -> bool:
        """Return whether this batch may be in the log; False if the log has another batch there."""
        if not self._log.start_offset <= base_offset < end_offset <= self._log.end_offset:
            return True
        return self._log.batch_before(end_offset) == (base_offset, crc)

    @property
    def high_watermark(self) -> int:
        """High watermark, exclusive, or -1 if unknown."""
        return self.core.high_watermark

    @property
    def campaigns(self) -> bool:
        """Whether this node is a candidate."""
        return self.core.role == "candidate"

    def describe(self, now: float) -> QuorumDescription:
        """Return this node's view of the quorum."""
        return self.core.describe(now)

    def peer_reach(self) -> tuple[PeerReach, ...]:
        """Return the reachability of each of this node's peers."""
        return self._peers.reach()

    def fetch_address(self, replica_id: int, directory_id: str) -> str:
        """Return the address from which this replica fetches, or empty if it has no link."""
        return self._fetch_addresses.address(replica_id, directory_id)

    def backlog(self) -> ReplicaBacklog:
        """Return the pending work."""
        return ReplicaBacklog(len(self._inbox), len(self._held), self._log.cached_bytes)

    def propose(
        self,
        chunk: bytes,
        base_offset: int,
        end_offset: int,
        epoch: int,
        timestamp_ms: int,
        *,
        idle: bool = False,
        more_follows: bool = False,
        voters: tuple[VotersAt, ...] = (),
        generations: tuple[GenerationAt, ...] = (),
    ) -> None:
        """Append the leader's own batches, all with one timestamp, at the log end.

        ``idle``: whether no other work waits, so the disk may sync right away. ``more_follows``: as
        in the event. ``voters``: the VotersRecords in the batches. ``generations``: the batches'
        generations.
        """
        self._flush_inline, self._flush_within_s = idle, MORE_WITHIN_S if more_follows else 0.0
        self._proposed.append((end_offset, self._loop.time()))
        self._step(
            ev.Proposed(
                epoch,
                ev.LogSpan(
                    base_offset,
                    end_offset,
                    ((epoch, base_offset),),
                    chunk,
                    timestamp_ms,
                    voters,
                    generations,
                ),
                more_follows,
            )
        )

    def request_read_index(self) -> int:
        """Begin a read-index round, and return its number: ``read_index_confirmed`` with this or a
        higher number proves that this node leads now.

        Must not be called from a listener's method, as the number would belong to an earlier round.
        """
        self._not_inside_a_step()
        self._step(ev.ReadIndexRequested())
        return self._round

    def resign(self, reason: str, successor: int = -1) -> None:
        """Stop leading, if this node leads. ``successor``: the voter that campaigns first, or -1
        for the most complete one.
        """
        self._step(ev.ResignRequested(reason, successor))

    def choose_successor(self, successor: int) -> None:
        """Announce the voter that is about to succeed this leader; -1 means that this node
        continues to lead.
        """
        self._step(ev.SuccessorChosen(successor))

    def space_changed(self, *, low: bool) -> None:
        """Process that the disk's free space fell below the reserve (``low``), or rose above it
        again.
        """
        self._step(ev.SpaceChanged(low))

    def newest(self, count: int) -> list[bytes]:
        """Return at most ``count`` of the newest chunks in memory, ascending; committed or not."""
        return self._log.newest(count)

    def read(self, offset: int, until: int, max_bytes: int) -> bytes:
        """Return whole batches from ``offset`` to ``until`` (boundaries; exclusive): at least one,
        as many as fit.

        Raises CorruptLogError, after which the replica has failed.
        """
        try:
            return self._log.read(offset, max_bytes, until=until)
        except FatalError as error:
            self._fail(error)
            raise

    def advance_log_start(self, snapshot_id: SnapshotId) -> bool:
        """Drop the log below the end of a complete snapshot, and the earlier snapshots. Return
        False, and drop nothing, if the snapshot's end is not durable on this disk yet.

        Must not be called from a listener's method.
        """
        self._not_inside_a_step()
        if snapshot_id.end_offset > self._log.durable_end_offset:
            return False
        try:
            self._log.advance_start(snapshot_id)
        except FatalError as error:
            self._fail(error)
            return False
        self.snapshots.forget_before(snapshot_id)
        self._step(ev.LogStartAdvanced(snapshot_id))
        return True

    def used_bytes(self) -> int:
        """Return the approximate size of log and snapshots on disk, in bytes."""
        return self._store.used_bytes()

    # --- time ------------------------------------------------------------------------------------

    def next_timestamp_ms(self) -> int:
        """Return the timestamp of the next batch: never earlier than the last batch's, unless log
        time must be corrected backwards.
        """
        last_ms = self._log.last_timestamp_ms
        stamp_ms = self._time.next_stamp_ms(last_ms, self._asked_for_time())
        if stamp_ms < last_ms:
            log.warning("the timestamps in the log go back", by_ms=last_ms - stamp_ms)
        return stamp_ms

    def time_ms(self) -> int:
        """Return this node's wall clock, limited by the clocks of a majority of the voters."""
        return self._time.now_ms(self._asked_for_time())

    @property
    def quorum_time_ms(self) -> int | None:
        """Time according to a majority of the voters' clocks, in ms, or None if unknown."""
        return self._time.quorum_ms(self._asked_for_time())

    @property
    def clock_ahead_ms(self) -> int | None:
        """How far this node's wall clock is ahead of the majority's, in ms, or None if unknown."""
        return self._time.ahead_ms(self._asked_for_time())

    def _asked_for_time(self) -> tuple[int, ...]:
        """Return the voters that a leader asks for the time; other nodes use the leader's
        response.
        """
        return self._voter_ids if self._recovered and self.core.role == "leader" else ()

    # --- events ----------------------------------------------------------------------------------

    def _requested(self, request: Any, reply_to: ReplyTo) -> None:
        kind = type(request)
        if (
            ((kind is pb.FetchRequest and request.clock_ms) or kind is pb.VoteRequest)
            and request.HasField("start")
            and self._refuses_start(request, reply_to)
        ):
            return
        if kind is pb.FetchRequest:
            if request.clock_ms:
                self._heard(request.replica_id, request.replica_directory_id, request.clock_ms)
                reply_to.asks_time = True
            if request.HasField("last_batch"):
                last, end_offset = request.last_batch, request.fetch_offset
                if self.may_have_batch(last.base_offset, end_offset, last.crc):
                    request.ClearField("last_batch")
        self._step(ev.RequestReceived(request, reply_to))

    def _refuses_start(self, request: pb.FetchRequest | pb.VoteRequest, reply_to: ReplyTo) -> bool:
        if self._closed or request.cluster_id != self._config.cluster_id:
            return False
        try:
            refusal = self._starts.check_request(request, reply_to.link, self.core)
        except FatalError as error:
            self._fail(error)
            return True
        if refusal is None:
            return False
        response: pb.FetchResponse | pb.VoteResponse
        if isinstance(request, pb.FetchRequest):
            response = pb.FetchResponse(
                leader_id=self.core.leader_id, leader_epoch=self.core.epoch, high_watermark=-1
            )
        else:
            response = pb.VoteResponse(leader_id=-1, voter_id=self._config.node_id)
        response.error_code, response.error_message = refusal.code, refusal.reason
        # Held like any other response: it contains an epoch, which may not be durable yet.
        self._carry_out(ev.Reply(reply_to, response))
        return True

    def _heard(self, node_id: int, directory_id: str, clock_ms: int) -> None:
        """Record the clock of a replica, if it is a voter."""
        for voter in self._voters:
            if voter.node_id == node_id and voter.directory_id in ("", directory_id):
                self._time.heard(node_id, clock_ms)

    def answered(self, peer_id: int, correlation_id: int, response: Any) -> None:
        """Process a peer's response; the batches in a FetchResponse are verified first."""
        span = None
        try:
            if type(response) is pb.VoteResponse:
                if not self._starts.check_vote(peer_id, response):
                    self._step(ev.RequestFailed(peer_id, correlation_id))
                    return
                if not response.error_code:
                    self._heard(peer_id, response.voter_directory_id, response.clock_ms)
            elif type(response) is pb.FetchResponse:
                if not response.error_code:
                    self._time.received(response.quorum_time_ms)
                if response.error_code or response.known_starts:
                    self._starts.check_fetched(peer_id, response, self.core.epoch)
        except FatalError as error:
            self._fail(error)
            return
        # Read once: each access to the field copies it.
        records = response.records if isinstance(response, pb.FetchResponse) else b""
        if records:
            try:
                span = self._log.check(records)
            except UnknownRecordError as error:
                self._fail(error)
                return
            except CorruptLogError as error:
                # Nothing was stored: the batches are fetched again.
                log.warning("fetched batches were rejected", peer=peer_id, error=str(error))
                self._step(ev.RequestFailed(peer_id, correlation_id))
                return
        self._step(ev.ResponseReceived(peer_id, correlation_id, response, span))

    def unanswered(self, peer_id: int, correlation_id: int) -> None:
        """Step the failure of a request that gets no response."""
        self._step(ev.RequestFailed(peer_id, correlation_id))

    def connected(self, peer_id: int) -> None:
        """Process a new control link."""
        self._step(ev.PeerConnected(peer_id))

    def gone(self, peer_id: int) -> None:
        """Process proof that a peer's process is gone."""
        self._step(ev.PeerLost(peer_id))

    def _tick(self) -> None:
        self._step(ev.Tick(self._store.busy_s))

    def _step(self, event: ev.Event) -> None:
        """Run an event and all events that follow from its effects; an event from inside an effect
        is queued.
        """
        self._inbox.append(event)
        if self._stepping or self._closed:
            return
        self._stepping = True
        try:
            while self._inbox and not self._closed:
                event = self._inbox.popleft()
                for effect in self._step_core(event, self._loop.time()):
                    # Fast path: nearly always nothing is held.
                    if self._held or type(effect) is ev.PersistVote:
                        self._carry_out(effect)
                    else:
                        _EFFECTS[type(effect)](self, effect)
        except Exception as error:
            self._fail(error)
        finally:
            self._stepping = False
        if not self._closed:
            core = self.core
            if core.deadline_nearer:
                deadline = core.next_deadline()
                if deadline < self._timer.at:
                    self._timer.arm(deadline)
            if self.stepped is not None:
                self.stepped()

    def _not_inside_a_step(self) -> None:
        if self._stepping:
            raise InvariantError(
                "must not be called from a listener's method: its step has not ended"
            )

    # --- effects ---------------------------------------------------------------------------------

    def _carry_out(self, effect: ev.Effect) -> None:
        """Carry out an effect by the table, but hold messages until all earlier votes are
        durable.
        """
        kind: type[ev.Effect] = type(effect)
        if type(effect) is ev.ReplyFetch:
            # Read the bytes now: later they might belong to another epoch.
            if effect.max_bytes > 0:
                self._add_records(effect)
            effect = ev.Reply(effect.reply_to, effect.response)
            kind = ev.Reply
        elif type(effect) is ev.ReplySnapshot:
            effect = self.snapshots.reply(effect)
            kind = type(effect)
        if type(effect) is ev.PersistVote:
            self._forget_leader_save()
            self._held.append(effect)
            if len(self._held) == 1:
                # In the next iteration of the loop: messages sent before, such as a vote request or
                # a Fetch, leave first.
                self._loop.call_soon(self._persist_next)
        elif self._held and kind in _SENDS:
            self._held.append(effect)
        else:
            _EFFECTS[kind](self, effect)

    def _send(self, effect: ev.Send | ev.SendFetch | ev.SendFetchSnapshot) -> None:
        if type(effect) is ev.SendFetch:
            now = self._loop.time()
            if effect.compare or now - self._clock_sent_at >= AGAIN_S:
                self._clock_sent_at = now
                effect.request.clock_ms = self._wall_clock_ms()
            if effect.compare:
                last = self._log.batch_before(effect.request.fetch_offset)
                if last is not None:
                    effect.request.last_batch.base_offset, effect.request.last_batch.crc = last
                effect.request.start.CopyFrom(self._starts.own_message)
        elif type(effect.request) is pb.VoteRequest:
            effect.request.start.CopyFrom(self._starts.own_message)
        if not self._peers.send(effect):
            self._inbox.append(ev.RequestFailed(effect.peer_id, effect.correlation_id))

    def _reply(self, effect: ev.Reply) -> None:
        response = effect.response
        if type(response) is pb.VoteResponse:
            response.clock_ms = self._wall_clock_ms()
            response.start.CopyFrom(self._starts.own_message)
        elif type(response) is pb.FetchResponse:
            self._say_time(response, effect.reply_to)
        effect.reply_to.send(response)

    def _say_time(self, response: pb.FetchResponse, reply_to: ReplyTo) -> None:
        if reply_to.asks_time and self.core.role == "leader":
            response.quorum_time_ms = self.quorum_time_ms or 0
            response.known_starts.extend(self._starts.passed_on())

    def _reply_fetch(self, effect: ev.ReplyFetch) -> None:
        self._say_time(effect.response, effect.reply_to)
        if effect.max_bytes > 0:
            # Inlined ``_add_records``.
            records = self._log.read(effect.offset, effect.max_bytes)
            if records:
                effect.response.records = records
        effect.reply_to.send(effect.response)

    def _add_records(self, effect: ev.ReplyFetch) -> None:
        records = self._log.read(effect.offset, effect.max_bytes)
        if records:
            effect.response.records = records

    def _reply_snapshot(self, effect: ev.ReplySnapshot) -> None:
        reply = self.snapshots.reply(effect)
        _EFFECTS[type(reply)](self, reply)

    def _persist_next(self) -> None:
        """Write the first of the waiting votes, inline: this node does not lead, and has nothing
        else to do until the vote is durable.
        """
        if self._closed:
            return
        vote = self._held[0].vote
        try:
            self._store.write_vote(vote, lambda error: self._persisted(vote, error), inline=True)
        except Exception as error:
            self._fail(error)

    def _persisted(self, vote: Any, error: StorageError | None) -> None:
        if error is not None:
            self._fail(error)
        if self._closed:
            return
        # A message may fail at once. Its failure is processed after all have been sent: earlier, a
        # vote that the failure leads to would be mistaken for one that is still held, and be
        # written twice; then the second completion would release the effects that wait for yet
        # another vote.
        self._stepping = True
        try:
            self._held.popleft()
            while self._held and not isinstance(self._held[0], ev.PersistVote):
                effect = self._held.popleft()
                _EFFECTS[type(effect)](self, effect)
            if self._held:
                self._loop.call_soon(self._persist_next)
        except Exception as failure:
            self._fail(failure)
        finally:
            self._stepping = False
        self._step(ev.VotePersisted(vote))

    def _save_leader(self, effect: ev.SaveLeader) -> None:
        self._forget_leader_save()
        self._leader_save = self._loop.call_later(SAVE_LEADER_AFTER_S, self._write_leader, effect)

    def _forget_leader_save(self) -> None:
        if self._leader_save is not None:
            self._leader_save.cancel()
            self._leader_save = None

    def _write_leader(self, effect: ev.SaveLeader) -> None:
        if self._held:
            # Earlier votes have not all been written yet.
            self._save_leader(effect)
            return
        self._leader_save, vote = None, effect.vote
        try:
            self._store.write_vote(vote, lambda error: self._leader_saved(vote, error))
        except Exception as error:
            self._fail(error)

    def _leader_saved(self, vote: VoteState, error: StorageError | None) -> None:
        if error is not None:
            self._fail(error)
        self._step(ev.VotePersisted(vote))

    def _append(self, effect: ev.Append) -> None:
        self._log.append(effect.span)

    def _flush(self, effect: ev.Flush) -> None:
        if self.core.role == "leader":
            self._log.flush_soon(inline=self._flush_inline, within_s=self._flush_within_s)
        else:
            # A follower has nothing else to do until its next fetch, which is the acknowledgement.
            self._log.flush(inline=True)

    def _truncate(self, effect: ev.Truncate) -> None:
        end_offset = effect.end_offset
        committed = self._log.committed_above(end_offset)
        if committed > end_offset:
            self.dropped_committed = (
                f"committed records are lost: according to the log, offset {committed - 1}"
                f" was committed, but the leader of epoch {self.core.epoch} has other records from"
                f" offset {end_offset} on"
            )
            log.error("committed records are dropped", why=self.dropped_committed)
        self._log.truncate(end_offset)

    def _store_snapshot(self, effect: ev.StoreSnapshot) -> None:
        self.snapshots.store(effect)

    def _drop_snapshot(self, effect: ev.DropSnapshot) -> None:
        self.snapshots.drop(effect.snapshot_id)

    def _load_snapshot(self, effect: ev.LoadSnapshot) -> None:
        self._listener.snapshot_loaded(effect.snapshot_id)

    def _voters_changed(self, effect: ev.VotersChanged) -> None:
        self._voters = effect.voters
        self._voter_ids = tuple(voter.node_id for voter in effect.voters)
        self._starts.set_voters(effect.voters)
        self._listener.voters_changed(effect.offset, effect.voters)

    def _peers_changed(self, effect: ev.PeersChanged) -> None:
        self._peers.dial(effect.peers)

    def _high_watermark_advanced(self, effect: ev.HighWatermarkAdvanced) -> None:
        while self._proposed and self._proposed[0][0] <= effect.offset:
            self.commit_latency.observe(self._loop.time() - self._proposed.popleft()[1])
        self._listener.committed(effect.offset)

    def _bind_generation(self, effect: ev.BindGeneration) -> None:
        self._store.bind_generation(effect.generation)

    def _leader_changed(self, effect: ev.LeaderChanged) -> None:
        if effect.leader_id >= 0:
            self._say(log.info, "leader known", leader=effect.leader_id, epoch=effect.epoch)
        self._listener.leader_changed(effect.leader_id, effect.epoch)

    def _became_leader(self, effect: ev.BecameLeader) -> None:
        start, timestamp_ms = self._log.end_offset, self.next_timestamp_ms()
        generation = self.core.lineage.current or new_generation(
            self._config.cluster_id, self._config.directory_id, effect.epoch, start, timestamp_ms
        )
        message = records_pb2.LeaderChangeRecord(
            leader_id=self._config.node_id,
            generation=generation,
            voters=[voter.node_id for voter in self._voters],
            granting_voters=effect.granting_voters,
        )
        heard = self.core.succession
        if heard.epoch >= 0:
            message.last_heard_epoch = heard.epoch
            message.last_heard_age_ms = heard.age_ms(self._loop.time())
            message.last_heard_by_all = heard.by_all
        chunk = batch.encode(
            [record(message).data],
            base_offset=start,
            epoch=effect.epoch,
            timestamp_ms=timestamp_ms,
            control=True,
        )
        # Waiting writes, or writes that the previous leader is sending, share the sync with this
        # record: one sync instead of two.
        more_follows = self.core.succeeds_leader or self._listener.writes_wait()
        self.propose(
            chunk,
            start,
            start + 1,
            effect.epoch,
            timestamp_ms,
            # Later proposals must not wait for the disk.
            idle=not more_follows,
            more_follows=more_follows,
            generations=(GenerationAt(start, generation),),
        )
        self._say(log.info, "became leader", epoch=effect.epoch, start_offset=start)
        self._listener.became_leader(effect.epoch, start)

    def _lost_leadership(self, effect: ev.LostLeadership) -> None:
        self._say(log.warning, "lost leadership", epoch=effect.epoch, reason=effect.reason)
        self._proposed.clear()
        self._listener.lost_leadership(effect.epoch, effect.reason)

    def _read_index_started(self, effect: ev.ReadIndexStarted) -> None:
        self._round = effect.round

    def _read_index_confirmed(self, effect: ev.ReadIndexConfirmed) -> None:
        self._listener.read_index_confirmed(effect.round)

    def _fatal(self, effect: ev.Fatal) -> None:
        raise FatalError(effect.reason)

    def _refused(self, effect: ev.Refused) -> None:
        self.refusals.add(effect)

    def _say(self, line: Callable[..., None], what: str, **fields: Any) -> None:
        """Log a line when the election is likely over.

        A line takes tenths of a millisecond, and on one machine the nodes' lines are written one
        after another.
        """
        self._loop.call_later(LINE_AFTER_S, partial(line, what, **fields))

    def _fail(self, error: Exception) -> None:
        """Close, and notify the listener why, once."""
        if self._closed:
            return
        if not isinstance(error, FatalError):
            log.error("defect in the replica", exc_info=error)
        failure = fatal(error)
        log.critical("the replica stops", error=str(failure))
        self.close()
        self._listener.failed(failure)


_EFFECTS: dict[Any, Callable[[Replica, Any], None]] = {
    ev.SaveLeader: Replica._save_leader,
    ev.Send: Replica._send,
    ev.SendFetch: Replica._send,
    ev.SendFetchSnapshot: Replica._send,
    ev.Reply: Replica._reply,
    ev.ReplyFetch: Replica._reply_fetch,
    ev.ReplySnapshot: Replica._reply_snapshot,
    ev.StoreSnapshot: Replica._store_snapshot,
    ev.DropSnapshot: Replica._drop_snapshot,
    ev.LoadSnapshot: Replica._load_snapshot,
    ev.VotersChanged: Replica._voters_changed,
    ev.PeersChanged: Replica._peers_changed,
    ev.Append: Replica._append,
    ev.Truncate: Replica._truncate,
    ev.Flush: Replica._flush,
    ev.HighWatermarkAdvanced: Replica._high_watermark_advanced,
    ev.BindGeneration: Replica._bind_generation,
    ev.LeaderChanged: Replica._leader_changed,
    ev.BecameLeader: Replica._became_leader,
    ev.LostLeadership: Replica._lost_leadership,
    ev.ReadIndexStarted: Replica._read_index_started,
    ev.ReadIndexConfirmed: Replica._read_index_confirmed,
    ev.Refused: Replica._refused,
    ev.Fatal: Replica._fatal,
}
