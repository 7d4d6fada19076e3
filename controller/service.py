"""The controller's shell: takes requests in, has them decided, proposes what was decided, and answers when it is true.

Theory of operation. A handler only appends to the intake; one *turn* of the loop decides everything that waits, folds it into the
pending image as it goes, and proposes the batches of all of it as one chunk. The next turn waits for that chunk's commit, so
that load makes larger chunks and not more of them. Replies are parked until what they say is true (``parking``).

Claiming: a new leader folds the whole local log, the inherited uncommitted tail included, before it decides anything. Losing the
leadership drops the pending image with everything that hangs on it, and whoever waits is told that the outcome is unknown.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from controller.active import ActiveController
from controller.decision import Decision
from controller.describe import describe_brokers
from controller.image_loader import CommittedImage, fold_slice
from controller.lao import LaoTracker
from controller.observers import Observers
from controller.parking import COMMITTED, Parked, Parking
from controller.sessions import SessionTracker
from controller.settings import ControllerSettings
from raftlog import batch
from raftlog.errors import ApiError, ErrorCode, FatalError
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.quorum.config import QuorumConfig
from raftlog.replica.replica import Replica
from raftlog.storage.api import LogStore
from raftlog.transport.api import Acceptor, Conversation, Link, LinkClosedError, Transport
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb

log = structlog.get_logger(__name__)

TICK_S = 0.1
GAP_S = 0.1
"""A loop that was away for longer (a pause, a collection, swap) has not heard heartbeats: all sessions are extended."""
MAX_INTAKE = 65_536
MAX_PARKED = 262_144
MAX_REQUEST_BYTES = 4 << 20
DEFAULT_TIMEOUT_S = 30.0
IDLE_S = 0.0004
"""Requests that come singly and not more often than this are synced inline: nothing else waits for the loop."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A request in the intake."""

    link: Any
    request: pb.ControllerRequest
    deadline: float


