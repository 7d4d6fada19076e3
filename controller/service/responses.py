"""What is said to clients that wait: refusals, unknown outcomes, and writes that are committed but
not yet as visible as asked.
"""

from __future__ import annotations

from typing import Any

from controller.service.intake import Waiting
from controller.service.parking import COMMITTED, Parked
from controller.state.id_waits import AwaitedIdError
from controller.visibility.lao_view import LaoView
from raftlog.errors import ApiError
from raftlog.metadata.entities import ClientResult
from raftlog.transport.api import LinkClosedError
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb


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


def duplicate_of(
    result: ClientResult, waiting: Waiting, response: pb.ControllerResponse, generation: int
) -> Parked:
    """The reply to a retry: where its write stands, and no body.

    True as soon as that record is committed: no round is needed.
    """
    write = response.write
    write.duplicate = True
    write.token.generation, write.token.epoch, write.token.offset = (
        generation,
        result.epoch,
        result.offset,
    )
    return Parked(
        waiting.link,
        response,
        result.offset,
        0,
        waiting.request.acks,
        waiting.deadline,
        kind=waiting.kind,
        begun=waiting.begun,
    )


def failure(
    correlation_id: int, error: ApiError, *, controller_epoch: int, leader_endpoint: str
) -> pb.ControllerResponse:
    """The response that is an error."""
    response = pb.ControllerResponse(
        correlation_id=correlation_id,
        leader_id=error.leader_id,
        leader_endpoint=leader_endpoint,
        controller_epoch=controller_epoch,
    )
    fill_error(response, error)
    return response


def say_how_far(parked: Parked, lao: LaoView, *, leadership_lost: bool) -> None:
    """Complete the response to a committed write: the level that it has reached, the brokers that
    the requested level still waits for, and whether the wait can continue at another controller.
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
    """Send; a link that has closed meanwhile swallows it, and its caller knows the outcome to be
    unknown. Returns why no message can hold it; None: it was sent.
    """
    try:
        link.send(message)
    except LinkClosedError:
        return None
    except ApiError as error:
        return error
    return None
