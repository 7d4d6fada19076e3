"""Admission of calls: the server identifies each caller once, before a handler sees the call.

A call first needs a free place. Then its caller must be identified, except for a health check. Only
then is its request read, and queued for a turn: the event loop starts one call per iteration,
however many have arrived. A request that cannot be parsed is reported as the caller's mistake; gRPC
by itself would return an unknown error, and write a traceback to our log.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import grpc
import grpc.aio

from raftlog.errors import ApiError, ErrorCode
from raftlog.identity import (
    TOKEN_MAX_CHARS,
    Access,
    Admitted,
    PeerIdentity,
    TokenRefusedError,
)
from raftlog.transport.api import Conversation
from raftlog.transport.bounds import UNARY, Bounds, Complaint, Complaints
from raftlog.transport.certificates import identity_of
from raftlog.transport.statuses import abort, peer_address

AUTHORIZATION_KEY = "authorization"
"""Metadata key of a call's token; the value is ``Bearer`` and the token."""
METADATA_MAX_BYTES = TOKEN_MAX_CHARS + 4_096
"""Limit on a call's metadata, in bytes, on listeners that accept tokens. gRPC refuses some calls
with more, and all above 16 KiB.
"""
EXPIRED = "the {what} has expired: connect again with a fresh one"

_CALLER: ContextVar[PeerIdentity] = ContextVar("raftlog_caller")
_COMPLAINTS: ContextVar[Complaints] = ContextVar("raftlog_complaints")
"""Complaints of the current call: gRPC runs each call in a separate task, from the interceptors to
the handler.
"""


async def admit(context: Any, access: Access, bounds: Bounds) -> Admitted:
    """Return the identity of a call's caller. Raises ApiError, which is sent to the caller."""
    # gRPC delivers invalid UTF-8 as bytes, which are never a token.
    authorization = [
        str(value) for key, value in context.invocation_metadata() if key == AUTHORIZATION_KEY
    ]
    try:
        caller = await access.admit(identity_of(context), authorization)
    except TokenRefusedError as error:
        raise bounds.unauthenticated(peer_address(context), str(error)) from error
    # TLS has checked the certificate once, when the connection was opened.
    if what := caller.expired(access.clock()):
        raise bounds.unauthenticated(peer_address(context), EXPIRED.format(what=what))
    return caller


def remember(identity: PeerIdentity, complaints: Complaints) -> None:
    """Store the caller's identity for the handler of the current call."""
    _CALLER.set(identity)
    _COMPLAINTS.set(complaints)


def remembered(context: Any) -> PeerIdentity:
    """Return the identity of the current call's caller."""
    return _CALLER.get(None) or identity_of(context)


def complaining(peer: str) -> Callable[[str], None] | None:
    """Return the counter of the current caller's violations, or None if they are not counted."""
    complaints = _COMPLAINTS.get(None)
    return None if complaints is None else partial(complaints.add, Complaint.FORBIDDEN, peer)


