"""Says what became of a request to whoever waits for it, and nothing more once this node has stopped."""

from __future__ import annotations

from typing import Any

from controller.decision import Duplicate, Refusal, Reply, TransferLeadership, Write
from controller.service.directory import Directory
from controller.service.intake import Waiting
from controller.service.parking import Parked
from controller.service.responses import duplicate_of, fill_error, say_how_far, send_quietly
from controller.visibility.lao import LaoTracker
from raftlog.errors import ApiError, ErrorCode
from raftlog.wire.controller.v1 import controller_pb2 as pb

Answerable = Write | Reply | Refusal | Duplicate | TransferLeadership
"""Every outcome but one: what is deferred is decided anew, and answered then."""


class Answers:
    """The answers of one node."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self.closed = False

    def send(self, parked: Parked) -> None:
        """What was parked is true now."""
        send_quietly(parked.link, parked.response)

    def refuse(self, link: Any, request: pb.ControllerRequest, error: ApiError) -> None:
        """A request failed for certain: nothing of it was begun."""
        self.fail(link, request.correlation_id, error)

    def fail(self, link: Any, correlation_id: int, error: ApiError) -> None:
        """A request ends with this error, which says whether its outcome is known."""
        if self.closed:
            # Stopped, perhaps by its disk: not another word, not even of regret.
            return
        send_quietly(link, self._directory.failure(correlation_id, error))

    def give_up(self, parked: Parked, lao: LaoTracker, is_committed: bool, code: ErrorCode, why: str) -> None:
        """Answer what can wait no longer. What is committed stands; what wrote nothing has failed for certain."""
        if is_committed:
            say_how_far(parked, lao)
            send_quietly(parked.link, parked.response)
        else:
            error = ApiError(code, why, outcome_unknown=parked.is_write)
            self.fail(parked.link, parked.response.correlation_id, error)

    def parked(self, decision: Answerable, waiting: Waiting, epoch: int, generation: int, offset: int) -> Parked:
        """The reply to what was decided in ``epoch``, to be parked. ``offset``: of the last record that it wrote."""
        response = pb.ControllerResponse(
            correlation_id=waiting.request.correlation_id,
            leader_id=self._directory.leader_id,
            controller_epoch=epoch,
        )
        if isinstance(decision, Duplicate):
            return duplicate_of(decision.result, waiting, response, generation)
        if isinstance(decision, Refusal):
            fill_error(response, decision.error)
            if decision.error.code is ErrorCode.NOT_CONTROLLER:
                # Who finds that it is the stale one does not name itself as the controller to go to.
                response.leader_id = decision.error.leader_id
        else:
            getattr(response, waiting.kind or waiting.request.WhichOneof("body")).CopyFrom(decision.body)
        if isinstance(decision, Write):
            token = response.write.token
            token.generation, token.epoch, token.offset = generation, epoch, offset
        return Parked(waiting.link, response, offset, 0, waiting.request.acks, waiting.deadline)
