"""Replies: each is parked until its content is certain, then sent; requests that can no longer
succeed are refused.

A reply waits for the commit of the records it depends on, for a confirmed read-index round, for
LAO, or for every member to know LAO. Offsets, rounds and LAO only grow, and each reply waits for at
least as much as those before it, so every queue is released from its front.

Why: docs/decisions/003-read-index-rounds.md
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from controller.decision import Duplicate, Refusal, Reply, TransferLeadership, Write
from controller.service.intake import SLACK, Deadlines, Intake, PendingRequest
from controller.state.liveness import AwaitedIdError
from controller.visibility.lao import LaoView
from raftlog import bounds as limits
from raftlog.bounds import CONTROLLER_MAX_PARKED_REPLIES, Shares
from raftlog.config_writes.writes import KIND, ConfigReplies, ConfigWrites
from raftlog.errors import ApiError, ErrorCode
from raftlog.node.observability.figures import RequestFigures
from raftlog.tracing import Served
from raftlog.transport.api import LinkClosedError
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb

if TYPE_CHECKING:
    from controller.service.node import ControllerNode
    from controller.service.turns import Leadership

COMMITTED, ACKNOWLEDGED, VISIBLE = (
    common_pb2.ACKS_COMMITTED,
    common_pb2.ACKS_ACKNOWLEDGED,
    common_pb2.ACKS_VISIBLE,
)


class Parked(msgspec.Struct, eq=False):
    """A reply, or the replies to a group, parked until its content is certain."""

    link: Any
    response: Any
    offset: int
    """Offset (inclusive) of the last record that the reply depends on: the write's own, or the
    newest pending one when a read was decided.
    """
    round: int
    """Read-index round that a reply without records waits for; 0 for a write."""
    acks: Any
    deadline: float
    done: bool = False
    charged: bool = False
    """True while the reply is charged to its connection's share."""
    count: int = 1
    """Number of replies; above 1 only for a group."""
    kind: str = ""
    """Name of the request's body."""
    begun: float = 0.0
    """Time of the request's arrival, by the stopwatch."""
    code: int = 0
    """Error code of the reply; 0 if there is no error."""
    trace: Served | None = None
    """Span of a traced request, or None if it is not traced."""
    committed: bool = False
    """True for a traced write that is committed and waits for LAO."""

    @property
    def is_write(self) -> bool:
        """True for the reply to a write, whose records are in the log."""
        return self.round == 0

    def end_trace(self, code: int = 0) -> None:
        """End the span, and its last stage."""
        if self.trace is None:
            return
        if not self.is_write:
            self.trace.reached("read-index round")
        elif self.committed:
            self.trace.reached("visible" if self.acks == VISIBLE else "acknowledged")
        else:
            self.trace.reached("commit")
        self.trace.end(code)
        self.trace = None

    def mark_reached(self) -> None:
        """State in the response that the requested level has been reached."""
        if type(self.response) is ConfigReplies:
            self.response.reached = self.acks
        else:
            self.response.write.reached = self.acks

    def each(self) -> Iterator[Parked]:
        """Yield the replies one by one."""
        if type(self.response) is not ConfigReplies:
            yield self
            return
        for response in self.response.responses():
            offset = response.write.token.offset
            yield Parked(
                self.link,
                response,
                offset,
                self.round,
                self.acks,
                self.deadline,
                kind=self.kind,
                begun=self.begun,
            )