class Leadership:
    """All that lives and dies with one epoch of leading."""

    def __init__(self, epoch: int, epoch_start_offset: int, committed: Image, send: Callable[[Parked], None]) -> None:
        self.epoch = epoch
        self.epoch_start_offset = epoch_start_offset
        self.claim_image = committed
        self.pending = ImageBuilder(committed)
        self.lao = LaoTracker(epoch, epoch_start_offset)
        self.lao.seed(committed)
        self.parking = Parking(send)
        # The end of each proposed chunk, and the image there: becomes the committed one without folding again.
        self.images: deque[tuple[int, Image]] = deque()
        self.active: ActiveController | None = None
        self.told: tuple[int, int] = (-1, -1)


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
    ) -> None:
        self.settings = settings
        self.quorum = quorum
        self._rng = rng
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self.replica = Replica(quorum, store, transport, self, rng=rng, wall_clock_ms=wall_clock_ms)
        self._generation = store.identity.generation
        self._committed = CommittedImage()
        self._high_watermark = -1
        self._leader_id, self._leader_epoch = -1, 0
        self.leadership: Leadership | None = None
        self._intake: deque[Waiting] = deque()
        self._turn_due = False
        self._observers_due = False
        self._last_turn: tuple[float, int] = (0.0, 0)
        self._next_tick = 0.0
        self._tick_handle: asyncio.TimerHandle | None = None
        self._observers = Observers(self)
        self._closed = False
        self.successor = asyncio.Event()
        """Set while another node is known to lead."""

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Recover and join the quorum. Raises StorageError, CorruptLogError."""
        self.replica.start()
        self._next_tick = self._loop.time() + TICK_S
        self._tick_handle = self._loop.call_at(self._next_tick, self._tick)

    def acceptors(self) -> dict[Conversation, Acceptor]:
        """Everything a controller serves."""
        return {
            **self.replica.acceptors(),
            Conversation.CONTROLLER: lambda _link: self,
            Conversation.OBSERVER: self._observers.accept,
        }

    def resign(self, reason: str) -> None:
        """Hand the leadership over, if this node has it: before a planned stop."""
        self.replica.resign(reason)

    def close(self) -> None:
        """Stop for good."""
        self._closed = True
        if self._tick_handle is not None:
            self._tick_handle.cancel()
        self.replica.close()

    # --- what others may know -----------------------------------------------------------------------------------------

    @property
    def image(self) -> Image:
        """The committed image; behind the high watermark only while a long log is being folded."""
        return self._committed.image

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
        return self._generation

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

    def ready(self) -> tuple[bool, str]:
        """Whether this node takes part in serving: it leads and has claimed, or follows a leader it knows."""
        if self.active is not None:
            return True, f"active controller of epoch {self._leader_epoch}"
        if self.leadership is not None:
            return (
                False,
                f"claiming epoch {self._leader_epoch}: folding the log, at offset {self.leadership.pending.offset}",
            )
        if self._leader_id < 0:
            return False, f"no leader is known in epoch {self._leader_epoch}"
        if self._high_watermark < 0:
            return False, f"following node {self._leader_id}, but what is committed is not known yet"
        return True, f"following node {self._leader_id} in epoch {self._leader_epoch}"

    def status(self) -> dict[str, object]:
        """What a person looks at first."""
        return {
            "role": self.replica.core.role,
            "leader": self._leader_id,
            "epoch": self._leader_epoch,
            "log end": self.replica.log_end_offset,
            "high watermark": self._high_watermark,
            "lowest acknowledged offset": self.lowest_acknowledged_offset,
            "brokers": len(self.image.brokers),
            "topics": len(self.image.topics),
        }

    def describe_brokers(self) -> pb.DescribeBrokersResponse:
        """What the active controller knows of the brokers; for this node's own metrics."""
        active = self.active
        return describe_brokers(active.state, self.now()).body if active is not None else pb.DescribeBrokersResponse()

    def now(self) -> float:
        """Seconds of the loop's clock."""
        return self._loop.time()

    def read(self, offset: int, until: int, max_bytes: int) -> bytes:
        """Whole batches of the log."""
        return self.replica.read(offset, until, max_bytes)

    def not_controller(self) -> ApiError | None:
        """Why requests are refused here, None if they are not."""
        if self.leadership is not None:
            return None
        return ApiError(
            ErrorCode.NOT_CONTROLLER,
            f"node {self.quorum.node_id} is not the active controller",
            leader_id=self._leader_id if self._leader_id != self.quorum.node_id else -1,
        )

    def leader_endpoint(self, leader_id: int) -> str:
        """Where a voter listens, empty if unknown."""
        return next((voter.endpoint for voter in self.quorum.voters if voter.node_id == leader_id), "")

    # --- ReplicaListener ----------------------------------------------------------------------------------------------

    def leader_changed(self, leader_id: int, epoch: int) -> None:
        """Remember who to send others to."""
        self._leader_id, self._leader_epoch = leader_id, epoch
        if leader_id not in (-1, self.quorum.node_id):
            self.successor.set()

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
        for parked, is_committed in leadership.parking.drain():
            if is_committed:
                self._answer_late(leadership, parked)
            else:
                self._answer_unknown(parked, f"the leadership of epoch {epoch} was lost: {reason}")
        error = self.not_controller()
        assert error is not None
        while self._intake:
            waiting = self._intake.popleft()
            self._refuse(waiting.link, waiting.request, error)
        self._observers.refuse_all(error)
        self._schedule_turn()

    def round_confirmed(self, number: int) -> None:
        """Replies without records may go."""
        if self.leadership is not None:
            self.leadership.parking.round_confirmed(number)

    def failed(self, error: FatalError) -> None:
        """The replica has stopped: so does this node, without a word to anybody who waits."""
        self.close()
        self._on_failure(error)

    def committed(self, high_watermark: int) -> None:
        """Answer what has become true, tell observers, and go on with what has waited for this commit."""
        self._high_watermark = high_watermark
        leadership = self.leadership
        if leadership is None or leadership.active is None:
            self._schedule_turn()
            return
        image = None
        while leadership.images and leadership.images[0][0] <= high_watermark:
            image = leadership.images.popleft()[1]
        if image is not None:
            self._committed.image = image
            leadership.active.committed_advanced(image)
        leadership.lao.committed(high_watermark)
        leadership.parking.committed(high_watermark)
        self._observers.release()
        self._visibility_moved(leadership)
        if self._intake or leadership.active.has_urgent_work():
            self._schedule_turn()

    # --- requests in --------------------------------------------------------------------------------------------------

    def received(self, link: Link, messages: Sequence[Any]) -> None:
        """Requests of one envelope. Nothing is decided here."""
        refused = self.not_controller()
        deadline_base = self._loop.time()
        for request in messages:
            if refused is not None:
                self._refuse(link, request, refused)
            elif len(self._intake) >= MAX_INTAKE:
                self._refuse(link, request, ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "too many requests wait"))
            else:
                timeout_s = request.timeout_ms / 1000 if request.timeout_ms > 0 else DEFAULT_TIMEOUT_S
                self._intake.append(Waiting(link, request, deadline_base + timeout_s))
                if request.HasField("broker_heartbeat"):
                    self._heard(request.broker_heartbeat)
        self._schedule_turn()

    def closed(self, link: Link, reason: str) -> None:
        """Requests of a dead link are decided all the same: they may have been sent on purpose."""

    def _heard(self, heartbeat: pb.BrokerHeartbeatRequest) -> None:
        # At arrival, not when its turn comes: a long queue must not fence those who wait in it.
        active = self.leadership.active if self.leadership is not None else None
        if active is not None:
            active.heard(heartbeat.broker_id, heartbeat.broker_epoch, self._loop.time())

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
            if leadership is None:
                if not self._committed.advance(self.replica, self._high_watermark):
                    self._schedule_turn()
            elif leadership.active is None:
                self._claim(leadership)
            else:
                self._decide_all(leadership, leadership.active)
        except FatalError as error:
            log.critical("the controller stops", error=str(error))
            self.failed(error)

    def _claim(self, leadership: Leadership) -> None:
        end = self.replica.log_end_offset
        arrived = fold_slice(leadership.pending, self.replica, end, observe=leadership.lao.proposed)
        if arrived and end > leadership.epoch_start_offset:
            image = leadership.pending.snapshot()
            leadership.images.append((image.offset + 1, image))
            sessions = SessionTracker(self.settings.broker_session_timeout_ms / 1000)
            now = self._loop.time()
            leadership.active = ActiveController(
                node_id=self.quorum.node_id,
                cluster_id=self.quorum.cluster_id,
                epoch=leadership.epoch,
                epoch_start_offset=leadership.epoch_start_offset,
                settings=self.settings,
                pending=leadership.pending,
                committed=leadership.claim_image,
                lao=leadership.lao,
                sessions=sessions,
                rng=self._rng,
                now=now,
            )
            log.info("active controller", epoch=leadership.epoch, offset=image.offset)
            self.committed(self._high_watermark)
        self._schedule_turn()

    def _decide_all(self, leadership: Leadership, active: ActiveController) -> None:
        if leadership.images:
            # One uncommitted chunk at a time: what comes meanwhile makes the next one larger. ``committed`` goes on.
            return
        now = self._loop.time()
        timestamp_ms = self.replica.next_timestamp_ms()
        base_offset = active.next_offset
        frames: list[bytes] = []
        reads: list[Parked] = []
        count = 0
        while self._intake and len(leadership.parking) < MAX_PARKED:
            waiting = self._intake.popleft()
            count += 1
            decision = self._decide(active, waiting.request, now)
            if decision.records:
                frames.append(self._fold(leadership, decision, waiting.request.client, timestamp_ms))
            if decision.on_proposed is not None:
                decision.on_proposed()
            parked = self._parked(leadership, decision, waiting, active.next_offset - 1)
            if decision.records:
                leadership.parking.park(parked)
            else:
                reads.append(parked)
        while (decision_due := active.next_due(now)) is not None:
            frames.append(self._fold(leadership, decision_due, None, timestamp_ms))
            if decision_due.on_proposed is not None:
                decision_due.on_proposed()
        if frames:
            self._propose(leadership, frames, base_offset, now, count)
        if reads:
            number = self.replica.request_round()
            for parked in reads:
                parked.round = number
                leadership.parking.park(parked)
            # The rounds of a single voter are confirmed at once, before these were parked.
            leadership.parking.release_reads()

    def _decide(self, active: ActiveController, request: pb.ControllerRequest, now: float) -> Decision:
        if request.ByteSize() > MAX_REQUEST_BYTES:
            error = ApiError(ErrorCode.MESSAGE_TOO_LARGE, f"the request is larger than {MAX_REQUEST_BYTES} bytes")
            return Decision([], None, error)
        try:
            return active.decide(request, now)
        except FatalError:
            raise
        except Exception as error:  # a defect of ours: nothing was proposed, the state is as before
            log.exception("deciding a request failed", request=request.WhichOneof("body"))
            return Decision([], None, ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{type(error).__name__}: {error}"))

    def _fold(
        self, leadership: Leadership, decision: Decision, client: common_pb2.ClientIdentity | None, timestamp_ms: int
    ) -> bytes:
        """Fold a decision into the pending image, and encode it."""
        base_offset = leadership.pending.offset + 1
        records = decision.records
        leadership.pending.apply_batch(
            records, base_offset=base_offset, epoch=leadership.epoch, timestamp_ms=timestamp_ms
        )
        leadership.lao.proposed(records, base_offset)
        if client is None:
            return batch.encode(
                [record.data for record in records],
                base_offset=base_offset,
                epoch=leadership.epoch,
                timestamp_ms=timestamp_ms,
            )
        return batch.encode(
            [record.data for record in records],
            base_offset=base_offset,
            epoch=leadership.epoch,
            timestamp_ms=timestamp_ms,
            principal=client.principal,
            client_id=client.client_id,
            sequence=client.sequence,
            all_below_done=client.all_below_done,
        )

    def _propose(self, leadership: Leadership, frames: list[bytes], base_offset: int, now: float, count: int) -> None:
        image = leadership.pending.snapshot()
        leadership.images.append((image.offset + 1, image))
        last_at, last_count = self._last_turn
        idle = count <= 1 and last_count <= 1 and now - last_at > IDLE_S
        self._last_turn = (now, count)
        self.replica.propose(b"".join(frames), base_offset, image.offset + 1, leadership.epoch, idle=idle)

    # --- answers out --------------------------------------------------------------------------------------------------

    def _parked(self, leadership: Leadership, decision: Decision, waiting: Waiting, offset: int) -> Parked:
        response = pb.ControllerResponse(
            correlation_id=waiting.request.correlation_id, leader_id=self._leader_id, controller_epoch=leadership.epoch
        )
        if decision.error is not None:
            fill_error(response, decision.error)
        else:
            getattr(response, waiting.request.WhichOneof("body")).CopyFrom(decision.body)
        if decision.records:
            token = response.write.token
            token.generation, token.epoch, token.offset = self._generation, leadership.epoch, offset
        return Parked(waiting.link, response, offset, 0, waiting.request.acks, waiting.deadline)

    def _send_parked(self, parked: Parked) -> None:
        send_quietly(parked.link, parked.response)

    def _refuse(self, link: Link, request: pb.ControllerRequest, error: ApiError) -> None:
        response = pb.ControllerResponse(
            correlation_id=request.correlation_id,
            leader_id=error.leader_id,
            leader_endpoint=self.leader_endpoint(error.leader_id),
            controller_epoch=self._leader_epoch,
        )
        fill_error(response, error)
        send_quietly(link, response)

    def _answer_unknown(self, parked: Parked, why: str, code: ErrorCode = ErrorCode.NOT_CONTROLLER) -> None:
        """A write that may or may not be committed. What wrote nothing has failed for certain."""
        error = ApiError(code, why, outcome_unknown=parked.is_write)
        response = pb.ControllerResponse(
            correlation_id=parked.response.correlation_id, leader_id=-1, controller_epoch=self._leader_epoch
        )
        fill_error(response, error)
        send_quietly(parked.link, response)

    def _answer_late(self, leadership: Leadership, parked: Parked) -> None:
        """A write that is committed, and not yet as visible as was asked: say how far it is, and who is missing."""
        write, lao = parked.response.write, leadership.lao
        if parked.acks != COMMITTED:
            acknowledged = lao.lao >= parked.offset
            write.reached = common_pb2.ACKS_ACKNOWLEDGED if acknowledged else common_pb2.ACKS_COMMITTED
            waiting = lao.waiting_for_told if acknowledged else lao.waiting_for_applied
            write.waiting_for_brokers.extend(waiting(parked.offset))
        send_quietly(parked.link, parked.response)

    # --- time ---------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = self._loop.time()
        gap_s = now - self._next_tick
        self._next_tick = now + TICK_S
        self._tick_handle = self._loop.call_at(self._next_tick, self._tick)
        leadership = self.leadership
        if leadership is None:
            return
        self._expire(leadership, now)
        self._observers.release(expired_only=True)
        active = leadership.active
        if active is None:
            return
        if gap_s > GAP_S:
            # Heartbeats sent meanwhile wait in sockets: hear them before judging anybody.
            log.warning("the loop was away", gap_ms=round(gap_s * 1000))
            active.sessions.extend_all(gap_s)
        elif active.next_deadline() <= now:
            self._schedule_turn()

    def _expire(self, leadership: Leadership, now: float) -> None:
        for parked, is_committed in leadership.parking.expired(now):
            if is_committed:
                self._answer_late(leadership, parked)
            else:
                self._answer_unknown(parked, "not committed in time", ErrorCode.REQUEST_TIMED_OUT)
        if any(waiting.deadline <= now for waiting in self._intake):
            waiting_on, self._intake = self._intake, deque()
            error = ApiError(ErrorCode.REQUEST_TIMED_OUT, "not begun in time")
            for waiting in waiting_on:
                if waiting.deadline <= now:
                    self._refuse(waiting.link, waiting.request, error)
                else:
                    self._intake.append(waiting)


def fill_error(response: pb.ControllerResponse, error: ApiError) -> None:
    """Put an error into a response."""
    response.error.error_code = error.code
    response.error.error_message = error.message
    response.error.field = error.field
    response.error.outcome_unknown = error.outcome_unknown


def send_quietly(link: Any, message: Any) -> None:
    """Send; a link that has closed meanwhile swallows it, and its caller knows the outcome to be unknown."""
    try:
        link.send(message)
    except LinkClosedError:
        return