class ExpiryTimer:
    """A timer that reports once, by the wall clock, that a caller's token or certificate has
    expired.
    """

    def __init__(
        self, caller: Admitted, access: Access, expired: Callable[[ApiError], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._caller, self._clock, self._expired = caller, access.clock, expired
        self._timer: asyncio.TimerHandle | None = None
        self._look()

    def cancel(self) -> None:
        """Cancel the report."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        now_s = self._clock()
        if what := self._caller.expired(now_s):
            self._timer = None
            why = EXPIRED.format(what=what)
            self._expired(ApiError(ErrorCode.SASL_AUTHENTICATION_FAILED, why))
        elif (pause_s := self._caller.look_again_in_s(now_s)) < math.inf:
            self._timer = self._loop.call_later(pause_s, self._look)


_CONVERSATIONS = frozenset(conversation.value for conversation in Conversation)
OPEN_METHOD = "/grpc.health.v1.Health/Check"
"""The health check method, which is open to every client, as a probe has no token."""
_OWN = "/raftlog."
FOREIGN_REQUEST_MAX_BYTES = 4 << 10
"""Largest health request, in bytes: it contains only a service name."""


class Admission(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """The interceptor of a server's handlers. Conversations have separate places and turns."""

    def __init__(self, bounds: Bounds, access: Access, max_bytes: int) -> None:
        """``max_bytes``: the largest request of the server's own methods."""
        self._bounds = bounds
        self._max_bytes = max_bytes
        self._access = access
        self._places = bounds.streams[UNARY]
        self._turns = bounds.turns[UNARY]

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> Any:
        """Return the guarded handler of one call."""
        self._bounds.newcomers.count += 1
        handler = await continuation(details)
        if handler is None or details.method in _CONVERSATIONS:
            return handler
        if handler.unary_unary is not None:
            answer = self._unary(handler.unary_unary, handler.request_deserializer, details.method)
            return grpc.stream_unary_rpc_method_handler(
                answer, response_serializer=handler.response_serializer
            )
        if handler.unary_stream is not None:
            answer = self._unary(
                handler.unary_stream, handler.request_deserializer, details.method, streams=True
            )
            return grpc.stream_stream_rpc_method_handler(
                answer, response_serializer=handler.response_serializer
            )
        if handler.stream_stream is not None:
            return grpc.stream_stream_rpc_method_handler(
                self._stream(handler.stream_stream),
                self._lenient(handler),
                handler.response_serializer,
            )
        return handler

    @contextmanager
    def _place(self, peer: str) -> Iterator[ApiError | None]:
        """Hold a place among the calls; yields the refusal if no place is free, or None."""
        places = self._places
        if not places.take(peer):
            message = (
                f"no more calls are accepted: {places.held(peer)} are open on this connection,"
                f" {places.total} on all connections"
            )
            yield self._bounds.throttled(Complaint.TOO_MANY_STREAMS, peer, message)
            return
        try:
            yield None
        finally:
            places.give_back(peer)

    @asynccontextmanager
    async def _identified(
        self, context: Any, method: str = "", *, streams: bool = False
    ) -> AsyncIterator[ApiError | None]:
        """Identify the caller for the handler; yields the refusal, or None if the caller is
        admitted.

        ``streams``: whether the call may be long-lived: it then ends when the caller's token or
        certificate expires.
        """
        if method == OPEN_METHOD:
            yield None
            return
        try:
            caller = await admit(context, self._access, self._bounds)
        except ApiError as error:
            yield error
            return
        remember(caller.identity, self._bounds.complaints)
        with self._bounds.connection(peer_address(context), caller.identity) as why_not:
            if not streams:
                yield why_not
                return
            async with self._until_expired(context, caller):
                yield why_not

    @asynccontextmanager
    async def _until_expired(self, context: Any, caller: Admitted) -> AsyncIterator[None]:
        """Abort the call made in this context when its caller's token or certificate expires."""
        expired: list[ApiError] = []
        task = asyncio.current_task()
        assert task is not None

        def end(error: ApiError) -> None:
            expired.append(error)
            task.cancel()

        timer = ExpiryTimer(caller, self._access, end)
        try:
            yield
        except asyncio.CancelledError:
            if not expired or task.uncancel():
                raise
            await abort(context, expired[0])
        finally:
            timer.cancel()

    async def _turn(self, peer: str) -> None:
        if self._turns.busy:
            await self._turns.next(peer)
        # Use the whole turn: the cost of a call is unknown before it is made.
        self._turns.begin_last()

    def _unary(
        self,
        behaviour: Any,
        parse: Callable[[bytes], Any] | None,
        method: str,
        *,
        streams: bool = False,
    ) -> Any:
        """Return a handler that reads the request only after the caller is identified; gRPC's own
        handler for unary methods reads first, and so buffers the bytes of any sender.
        """
        most_bytes = self._max_bytes if method.startswith(_OWN) else FOREIGN_REQUEST_MAX_BYTES

        async def call(_: Any, context: Any) -> Any:
            peer = peer_address(context)
            with self._place(peer) as refusal:
                if refusal is not None:
                    return await abort(context, refusal)
                async with self._identified(context, method, streams=streams) as why_not:
                    if why_not is not None:
                        return await abort(context, why_not)
                    try:
                        data = await self._read(context, peer, most_bytes)
                    except ApiError as error:
                        return await abort(context, error)
                    await self._turn(peer)
                    try:
                        request = parse(data) if parse is not None else data
                    except (
                        Exception
                    ) as error:  # DecodeError, or any other error that a parser raises
                        message = f"malformed request for {method}: {error}"
                        self._bounds.complaints.add(Complaint.MALFORMED, peer, message)
                        return await abort(context, ApiError(ErrorCode.INVALID_REQUEST, message))
                    return await behaviour(request, context)

        return call

    async def _read(self, context: Any, peer: str, most_bytes: int) -> bytes:
        """Read the request of a call. Raises ApiError."""
        bounds, loop = self._bounds, asyncio.get_running_loop()
        timeout_s = bounds.limits.message_timeout_ms / 1000
        reason = f"the request was not complete within {timeout_s:g} s"

        def cut(why: str) -> None:
            nonlocal reason
            reason = why
            deadline.reschedule(loop.time())

        try:
            async with asyncio.timeout(timeout_s) as deadline:
                with bounds.unfinished.call(peer, cut, most_bytes) as arriving:
                    data = await context.read()
                    if data is grpc.aio.EOF:
                        raise ApiError(
                            ErrorCode.INVALID_REQUEST, "the call ended without a request"
                        )
                    arriving.took(len(data))
        except TimeoutError as error:
            raise bounds.throttled(Complaint.UNFINISHED, peer, reason) from error
        if len(data) > most_bytes:
            message = f"the request has {len(data)} bytes, but the limit is {most_bytes}"
            raise bounds.throttled(Complaint.TOO_LARGE, peer, message)
        return bytes(data)

    def _stream(self, behaviour: Any) -> Any:
        async def generate(requests: Any, context: Any) -> AsyncIterator[Any]:
            peer = peer_address(context)
            with self._place(peer) as refusal:
                async with self._identified(context, streams=True) as unknown:
                    if (why_not := refusal or unknown) is not None:
                        await abort(context, why_not)
                    async for response in behaviour(self._counted(requests, peer), context):
                        await self._turn(peer)
                        yield response

        return generate

    async def _counted(self, requests: Any, peer: str) -> AsyncIterator[Any]:
        task = asyncio.current_task()

        def cut(why: str) -> None:
            self._bounds.complaints.add(Complaint.UNFINISHED, peer, why)
            if task is not None:
                task.cancel()

        with self._bounds.unfinished.call(peer, cut, FOREIGN_REQUEST_MAX_BYTES) as arriving:
            async for request in requests:
                arriving.took(request.ByteSize())
                yield request

    def _lenient(self, handler: Any) -> Callable[[bytes], Any]:
        """Return a parser that turns a malformed request into an empty one, which the service
        answers with its own error.
        """
        parse = handler.request_deserializer

        def parse_or_empty(data: bytes) -> Any:
            try:
                return parse(data)
            except Exception:
                self._bounds.complaints.add(
                    Complaint.MALFORMED, "", "malformed health or reflection request"
                )
                return parse(b"")

        return parse_or_empty