class Parking:
    """The parked replies of one leadership."""

    def __init__(self, send: Callable[[Parked], None]) -> None:
        self._send = send
        self._writes: deque[Parked] = deque()
        self._reads: deque[Parked] = deque()
        self._acknowledged: deque[Parked] = deque()
        self._visible: deque[Parked] = deque()
        self._waiting_for: dict[int, deque[Parked]] = {
            ACKNOWLEDGED: self._acknowledged,
            VISIBLE: self._visible,
        }
        """Committed writes that wait for a higher level, by that level."""
        self._duplicates: dict[common_pb2.Acks, list[tuple[int, int, Parked]]] = {
            COMMITTED: [],
            ACKNOWLEDGED: [],
            VISIBLE: [],
        }
        """Heaps of (offset, tie-breaker, reply), by the requested level."""
        self._duplicate_count = 0
        """Number of duplicates so far."""
        self._duplicates_waiting = 0
        self._deadlines: Deadlines[Parked] = Deadlines()
        self._dead = 0
        """Number of done replies that are still in a queue."""
        self._high_watermark = 0
        self._lowest_acknowledged_offset = self._min_known_lao = -1
        self._confirmed_round = 0
        self.shares = Shares(CONTROLLER_MAX_PARKED_REPLIES)
        """Places of parked replies, by peer."""
        self.take_place, self.give_back_place = self.shares.take, self.shares.give_back
        """Functions that take and return places, by peer. A place is taken before a request is
        decided; a connection must leave as many free places to the others as it holds.
        """

    def has_room(self, link: Any) -> bool:
        """Return whether another reply on this connection may be parked."""
        return self.shares.has_room(link.peer)

    def __len__(self) -> int:
        return (
            len(self._writes)
            + len(self._reads)
            + len(self._acknowledged)
            + len(self._visible)
            + self._duplicates_waiting
        )

    def depths(self) -> dict[str, int]:
        """Return the number of parked replies by the reason of the wait; a group counts as one."""
        return {
            "commit": len(self._writes),
            "read_index": len(self._reads),
            "acknowledged": len(self._acknowledged),
            "visible": len(self._visible),
            "duplicate": self._duplicates_waiting,
        }

    def park(self, parked: Parked) -> None:
        """Park a reply until its offset is committed and its round, if any, is confirmed."""
        if not parked.charged:
            self._charge(parked)
        (self._reads if parked.round else self._writes).append(parked)
        self._deadlines.add(parked)

    def park_duplicate(self, parked: Parked) -> None:
        """Park the reply to a retry, or send it at once if its record has reached the requested
        level.

        The record may be older than those of all other replies.
        """
        if not parked.charged:
            self._charge(parked)
        asked: Any = parked.acks
        self._duplicate_count += 1
        heap = self._duplicates.get(asked, self._duplicates[VISIBLE])
        heapq.heappush(heap, (parked.offset, self._duplicate_count, parked))
        self._duplicates_waiting += 1
        self._deadlines.add(parked)
        self._release_duplicates()

    def committed(self, high_watermark: int) -> None:
        """Release replies, as the high watermark (exclusive) has advanced."""
        self._high_watermark = high_watermark
        writes, give_back = self._writes, self.shares.give_back
        while writes and writes[0].offset < high_watermark:
            parked = writes.popleft()
            if parked.done:
                continue
            if parked.acks == COMMITTED:
                parked.done = True
                if parked.charged:
                    parked.charged = False
                    give_back(parked.link.peer, parked.count)
                self._send(parked)
            else:
                if parked.trace is not None:
                    parked.trace.reached("commit")
                    parked.committed = True
                self._waiting_for[parked.acks].append(parked)
        if self._duplicates_waiting:
            self._release_duplicates()
        if self._reads:
            self.release_reads()

    def read_index_confirmed(self, number: int) -> None:
        """Release replies, as this node still led after round ``number`` began."""
        self._confirmed_round = number
        self.release_reads()

    def is_confirmed(self, number: int) -> bool:
        """Return whether this node is known to have led after round ``number`` began."""
        return number <= self._confirmed_round

    def release_reads(self) -> None:
        """Send the replies without records whose round is confirmed and whose offset is
        committed.
        """
        reads = self._reads
        while (
            reads
            and reads[0].round <= self._confirmed_round
            and reads[0].offset < self._high_watermark
        ):
            self._finish(reads.popleft())

    def visibility(self, lowest_acknowledged_offset: int, min_known_lao: int) -> None:
        """Release replies, as LAO, or the lowest LAO that a member knows, has moved (inclusive; -1
        if unknown).
        """
        self._lowest_acknowledged_offset, self._min_known_lao = (
            lowest_acknowledged_offset,
            min_known_lao,
        )
        for queue, reached in (
            (self._acknowledged, lowest_acknowledged_offset),
            (self._visible, min_known_lao),
        ):
            while queue and queue[0].offset <= reached:
                parked = queue.popleft()
                if not parked.done:
                    parked.mark_reached()
                    self._finish(parked)
        self._release_duplicates()

    def waits_for_known_lao(self, lao: int) -> bool:
        """Return whether a reply covered by this LAO waits for every member to know it."""
        visible, duplicates = self._visible, self._duplicates[VISIBLE]
        return bool(
            (visible and visible[0].offset <= lao) or (duplicates and duplicates[0][0] <= lao)
        )

    def _release_duplicates(self) -> None:
        # Their offsets come in any order.
        if not self._duplicates_waiting:
            return
        for asked, heap in self._duplicates.items():
            if heap:
                reached = {
                    COMMITTED: self._high_watermark - 1,
                    ACKNOWLEDGED: self._lowest_acknowledged_offset,
                }
                self._release_heap(heap, asked, reached.get(asked, self._min_known_lao))

    def _release_heap(
        self, heap: list[tuple[int, int, Parked]], asked: common_pb2.Acks, reached: int
    ) -> None:
        while heap and heap[0][0] <= reached:
            parked = heapq.heappop(heap)[2]
            self._duplicates_waiting -= 1
            if not parked.done:
                parked.response.write.reached = asked
                self._finish(parked)

    def _finish(self, parked: Parked) -> None:
        if not parked.done:
            self._done(parked)
            self._send(parked)

    def expired(self, now: float) -> Iterator[tuple[Parked, bool]]:
        """Remove and yield each reply whose deadline has passed, with whether its write is
        committed; the caller answers it.

        Resumable: the next call continues.
        """
        for parked in self._deadlines.late(now, len(self)):
            self._done(parked)
            self._dead += 1
            yield parked, self._is_committed(parked)
        if self._dead and (self._dead > len(self) // 2 + SLACK or self._dead >= len(self)):
            # Some of these queues may not move for long.
            self._sweep()

    def abandon(self, links: Collection[Any]) -> None:
        """Drop the replies on links that have closed.

        O(n).
        """
        duplicates = (entry[2] for heap in self._duplicates.values() for entry in heap)
        for parked in chain(
            self._writes, self._reads, self._acknowledged, self._visible, duplicates
        ):
            if parked.link in links and not parked.done:
                self._done(parked)
                parked.end_trace()
        self._sweep()

    def _is_committed(self, parked: Parked) -> bool:
        return parked.is_write and parked.offset < self._high_watermark

    def _sweep(self) -> None:
        """Remove done replies from the queues."""
        self._dead = 0
        for queue in (self._writes, self._reads, self._acknowledged, self._visible):
            left = [parked for parked in queue if not parked.done]
            queue.clear()
            queue.extend(left)
        for heap in self._duplicates.values():
            heap[:] = [entry for entry in heap if not entry[2].done]
            heapq.heapify(heap)
        self._duplicates_waiting = sum(len(heap) for heap in self._duplicates.values())

    def _charge(self, parked: Parked) -> None:
        if parked.link is not None:
            parked.charged = self.shares.take(parked.link.peer, parked.count)

    def _done(self, parked: Parked) -> None:
        parked.done = True
        if parked.charged:
            parked.charged = False
            self.shares.give_back(parked.link.peer, parked.count)

    def drain(self) -> Iterator[tuple[Parked, bool]]:
        """Remove and yield all replies, as the leadership is lost, each with whether its write is
        committed.

        Resumable: the next call continues.
        """
        for queue in (self._writes, self._reads, self._acknowledged, self._visible):
            while queue:
                parked = queue.popleft()
                if not parked.done:
                    self._done(parked)
                    yield parked, self._is_committed(parked)
        for heap in self._duplicates.values():
            while heap:
                parked = heapq.heappop(heap)[2]
                self._duplicates_waiting -= 1
                if not parked.done:
                    self._done(parked)
                    yield parked, self._is_committed(parked)


def fill_error(response: pb.ControllerResponse, error: ApiError) -> None:
    """Put an error into a response."""
    response.error.error_code = error.code
    response.error.error_message = error.message
    response.error.field = error.field
    response.error.outcome_unknown = error.outcome_unknown
    response.error.throttle_time_ms = error.throttle_time_ms
    if isinstance(error, AwaitedIdError):
        response.awaited_id.broker_id, response.awaited_id.remaining_ms = (
            error.broker_id,
            error.remaining_ms,
        )


def failure(
    correlation_id: int, error: ApiError, *, controller_epoch: int, leader_endpoint: str
) -> pb.ControllerResponse:
    """Return a response with an error."""
    response = pb.ControllerResponse(
        correlation_id=correlation_id,
        leader_id=error.leader_id,
        leader_endpoint=leader_endpoint,
        controller_epoch=controller_epoch,
    )
    fill_error(response, error)
    return response


def add_progress(parked: Parked, lao: LaoView, *, leadership_lost: bool) -> None:
    """Complete the response to a committed write whose level is not reached.

    Adds the level that it has reached, the brokers that the requested level still waits for, and
    whether the wait can continue at another controller.
    """
    if parked.acks == COMMITTED:
        return
    write = parked.response.write
    write.leadership_lost = leadership_lost
    acknowledged = lao.lao >= parked.offset
    write.reached = common_pb2.ACKS_ACKNOWLEDGED if acknowledged else common_pb2.ACKS_COMMITTED
    waiting = lao.waiting_for_known_lao if acknowledged else lao.waiting_for_applied
    write.waiting_for_brokers.extend(waiting(parked.offset))


def send_quietly(link: Any, message: Any) -> ApiError | None:
    """Send a message. On a closed link it is dropped; the client sees the link close and knows that
    the outcome is unknown.

    Returns the error if the message cannot be sent, e.g. because it is too large, or None.
    """
    try:
        link.send(message)
    except LinkClosedError:
        return None
    except ApiError as error:
        return error
    return None


HEARTBEAT = "broker_heartbeat"
_OF_WRITES = (Write, Duplicate)
Answerable = Write | Reply | Refusal | Duplicate | TransferLeadership
"""Every outcome except Defer, whose request is decided again later, and answered then."""


class Answers:
    """Sends one node's answers."""

    def __init__(self, node: ControllerNode, figures: RequestFigures) -> None:
        self._node = node
        self.figures = figures

    def send(self, parked: Parked) -> None:
        """Send a parked reply whose content has become certain.

        Never raises: an error would hold up the other replies that the same commit releases.
        """
        if parked.kind == HEARTBEAT and not parked.code:
            parked.response.broker_heartbeat.quorum_time_ms = self._node.quorum_time_ms
        too_large = send_quietly(parked.link, parked.response)
        if too_large is not None:
            error = ApiError(
                too_large.code,
                f"the reply: {too_large.message}",
                field=too_large.field,
                outcome_unknown=parked.is_write,
            )
            parked.end_trace(error.code)
            self._fail(
                parked.link, parked.response.correlation_id, error, parked.kind, parked.begun
            )
            return
        if parked.trace is not None:
            parked.end_trace(parked.code)
        self.figures.answered(parked.kind, parked.begun, parked.code, parked.count)

    def refuse(
        self,
        link: Any,
        request: pb.ControllerRequest | ConfigWrites,
        error: ApiError,
        begun: float | None = None,
    ) -> None:
        """Refuse a request, or each request of a group: it definitely failed, and no part of it was
        executed.

        ``begun``: time of arrival, by the stopwatch; None for now.
        """
        if begun is None:
            begun = self.figures.stopwatch()
        if type(request) is ConfigWrites:
            for correlation_id in request.correlation_ids:
                self._fail(link, correlation_id, error, KIND, begun)
        else:
            one: Any = request
            self._fail(link, one.correlation_id, error, one.WhichOneof("body") or "", begun)

    def _fail(
        self, link: Any, correlation_id: int, error: ApiError, kind: str, begun: float
    ) -> None:
        """End a request with this error, which states whether the outcome is known."""
        if self._node.closed:
            # The node has stopped, perhaps because of its disk: send nothing more, not even an
            # error.
            return
        send_quietly(link, self._node.directory.failure(correlation_id, error, link.listener))
        self.figures.answered(kind, begun, error.code)

    def give_up(
        self, parked: Parked, lao: LaoView, is_committed: bool, code: ErrorCode, why: str
    ) -> None:
        """Answer a request that can wait no longer.

        A committed write succeeds. An uncommitted write has an unknown outcome. A request without
        records definitely failed.
        """
        for one in parked.each():
            if is_committed:
                add_progress(one, lao, leadership_lost=code is ErrorCode.NOT_CONTROLLER)
                self.send(one)
            else:
                error = ApiError(code, why, outcome_unknown=one.is_write)
                one.end_trace(code)
                self._fail(one.link, one.response.correlation_id, error, one.kind, one.begun)

    def parked(
        self,
        decision: Answerable,
        pending: PendingRequest,
        epoch: int,
        generation: int,
        offset: int,
    ) -> Parked:
        """Return the reply to ``epoch``'s decision on a request, or the replies to a group of
        writes, to be parked.

        ``offset``: offset of the last record that the decision wrote or depends on.
        """
        request: Any = pending.message
        leader_id, code = self._node.directory.leader_id, 0
        response: Any
        if type(request) is ConfigWrites:
            base_offset = offset + 1 - len(request.changes)
            response = ConfigReplies(
                request.correlation_ids, request.counts, base_offset, leader_id, epoch, generation
            )
        else:
            response = pb.ControllerResponse(
                correlation_id=request.correlation_id, leader_id=leader_id, controller_epoch=epoch
            )
            token = response.write.token if type(decision) in _OF_WRITES else None
            if type(decision) is Duplicate:
                # The reply is true as soon as that record is committed: it needs no round, and no
                # body.
                response.write.duplicate = True
                offset, epoch = decision.result.offset, decision.result.epoch
            elif type(decision) is Refusal:
                fill_error(response, decision.error)
                code = decision.error.code
                if code is ErrorCode.NOT_CONTROLLER:
                    # A controller that finds itself stale does not name itself as the active one.
                    response.leader_id = decision.error.leader_id
            else:
                getattr(response, pending.kind).CopyFrom(decision.body)
                self.figures.failed_parts(pending.kind, decision.body)
            if token is not None:
                token.generation, token.epoch, token.offset = generation, epoch, offset
        return Parked(
            pending.link,
            response,
            offset,
            0,
            request.acks,
            pending.deadline,
            count=pending.count,
            kind=pending.kind,
            begun=pending.begun,
            code=code,
        )


class Refusals:
    """Sends a node's refusals: a bounded number in each turn of the event loop."""

    def __init__(
        self,
        answers: Answers,
        intake: Intake,
        node: ControllerNode,
        soon: Callable[[float, Callable[[], None]], None],
        stopwatch: Callable[[], float],
    ) -> None:
        """``soon``: calls back in a later turn of the event loop, unless this node has stopped by
        then.
        """
        self._answers, self._intake, self._node = answers, intake, node
        self._soon, self.stopwatch = soon, stopwatch
        # The lost leaderships, each with the parked replies that are still to be answered.
        self._lost: deque[tuple[Leadership, str, Iterator[tuple[Parked, bool]]]] = deque()
        self._refusing = self._due = False

    def lost(self, leadership: Leadership, why: str) -> None:
        """Answer every request that waits for records of a lost leadership."""
        self._lost.append((leadership, why, leadership.parking.drain()))
        self.answer_due()

    def refuse_waiting(self) -> None:
        """Refuse every request in the intake of a node that does not lead: none was started."""
        self._refusing = True
        self.answer_due()

    def answer_due(self) -> None:
        """Refuse the requests that can no longer succeed, unless the next turn does that anyway."""
        if self._due:
            return
        begun = self.stopwatch()
        refusals = self._all()
        for _ in range(limits.CONTROLLER_TURN_MAX_REFUSALS):
            if not next(refusals, False):
                return
            if self.stopwatch() - begun >= limits.TURN_MAX_S:
                break
        self._due = True
        self._soon(self.stopwatch() - begun, self._next_turn)

    def _next_turn(self) -> None:
        self._due = False
        self.answer_due()

    def _all(self) -> Iterator[bool]:
        """Answer one request in each step."""
        answers, node = self._answers, self._node
        while self._lost:
            lost, why, left = self._lost[0]
            for parked, is_committed in left:
                answers.give_up(parked, lost.log.lao, is_committed, ErrorCode.NOT_CONTROLLER, why)
                yield True
            self._lost.popleft()
        error = node.not_controller()
        if self._refusing and error is not None:
            for pending in self._intake.drain():
                answers.refuse(pending.link, pending.message, error, pending.begun)
                yield True
        self._refusing = False
        leadership, now = node.leadership, node.now()
        if leadership is None:
            return
        for parked, is_committed in leadership.parking.expired(now):
            answers.give_up(
                parked,
                leadership.log.lao,
                is_committed,
                ErrorCode.REQUEST_TIMED_OUT,
                "the write was not committed, or the read not confirmed, before its timeout",
            )
            yield True
        error = ApiError(
            ErrorCode.REQUEST_TIMED_OUT, "the request was not started before its timeout"
        )
        for pending in self._intake.expired(now):
            answers.refuse(pending.link, pending.message, error, pending.begun)
            yield True
