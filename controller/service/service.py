"""The controller's shell: takes requests in, has them decided, proposes what was decided, and answers when it is true.

Theory of operation. A handler only appends to the intake; one *turn* of the loop decides everything that waits, folds it into the
pending image as it goes, and proposes the batches of all of it as one chunk. The next turn waits for that chunk's commit, so
that load makes larger chunks and not more of them. Replies are parked until what they say is true (``parking``).

Claiming: a new leader folds the whole local log, the inherited uncommitted tail included, before it decides anything. Losing the
leadership drops the pending image with everything that hangs on it: writes in the log that are not committed have an unknown outcome,
committed ones that wait to be visible are answered with how far they got, and all else is refused for certain.

Why: docs/decisions/008-one-turn-one-chunk.md
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import structlog

from controller.active import ActiveController
from controller.decision import Decision, Defer, Duplicate, Refusal, Reply, TransferLeadership, Write
from controller.disk.snapshots import SnapshotLoad, Snapshots
from controller.disk.space import FINE, WRITES_WITHOUT_SPACE, SpaceWatch
from controller.service.answers import duplicate_of, failure, fill_error, say_how_far, send_quietly
from controller.service.broker_probes import BrokerProbes
from controller.service.farewell import POLL_S, Farewell
from controller.service.hand_over import HandOver
from controller.service.image_loader import CommittedImage
from controller.service.intake import Intake, Waiting
from controller.service.joining import Joining
from controller.service.leadership import Leadership
from controller.service.observers import Observers
from controller.service.parking import Parked
from controller.settings import ControllerSettings
from controller.state.id_waits import AwaitedIdError
from raftlog import resource_limits as limits
from raftlog.errors import ApiError, ErrorCode, FatalError
from raftlog.metadata.image import Image
from raftlog.quorum.config import QuorumConfig
from raftlog.replica.replica import Replica
from raftlog.storage.api import LogStore, SnapshotId
from raftlog.transport.api import Acceptor, Conversation, Link, Transport
from raftlog.voter import Voter
from raftlog.wire.controller.v1 import controller_pb2 as pb

log = structlog.get_logger(__name__)

TICK_S = 0.1
GAP_S = 0.1
"""A loop that was away for longer (a pause, a collection, swap) has not heard heartbeats: all sessions are extended."""
MAX_PARKED = limits.CONTROLLER_MAX_PARKED_REPLIES
MAX_TURN_RECORDS, MAX_TURN_S = limits.CONTROLLER_TURN_MAX_RECORDS, limits.CONTROLLER_TURN_MAX_MS / 1000
LONG_TURN_S = limits.TURN_MAX_MS / 1000
CHUNK_BYTES = 64 << 10
"""Of requests: what one turn decides. When more waits, the next chunk is decided while this one is written and replicated."""
MAX_UNCOMMITTED_CHUNKS = 3
STANDBY_FOLD_S = 0.002
PAUSE_MAX_S = 0.05
"""A busy machine makes a turn look long."""
IDLE_S = 0.0004
"""Requests that come singly and not more often than this are synced inline: nothing else waits for the loop."""


_SHARE_USED_UP = ApiError(
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    "this connection's share of the replies that may wait is used up",
    throttle_time_ms=limits.RETRY_AFTER_MS,
)


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
    ) -> None:
        """``stopwatch``: seconds that go on within a turn of the loop, as those of its own clock need not."""
        self.settings = settings
        self.quorum = quorum
        self.voters = quorum.voters
        """The set in force here, committed or not."""
        self._rng = rng
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self.replica = Replica(quorum, store, transport, self, rng=rng, wall_clock_ms=wall_clock_ms)
        self.snapshots = Snapshots(
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
        self._leader_id, self._leader_epoch = -1, 0
        self.leadership: Leadership | None = None
        self._stopwatch = stopwatch or self._loop.time
        self._intake = Intake(settings.request_timeout_ms / 1000, settings.request_timeout_max_ms / 1000)
        self._gone_links: set[Any] = set()
        # Of leaderships that were lost: who still waits for an answer.
        self._lost: deque[tuple[Leadership, str, Iterator[tuple[Parked, bool]]]] = deque()
        self._refusing = self._refusals_due = False
        self._turn_due = False
        self._observers_due = False
        self._commit_due = False
        self._fold_handle: asyncio.TimerHandle | None = None
        self._last_turn: tuple[float, int] = (0.0, 0)
        self._next_tick = 0.0
        self._tick_handle: asyncio.TimerHandle | None = None
        self._observers = Observers(self, self._soon, self._stopwatch)
        self._broker_probes = BrokerProbes(transport, lambda: self.active, self._broker_gone)
        self.hand_over = HandOver(self)
        self._farewell = Farewell()
        self._joining = Joining(self, transport, rng, auto_join=settings.controller_quorum_auto_join_enable)
        self._store = store
        self.space = SpaceWatch(settings.metadata_log_free_space_reserve_bytes)
        self._closed = False
        self.successor = asyncio.Event()
        """Set while another node is known to lead."""

    # --- life ---------------------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Recover the log; ``start`` does it otherwise. Raises StorageError, CorruptLogError."""
        self.replica.recover()

    def start(self) -> None:
        """Recover and join the quorum. Raises StorageError, CorruptLogError."""
        self.replica.start()
        self._next_tick = self._loop.time() + TICK_S
        self._tick_handle = self._loop.call_at(self._next_tick, self._tick)

    def acceptors(self) -> dict[Conversation, Acceptor]:
        """Everything a controller serves."""
        return {
            **self.replica.acceptors(),
            Conversation.CONTROLLER: self._accept,
            Conversation.OBSERVER: self._observers.accept,
        }

    async def leave(self, reason: str) -> None:
        """Hand the leadership over, if this node has it, before a planned stop: nothing accepted is left unknown if others live."""
        if self.leadership is None:
            return
        done: asyncio.Future[ApiError | None] = self._loop.create_future()
        self.hand_over.begin_to_anybody(reason, done.set_result)
        await done
        # Not handed over, in time or at all: whoever waits is told so now, not when the process is gone.
        self.replica.resign(reason)

    async def see_off(self) -> None:
        """Take no requests any more, and wait until none can be on its way here: a link that is cut would leave it unknown."""
        error = self.not_controller() or ApiError(ErrorCode.NOT_CONTROLLER, "the node stops")
        notice = failure(
            0, error, controller_epoch=self._leader_epoch, leader_endpoint=self.leader_endpoint(error.leader_id)
        )
        self._farewell.begin(self._loop.time(), notice)
        self.refuse_waiting()
        over = self._loop.create_future()

        def look() -> None:
            if self._closed or self._farewell.is_over(self._loop.time()):
                over.set_result(None)
            else:
                self._loop.call_later(POLL_S, look)

        self._loop.call_later(POLL_S, look)
        await over

    def close(self) -> None:
        """Stop for good."""
        self._closed = True
        for handle in (self._tick_handle, self._fold_handle):
            if handle is not None:
                handle.cancel()
        self.hand_over.close()
        self._broker_probes.reset()
        self._joining.close()
        self.replica.close()

    # --- what others may know -----------------------------------------------------------------------------------------

    @property
    def image(self) -> Image:
        """The committed image; behind the high watermark only while a long log is being folded."""
        return self._committed.image

    @property
    def loading(self) -> bool:
        """Whether the image that the log begins with is not all there yet."""
        return self._load is not None

    @property
    def committed_end(self) -> int:
        """The high watermark, exclusive; -1 unknown."""
        return self._high_watermark

    @property
    def cluster_id(self) -> str:
        """Of this cluster."""
        return self.quorum.cluster_id

    @property
    def generation(self) -> int:
        """Of this log."""
        return self.replica.generation

    @property
    def leader_id(self) -> int:
        """The active controller as far as this node knows, -1 if unknown."""
        return self._leader_id

    @property
    def controller_epoch(self) -> int:
        """The newest epoch this node knows."""
        return self._leader_epoch

    @property
    def lowest_acknowledged_offset(self) -> int:
        """LAO, inclusive; -1 unknown, also on every node that is not the active controller."""
        return self.leadership.lao.lao if self.leadership is not None else -1

    @property
    def active(self) -> ActiveController | None:
        """What decides, while this node is the active controller and has finished claiming."""
        return self.leadership.active if self.leadership is not None else None

    @property
    def log_start_offset(self) -> int:
        """The first offset in this node's log."""
        return self.replica.log_start_offset

    @property
    def newest_snapshot(self) -> SnapshotId | None:
        """Of this node's."""
        return self.replica.snapshots[-1] if self.replica.snapshots else None

    def now(self) -> float:
        """Seconds of the loop's clock."""
        return self._loop.time()

    def read(self, offset: int, until: int, max_bytes: int) -> bytes:
        """Whole batches of the log."""
        return self.replica.read(offset, until, max_bytes)

    def not_controller(self) -> ApiError | None:
        """Why requests are refused here, None if they are not."""
        if self.leadership is not None and not self._farewell.begun:
            return None
        return ApiError(
            ErrorCode.NOT_CONTROLLER,
            f"node {self.quorum.node_id} is not the active controller"
            + ("" if self._leader_id not in (-1, self.quorum.node_id) else ", and knows of none"),
            leader_id=self._leader_id if self._leader_id != self.quorum.node_id else -1,
        )

    def leader_endpoint(self, leader_id: int) -> str:
        """Where a voter listens, empty if unknown."""
        return next((voter.endpoint for voter in self.voters if voter.node_id == leader_id), "")

    # --- ReplicaListener ----------------------------------------------------------------------------------------------

    def leader_changed(self, leader_id: int, epoch: int) -> None:
        """Remember who to send others to."""
        self._leader_id, self._leader_epoch = leader_id, epoch
        if leader_id not in (-1, self.quorum.node_id):
            self.successor.set()
            self.hand_over.successor_known()

    def became_leader(self, epoch: int, epoch_start_offset: int) -> None:
        """Begin to claim."""
        self._leader_id, self._leader_epoch = self.quorum.node_id, epoch
        self.successor.clear()
        self.leadership = Leadership(epoch, epoch_start_offset, self._committed.image, self._send_parked)
        self._schedule_turn()

    def lost_leadership(self, epoch: int, reason: str) -> None:
        """Drop what is not committed; tell whoever waits."""
        leadership, self.leadership = self.leadership, None
        if leadership is None:
            return
        why = f"the leadership of epoch {epoch} was lost: {reason}"
        self._lost.append((leadership, why, leadership.parking.drain()))
        self._refuse_some()
        self.hand_over.lost()
        self._broker_probes.reset()
        if not self.hand_over.holds(self._loop.time()):
            self.refuse_waiting()
        self._observers.refuse_all()
        self._schedule_turn()

    def refuse_waiting(self) -> None:
        """Send those elsewhere who wait at a node that does not lead: nothing of theirs was begun."""
        self._refusing = True
        self._refuse_some()

    def _refuse_some(self) -> None:
        """Answer those who wait in vain; what is left when the turn's share is used up comes in the next turn.

        [65,536 requests wait, the leadership is lost, and all are refused at once: a second in which this node hears no new leader.]
        """
        if self._refusals_due:
            return
        begun = self._stopwatch()
        refusals = self._refusals()
        for _ in range(limits.CONTROLLER_TURN_MAX_REFUSALS):
            if not next(refusals, False):
                return
            if self._stopwatch() - begun >= LONG_TURN_S:
                break
        self._refusals_due = True
        self._soon(self._stopwatch() - begun, self._refuse_more)

    def _refuse_more(self) -> None:
        self._refusals_due = False
        self._refuse_some()

    def _refusals(self) -> Iterator[bool]:
        """Answer one at each step: of a leadership that is lost, of a node that does not lead, and those whose time is up."""
        while self._lost:
            lost, why, left = self._lost[0]
            for parked, is_committed in left:
                self._give_up(lost, parked, is_committed, ErrorCode.NOT_CONTROLLER, why)
                yield True
            self._lost.popleft()
        error = self.not_controller()
        if self._refusing and error is not None:
            for waiting in self._intake.drain():
                self._refuse(waiting.link, waiting.request, error)
                yield True
        self._refusing = False
        leadership, now = self.leadership, self._loop.time()
        if leadership is None:
            return
        for parked, is_committed in leadership.parking.expired(now):
            self._give_up(leadership, parked, is_committed, ErrorCode.REQUEST_TIMED_OUT, "not committed in time")
            yield True
        error = ApiError(ErrorCode.REQUEST_TIMED_OUT, "not begun in time")
        for waiting in self._intake.expired(now):
            self._refuse(waiting.link, waiting.request, error)
            yield True

    def _soon(self, pause_s: float, callback: Callable[[], None]) -> None:
        """Call back in another turn of the loop, unless this node has stopped by then."""
        if pause_s:
            self._loop.call_later(min(pause_s, PAUSE_MAX_S), self._unless_closed, callback)
        else:
            self._loop.call_soon(self._unless_closed, callback)

    def _unless_closed(self, callback: Callable[[], None]) -> None:
        if not self._closed:
            callback()

    def wake(self) -> None:
        """Go on deciding."""
        self._schedule_turn()

    def snapshot_loaded(self, snapshot_id: SnapshotId) -> None:
        """Load it, a slice a turn; nothing is folded and nothing claimed before that is done."""
        if snapshot_id.end_offset > self._committed.offset + 1:
            self._load = SnapshotLoad(self.replica, snapshot_id)
            self.snapshots.installed(self._loop.time())
            self._schedule_turn()

    def voters_changed(self, offset: int, voters: tuple[Voter, ...]) -> None:
        """Another voter set is in force."""
        self.voters = voters

    def round_confirmed(self, number: int) -> None:
        """Replies without records may go."""
        if self.leadership is not None:
            self.leadership.parking.round_confirmed(number)
            if self._intake:
                self._schedule_turn()

    def failed(self, error: FatalError) -> None:
        """The replica has stopped: so does this node, without a word to anybody who waits."""
        self.close()
        self._on_failure(error)

    def committed(self, high_watermark: int) -> None:
        """Answer what has become true; everything else that follows from a commit comes after the answers have left."""
        self._high_watermark = high_watermark
        leadership = self.leadership
        if leadership is None:
            # A standby's image is nobody's answer: it is folded when the acknowledgement is on its way, for several commits at once.
            if self._fold_handle is None and not self._closed:
                self._fold_handle = self._loop.call_later(STANDBY_FOLD_S, self._fold_standby)
        elif leadership.active is None:
            self._schedule_turn()
        else:
            leadership.parking.committed(high_watermark)
            if not self._commit_due:
                self._commit_due = True
                self._loop.call_soon(self._after_commit)

    def _fold_standby(self) -> None:
        self._fold_handle = None
        self._schedule_turn()

    def _after_commit(self) -> None:
        """Take over the committed image, move LAO, tell observers, and go on with what has waited for this commit."""
        self._commit_due = False
        leadership = self.leadership
        if self._closed or leadership is None or leadership.active is None:
            return
        news = leadership.committed(self._high_watermark)
        if news is not None:
            image, applied_bytes = news
            self._committed.replace(image)
            self.snapshots.applied(applied_bytes)
            leadership.active.committed_advanced(image)
        leadership.lao.committed(self._high_watermark)
        self._observers.release()
        self._visibility_moved(leadership)
        if self._intake or leadership.active.has_urgent_work():
            self._schedule_turn()

    # --- requests in --------------------------------------------------------------------------------------------------

    def _accept(self, link: Link) -> ControllerService:
        self._farewell.opened(link)
        return self

    def received(self, link: Link, messages: Sequence[Any]) -> None:
        """Requests of one envelope. Nothing is decided here."""
        refused = self.not_controller()
        now = self._loop.time()
        self._farewell.heard(now)
        if self.hand_over.holds(now) and not self._farewell.begun:
            refused = None
        for request in messages:
            if refused is not None:
                self._refuse(link, request, refused)
                continue
            body = request.WhichOneof("body")
            if body is None:
                link.unknown_kind("a request without a body")
                self._refuse(
                    link, request, ApiError(ErrorCode.INVALID_REQUEST, "a request without a body", field="body")
                )
                continue
            heartbeat = body == "broker_heartbeat"
            if heartbeat:
                self._heard(link, request.broker_heartbeat)
            try:
                self._intake.add(link, request, now, heartbeat=heartbeat, kind=body)
            except ApiError as error:
                self._refuse(link, request, error)
        self._schedule_turn()

    def closed(self, link: Link, reason: str) -> None:
        """What is parked or put off for it goes with the next tick. What waits its turn is decided: it may have been sent on purpose."""
        self._gone_links.add(link)
        self._farewell.closed(link)
        self._broker_probes.closed(link)

    def _heard(self, link: Any, heartbeat: pb.BrokerHeartbeatRequest) -> None:
        # At arrival, not when its turn comes: a long queue, or a full one, must not fence those who wait in it.
        active = self.leadership.active if self.leadership is not None else None
        if active is not None and active.heard(heartbeat.broker_id, heartbeat.broker_epoch, self._loop.time()):
            self._broker_probes.heard(link, heartbeat.broker_id, heartbeat.broker_epoch)

    def _broker_gone(self, broker_id: int, broker_epoch: int) -> None:
        active = self.active
        if active is not None:
            active.found_gone(broker_id, broker_epoch, self._loop.time())
            self._schedule_turn()

    def is_broker(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether there is such a registration."""
        broker = self._committed.image.brokers.get(broker_id)
        return broker is not None and broker.epoch == broker_epoch

    def report(self, fetch: pb.MetadataFetchRequest) -> None:
        """A broker's fetch says what it has applied."""
        leadership = self.leadership
        if leadership is None or leadership.active is None:
            return
        leadership.active.report(
            fetch.replica_id,
            fetch.broker_epoch,
            fetch.controller_epoch,
            fetch.applied_offset,
            fetch.told_lowest_acknowledged_offset,
            self._loop.time(),
        )
        self._visibility_moved(leadership)
        if leadership.active.has_urgent_work():
            self._schedule_turn()

    def _visibility_moved(self, leadership: Leadership) -> None:
        told = (leadership.lao.lao, leadership.lao.min_told)
        if told == leadership.told:
            return
        if told[0] != leadership.told[0] and not self._observers_due:
            # Behind the other reports that wait in this turn of the loop: one answer to each observer for all of them.
            self._observers_due = True
            self._loop.call_soon(self._release_observers)
        leadership.told = told
        leadership.parking.visibility(*told)

    def _release_observers(self) -> None:
        self._observers_due = False
        if not self._closed:
            self._observers.release()

    # --- turns --------------------------------------------------------------------------------------------------------

    def _schedule_turn(self) -> None:
        # Never directly: a listener's call comes from inside the replica's step.
        if not self._turn_due and not self._closed:
            self._turn_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        if self._closed:
            return
        try:
            leadership = self.leadership
            if self._load is not None:
                self._load_slice(self._load)
            elif leadership is None:
                if not self._committed.advance(self.replica, self._high_watermark):
                    self._schedule_turn()
            elif leadership.active is None:
                self._claim(leadership)
            else:
                self._decide_all(leadership, leadership.active)
        except FatalError as error:
            log.critical("the controller stops", error=str(error))
            self.failed(error)
        except Exception as error:  # a defect of ours: better no controller than one that leads and decides nothing
            log.exception("the controller stops")
            self.failed(FatalError(f"a defect: {type(error).__name__}: {error}"))

    def _load_slice(self, load: SnapshotLoad) -> None:
        image = load.step()
        if image is not None:
            self._load = None
            self._committed.replace(image)
            log.info("snapshot loaded", offset=image.offset, state_hash=f"{image.state_hash:032x}")
            if self.leadership is not None:
                # Elected meanwhile: begin to claim, from this image.
                stale = self.leadership
                self.leadership = Leadership(stale.epoch, stale.epoch_start_offset, image, self._send_parked)
        self._schedule_turn()

    def _claim(self, leadership: Leadership) -> None:
        if leadership.claim(self.replica, self.quorum, self.settings, self._rng, self._loop.time(), self.generation):
            log.info("active controller", epoch=leadership.epoch, offset=leadership.pending.offset)
            self.committed(self._high_watermark)
        self._schedule_turn()

    def _decide_all(self, leadership: Leadership, active: ActiveController) -> None:
        # One uncommitted chunk at a time: what comes meanwhile makes the next one larger. Only when a whole chunk waits is it
        # decided while others are on their way. ``_after_commit`` goes on.
        if self.hand_over.under_way or self._farewell.begun:
            return
        allowed = 1 if self._intake.waiting_bytes < CHUNK_BYTES else MAX_UNCOMMITTED_CHUNKS
        if leadership.uncommitted_chunks >= allowed or not leadership.parking.is_confirmed(leadership.long_round):
            return
        now = self._loop.time()
        timestamp_ms = self.replica.next_timestamp_ms()
        reads: list[Parked] = []
        appended: list[Parked] = []
        begun = self._stopwatch()
        parking = leadership.parking
        # Each request parks one reply at most.
        most = min(limits.CONTROLLER_TURN_MAX_REQUESTS, MAX_PARKED - len(parking))
        count = taken_bytes = written = 0
        while (
            taken_bytes < CHUNK_BYTES
            and written < MAX_TURN_RECORDS
            and count < most
            and self._stopwatch() - begun < MAX_TURN_S
            and (waiting := self._intake.take()) is not None
        ):
            count += 1
            taken_bytes += waiting.size
            peer = waiting.peer
            if not parking.take_place(peer):
                self._refuse(waiting.link, waiting.request, _SHARE_USED_UP)
                continue
            decision = self._decide(active, waiting, now)
            if isinstance(decision, TransferLeadership):
                self._begin_transfer(leadership, decision, waiting)
                break
            if isinstance(decision, Write):
                written += len(decision.records)
                leadership.add(decision.records, waiting.request.client, timestamp_ms)
            active.proposed(decision, now)
            if isinstance(decision, Defer):
                parking.give_back_place(peer)
                self._intake.defer(waiting, decision.at)
                continue
            parked = self._parked(leadership, decision, waiting, active.next_offset - 1)
            parked.charged = True
            if isinstance(decision, Write) and decision.answer_when_appended:
                parked.charged = False
                parking.give_back_place(peer)
                parked.response.ClearField("write")
                appended.append(parked)
            elif isinstance(decision, Write):
                parking.park(parked)
            elif isinstance(decision, Duplicate):
                parking.park_duplicate(parked)
            else:
                reads.append(parked)
        self._decide_due(leadership, active, now, timestamp_ms)
        leadership.propose(self.replica, idle=self._is_idle(now, count))
        for parked in appended:
            self._send_parked(parked)
        if reads:
            self._park_reads(leadership, reads, begun)
        if self._intake:
            self._schedule_turn()

    def _park_reads(self, leadership: Leadership, reads: list[Parked], begun: float) -> None:
        """What was decided since ``begun`` and writes nothing waits for a round that begins now."""
        number = self.replica.request_round()
        if self._stopwatch() - begun >= LONG_TURN_S:
            # What writes nothing waits for no commit, and turn would follow turn: the followers' fetches have to come between
            # [a flood of listings: no fetch is answered in time, and the leadership is lost].
            leadership.long_round = number
        for parked in reads:
            parked.round = number
            leadership.parking.park(parked)
        # The rounds of a single voter are confirmed at once, before these were parked.
        leadership.parking.release_reads()

    def _decide_due(self, leadership: Leadership, active: ActiveController, now: float, timestamp_ms: int) -> None:
        """What time has brought, up to a bound of its own: requests never keep brokers from being fenced."""
        written = 0
        without_space = bool(self.space.verdict.refusal)
        while (due := active.next_due(now, fencing_only=without_space)) is not None:
            written += len(due.records)
            leadership.add(due.records, None, timestamp_ms)
            active.proposed(due, now)
            if written >= MAX_TURN_RECORDS:
                # Many brokers at once, or one with much: the rest after this commit.
                self._schedule_turn()
                return

    def _decide(self, active: ActiveController, waiting: Waiting, now: float) -> Decision:
        request, refusal = waiting.request, self.space.verdict.refusal
        try:
            active.state.without_space = bool(refusal)
            decision = active.decide(request, now, waiting.kind)
            error = decision.error if type(decision) is Refusal else None
            if isinstance(error, AwaitedIdError) and error.is_news:
                log.warning(
                    "a broker without an id waits", at=error.place, remaining_ms=error.remaining_ms, why=error.message
                )
            if refusal and type(decision) is Write and request.WhichOneof("body") not in WRITES_WITHOUT_SPACE:
                return Refusal(ApiError(ErrorCode.KAFKA_STORAGE_ERROR, refusal))
            return decision
        except FatalError:
            raise
        except Exception as defect:  # of ours: nothing was proposed, the state is as before
            log.exception("deciding a request failed", request=request.WhichOneof("body"))
            return Refusal(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{type(defect).__name__}: {defect}"))

    def _begin_transfer(self, leadership: Leadership, decision: TransferLeadership, waiting: Waiting) -> None:
        leadership.parking.give_back_place(waiting.link.peer)
        parked = self._parked(leadership, decision, waiting, -1)

        def answer(error: ApiError | None) -> None:
            if error is None:
                self._send_parked(parked)
            else:
                self._refuse(waiting.link, waiting.request, error)

        self.hand_over.begin(decision.target_id, "asked to by an operator", answer)

    def _is_idle(self, now: float, count: int) -> bool:
        """Whether requests come singly and not close together: then nothing waits for the loop while the disk syncs."""
        last_at, last_count = self._last_turn
        self._last_turn = (now, count)
        return count <= 1 and last_count <= 1 and now - last_at > IDLE_S

    # --- answers out --------------------------------------------------------------------------------------------------

    def _parked(
        self,
        leadership: Leadership,
        decision: Write | Reply | Refusal | Duplicate | TransferLeadership,
        waiting: Waiting,
        offset: int,
    ) -> Parked:
        response = pb.ControllerResponse(
            correlation_id=waiting.request.correlation_id, leader_id=self._leader_id, controller_epoch=leadership.epoch
        )
        if isinstance(decision, Duplicate):
            return duplicate_of(decision.result, waiting, response, self.generation)
        if isinstance(decision, Refusal):
            fill_error(response, decision.error)
            if decision.error.code is ErrorCode.NOT_CONTROLLER:
                # Who finds that it is the stale one does not name itself as the controller to go to.
                response.leader_id = decision.error.leader_id
        else:
            getattr(response, waiting.kind or waiting.request.WhichOneof("body")).CopyFrom(decision.body)
        if isinstance(decision, Write):
            token = response.write.token
            token.generation, token.epoch, token.offset = self.generation, leadership.epoch, offset
        return Parked(waiting.link, response, offset, 0, waiting.request.acks, waiting.deadline)

    def _send_parked(self, parked: Parked) -> None:
        send_quietly(parked.link, parked.response)

    def _refuse(self, link: Any, request: pb.ControllerRequest, error: ApiError) -> None:
        self._fail(link, request.correlation_id, error)

    def _fail(self, link: Any, correlation_id: int, error: ApiError) -> None:
        if self._closed:
            # Stopped, perhaps by its disk: not another word, not even of regret.
            return
        endpoint = self.leader_endpoint(error.leader_id)
        send_quietly(
            link, failure(correlation_id, error, controller_epoch=self._leader_epoch, leader_endpoint=endpoint)
        )

    def _give_up(self, leadership: Leadership, parked: Parked, is_committed: bool, code: ErrorCode, why: str) -> None:
        """Answer what can wait no longer. What is committed stands; what wrote nothing has failed for certain."""
        if is_committed:
            say_how_far(parked, leadership.lao)
            send_quietly(parked.link, parked.response)
        else:
            error = ApiError(code, why, outcome_unknown=parked.is_write)
            self._fail(parked.link, parked.response.correlation_id, error)

    # --- time ---------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = self._loop.time()
        gap_s = now - self._next_tick
        self._next_tick = now + TICK_S
        self._tick_handle = self._loop.call_at(self._next_tick, self._tick)
        if gap_s > GAP_S:
            # Whoever leads: a leader that was away for long leads no more by now, and that is why.
            log.warning("the loop was away", gap_ms=round(gap_s * 1000))
        if self._load is None:
            try:
                self.snapshots.tick(now, self._committed.state_bytes, lambda: self._committed.image)
            except FatalError as error:
                self.failed(error)
        if not self._closed:
            self._joining.tick(now)
        if self.space.due(now) and not self._closed:
            self._look_at_space(now)
        leadership = self.leadership
        gone, self._gone_links = self._gone_links, set()
        if self._closed or leadership is None:
            return
        if gone:
            leadership.parking.abandon(gone)
            self._intake.abandon(gone)
        self._refuse_some()
        self._observers.release(expired_only=True)
        active = leadership.active
        if active is None:
            return
        self._look_at_lao(active, now)
        if gap_s > GAP_S:
            # Heartbeats sent meanwhile wait in sockets: hear them before judging anybody.
            active.sessions.extend_all(gap_s, now)
            active.state.absences.extend_all(gap_s)
        elif self._intake.wake(now) or active.next_deadline() <= now:
            self._schedule_turn()

    def _look_at_lao(self, active: ActiveController, now: float) -> None:
        """Say who holds LAO back, and when it goes on."""
        lao = active.lao
        # Without members nobody waits.
        reason = lao.unknown_reason if lao.lao < 0 and lao.members else ""
        news = active.state.hold_up.look(now, lao.lao, active.state.committed.offset, lao.held_back_by(), reason)
        if news is None:
            return
        for_ms = round(news.for_s * 1000)
        if news.reason:
            log.warning("the lowest acknowledged offset is unknown", reason=news.reason, for_ms=for_ms)
        elif news.by:
            applied = {broker_id: lao.applied_of(broker_id) for broker_id in news.by[:10]}
            log.warning(
                "the lowest acknowledged offset is held back",
                lowest_acknowledged_offset=lao.lao,
                high_watermark=active.state.committed.offset + 1,
                applied=applied,
                for_ms=for_ms,
            )
        else:
            log.info("the lowest acknowledged offset goes on", lowest_acknowledged_offset=lao.lao, stood_ms=for_ms)

    def _look_at_space(self, now: float) -> None:
        try:
            free_bytes = self._store.free_bytes()
        except FatalError as error:
            self.failed(error)
            return
        space = self.space
        if space.measured(free_bytes):
            log.warning(
                "disk below the free-space reserve" if space.low else "disk has space again", free_bytes=free_bytes
            )
            self.replica.space_changed(low=space.low)
        if self.leadership is None:
            space.verdict = FINE
            return
        before = space.verdict.refusal
        verdict = space.judge(self.replica.describe(now), self.quorum.node_id, now)
        if verdict.refusal != before:
            log.error("writes are refused" if verdict.refusal else "writes go on", reason=verdict.refusal)
            self._schedule_turn()
        if verdict.hand_over_to >= 0 and self.leadership.active is not None:
            self.hand_over.begin(verdict.hand_over_to, "the disk is below its free-space reserve")
