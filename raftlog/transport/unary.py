"""The services' unary methods, for foreign clients, on top of the handler of the streams.

A unary method's request is the body of one stream request, and its response the body of the stream's response; an error
becomes a gRPC status, with the whole common.Error in the trailing metadata.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from raftlog.errors import ApiError, ErrorCode
from raftlog.transport import grpc_env  # noqa: F401  (before grpc)
from raftlog.transport.wire_errors import error_from_wire, error_to_wire

import grpc  # isort: skip

log = structlog.get_logger(__name__)

ERROR_METADATA_KEY = "raftlog-error-bin"
"""Trailing metadata of a failed call: the serialised common.Error."""
LEADER_METADATA_KEY = "raftlog-leader-id"
"""Trailing metadata beside NOT_CONTROLLER: who is, if known."""

Answer = Callable[[Any], Awaitable[Any]]

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
    _E.BROKER_NOT_AVAILABLE: _S.UNAVAILABLE,
    _E.NETWORK_EXCEPTION: _S.UNAVAILABLE,
    _E.LAO_UNKNOWN: _S.UNAVAILABLE,
    _E.NO_READ_LEASE: _S.UNAVAILABLE,
    _E.OFFSET_NOT_AVAILABLE: _S.UNAVAILABLE,
    _E.NOT_ENOUGH_REPLICAS: _S.UNAVAILABLE,
    _E.NOT_ENOUGH_REPLICAS_AFTER_APPEND: _S.UNAVAILABLE,
    _E.THROTTLING_QUOTA_EXCEEDED: _S.RESOURCE_EXHAUSTED,
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
"""The status of each error; what is not here finds fault with the request itself: INVALID_ARGUMENT."""


def unary_handler(
    service: ServiceDescriptor,
    request_item: type[Message] | None = None,
    answer: Answer | None = None,
    *,
    explicit: Mapping[str, Answer] | None = None,
) -> Any:
    """One generic handler for all unary methods of a service, for ``Transport.listen(extra_handlers=...)``.

    A method is served by its entry in ``explicit`` (request message -> response message), or else by ``answer``
    (``request_item`` -> response item) through the field of the items' oneof ``body`` that has the method's types.
    Both may raise ApiError. Raises ValueError for a method that neither serves.
    """
    explicit = explicit or {}
    handlers: dict[str, Any] = {}
    for method in service.methods:
        if method.client_streaming or method.server_streaming:
            continue
        if method.name in explicit:
            call = _explicit_call(explicit[method.name])
        elif request_item is not None and answer is not None:
            call = _body_call(method, request_item, answer)
        else:
            raise ValueError(f"nothing serves {method.full_name}")
        handlers[method.name] = grpc.unary_unary_rpc_method_handler(
            _parsing(GetMessageClass(method.input_type), call),
            response_serializer=GetMessageClass(method.output_type).SerializeToString,
        )
    return grpc.method_handlers_generic_handler(service.full_name, handlers)


def _parsing(
    request_type: type[Message], call: Callable[[Any, Any], Awaitable[Any]]
) -> Callable[[Any, Any], Awaitable[Any]]:
    """A call on the request's bytes: what does not parse is the caller's mistake, of which gRPC would make UNKNOWN and a traceback."""

    async def parse_and_call(data: bytes, context: Any) -> Any:
        try:
            request = request_type.FromString(data)
        except DecodeError as error:
            refusal = ApiError(ErrorCode.INVALID_REQUEST, f"the request is no {request_type.DESCRIPTOR.name}: {error}")
            return await _abort(context, refusal)
        return await call(request, context)

    return parse_and_call


def _explicit_call(answer: Answer) -> Callable[[Any, Any], Awaitable[Any]]:
    async def call(request: Any, context: Any) -> Any:
        try:
            return await answer(request)
        except Exception as error:
            return await _abort(context, error)

    return call


def _body_call(
    method: MethodDescriptor, request_item: type[Message], answer: Answer
) -> Callable[[Any, Any], Awaitable[Any]]:
    body = next(
        (
            field.name
            for field in request_item.DESCRIPTOR.oneofs_by_name["body"].fields
            if field.message_type == method.input_type
        ),
        None,
    )
    if body is None:
        raise ValueError(f"no body of {request_item.DESCRIPTOR.name} is a {method.input_type.name}: {method.full_name}")
    takes_timeout = "timeout_ms" in request_item.DESCRIPTOR.fields_by_name

    async def call(request: Any, context: Any) -> Any:
        try:
            item: Any = request_item(**{body: request})
            remaining_s = context.time_remaining()
            if takes_timeout and remaining_s is not None:
                # At least 1: 0 would mean the server's default, which is longer than what the client has left.
                item.timeout_ms = max(1, math.floor(min(remaining_s, 2**31 / 1000 - 1) * 1000))
            response = await answer(item)
        except Exception as error:
            return await _abort(context, error)
        if response.error.error_code != ErrorCode.NONE:
            leader_id = response.leader_id if "leader_id" in response.DESCRIPTOR.fields_by_name else -1
            return await _abort(context, error_from_wire(response.error, leader_id=leader_id))
        return getattr(response, body)

    return call


async def _abort(context: Any, error: Exception) -> None:
    if not isinstance(error, ApiError):
        log.error("a unary handler failed", exc_info=error)
        # Whether it failed before or after it took effect is more than we can tell.
        error = ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "the server failed on this request", outcome_unknown=True)
    metadata: list[tuple[str, str | bytes]] = [(ERROR_METADATA_KEY, error_to_wire(error).SerializeToString())]
    if error.leader_id >= 0 and error.code is ErrorCode.NOT_CONTROLLER:
        metadata.append((LEADER_METADATA_KEY, str(error.leader_id)))
    await context.abort(STATUS.get(error.code, grpc.StatusCode.INVALID_ARGUMENT), str(error), tuple(metadata))
