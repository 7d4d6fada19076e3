"""Errors on the wire: the protobuf message, the gRPC status of a failed call, and the trailing
metadata with the whole error and its retry delay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import DecodeError, Message

from raftlog.errors import ApiError, ErrorCode
from raftlog.wire.common.v1 import common_pb2


def error_to_wire(error: ApiError) -> common_pb2.Error:
    """Return the protobuf message for an exception; the leader is sent in the envelope."""
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
    """Return the exception for a protobuf message. An unknown code becomes UNKNOWN_SERVER_ERROR,
    with the code in the text.
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


ERROR_METADATA_KEY = "raftlog-error-bin"
"""Trailing metadata of a failed call: the serialised common.Error."""
LEADER_METADATA_KEY = "raftlog-leader-id"
"""Trailing metadata with NOT_CONTROLLER: id of the leader, if known."""
LEADER_ENDPOINT_METADATA_KEY = "raftlog-leader-endpoint"
"""Trailing metadata with NOT_CONTROLLER: address of the leader, host:port, if known."""
RICH_STATUS_KEY = "grpc-status-details-bin"
"""Trailing metadata of gRPC's rich error model: a google.rpc.Status with a google.rpc.ErrorInfo
and, if there is a retry delay, a google.rpc.RetryInfo.
"""
PUSHBACK_KEY = "grpc-retry-pushback-ms"
"""Trailing metadata with the delay for gRPC's own retries, in ms."""
_ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
_RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"

_S = grpc.StatusCode
_E = ErrorCode
STATUS: Mapping[ErrorCode, Any] = {
    _E.OFFSET_OUT_OF_RANGE: _S.OUT_OF_RANGE,
    _E.POSITION_OUT_OF_RANGE: _S.OUT_OF_RANGE,
    _E.CORRUPT_MESSAGE: _S.DATA_LOSS,
    _E.UNKNOWN_TOPIC_OR_PARTITION: _S.NOT_FOUND,
    _E.UNKNOWN_TOPIC_ID: _S.NOT_FOUND,
    _E.BROKER_ID_NOT_REGISTERED: _S.NOT_FOUND,
    _E.SNAPSHOT_NOT_FOUND: _S.NOT_FOUND,
    _E.UNKNOWN_PRODUCER_ID: _S.NOT_FOUND,
    _E.TOPIC_ALREADY_EXISTS: _S.ALREADY_EXISTS,
    _E.DUPLICATE_BROKER_REGISTRATION: _S.ALREADY_EXISTS,
    _E.DUPLICATE_VOTER: _S.ALREADY_EXISTS,
    _E.VOTER_NOT_FOUND: _S.NOT_FOUND,
    _E.RESOURCE_NOT_FOUND: _S.NOT_FOUND,
    _E.REQUEST_TIMED_OUT: _S.DEADLINE_EXCEEDED,
    _E.LEADER_NOT_AVAILABLE: _S.UNAVAILABLE,
    _E.LISTENER_NOT_FOUND: _S.UNAVAILABLE,
    _E.BROKER_NOT_AVAILABLE: _S.UNAVAILABLE,
    _E.NETWORK_EXCEPTION: _S.UNAVAILABLE,
    _E.LAO_UNKNOWN: _S.UNAVAILABLE,
    _E.NO_READ_LEASE: _S.UNAVAILABLE,
    _E.OFFSET_NOT_AVAILABLE: _S.UNAVAILABLE,
    _E.NOT_ENOUGH_REPLICAS: _S.UNAVAILABLE,
    _E.NOT_ENOUGH_REPLICAS_AFTER_APPEND: _S.UNAVAILABLE,
    _E.THROTTLING_QUOTA_EXCEEDED: _S.RESOURCE_EXHAUSTED,
    _E.TOPIC_AUTHORIZATION_FAILED: _S.PERMISSION_DENIED,
    _E.GROUP_AUTHORIZATION_FAILED: _S.PERMISSION_DENIED,
    _E.CLUSTER_AUTHORIZATION_FAILED: _S.PERMISSION_DENIED,
    _E.SASL_AUTHENTICATION_FAILED: _S.UNAUTHENTICATED,
    _E.UNSUPPORTED_VERSION: _S.UNIMPLEMENTED,
    _E.OPERATION_NOT_ATTEMPTED: _S.ABORTED,
    _E.KAFKA_STORAGE_ERROR: _S.INTERNAL,
    _E.UNKNOWN_SERVER_ERROR: _S.INTERNAL,
    _E.NOT_CONTROLLER: _S.FAILED_PRECONDITION,
    _E.NOT_LEADER_OR_FOLLOWER: _S.FAILED_PRECONDITION,
    _E.FENCED_LEADER_EPOCH: _S.FAILED_PRECONDITION,
    _E.UNKNOWN_LEADER_EPOCH: _S.FAILED_PRECONDITION,
    _E.NEW_LEADER_ELECTED: _S.FAILED_PRECONDITION,
    _E.STALE_BROKER_EPOCH: _S.FAILED_PRECONDITION,
    _E.OUT_OF_ORDER_SEQUENCE_NUMBER: _S.FAILED_PRECONDITION,
    _E.DUPLICATE_SEQUENCE_NUMBER: _S.FAILED_PRECONDITION,
    _E.INELIGIBLE_REPLICA: _S.FAILED_PRECONDITION,
    _E.INCONSISTENT_CLUSTER_ID: _S.FAILED_PRECONDITION,
    _E.INCONSISTENT_GENERATION: _S.FAILED_PRECONDITION,
    _E.BROKER_FENCED: _S.FAILED_PRECONDITION,
    _E.POLICY_VIOLATION: _S.FAILED_PRECONDITION,
    _E.PREFERRED_LEADER_NOT_AVAILABLE: _S.FAILED_PRECONDITION,
    _E.ELIGIBLE_LEADERS_NOT_AVAILABLE: _S.FAILED_PRECONDITION,
    _E.ELECTION_NOT_NEEDED: _S.FAILED_PRECONDITION,
    _E.NO_REASSIGNMENT_IN_PROGRESS: _S.FAILED_PRECONDITION,
}
"""The gRPC status for each error; the default, INVALID_ARGUMENT, is for errors in the request
itself.
"""


