"""One node's copy of the log: carries out what the quorum's state machine decides, on a disk and a network.

Theory of operation. Everything that happens becomes an event of :class:`QuorumCore`; its effects are carried out in order. Two
things need care, and are the reason for this class:

* *persist before send*: behind a PersistVote every message waits until the vote is durable.
* *overlap*: when the leader appends, its parked fetches are answered first and its own disk comes after, one turn of the loop
  later, so that the followers' disks work while the leader's does. The leader serves those bytes from memory.

Any error of the disk ends the replica: it resigns nothing, answers nothing, and tells its listener. So does any exception: a state
machine that stopped half-way through a step is not to be trusted, and a process that lives on with it looks well from outside.

Why: docs/decisions/001-pull-based-raft-as-a-state-machine.md
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from raftlog import batch
from raftlog.deadline_timer import DeadlineTimer
from raftlog.errors import CorruptLogError, FatalError, InvariantError, StorageError
from raftlog.logger import get_logger
from raftlog.metadata.log_generation import generation_in
from raftlog.metadata.records import UnknownRecordError, record
from raftlog.metadata.snapshot_file import SnapshotHeader
from raftlog.metadata.voters_log import voters_in
from raftlog.observability.registry import Latency
from raftlog.quorum import events as ev
from raftlog.quorum.config import QuorumConfig
from raftlog.quorum.core import QuorumCore
from raftlog.quorum.description import QuorumDescription
from raftlog.quorum.voters import VoterSet
from raftlog.replica.listener import ReplicaListener
from raftlog.replica.peers import Peer, PeerAcceptor, PeerObserver, ReplyTo
from raftlog.replica.snapshots import SnapshotWriter, fill
from raftlog.replica.tail_cache import TailCache
from raftlog.storage.api import LogStore, SnapshotId
from raftlog.transport.api import Acceptor, Conversation, Transport
from raftlog.voter import Voter, VotersAt
from raftlog.wire.quorum.v1 import quorum_pb2 as pb
from raftlog.wire.records.v1 import records_pb2

log = get_logger(__name__)

T = TypeVar("T")
TAIL_CACHE_BYTES = 32 << 20
REFUSAL_LOG_INTERVAL_S = 10.0
"""Of each kind of refused message one line in this time: whoever can reach the port must not fill the disk with log lines."""
_SENDS = (ev.Send, ev.SendFetch, ev.SendFetchSnapshot, ev.Reply)


class Replica(PeerObserver):
    """See the module. Call ``start`` once; everything else only after it, or after ``recover``."""

    def __init__(
        self,
        config: QuorumConfig,
        store: LogStore,
        transport: Transport,
        listener: ReplicaListener,
        *,
        rng: random.Random,
        wall_clock_ms: Callable[[], int],
    ) -> None:
        self._config = config
        self._store = store
        self._transport = transport
        self._listener = listener
        self._rng = rng
        self._wall_clock_ms = wall_clock_ms
        self._loop = asyncio.get_running_loop()
        self._inbox: deque[ev.Event] = deque()
        self._recovered = self._stepping = self._closed = False
        self.generation = store.identity.generation
        """Of the log: this directory's, or a later one that the log tells of. A node that joins later was formatted without any."""
        self._timer = DeadlineTimer(self._loop, self._tick)
        # Effects that wait for a vote to become durable; each PersistVote in it marks where a wait begins.
        self._held: deque[Any] = deque()
        # Spans that are in the log, and not yet handed to the store: see *overlap* above.
        self._unwritten: list[ev.LogSpan] = []
        self._flush_wanted = self._flush_inline = self._disk_turn_due = False
        self._round = 0
        self._proposed: deque[tuple[int, float]] = deque()
        self.sync_latency = Latency()
        """What the disk took for each sync."""
        self.commit_latency = Latency()
        """From a proposal until the high watermark covers it; on the leader."""
        self.refused: Counter[tuple[str, str]] = Counter()
        """Messages that claim what this node does not believe, by (type of message, field)."""
        self._refusals_logged: dict[tuple[str, str], tuple[float, int]] = {}
        self._voters = config.voters
        self._peers: dict[int, Peer] = {}
        self._durable_end_offset = 0
        self.log_start_offset = 0
        """The first offset there is."""
        self._snapshots: tuple[SnapshotId, ...] = ()
        self._writer: SnapshotWriter | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}

    # --- life ---------------------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Recover the log: requests may come from here on, but nothing is sent yet. Raises StorageError, CorruptLogError."""
        recovered = self._store.recover()
        self.core = QuorumCore(self._config, recovered, self._rng, self._loop.time())
        self._tail = TailCache(recovered.end_offset, TAIL_CACHE_BYTES)
        self.last_timestamp_ms = recovered.last_timestamp_ms
        self.generation = max(self.generation, recovered.generation)
        self.log_start_offset, self._durable_end_offset = recovered.start_offset, recovered.end_offset
        self._snapshots = recovered.snapshots
        self._recovered = True

    def start(self) -> None:
        """Join the quorum; the log is recovered first if it was not before. Raises StorageError, CorruptLogError."""
        if not self._recovered:
            self.recover()
        self._step(ev.Tick())

    def acceptors(self) -> dict[Conversation, Acceptor]:
        """The conversations to serve on this node's listener."""

        def serve(conversation: Conversation) -> Acceptor:
            return lambda _link: PeerAcceptor(conversation, self._requested)

        return {c: serve(c) for c in (Conversation.QUORUM, Conversation.REPLICATION, Conversation.SNAPSHOT)}

    def close(self) -> None:
        """Stop. Nothing is sent or stored after this; the store stays open."""
        self._closed = True
        self._timer.cancel()
        if self._writer is not None:
            # The store may be broken already: what it holds of the snapshot goes when it is opened the next time.
            self._writer.cancel(drop=False)
        for peer in list(self._peers.values()):
            peer.close()
        for task in list(self._tasks):
            task.cancel()

    # --- for the listener ---------------------------------------------------------------------------------------------

    @property
    def log_end_offset(self) -> int:
        """Exclusive; what is proposed next gets this offset."""
        return self._tail.end_offset

    @property
    def high_watermark(self) -> int:
        """Exclusive; -1: unknown."""
        return self.core.high_watermark

    def describe(self, now: float) -> QuorumDescription:
        """What this node knows of the quorum."""
        return self.core.describe(now)

    def propose(
        self,
        chunk: bytes,
        base_offset: int,
        end_offset: int,
        epoch: int,
        *,
        idle: bool = False,
        voters: tuple[VotersAt, ...] = (),
    ) -> None:
        """Append the leader's own batches at the log end. ``idle``: nothing else waits, the disk may sync right away.

        ``voters``: the VotersRecords among them.
        """
        self._flush_inline = idle
        self._proposed.append((end_offset, self._loop.time()))
        self._step(ev.Proposed(epoch, ev.LogSpan(base_offset, end_offset, ((epoch, base_offset),), chunk, voters)))

    def request_round(self) -> int:
        """Begin a confirmation round; ``round_confirmed`` of this number or a higher one is the proof of leading now.

        Not from inside a listener's call: the number would be that of an earlier round.
        """
        self._not_inside_a_step()
        self._step(ev.RoundRequested())
        return self._round

    def resign(self, reason: str, successor: int = -1) -> None:
        """Stop leading, if this node leads. ``successor``: who is to campaign first, -1 for the most complete voter."""
        self._step(ev.ResignRequested(reason, successor))

    def space_changed(self, *, low: bool) -> None:
        """The free space of the disk fell below the reserve, or rose above it again."""
        self._step(ev.SpaceChanged(low))

    def read(self, offset: int, until: int, max_bytes: int) -> bytes:
        """Whole batches from ``offset`` to ``until`` (boundaries; exclusive), at least one, as many as fit.

        Raises CorruptLogError, after which the replica has failed.
        """
        if offset >= until:
            return b""
        cached = self._tail.read(offset, until, max_bytes)
        if cached is not None:
            return cached
        if self._unwritten:
            # Part of the log, and in memory, but the store does not have it yet: what is asked for lies before it.
            until = min(until, self._unwritten[0].base_offset)
        try:
            return self._store.read(offset, until=until, max_bytes=max_bytes)
        except FatalError as error:
            self._fail(error)
            raise

    # --- snapshots, for the listener ----------------------------------------------------------------------------------

    @property
    def snapshots(self) -> tuple[SnapshotId, ...]:
        """Complete ones, ascending."""
        return self._snapshots

    def write_snapshot(
        self, header: SnapshotHeader, pieces: Iterator[bytes], done: Callable[[SnapshotId, int], None]
    ) -> None:
        """Write a snapshot of what is committed, a slice at a time; one at once.

        Each step of ``pieces`` must be short, and may give nothing. ``done`` is called with its id and size when it is complete and
        durable; never, if it is given up or if the replica fails.
        """
        if self._writer is not None:
            raise InvariantError("a snapshot is begun while another is being written")
        writer: SnapshotWriter

        def finished(error: FatalError | None) -> None:
            if error is not None:
                # Its own bytes, or its own disk: either is no longer to be trusted.
                self._fail(error)
            elif not self._closed:
                self._writer = None
                self._add_snapshot(writer.snapshot_id)
                self._step(ev.SnapshotFrozen(writer.snapshot_id))
                done(writer.snapshot_id, writer.written_bytes)

        writer = self._writer = SnapshotWriter(self._store, header, pieces, finished)

    def advance_log_start(self, snapshot_id: SnapshotId) -> bool:
        """Drop the log below the end of a complete snapshot, and the snapshots before it. Not from inside a listener's call.

        False: not now, as this disk is behind; what is dropped must have been durable.
        """
        self._not_inside_a_step()
        if snapshot_id.end_offset > self._durable_end_offset:
            return False
        try:
            self._store.advance_log_start(snapshot_id)
        except FatalError as error:
            self._fail(error)
            return False
        self._snapshots = tuple(one for one in self._snapshots if one >= snapshot_id)
        self.log_start_offset = snapshot_id.end_offset
        self._tail.forget_below(snapshot_id.end_offset)
        self._step(ev.LogStartAdvanced(snapshot_id))
        return True

    def snapshot_size(self, snapshot_id: SnapshotId) -> int:
        """Bytes. Raises LookupError."""
        return self._store.snapshot_size(snapshot_id)

    def snapshot_header(self, snapshot_id: SnapshotId) -> SnapshotHeader:
        """What it says of itself. Raises LookupError; CorruptLogError, after which the replica has failed."""
        return self._from_store(lambda: self._store.snapshot_header(snapshot_id))

    def read_snapshot(self, snapshot_id: SnapshotId, position: int, max_bytes: int) -> bytes:
        """Bytes of a complete snapshot, empty at its end. Raises LookupError; StorageError, after which the replica has failed."""
        return self._from_store(lambda: self._store.read_snapshot(snapshot_id, position, max_bytes))

    def used_bytes(self) -> int:
        """Log and snapshots on disk, about."""
        return self._store.used_bytes()

    def _from_store(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except FatalError as error:
            self._fail(error)
            raise

    def _add_snapshot(self, snapshot_id: SnapshotId) -> None:
        self._snapshots = tuple(sorted({*self._snapshots, snapshot_id}))

    def next_timestamp_ms(self) -> int:
        """The wall clock, but never before the last batch's."""
        self.last_timestamp_ms = max(self.last_timestamp_ms, self._wall_clock_ms())
        return self.last_timestamp_ms

    # --- events -------------------------------------------------------------------------------------------------------

    def _requested(self, request: Any, reply_to: ReplyTo) -> None:
        self._step(ev.RequestReceived(request, reply_to))

    def answered(self, peer_id: int, correlation_id: int, response: Any) -> None:
        """A peer's response; the batches of a FetchResponse are checked here."""
        span = None
        if isinstance(response, pb.FetchResponse) and response.records:
            chunk = response.records
            try:
                checked = batch.scan(chunk, expect_offset=self._tail.end_offset)
                voters = voters_in(chunk, checked.control_at) if checked.control_at else ()
                generation = generation_in(chunk, checked.control_at) if checked.control_at else 0
                span = ev.LogSpan(self._tail.end_offset, checked.end_offset, checked.epochs, chunk, voters, generation)
            except UnknownRecordError as error:
                self._fail(error)
                return
            except CorruptLogError as error:
                # Nothing was stored: fetch it again.
                log.warning("fetched batches refused", peer=peer_id, error=str(error))
                self._step(ev.RequestFailed(peer_id, correlation_id))
                return
            self.last_timestamp_ms = max(self.last_timestamp_ms, checked.last_timestamp_ms)
        self._step(ev.ResponseReceived(peer_id, correlation_id, response, span))

    def unanswered(self, peer_id: int, correlation_id: int) -> None:
        """No answer comes."""
        self._step(ev.RequestFailed(peer_id, correlation_id))

    def connected(self, peer_id: int) -> None:
        """The control link is up."""
        self._step(ev.PeerConnected(peer_id))

    def gone(self, peer_id: int) -> None:
        """The peer's process is gone."""
        self._step(ev.PeerLost(peer_id))

    def _tick(self) -> None:
        self._step(ev.Tick(self._store.busy_s))

    def _step(self, event: ev.Event) -> None:
        """Run an event and all that follow from its effects; an event from inside an effect waits its turn."""
        self._inbox.append(event)
        if self._stepping or self._closed:
            return
        self._stepping = True
        try:
            while self._inbox and not self._closed:
                event = self._inbox.popleft()
                if type(event) is ev.Proposed and self.core.role == "leader" and event.epoch == self.core.epoch:
                    # The fetches it releases are answered before it is appended, and must find it here.
                    self._remember(event.span)
                for effect in self.core.step(event, self._loop.time()):
                    self._carry_out(effect)
        except Exception as error:
            self._fail(error)
        finally:
            self._stepping = False
        if not self._closed:
            self._timer.arm(self.core.next_deadline())

    def _not_inside_a_step(self) -> None:
        if self._stepping:
            raise InvariantError("called from inside a listener's call, whose step has not ended")

    # --- effects ------------------------------------------------------------------------------------------------------

    def _carry_out(self, effect: ev.Effect) -> None:
        # Compared by type, not isinstance: five effects follow from each write.
        kind: type[ev.Effect] = type(effect)
        if type(effect) is ev.ReplyFetch:
            # The bytes are read now, also if the reply is held: later they might be another epoch's.
            if effect.max_bytes > 0 and effect.offset < self._tail.end_offset:
                effect.response.records = self.read(effect.offset, self._tail.end_offset, effect.max_bytes)
            effect = ev.Reply(effect.reply_to, effect.response)
            kind = ev.Reply
        elif type(effect) is ev.ReplySnapshot:
            effect = fill(self._store, effect)
            kind = type(effect)
        if type(effect) is ev.PersistVote:
            self._held.append(effect)
            if len(self._held) == 1:
                self._persist_next()
        elif self._held and kind in _SENDS:
            self._held.append(effect)
        else:
            _EFFECTS[kind](self, effect)

    def _send(self, effect: ev.Send | ev.SendFetch | ev.SendFetchSnapshot) -> None:
        peer = self._peers.get(effect.peer_id)
        if peer is None:
            self._inbox.append(ev.RequestFailed(effect.peer_id, effect.correlation_id))
        elif isinstance(effect, ev.SendFetch):
            peer.send_fetch(effect.correlation_id, effect.request)
        elif isinstance(effect, ev.SendFetchSnapshot):
            peer.send_fetch_snapshot(effect.correlation_id, effect.request)
        else:
            peer.send(effect.correlation_id, effect.request)

    def _reply(self, effect: ev.Reply) -> None:
        effect.reply_to.send(effect.response)

    def _persist_next(self) -> None:
        vote = self._held[0].vote
        self._store.write_vote(vote, lambda error: self._persisted(vote, error))

    def _persisted(self, vote: Any, error: StorageError | None) -> None:
        if error is not None:
            self._fail(error)
        if self._closed:
            return
        # What is sent may fail at once. That is heard of when all of it is sent: in the midst, a vote that it leads to would be taken
        # for one that is held still, and be written twice; then the second answer would release what waits for yet another vote.
        self._stepping = True
        try:
            self._held.popleft()
            while self._held and not isinstance(self._held[0], ev.PersistVote):
                effect = self._held.popleft()
                _EFFECTS[type(effect)](self, effect)
            if self._held:
                self._persist_next()
        except Exception as failure:
            self._fail(failure)
        finally:
            self._stepping = False
        self._step(ev.VotePersisted(vote))

    def _append(self, effect: ev.Append) -> None:
        self._remember(effect.span)
        self._unwritten.append(effect.span)
        self.generation = max(self.generation, effect.span.generation)

    def _remember(self, span: ev.LogSpan) -> None:
        if span.base_offset == self._tail.end_offset:
            self._tail.append(span.data, span.base_offset, span.end_offset)

    def _flush(self, effect: ev.Flush) -> None:
        self._flush_wanted = True
        if self.core.role == "leader":
            if not self._disk_turn_due:
                self._disk_turn_due = True
                self._loop.call_soon(self._disk_turn)
        else:
            # A follower has nothing else to do until its next fetch, which is the acknowledgement.
            self._flush_inline = True
            self._write_and_flush()

    def _truncate(self, effect: ev.Truncate) -> None:
        self._write()
        self._store.truncate(effect.end_offset)
        self._durable_end_offset = min(self._durable_end_offset, effect.end_offset)
        self._tail.reset(effect.end_offset)

    def _store_snapshot(self, effect: ev.StoreSnapshot) -> None:
        snapshot_id = effect.snapshot_id
        self._store.store_snapshot(snapshot_id, effect.position, effect.data)
        if effect.last:
            self._store.freeze_snapshot(
                snapshot_id, lambda error: self._fetched(snapshot_id, error), self._accept_header
            )

    def _fetched(self, snapshot_id: SnapshotId, error: FatalError | None) -> None:
        """A fetched snapshot was verified and is durable, or is not sound."""
        if self._closed:
            return
        if isinstance(error, CorruptLogError):
            log.warning("a fetched snapshot is not sound", snapshot=str(snapshot_id), error=str(error))
            self._step(ev.SnapshotStored(snapshot_id, error=str(error)))
            return
        if error is not None:
            self._fail(error)
            return
        try:
            header = self._install(snapshot_id)
        except Exception as failure:
            self._fail(failure)
            return
        self._step(ev.SnapshotStored(snapshot_id, header.voters))

    def _accept_header(self, header: SnapshotHeader) -> None:
        """Raises CorruptLogError for a snapshot that a peer should not have sent. In the disk's thread, before it is under its name.

        What it says is no invariant of this node: to stop for it would let a forged peer stop every follower.
        """
        if header.cluster_id != self._config.cluster_id:
            # The fetches before it named the cluster: this is no matter of a wrong address.
            raise CorruptLogError(
                f"a snapshot of cluster {header.cluster_id!r}, in cluster {self._config.cluster_id!r}"
            )
        flaw = VoterSet.flaw(header.voters)
        if flaw:
            raise CorruptLogError(f"the voters of a snapshot make no sense: {flaw}")

    def _install(self, snapshot_id: SnapshotId) -> SnapshotHeader:
        header = self._store.snapshot_header(snapshot_id)
        self._give_up_writing()
        self._write()
        self._store.install_snapshot(snapshot_id)
        self._tail.reset(snapshot_id.end_offset)
        self.log_start_offset = snapshot_id.end_offset
        self.last_timestamp_ms = max(self.last_timestamp_ms, header.last_timestamp_ms)
        self.generation = max(self.generation, header.generation)
        # Those before it went with the log.
        self._snapshots = (snapshot_id,)
        log.info("snapshot installed", snapshot=str(snapshot_id))
        return header

    def _give_up_writing(self) -> None:
        if self._writer is not None:
            self._writer.cancel()
            self._writer = None

    def _drop_snapshot(self, effect: ev.DropSnapshot) -> None:
        self._store.drop_snapshot(effect.snapshot_id)

    def _load_snapshot(self, effect: ev.LoadSnapshot) -> None:
        self._listener.snapshot_loaded(effect.snapshot_id)

    def _voters_changed(self, effect: ev.VotersChanged) -> None:
        self._voters = effect.voters
        self._listener.voters_changed(effect.offset, effect.voters)

    def _peers_changed(self, effect: ev.PeersChanged) -> None:
        self._dial(effect.peers)

    def _dial(self, peers: tuple[Voter, ...]) -> None:
        """Talk to these, and to nobody else: hang up, dial, and dial anew where an address has changed."""
        wanted = {peer.node_id: peer.endpoint for peer in peers if peer.node_id != self._config.node_id}
        for node_id, peer in list(self._peers.items()):
            if wanted.get(node_id) != peer.endpoint:
                del self._peers[node_id]
                peer.close()
        for node_id, endpoint in wanted.items():
            if endpoint and node_id not in self._peers:
                answer_s = self._config.request_timeout_ms / 1000
                self._peers[node_id] = Peer(node_id, endpoint, self._transport, self, self._spawn, answer_s)

    def _disk_turn(self) -> None:
        self._disk_turn_due = False
        if self._closed:
            return
        try:
            self._write_and_flush()
        except Exception as error:
            self._fail(error)

    def _write(self) -> None:
        spans, self._unwritten = self._unwritten, []
        for span in spans:
            self._store.append(span.data, span.base_offset, span.end_offset)

    def _write_and_flush(self) -> None:
        self._write()
        if self._flush_wanted:
            self._flush_wanted = False
            self._store.flush(self._flushed, inline=self._flush_inline)

    def _flushed(self, result: int | StorageError) -> None:
        if isinstance(result, StorageError):
            self._fail(result)
        else:
            self.sync_latency.observe(self._store.last_sync_s)
            self._durable_end_offset = result
            self._step(ev.Flushed(result))

    def _high_watermark_advanced(self, effect: ev.HighWatermarkAdvanced) -> None:
        while self._proposed and self._proposed[0][0] <= effect.offset:
            self.commit_latency.observe(self._loop.time() - self._proposed.popleft()[1])
        self._listener.committed(effect.offset)

    def _leader_changed(self, effect: ev.LeaderChanged) -> None:
        if effect.leader_id >= 0:
            log.info("leader known", leader=effect.leader_id, epoch=effect.epoch)
        self._listener.leader_changed(effect.leader_id, effect.epoch)

    def _became_leader(self, effect: ev.BecameLeader) -> None:
        start = self._tail.end_offset
        message = records_pb2.LeaderChangeRecord(
            leader_id=self._config.node_id,
            voters=[voter.node_id for voter in self._voters],
            granting_voters=effect.granting_voters,
        )
        chunk = batch.encode(
            [record(message).data],
            base_offset=start,
            epoch=effect.epoch,
            timestamp_ms=self.next_timestamp_ms(),
            control=True,
        )
        log.info("became leader", epoch=effect.epoch, start_offset=start)
        self.propose(chunk, start, start + 1, effect.epoch)
        self._listener.became_leader(effect.epoch, start)

    def _lost_leadership(self, effect: ev.LostLeadership) -> None:
        log.warning("lost leadership", epoch=effect.epoch, reason=effect.reason)
        self._proposed.clear()
        self._listener.lost_leadership(effect.epoch, effect.reason)

    def _round_started(self, effect: ev.RoundStarted) -> None:
        self._round = effect.round

    def _round_confirmed(self, effect: ev.RoundConfirmed) -> None:
        self._listener.round_confirmed(effect.round)

    def _fatal(self, effect: ev.Fatal) -> None:
        raise FatalError(effect.reason)

    def _refused(self, effect: ev.Refused) -> None:
        """Count it, and say it once in a while."""
        kind, now = (effect.message, effect.field), self._loop.time()
        self.refused[kind] += 1
        said_at, count = self._refusals_logged.get(kind, (-math.inf, 0))
        if now - said_at >= REFUSAL_LOG_INTERVAL_S:
            self._refusals_logged[kind] = (now, self.refused[kind])
            log.warning(
                "a message is refused",
                message=effect.message,
                field=effect.field,
                reason=effect.reason,
                since_last_said=self.refused[kind] - count,
            )

    def _fail(self, error: Exception) -> None:
        """Stop for good. An exception that is none of ours is a defect: nobody knows what state it has left behind."""
        if self._closed:
            return
        if not isinstance(error, FatalError):
            log.error("a defect in the replica", exc_info=error)
            error = FatalError(f"a defect: {type(error).__name__}: {error}")
        log.critical("the replica stops", error=str(error))
        self.close()
        self._listener.failed(error)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(coroutine)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task


_EFFECTS: dict[type[Any], Callable[[Replica, Any], None]] = {
    ev.Send: Replica._send,
    ev.SendFetch: Replica._send,
    ev.SendFetchSnapshot: Replica._send,
    ev.Reply: Replica._reply,
    ev.StoreSnapshot: Replica._store_snapshot,
    ev.DropSnapshot: Replica._drop_snapshot,
    ev.LoadSnapshot: Replica._load_snapshot,
    ev.VotersChanged: Replica._voters_changed,
    ev.PeersChanged: Replica._peers_changed,
    ev.Append: Replica._append,
    ev.Truncate: Replica._truncate,
    ev.Flush: Replica._flush,
    ev.HighWatermarkAdvanced: Replica._high_watermark_advanced,
    ev.LeaderChanged: Replica._leader_changed,
    ev.BecameLeader: Replica._became_leader,
    ev.LostLeadership: Replica._lost_leadership,
    ev.RoundStarted: Replica._round_started,
    ev.RoundConfirmed: Replica._round_confirmed,
    ev.Refused: Replica._refused,
    ev.Fatal: Replica._fatal,
}
