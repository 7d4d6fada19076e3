"""Unary methods for clients in other languages, served by the handlers of the streams.

The request of a unary method is the body of one stream request, its response the body of the
stream's response. An error becomes a gRPC status, with the whole common.Error in the trailing
metadata.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, NamedTuple

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from raftlog import tracing
from raftlog.errors import ApiError, ErrorCode
from raftlog.identity import ANONYMOUS, PeerIdentity
from raftlog.logger import get_logger
from raftlog.transport.admission import complaining, remembered
from raftlog.transport.api import LinkHandler
from raftlog.transport.statuses import (
    ERROR_METADATA_KEY,
    LEADER_METADATA_KEY,
    STATUS,
    abort,
    error_from_wire,
    peer_address,
)

__all__ = ["ERROR_METADATA_KEY", "LEADER_METADATA_KEY", "STATUS", "Answer", "unary_handler"]

log = get_logger(__name__)


class Caller(NamedTuple):
    """The caller of a unary method."""

    address: str
    identity: PeerIdentity = ANONYMOUS
    listener: str = ""
    complain: Callable[[str], None] | None = None
    """Counter of the caller's violations, or None if they are not counted."""


class UnaryLink:
    """A link that receives one response."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self.identity, self.listener = caller.identity, caller.listener
        self.response: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    @property
    def peer(self) -> str:
        """Address of the caller, for logs."""
        return self._caller.address

    def send(self, message: Any) -> None:
        """Set the response, unless the caller has gone."""
        if not self.response.done():
            self.response.set_result(message)

    def close(self, reason: str = "") -> None:
        """Do nothing, as a unary call has no stream."""

    def unknown_kind(self, what: str) -> None:
        """Do nothing, as a unary call has one kind."""

    def malformed(self, what: str) -> None:
        """Do nothing, as the caller receives the error."""

    def throttled(self, what: str) -> None:
        """Do nothing, as no further message arrives on this link."""

    def forbidden(self, what: str) -> None:
        """Count the violation; the caller receives the error."""
        if self._caller.complain is not None:
            self._caller.complain(what)


async def answer(handler: LinkHandler, request: Any, caller: Caller) -> Any:
    """Return a stream handler's response to one request; it may be an error response."""
    link = UnaryLink(caller)
    handler.received(link, [request])
    try:
        return await link.response
    finally:
        # The caller may have hung up: drop its pending request.
        handler.closed(link, "the call is over")


Answer = Callable[[Any, Caller], Awaitable[Any]]
"""A function that answers one request of a caller."""
Explicit = Answer


def unary_handler(
    service: ServiceDescriptor,
    request_item: type[Message] | None = None,
    answer: Answer | None = None,
    *,
    explicit: Mapping[str, Explicit] | None = None,
    listener: str = "",
    without: Collection[str] = (),
) -> Any:
    """Return one generic handler for all unary methods of a service, for
    ``Transport.listen(extra_handlers=...)``.

    A method is served by its entry in ``explicit`` (request message -> response message), or
    otherwise by ``answer`` (``request_item`` -> response item) through the field, in the items'
    oneof ``body``, that has the method's types. Both may raise ApiError. ``listener``: name of the
    serving listener. ``without``: bodies whose methods are not offered on it. Raises ValueError for
    a method that neither of them serves.
    """
    explicit = explicit or {}
    handlers: dict[str, Any] = {}
    for method in service.methods:
        if method.client_streaming or method.server_streaming:
            continue
        if method.name in explicit:
            call = _explicit_call(explicit[method.name])
        elif request_item is not None and answer is not None:
            body = _body_of(method, request_item)
            if body in without:
                continue
            call = _body_call(body, request_item, answer, listener)
        else:
            raise ValueError(f"no function serves the method {method.full_name}")
        handlers[method.name] = grpc.unary_unary_rpc_method_handler(
            call,
            request_deserializer=GetMessageClass(method.input_type).FromString,
            response_serializer=GetMessageClass(method.output_type).SerializeToString,
        )
    return grpc.method_handlers_generic_handler(service.full_name, handlers)


def _explicit_call(answer: Explicit) -> Callable[[Any, Any], Awaitable[Any]]:
    async def call(request: Any, context: Any) -> Any:
        try:
            return await answer(request, _caller(context, ""))
        except Exception as error:
            return await _abort(context, error)

    return call


def _caller(context: Any, listener: str) -> Caller:
    peer = peer_address(context)
    return Caller(peer, remembered(context), listener, complaining(peer))


def _body_of(method: MethodDescriptor, request_item: type[Message]) -> str:
    body = next(
        (
            field.name
            for field in request_item.DESCRIPTOR.oneofs_by_name["body"].fields
            if field.message_type == method.input_type
        ),
        None,
    )
    if body is None:
        raise ValueError(
            f"no body field of {request_item.DESCRIPTOR.name} has the type"
            f" {method.input_type.name} of {method.full_name}"
        )
    return body


def _body_call(
    body: str, request_item: type[Message], answer: Answer, listener: str
) -> Callable[[Any, Any], Awaitable[Any]]:
    takes_timeout = "timeout_ms" in request_item.DESCRIPTOR.fields_by_name

    async def call(request: Any, context: Any) -> Any:
        try:
            item: Any = request_item(**{body: request})
            remaining_s = context.time_remaining()
            if takes_timeout and remaining_s is not None:
                # At least 1: 0 would mean the server's default, which is longer than the client's
                # remaining time.
                item.timeout_ms = max(1, math.floor(min(remaining_s, 2**31 / 1000 - 1) * 1000))
            if tracing.active is not None:
                tracing.take_header(item, context.invocation_metadata())
            response = await answer(item, _caller(context, listener))
        except Exception as error:
            return await _abort(context, error)
        if response.error.error_code != ErrorCode.NONE:
            leader = (
                {"leader_id": response.leader_id, "leader_endpoint": response.leader_endpoint}
                if "leader_id" in response.DESCRIPTOR.fields_by_name
                else {}
            )
            return await _abort(context, error_from_wire(response.error, **leader))
        return getattr(response, body)

    return call


async def _abort(context: Any, error: Exception) -> None:
    if not isinstance(error, ApiError):
        log.error("a unary handler failed", peer=peer_address(context), exc_info=error)
        # It is unknown whether the request had taken effect when the handler failed.
        error = ApiError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            "an internal error occurred while the server processed this request",
            outcome_unknown=True,
        )
    await abort(context, error)