def refusal_metadata(error: ApiError) -> tuple[tuple[str, str | bytes], ...]:
    """Return the trailing metadata of an error."""
    metadata: list[tuple[str, str | bytes]] = [
        (ERROR_METADATA_KEY, error_to_wire(error).SerializeToString())
    ]
    details = [_packed(_ERROR_INFO, _error_info(error))]
    if error.leader_id >= 0 and error.code is ErrorCode.NOT_CONTROLLER:
        metadata.append((LEADER_METADATA_KEY, str(error.leader_id)))
        if error.leader_endpoint:
            metadata.append((LEADER_ENDPOINT_METADATA_KEY, error.leader_endpoint))
    if error.throttle_time_ms:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(error.throttle_time_ms)
        details.append(_packed(_RETRY_INFO, common_pb2.RetryInfo(retry_delay=delay)))
        metadata.append((PUSHBACK_KEY, str(error.throttle_time_ms)))
    status = common_pb2.RichStatus(
        code=status_of(error).value[0], message=error.message, details=details
    )
    metadata.append((RICH_STATUS_KEY, status.SerializeToString()))
    return tuple(metadata)


def error_of(trailing_metadata: Iterable[tuple[str, Any]]) -> common_pb2.Error:
    """Return the error in the trailing metadata of a failed call; empty if there is none."""
    error = common_pb2.Error()
    for key, value in trailing_metadata:
        if key == ERROR_METADATA_KEY:
            with suppress(DecodeError):
                error.ParseFromString(value)
    return error


def _packed(type_url: str, message: Message) -> any_pb2.Any:
    return any_pb2.Any(type_url=type_url, value=message.SerializeToString())


def _error_info(error: ApiError) -> common_pb2.ErrorInfo:
    """Return the error for clients in other languages that do not read our messages."""
    fields = {
        "outcome_unknown": str(error.outcome_unknown).lower(),
        "field": error.field,
        "leader_id": str(error.leader_id) if error.leader_id >= 0 else "",
        "leader_endpoint": error.leader_endpoint,
    }
    return common_pb2.ErrorInfo(
        reason=error.code.name,
        domain="raftlog",
        metadata=[
            common_pb2.ErrorInfoEntry(key=key, value=value)
            for key, value in fields.items()
            if value
        ],
    )


def status_of(error: ApiError) -> Any:
    """Return the gRPC status of an error."""
    return STATUS.get(error.code, grpc.StatusCode.INVALID_ARGUMENT)


async def abort(context: Any, error: ApiError) -> None:
    """End a call with an error. Never returns."""
    await context.abort(status_of(error), str(error), refusal_metadata(error))


def peer_address(context: Any) -> str:
    """Return the address of the peer, which gRPC writes as ``ipv4:127.0.0.1:1234`` or
    ``ipv6:%5B::1%5D:1234``.
    """
    return unquote(context.peer()).removeprefix("ipv4:").removeprefix("ipv6:")
