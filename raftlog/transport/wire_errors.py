"""Errors between their two forms: the exception and the message."""

from __future__ import annotations

from raftlog.errors import ApiError, ErrorCode
from raftlog.wire.common.v1 import common_pb2


def error_to_wire(error: ApiError) -> common_pb2.Error:
    """The message of an exception; the leader travels in the envelope beside it."""
    return common_pb2.Error(
        error_code=int(error.code),
        error_message=error.message,
        field=error.field,
        outcome_unknown=error.outcome_unknown,
        throttle_time_ms=error.throttle_time_ms,
    )


def error_from_wire(
    error: common_pb2.Error, *, leader_id: int = -1, leader_endpoint: str = ""
) -> ApiError:
    """The exception of a message.

    A code that we do not know becomes UNKNOWN_SERVER_ERROR and is named in the text.
    """
    message = error.error_message
    try:
        code = ErrorCode(error.error_code)
    except ValueError:
        code = ErrorCode.UNKNOWN_SERVER_ERROR
        message = f"error code {error.error_code}: {message}"
    return ApiError(
        code,
        message,
        field=error.field,
        outcome_unknown=error.outcome_unknown,
        leader_id=leader_id,
        leader_endpoint=leader_endpoint,
        throttle_time_ms=error.throttle_time_ms,
    )
