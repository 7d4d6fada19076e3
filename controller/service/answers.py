"""Sends the outcome of each request to the client that waits for it, and nothing more once this
node has stopped.
"""

from __future__ import annotations

from typing import Any, Protocol

from controller.decision import Duplicate, Refusal, Reply, TransferLeadership, Write
from controller.service.directory import Directory
from controller.service.intake import Waiting
from controller.service.parking import Parked
from controller.service.responses import duplicate_of, fill_error, say_how_far, send_quietly
from controller.visibility.lao_view import LaoView
from raftlog.config_writes.messages import KIND, ConfigReplies, ConfigWrites
from raftlog.errors import ApiError, ErrorCode
from raftlog.observability.request_figures import RequestFigures
from raftlog.wire.controller.v1 import controller_pb2 as pb

HEARTBEAT = "broker_heartbeat"
Answerable = Write | Reply | Refusal | Duplicate | TransferLeadership
"""Every outcome except Defer: a deferred request is decided again later, and answered then."""


class Node(Protocol):
    """What answers need from the node."""

    directory: Directory
    closed: bool

    @property
    def quorum_time_ms(self) -> int:
        """What time it is by the quorum; 0: that is not known."""


class Answers:
    """Sends the answers of one node."""

    def __init__(self, node: Node, figures: RequestFigures) -> None:
        self._node = node
        self.figures = figures

    def send(self, parked: Parked) -> None:
        """Send a parked reply: what it says has become true. Never raises: it is sent in the turn
        of a commit, and others wait behind it.
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
        """Refuse a request, or each of a group: it definitely failed, and no part of it was
        executed. ``begun``: when it came, by the stopwatch; None: just now.
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
        """End a request with this error, which says whether the outcome is known."""
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
                say_how_far(one, lao, leadership_lost=code is ErrorCode.NOT_CONTROLLER)
                self.send(one)
            else:
                error = ApiError(code, why, outcome_unknown=one.is_write)
                one.end_trace(code)
                self._fail(one.link, one.response.correlation_id, error, one.kind, one.begun)

    def parked_group(
        self, waiting: Waiting, writes: ConfigWrites, base_offset: int, epoch: int, generation: int
    ) -> Parked:
        """The replies to a group of writes whose records begin at ``base_offset``, to be parked."""
        replies = ConfigReplies(
            writes.correlation_ids,
            writes.counts,
            base_offset,
            self._node.directory.leader_id,
            epoch,
            generation,
        )
        last_offset = base_offset + len(writes.changes) - 1
        return Parked(
            waiting.link,
            replies,
            last_offset,
            0,
            writes.acks,
            waiting.deadline,
            charged=True,
            count=len(writes.counts),
            kind=KIND,
            begun=waiting.begun,
        )

    def parked(
        self, decision: Answerable, waiting: Waiting, epoch: int, generation: int, offset: int
    ) -> Parked:
        """The reply to a decision of ``epoch`` about a single request, to be parked.

        ``offset``: the offset of the last record that the decision wrote.
        """
        request: Any = waiting.request
        response = pb.ControllerResponse(
            correlation_id=request.correlation_id,
            leader_id=self._node.directory.leader_id,
            controller_epoch=epoch,
        )
        code = 0
        if type(decision) is Write:
            getattr(response, waiting.kind).CopyFrom(decision.body)
            self.figures.failed_parts(waiting.kind, decision.body)
            token = response.write.token
            token.generation, token.epoch, token.offset = generation, epoch, offset
        elif type(decision) is Duplicate:
            return duplicate_of(decision.result, waiting, response, generation)
        elif type(decision) is Refusal:
            fill_error(response, decision.error)
            code = decision.error.code
            if decision.error.code is ErrorCode.NOT_CONTROLLER:
                # A controller that finds itself stale does not name itself as the active one.
                response.leader_id = decision.error.leader_id
        else:
            getattr(response, waiting.kind).CopyFrom(decision.body)
            self.figures.failed_parts(waiting.kind, decision.body)
        return Parked(
            waiting.link,
            response,
            offset,
            0,
            request.acks,
            waiting.deadline,
            kind=waiting.kind,
            begun=waiting.begun,
            code=code,
        )
