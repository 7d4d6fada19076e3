"""One turn of the active controller: it decides the waiting requests, adds each decision to the log
of the epoch, and proposes them all as one chunk.

Why: docs/decisions/008-one-turn-one-chunk.md
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import msgspec
import structlog

from controller.decider import Decider
from controller.decision import Decision, Defer, Duplicate, Refusal, TransferLeadership, Write
from controller.service.intake import Intake, PendingRequest
from controller.service.node import SLICE_BYTES, ControllerNode
from controller.service.replies import Answerable, Answers, Parked, Parking
from controller.service.transfer import LeadershipTransfer
from controller.settings import ControllerSettings
from controller.state.epoch_log import EpochLog
from controller.state.liveness import AwaitedIdError
from controller.state.state import ControllerState
from raftlog import bounds as limits
from raftlog import tracing
from raftlog.config_writes.writes import ConfigWrites
from raftlog.errors import ApiError, ErrorCode, FatalError
from raftlog.metadata.image import Image
from raftlog.metadata.log_hash import LogHash
from raftlog.node.replica.replica import Replica
from raftlog.node.security.permissions import REQUESTS
from raftlog.quorum.config import QuorumConfig
from raftlog.wire.common.v1 import common_pb2

log = structlog.get_logger(__name__)


class Leadership:
    """The state of one epoch that this node leads.

    ``decider`` is None until ``log`` has the whole local log, inherited tail included.
    """

    def __init__(
        self,
        epoch: int,
        epoch_start_offset: int,
        committed: Image,
        log_hash: LogHash,
        send: Callable[[Parked], None],
    ) -> None:
        self.log = EpochLog(epoch, epoch_start_offset, committed, log_hash)
        self.parking = Parking(send)
        self.decider: Decider | None = None
        self.visibility_seen: tuple[int, int] = (-1, -1)
        """LAO and the lowest known LAO as last processed."""
        self.reads_round = 0
        """Read-index round that must be confirmed before more reads are decided."""
        self.long_round = 0
        """Round of the last long turn with reads, which must be confirmed before anything is
        decided.
        """

    @property
    def epoch(self) -> int:
        """The controller epoch."""
        return self.log.epoch

    def claim(
        self,
        replica: Replica,
        quorum: QuorumConfig,
        settings: ControllerSettings,
        rng: random.Random,
        now: float,
    ) -> bool:
        """Fold one slice of the log, and become active at its end. Return True once active."""
        log, end = self.log, replica.log_end_offset
        if log.end_offset < end:
            log.inherit(replica.read(log.end_offset, end, SLICE_BYTES))
        # Until this epoch's first record is in the log, there is more to fold.
        if log.end_offset < end or end <= log.epoch_start_offset:
            return False
        log.claimed()
        lineage = replica.lineage
        state = ControllerState(
            log,
            settings,
            quorum.cluster_id,
            rng,
            now,
            lineage.current,
            lineage.below(end)[:-1],
            lineage.recoveries,
        )
        self.decider = Decider(state, log.report, quorum.node_id, replica.describe)
        return True

    def propose(self, replica: Replica, timestamp_ms: int, *, idle: bool) -> None:
        """Append everything that was added to the log, if anything, as one chunk with this
        timestamp.
        """
        log = self.log
        chunk = log.end_chunk()
        if chunk is not None:
            replica.propose(
                chunk.data,
                chunk.base_offset,
                log.end_offset,
                log.epoch,
                timestamp_ms,
                idle=idle,
                voters=chunk.voters,
            )


MAX_PARKED = limits.CONTROLLER_MAX_PARKED_REPLIES
MAX_TURN_RECORDS, MAX_TURN_S = (
    limits.CONTROLLER_TURN_MAX_RECORDS,
    limits.CONTROLLER_TURN_MAX_MS / 1000,
)
TURN_MAX_REQUEST_BYTES = 64 << 10
"""Maximum number of bytes of requests that one turn decides.

If more wait, the next chunk is decided while this one is written and replicated.
"""
READS_TURN_MAX_S = 0.002
"""Time in seconds after which a turn begins no further read-only request.

