"""The shell of the controller: receives requests, has them decided, proposes the records, and
answers once the answer is true.

Theory of operation. A handler only appends to the intake. One *turn* of the event loop decides the
waiting requests, up to a bound, adds each decision to the log of the epoch, and proposes all as one
chunk. The next turn waits for the commit of that chunk, so load makes chunks larger, not more
numerous; only when many bytes wait, up to three chunks are uncommitted at a time. Replies are
parked until what they say is true (``parking``).

Claiming: a new leader folds the whole local log, the inherited uncommitted tail included, before it
decides anything. A node that loses the leadership drops the pending image. Writes in the log that
are not committed then have an unknown outcome; committed writes that wait to be visible succeed,
and the answer says how far they got; all other requests definitely failed.

Why: docs/decisions/008-one-turn-one-chunk.md
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from controller.decider import Decider
from controller.disk.snapshot_generator import SnapshotGenerator, SnapshotLoad
from controller.disk.space import FINE, SpaceWatch
from controller.service.answers import Answers
from controller.service.broker_probes import BrokerProbes
from controller.service.description import ControllerDescription
from controller.service.directory import Directory
from controller.service.farewell import POLL_S, Farewell
from controller.service.hand_over import HandOver
from controller.service.image_loader import CommittedImage
from controller.service.intake import Intake
from controller.service.joining import Joining
from controller.service.leadership import Leadership
from controller.service.observers import Observers
from controller.service.refusals import Refusals
from controller.service.stall_log import log_stall
from controller.service.turns import Turns
from controller.settings import ControllerSettings
from raftlog.errors import ApiError, ErrorCode, FatalError
from raftlog.metadata.image import Image
from raftlog.quorum import events as quorum_events
from raftlog.quorum.config import QuorumConfig
from raftlog.replica.replica import Replica
from raftlog.step_tracer import StepTracer
from raftlog.storage.api import LogStore, SnapshotId
from raftlog.transport.api import Acceptor, Conversation, Link, Transport
from raftlog.voter import Voter
from raftlog.wire.controller.v1 import controller_pb2 as pb

log = structlog.get_logger(__name__)

TICK_S = 0.1
GAP_S = 0.1
"""If the event loop is paused for longer (a stopped process, garbage collection, swap), it misses
heartbeats: it extends all sessions.
"""
STANDBY_FOLD_S = 0.002
PAUSE_MAX_S = 0.05
"""The longest pause before a callback of ``soon``: on a busy machine a turn seems longer than it
is.
"""


class ControllerService:
    """One controller node above its replica."""

    def __init__(
        self,
        settings: ControllerSettings,
        quorum: QuorumConfig,
        store: LogStore,
        transport: Transport,
        *,
        rng: random.Random,
        wall_clock_ms: Callable[[], int],
        on_failure: Callable[[FatalError], None],
        stopwatch: Callable[[], float] | None = None,
        tracer: StepTracer[quorum_events.Event, quorum_events.Effect] | None = None,
    ) -> None:
        """``stopwatch``: a clock in seconds that advances within a turn of the event loop; the
        clock of the loop need not. ``tracer``: of every step of the quorum's state machine.
        """
        self.settings = settings
        self.quorum = quorum
        self._directory = Directory(quorum.node_id, quorum.voters)
        self._answers = Answers(self._directory)
        self._rng = rng
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self.replica = Replica(
            quorum,
            store,
            transport,
            self,
            rng=rng,
            wall_clock_ms=wall_clock_ms,
            tracer=tracer,
        )
        self.snapshots = SnapshotGenerator(
            settings,
            self.replica,
            cluster_id=quorum.cluster_id,
            generation=lambda: self.generation,
            now=self._loop.time(),
            wall_clock_ms=wall_clock_ms,
        )
        self._load: SnapshotLoad | None = None
        self._committed = CommittedImage(self.snapshots.applied)
        self._high_watermark = -1
        self.leadership: Leadership | None = None
        self._stopwatch = stopwatch or self._loop.time
        self._intake = Intake(settings.request_timeout_ms, settings.request_timeout_max_ms)
        self._gone_links: set[Any] = set()
        self.refusals = Refusals(self._answers, self._intake, self, self._stopwatch)
        self._turn_due = False
        self._observers_due = False
        self._commit_due = False
        self._fold_handle: asyncio.TimerHandle | None = None
        self._next_tick = 0.0
        self._tick_handle: asyncio.TimerHandle | None = None
        self._observers = Observers(self, self.soon, self._stopwatch)
        self._broker_probes = BrokerProbes(transport, lambda: self.decider, self._broker_gone)
        self.hand_over = HandOver(self)
        self._farewell = Farewell()
        self._joining = Joining(
            self, transport, rng, auto_join=settings.controller_quorum_auto_join_enable
        )
        self._store = store
        self.space = SpaceWatch(settings.free_space_reserve_bytes)
        self.turns = Turns(self, self.replica, self._intake, self._answers, self._stopwatch)
        self.successor = asyncio.Event()
        """Set while another node is known to lead."""

    # --- life ------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Recover the log.

        Optional: ``start`` does it if this was not called. Raises StorageError, CorruptLogError.
        """
        self.replica.recover()

    def start(self) -> None:
        """Recover and join the quorum. Raises StorageError, CorruptLogError."""
        self.replica.start()
        self._next_tick = self._loop.time() + TICK_S
        self._tick_handle = self._loop.call_at(self._next_tick, self._tick)

    def acceptors(self) -> dict[Conversation, Acceptor]:
        """The acceptor of each conversation that a controller serves."""
        return {
            **self.replica.acceptors(),
            Conversation.CONTROLLER: self._accept,
            Conversation.OBSERVER: self._observers.accept,
        }

    async def leave(self, reason: str) -> None:
        """Transfer the leadership, if this node has it, before a planned stop: no accepted write
        has an unknown outcome if others live.
        """
        if self.leadership is None:
            return
        done: asyncio.Future[ApiError | None] = self._loop.create_future()
        self.hand_over.begin_to_anybody(reason, done.set_result)
        await done
        # If the transfer failed or took too long, the waiting clients learn it now, not when the
        # process ends.
        self.replica.resign(reason)

    async def see_off(self) -> None:
        """Refuse new requests, and wait until none can be in flight to this node: cutting its link
        would make its outcome unknown.
        """
        error = self.not_controller() or ApiError(ErrorCode.NOT_CONTROLLER, "the node stops")
        self._farewell.begin(self._loop.time(), self._directory.failure(0, error))
        self.refuse_waiting()
        over = self._loop.create_future()

        def look() -> None:
            if self._answers.closed or self._farewell.is_over(self._loop.time()):
                over.set_result(None)
            else:
                self._loop.call_later(POLL_S, look)

        self._loop.call_later(POLL_S, look)
        await over

    def close(self) -> None:
        """Stop for good."""
        self._answers.closed = True
        for handle in (self._tick_handle, self._fold_handle):
            if handle is not None:
                handle.cancel()
        self.hand_over.close()
        self._broker_probes.reset()
        self._joining.close()
        self.replica.close()

    # --- what others may know --------------------------------------------------------------------

    @property
    def voters(self) -> tuple[Voter, ...]:
        """The voter set in force on this node, committed or not."""
        return self._directory.voters

    @property
    def image(self) -> Image:
        """The committed image; behind the high watermark only while a long log is being folded."""
        return self._committed.image

    @property
    def loading(self) -> bool:
        """Whether the snapshot below the log start is still being loaded."""
        return self._load is not None

    @property
    def committed_end(self) -> int:
        """The high watermark, exclusive; -1 unknown."""
        return self._high_watermark

    @property
    def cluster_id(self) -> str:
        """The id of this cluster."""
        return self.quorum.cluster_id

    @property
    def generation(self) -> int:
        """The generation of the log."""
        return self.replica.generation

    @property
    def leader_id(self) -> int:
        """The active controller as far as this node knows, -1 if unknown."""
        return self._directory.leader_id

    @property
    def controller_epoch(self) -> int:
        """The newest epoch this node knows."""
        return self._directory.leader_epoch

    @property
    def lowest_acknowledged_offset(self) -> int:
        """LAO, inclusive; -1 unknown, also on every node that is not the active controller."""
        return self.leadership.log.lao.lao if self.leadership is not None else -1

    @property
    def lowest_known_lao(self) -> int:
        """The lowest LAO that an LAO member knows, which ``visible`` waits for; -1 unknown, also on
        every node that is not the active controller.
        """
        return self.leadership.log.lao.min_known_lao if self.leadership is not None else -1

    @property
    def decider(self) -> Decider | None:
        """Who decides requests; None unless this node leads and has finished claiming."""
        return self.leadership.decider if self.leadership is not None else None

    @property
    def log_start_offset(self) -> int:
        """The first offset in this node's log."""
        return self.replica.log_start_offset

    @property
    def newest_snapshot(self) -> SnapshotId | None:
        """The newest snapshot of this node, if any."""
        return self.replica.snapshots.newest

    def describe(self) -> ControllerDescription:
        """What this node has folded, and what waits in it."""
        committed, intake = self._committed, self._intake
        return ControllerDescription(
            committed.offset,
            committed.epoch,
            committed.state_hash,
            len(intake),
            intake.waiting_bytes,
            self._next_tick,
        )

    def now(self) -> float:
        """Seconds of the loop's clock."""
        return self._loop.time()

    def read(self, offset: int, until: int, max_bytes: int) -> bytes:
        """Read whole batches of the log."""
        return self.replica.read(offset, until, max_bytes)

    def not_controller(self) -> ApiError | None:
        """Why requests are refused here, None if they are not."""
        if self.leadership is not None and not self._farewell.begun:
            return None
        return self._directory.not_controller()

    def leader_endpoint(self, leader_id: int) -> str:
        """The endpoint of a voter, empty if unknown."""
        return self._directory.endpoint_of(leader_id)

    # --- ReplicaListener -------------------------------------------------------------------------

    def leader_changed(self, leader_id: int, epoch: int) -> None:
        """Remember the leader that clients are redirected to."""
        self._directory.leader_id, self._directory.leader_epoch = leader_id, epoch
        if leader_id not in (-1, self.quorum.node_id):
            self.successor.set()
            self.hand_over.successor_known()

    def became_leader(self, epoch: int, epoch_start_offset: int) -> None:
        """Begin to claim."""
        self._directory.leader_id, self._directory.leader_epoch = self.quorum.node_id, epoch
        self.successor.clear()
        self.leadership = Leadership(
            epoch, epoch_start_offset, self._committed.image, self._answers.send
        )
        self.wake()

    def lost_leadership(self, epoch: int, reason: str) -> None:
        """Drop the pending image, and answer every waiting request."""
        leadership, self.leadership = self.leadership, None
        if leadership is None:
            return
        self.refusals.lost(leadership, f"the leadership of epoch {epoch} was lost: {reason}")
        self.hand_over.lost()
        self._broker_probes.reset()
        if not self.hand_over.holds(self._loop.time()):
            self.refuse_waiting()
        self._observers.refuse_all()
        self.wake()

    def refuse_waiting(self) -> None:
        """Refuse every request that waits in the intake of a node that does not lead: none of them
        was started.
        """
        self.refusals.refuse_waiting()

    def soon(self, pause_s: float, callback: Callable[[], None]) -> None:
        """Call ``callback`` in a later turn of the event loop, unless this node has stopped by
        then.
        """
        if pause_s:
            self._loop.call_later(min(pause_s, PAUSE_MAX_S), self._unless_closed, callback)
        else:
            self._loop.call_soon(self._unless_closed, callback)

    def _unless_closed(self, callback: Callable[[], None]) -> None:
        if not self._answers.closed:
            callback()

    def snapshot_loaded(self, snapshot_id: SnapshotId) -> None:
        """Load a snapshot, one slice in each turn.

        Until that is done, the node folds nothing and does not claim.
        """
        if snapshot_id.end_offset > self._committed.offset + 1:
            self._load = SnapshotLoad(self.replica.snapshots, snapshot_id)
            self.snapshots.installed(self._loop.time())
            self.wake()

    def voters_changed(self, offset: int, voters: tuple[Voter, ...]) -> None:
        """Another voter set is in force."""
        self._directory.voters = voters

    def read_index_confirmed(self, number: int) -> None:
        """Send the replies without records that waited for this round."""
        if self.leadership is not None:
            self.leadership.parking.read_index_confirmed(number)
            if self._intake:
                self.wake()

    def failed(self, error: FatalError) -> None:
        """Stop this node, because its replica has stopped. Waiting requests get no answer."""
        self.close()
        self._on_failure(error)

    def committed(self, high_watermark: int) -> None:
        """Send the answers that have become true.

        Everything else that follows from a commit happens after they have left.
        """
        self._high_watermark = high_watermark
        leadership = self.leadership
        if leadership is None:
            # No answer depends on a standby's image: fold it once the acknowledgement is on its
            # way, for several commits at once.
            if self._fold_handle is None and not self._answers.closed:
                self._fold_handle = self._loop.call_later(STANDBY_FOLD_S, self._fold_standby)
        elif leadership.decider is None:
            self.wake()
        else:
            leadership.parking.committed(high_watermark)
            if not self._commit_due:
                self._commit_due = True
                self._loop.call_soon(self._after_commit)

    def _fold_standby(self) -> None:
        self._fold_handle = None
        self.wake()

    def _after_commit(self) -> None:
        """Replace the committed image, move LAO, tell observers, and decide what has waited for
        this commit.
        """
        self._commit_due = False
        leadership = self.leadership
        if self._answers.closed or leadership is None or leadership.decider is None:
            return
        advanced_bytes = leadership.log.commit(self._high_watermark)
        if advanced_bytes is not None:
            self._committed.replace(leadership.log.committed)
            self.snapshots.applied(advanced_bytes)
        self._observers.release()
        self._visibility_moved(leadership)
        if self._intake or leadership.decider.due.is_urgent():
            self.wake()

    # --- requests in -----------------------------------------------------------------------------

    def _accept(self, link: Link) -> ControllerService:
        self._farewell.opened(link)
        return self

    def received(self, link: Link, messages: Sequence[Any]) -> None:
        """Queue the requests of one envelope, or refuse them. Nothing is decided here."""
        refused = self.not_controller()
        now = self._loop.time()
        self._farewell.heard(now)
        if self.hand_over.holds(now) and not self._farewell.begun:
            refused = None
        for request in messages:
            if refused is not None:
                self._answers.refuse(link, request, refused)
                continue
            body = request.WhichOneof("body")
            if body is None:
                link.unknown_kind("a request without a body")
                self._answers.refuse(
                    link,
                    request,
                    ApiError(ErrorCode.INVALID_REQUEST, "a request without a body", field="body"),
                )
                continue
            heartbeat = body == "broker_heartbeat"
            if heartbeat:
                self._heard(link, request.broker_heartbeat)
            try:
                self._intake.add(link, request, now, heartbeat=heartbeat, kind=body)
            except ApiError as error:
                self._answers.refuse(link, request, error)
        self.wake()

    def closed(self, link: Link, reason: str) -> None:
        """A link has closed.

        The next tick drops its parked replies and deferred requests; its queued requests are still
        decided.
        """
        self._gone_links.add(link)
        self._farewell.closed(link)
        self._broker_probes.closed(link)

    def _heard(self, link: Any, heartbeat: pb.BrokerHeartbeatRequest) -> None:
        # A heartbeat counts on arrival, not when it is decided: a long or full queue must not fence
        # the brokers that wait in it.
        decider = self.leadership.decider if self.leadership is not None else None
        if decider is not None and decider.heard(
            heartbeat.broker_id, heartbeat.broker_epoch, self._loop.time()
        ):
            self._broker_probes.heard(link, heartbeat.broker_id, heartbeat.broker_epoch)

    def _broker_gone(self, broker_id: int, broker_epoch: int) -> None:
        decider = self.decider
        if decider is not None:
            decider.found_gone(broker_id, broker_epoch, self._loop.time())
            self.wake()

    def is_broker(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether the committed image has this registration."""
        broker = self._committed.image.brokers.get(broker_id)
        return broker is not None and broker.epoch == broker_epoch

    def report(self, fetch: pb.MetadataFetchRequest) -> None:
        """Take from a broker's fetch what the broker has applied."""
        leadership = self.leadership
        if leadership is None or leadership.decider is None:
            return
        leadership.decider.report(
            fetch.replica_id,
            fetch.broker_epoch,
            fetch.controller_epoch,
            fetch.applied_offset,
            fetch.told_lowest_acknowledged_offset,
            self._loop.time(),
        )
        self._visibility_moved(leadership)
        if leadership.decider.due.is_urgent():
            self.wake()

    def _visibility_moved(self, leadership: Leadership) -> None:
        lao = leadership.log.lao
        seen = (lao.lao, lao.min_known_lao)
        if seen == leadership.visibility_seen:
            return
        if seen[0] != leadership.visibility_seen[0] and not self._observers_due:
            # After the other reports of this turn of the event loop: each observer gets one answer
            # for all of them.
            self._observers_due = True
            self._loop.call_soon(self._release_observers)
        leadership.visibility_seen = seen
        leadership.parking.visibility(*seen)

    def _release_observers(self) -> None:
        self._observers_due = False
        if not self._answers.closed:
            self._observers.release()

    # --- turns -----------------------------------------------------------------------------------

    def wake(self) -> None:
        """Run a turn soon, unless one is due anyway."""
        # Never run a turn directly: the replica calls its listener from inside its own step.
        if not self._turn_due and not self._answers.closed:
            self._turn_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        if self._answers.closed:
            return
        try:
            leadership = self.leadership
            if self._load is not None:
                self._load_slice(self._load)
            elif leadership is None:
                if not self._committed.advance(self.replica, self._high_watermark):
                    self.wake()
            elif leadership.decider is None:
                self._claim(leadership)
            elif not self.hand_over.under_way and not self._farewell.begun:
                self.turns.decide_all(leadership, leadership.decider)
        except FatalError as error:
            log.critical("the controller stops", error=str(error))
            self.failed(error)
        except (
            Exception
        ) as error:  # a bug: no controller is better than one that leads and decides nothing
            log.exception("the controller stops")
            self.failed(FatalError(f"a defect: {type(error).__name__}: {error}"))

    def _load_slice(self, load: SnapshotLoad) -> None:
        image = load.step()
        if image is not None:
            self._load = None
            self._committed.replace(image)
            log.info("snapshot loaded", offset=image.offset, state_hash=f"{image.state_hash:032x}")
            if self.leadership is not None:
                # This node was elected while it loaded: begin to claim from this image.
                stale = self.leadership.log
                self.leadership = Leadership(
                    stale.epoch, stale.epoch_start_offset, image, self._answers.send
                )
        self.wake()

    def _claim(self, leadership: Leadership) -> None:
        if leadership.claim(
            self.replica, self.quorum, self.settings, self._rng, self._loop.time(), self.generation
        ):
            log.info(
                "active controller", epoch=leadership.epoch, offset=leadership.log.pending.offset
            )
            self.committed(self._high_watermark)
        self.wake()

    # --- time ------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = self._loop.time()
        gap_s = now - self._next_tick
        self._next_tick = now + TICK_S
        self._tick_handle = self._loop.call_at(self._next_tick, self._tick)
        if gap_s > GAP_S:
            # Whoever leads now: if this node led before a long pause, the line says why it leads no
            # more.
            log.warning("the loop was away", gap_ms=round(gap_s * 1000))
        if self._load is None:
            try:
                self.snapshots.tick(now, self._committed.state_bytes, lambda: self._committed.image)
            except FatalError as error:
                self.failed(error)
        if not self._answers.closed:
            self._joining.tick(now)
        if self.space.due(now) and not self._answers.closed:
            self._look_at_space(now)
        leadership = self.leadership
        gone, self._gone_links = self._gone_links, set()
        if self._answers.closed or leadership is None:
            return
        if gone:
            leadership.parking.abandon(gone)
            self._intake.abandon(gone)
        self.refusals.go_on()
        self._observers.release(expired_only=True)
        decider = leadership.decider
        if decider is None:
            return
        log_stall(decider, now)
        if gap_s > GAP_S:
            decider.was_away(gap_s, now)
        elif self._intake.wake(now) or decider.due.next_deadline() <= now:
            self.wake()

    def _look_at_space(self, now: float) -> None:
        try:
            free_bytes = self._store.free_bytes()
        except FatalError as error:
            self.failed(error)
            return
        space = self.space
        if space.measured(free_bytes):
            log.warning(
                "disk below the free-space reserve" if space.low else "disk has space again",
                free_bytes=free_bytes,
            )
            self.replica.space_changed(low=space.low)
        if self.leadership is None:
            space.verdict = FINE
            return
        before = space.verdict.refusal
        verdict = space.judge(self.replica.describe(now), self.quorum.node_id, now)
        if verdict.refusal != before:
            log.error(
                "writes are refused" if verdict.refusal else "writes go on", reason=verdict.refusal
            )
            self.wake()
        if verdict.hand_over_to >= 0 and self.leadership.decider is not None:
            self.hand_over.begin(verdict.hand_over_to, "the disk is below its free-space reserve")