Reads are decided once the written chunk is on its way. A turn that uses all of this time is
followed by a pause READS_PAUSES times as long, so reads use at most a fifth of the event loop, and
a write waits for at most one such turn.
"""
READS_PAUSES = 4
MAX_UNCOMMITTED_CHUNKS = 3
EARLY = frozenset(body for body, kind in REQUESTS.items() if kind.early)
IDLE_S = 0.0004
"""Minimum interval in seconds between lone requests at which their records are synced inline, as
nothing else then waits for the event loop.
"""

_SHARE_USED_UP = ApiError(
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    "this connection has used up its share of the parked replies",
    throttle_time_ms=limits.RETRY_AFTER_MS,
)


class _Turn(msgspec.Struct, eq=False):
    """The inputs and decisions of one turn."""

    leadership: Leadership
    decider: Decider
    now: float
    timestamp_ms: int
    count: int = 0
    """Number of requests decided."""
    reads: list[Parked] = []
    """Replies without records."""
    appended: list[Parked] = []
    """Replies that need not wait for a commit."""


class Turns:
    """The turns of a leadership.

    ``wake``: run another turn later, when this one leaves work. ``soon``: call back after a number
    of seconds. ``stopwatch``: a clock in seconds that also advances within a turn.
    """

    def __init__(
        self,
        node: ControllerNode,
        replica: Replica,
        intake: Intake,
        answers: Answers,
        transfer: LeadershipTransfer,
        wake: Callable[[], None],
        soon: Callable[[float, Callable[[], None]], None],
        stopwatch: Callable[[], float],
    ) -> None:
        self._node, self._replica, self._intake = node, replica, intake
        self._answers, self._transfer = answers, transfer
        self._wake, self._soon, self.stopwatch = wake, soon, stopwatch
        self._reads_from = -math.inf
        """Time from which reads are decided again, by the stopwatch."""
        self._reads_due = False
        """True while a turn for reads is scheduled."""
        self._last: tuple[float, int] = (0.0, 0)
        """Time of the previous turn, and the number of requests it decided."""

    def decide_all(self, leadership: Leadership, decider: Decider) -> None:
        """Decide the waiting requests and the due work, and propose the result.

        A later turn or commit decides the rest.
        """
        # One uncommitted chunk at a time: requests that arrive meanwhile make the next one larger.
        # Only if a whole chunk of requests waits is it decided while earlier chunks are
        # uncommitted.
        epoch_log = leadership.log
        allowed = (
            1 if self._intake.waiting_bytes < TURN_MAX_REQUEST_BYTES else MAX_UNCOMMITTED_CHUNKS
        )
        waits = epoch_log.uncommitted_chunks >= allowed
        early = (
            waits
            and epoch_log.only_inherited
            and self._intake.next_kind() in EARLY
            and not decider.due.is_urgent()
        )
        if (waits and not early) or not leadership.parking.is_confirmed(leadership.long_round):
            return
        begun = self.stopwatch()
        turn = _Turn(leadership, decider, self._node.now(), self._replica.next_timestamp_ms())
        self._decide_waiting(turn, begun, early=early)
        if not early:
            self._decide_due(turn)
        leadership.propose(self._replica, turn.timestamp_ms, idle=self._is_idle(turn))
        if epoch_log.unfolded:
            # After the chunk has been sent to the followers, which then write at the same time.
            self._soon(0.0, epoch_log.fold)
        for parked in turn.appended:
            self._answers.send(parked)
        if turn.reads:
            number = self._park_reads(turn)
            if self.stopwatch() - begun >= limits.TURN_MAX_S:
                # Requests without records wait for no commit, so turn would follow turn. The
                # followers' fetches must come in between [a flood of listings: no fetch is answered
                # in time, and the leadership is lost].
                leadership.long_round = number
        if early:
            return
        if self._intake.reads:
            self._decide_reads(leadership, decider, turn.now, turn.timestamp_ms)
        if len(self._intake) > self._intake.reads:
            self._wake()

    def _decide_reads(
        self, leadership: Leadership, decider: Decider, now: float, timestamp_ms: int
    ) -> None:
        """Decide read-only requests for a bounded time.

        Does nothing until the followers have fetched since the last long turn of reads, and the
        pause after it is over.
        """
        parking = leadership.parking
        if not parking.is_confirmed(leadership.reads_round):
            return
        begun = self.stopwatch()
        if begun >= self._reads_from:
            turn, took_s = _Turn(leadership, decider, now, timestamp_ms), 0.0
            most = MAX_PARKED - len(parking)
            while (
                took_s < READS_TURN_MAX_S
                and turn.count < most
                and (pending := self._intake.take(reads=True)) is not None
            ):
                self._decide_pending(turn, pending)
                took_s = self.stopwatch() - begun
            number = self._park_reads(turn) if turn.reads else 0
            if took_s >= READS_TURN_MAX_S:
                leadership.reads_round = number
                self._reads_from = begun + took_s * (1 + READS_PAUSES)
        if self._intake.reads and not self._reads_due:
            self._reads_due = True
            self._soon(max(0.0, self._reads_from - self.stopwatch()), self._resume_reads)

    def _resume_reads(self) -> None:
        self._reads_due = False
        self._wake()

    def _decide_waiting(self, turn: _Turn, begun: float, *, early: bool) -> None:
        """Decide requests until none waits or the turn is full; with ``early`` only requests of the
        kinds in EARLY.
        """
        # Each request parks one reply at most.
        most = min(limits.CONTROLLER_TURN_MAX_REQUESTS, MAX_PARKED - len(turn.leadership.parking))
        taken_bytes = written = 0
        while (
            taken_bytes < TURN_MAX_REQUEST_BYTES
            and written < MAX_TURN_RECORDS
            and turn.count < most
            and self.stopwatch() - begun < MAX_TURN_S
            and (not early or self._intake.next_kind() in EARLY)
            and (pending := self._intake.take()) is not None
        ):
            taken_bytes += pending.size
            records = self._decide_pending(turn, pending)
            if records < 0:
                return
            written += records

    def _decide_pending(self, turn: _Turn, pending: PendingRequest) -> int:
        """Decide a pending request, or all of a group, and park the replies.

        Returns the number of records, or -1 if the leadership is to be transferred and nothing more
        may be decided.
        """
        turn.count += pending.count
        leadership, decider, now = turn.leadership, turn.decider, turn.now
        if not leadership.parking.take_place(pending.peer, pending.count):
            self._answers.refuse(pending.link, pending.message, _SHARE_USED_UP, pending.begun)
            return 0
        written = first = 0
        while first < pending.count:
            pending.first = first
            decision = self._decide(decider, pending, now)
            part = pending.part(decision)
            first += part.count
            # Compared by type: isinstance costs more, for every request.
            if type(decision) is Write:
                group = decision.group
                if group is None:
                    written += len(decision.records)
                    leadership.log.add(decision.records, _author(part), turn.timestamp_ms)
                else:
                    written += len(group.changes)
                    leadership.log.add(group, None, turn.timestamp_ms)
            elif type(decision) is TransferLeadership:
                self._begin_transfer(leadership, decision, part)
                return -1
            decider.proposed(decision, now)
            if type(decision) is Defer:
                leadership.parking.give_back_place(part.peer)
                self._intake.defer(part, decision.at)
            else:
                self._settle(turn, decision, part)
        return written

    def _settle(self, turn: _Turn, decision: Answerable, pending: PendingRequest) -> None:
        """Park the reply, whose place is already taken, until its content is certain."""
        parking, epoch_log = turn.leadership.parking, turn.leadership.log
        parked = self._answers.parked(
            decision, pending, epoch_log.epoch, self._node.generation, epoch_log.end_offset - 1
        )
        parked.charged = True
        if tracing.active is not None and type(pending.message) is not ConfigWrites:
            self._trace(parked, pending)
        if type(decision) is Write:
            if decision.answer_when_appended:
                parked.charged = False
                parking.give_back_place(pending.peer)
                parked.response.ClearField("write")
                turn.appended.append(parked)
            else:
                parking.park(parked)
        elif type(decision) is Duplicate:
            parking.park_duplicate(parked)
        else:
            turn.reads.append(parked)

    def _trace(self, parked: Parked, pending: PendingRequest) -> None:
        """Begin the span of a traced request that has waited and is decided now."""
        assert tracing.active is not None
        request: Any = pending.message
        age_s = self.stopwatch() - pending.begun
        parked.trace = tracing.active.serving("controller", request, age_s)
        if parked.trace is not None:
            parked.trace.reached("decide")

    def _park_reads(self, turn: _Turn) -> int:
        """Park the replies without records until a round that begins now is confirmed. Return the
        number of the round.
        """
        number, parking = self._replica.request_read_index(), turn.leadership.parking
        for parked in turn.reads:
            parked.round = number
            parking.park(parked)
        # The round of a single voter is confirmed at once, so before these replies were parked.
        parking.release_reads()
        return number

    def _decide_due(self, turn: _Turn) -> None:
        """Decide the due work, up to a bound of its own, so that requests never prevent brokers
        from being fenced.
        """
        written, decider = 0, turn.decider
        without_space = bool(self._node.space.verdict.refusal)
        while (due := decider.due.next(turn.now, fencing_only=without_space)) is not None:
            written += len(due.records)
            turn.leadership.log.add(due.records, None, turn.timestamp_ms)
            decider.proposed(due, turn.now)
            if written >= MAX_TURN_RECORDS:
                # Many brokers are due at once, or one with many partitions: the rest follows after
                # this commit.
                self._wake()
                return

    def _decide(self, decider: Decider, pending: PendingRequest, now: float) -> Decision:
        request: Any = pending.message
        refusal = self._node.space.verdict.refusal
        try:
            decider.state.without_space = bool(refusal)
            decision = decider.decide(request, now, pending.kind, pending.first)
            error = decision.error if type(decision) is Refusal else None
            if isinstance(error, AwaitedIdError) and error.is_news:
                log.warning(
                    "a broker without an id waits",
                    address=error.place,
                    remaining_ms=error.remaining_ms,
                    why=error.message,
                )
            if refusal and type(decision) is Write and not REQUESTS[pending.kind].without_space:
                return Refusal(ApiError(ErrorCode.KAFKA_STORAGE_ERROR, refusal))
            return decision
        except FatalError:
            raise
        except Exception as defect:  # a bug: nothing was proposed, and the state is unchanged
            log.exception("deciding a request failed", request=pending.kind)
            return Refusal(
                ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{type(defect).__name__}: {defect}")
            )

    def _begin_transfer(
        self, leadership: Leadership, decision: TransferLeadership, pending: PendingRequest
    ) -> None:
        leadership.parking.give_back_place(pending.link.peer)
        parked = self._answers.parked(
            decision, pending, leadership.epoch, self._node.generation, -1
        )

        def answer(error: ApiError | None) -> None:
            if error is None:
                self._answers.send(parked)
            else:
                self._answers.refuse(pending.link, pending.message, error, pending.begun)

        self._transfer.begin(decision.target_id, "requested by an operator", answer)

    def _is_idle(self, turn: _Turn) -> bool:
        """Return whether requests arrive one at a time and far apart, so that nothing waits for the
        event loop while the disk syncs.
        """
        last_at, last_count = self._last
        self._last = (turn.now, turn.count)
        return turn.count <= 1 and last_count <= 1 and turn.now - last_at > IDLE_S


def _author(pending: PendingRequest) -> common_pb2.ClientIdentity | None:
    """Return the client that is the author of the write, or None if a broker or controller wrote
    about itself.
    """
    request: Any = pending.message
    client: common_pb2.ClientIdentity = request.client
    is_node = client.HasField("node_id") or bool(REQUESTS[pending.kind].claims)
    return None if is_node and not client.principal else client
