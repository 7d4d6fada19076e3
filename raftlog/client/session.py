"""Exactly-once writes: each is numbered, and sent again under its number until its outcome is known
or the deadline is reached.

The active controller stores the outcome of a numbered write across failovers, so that a second
attempt gets the first one's result and is not executed again. If a write was sent more than once, a
definite error proves nothing: an earlier attempt, delayed in transit, may still arrive, find a
different state and be executed. Such an error means an unknown outcome, and so does a reply to a
write that changed nothing. An attempt that its receiver has refused is over, and does not count.

Why: docs/decisions/017-exactly-once-writes.md
"""

from __future__ import annotations

import asyncio
import random
from abc import abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NoReturn

from google.protobuf.message import Message

from raftlog.client.requests import (
    RefusedItemsError,
    check_items,
    controller_request,
    happens,
    joined,
    pause_after,
    require_success,
    timeout_ms,
)
from raftlog.client.router import Router
from raftlog.errors import ApiError, ErrorCode, OtherServerError
from raftlog.metadata.entities import FIRST_SEQUENCE, WINDOW
from raftlog.transport.api import TransportLimits
from raftlog.transport.links import Backoff
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2


class OpenClient:
    """An open client in the cluster. ``id``: the offset of its record in the log ``generation``."""

    def __init__(self, client_id: int, generation: int) -> None:
        self.id = client_id
        self.generation = generation
        self._next = FIRST_SEQUENCE
        # Keys in the order of numbers, so the first key is the oldest.
        self._in_flight: dict[int, None] = {}

    @property
    def all_below_done(self) -> int:
        """Lowest number whose outcome is unknown, or the next number."""
        return next(iter(self._in_flight), self._next)

    @property
    def room(self) -> int:
        """Number of further writes that fit into the window, whatever the outcome of
        earlier ones.
        """
        return self.all_below_done + WINDOW - self._next

    def begin(self) -> int:
        """Return the next number, for a write that is now in flight."""
        number, self._next = self._next, self._next + 1
        self._in_flight[number] = None
        return number

    def put_into(self, request: controller_pb2.ControllerRequest, number: int) -> None:
        """Number an attempt of a write; all its attempts have the same number."""
        identity = request.client
        identity.client_id, identity.generation = self.id, self.generation
        identity.sequence, identity.all_below_done = number, self.all_below_done

    def finish(self, number: int) -> None:
        """Complete a write: its outcome is known or will never be, and no attempt follows."""
        del self._in_flight[number]


DEFAULT_TIMEOUT_S = 10.0
ATTEMPT_S = 2.0
"""Maximum time of one attempt, in seconds, as its receiver may have stopped answering. A write that
waits for brokers is also sent again this often, under its number: a silent or partitioned
controller would otherwise delay it, although the controller's successor knows whether it is
visible.
"""
MAX_WAITING = 65_536
_PAUSES = TransportLimits(reconnect_backoff_min_ms=5, reconnect_backoff_max_ms=200)
TRANSIENT = frozenset(
    {
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.BROKER_FENCED,
        ErrorCode.BROKER_NOT_AVAILABLE,
    }
)
"""Errors that do not depend on the request: it is sent again."""
_EARLIER_ATTEMPT = "; an earlier attempt may have been executed, or may still be"

Attempt = Callable[
    [controller_pb2.ControllerRequest, float], Awaitable[controller_pb2.ControllerResponse]
]
"""Function that sends a request once within a number of seconds, and repeats it only if it is
refused. Returns the response, or raises ApiError.
"""


class NoSessionError(ApiError):
    """No client could be opened for numbered writes. The write itself was not sent."""


class Session:
    """Exactly-once writes over a client of controllers or brokers: ``client.session()``.

    The client's id is requested with the first write, and again after the cluster has closed it as
    idle. At most ``WINDOW`` writes are in flight; further ones wait for their turn.
    """

    def __init__(self, attempt: Attempt, *, name: str, rng: random.Random, cluster_id: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._attempt = attempt
        self._name = name
        self._rng = rng
        self._cluster_id = cluster_id
        self._client: OpenClient | None = None
        self._opening = asyncio.Lock()
        self._turns: deque[asyncio.Future[None]] = deque()
        self._closed = asyncio.Event()

    @property
    def client_id(self) -> int:
        """Id of the open client in the cluster, or 0 if none."""
        return self._client.id if self._client is not None else 0

    async def write(
        self,
        body: Message,
        *,
        acks: common_pb2.Acks = common_pb2.ACKS_COMMITTED,
        timeout_s: float = 10.0,
        principal: str = "",
        raise_refused: bool = True,
    ) -> controller_pb2.ControllerResponse:
        """Send one body of ControllerRequest, and return the response.

        A response with ``write.duplicate`` has no body: the write is at the token, and the answer
        to the executed attempt is lost. Raises ApiError; unless it has ``outcome_unknown``, the
        write was not executed and never will be. Raises RefusedItemsError for a refused item: the
        others are written. If ``raise_refused`` is false, the response has the results instead.
        """
        deadline = self._loop.time() + timeout_s
        request = controller_request(
            body, acks=acks, principal=principal, cluster_id=self._cluster_id
        )
        pauses = Backoff(_PAUSES, self._rng)
        while True:
            client = await self._admit(deadline)
            number = client.begin()
            try:
                response = await self._until_known(request, deadline, client, number)
                return check_items(response) if raise_refused else response
            except RefusedItemsError:
                raise
            except ApiError as error:
                if error.code is not ErrorCode.UNKNOWN_PRODUCER_ID:
                    raise
                self._forget(client)
                if error.outcome_unknown:
                    raise
                # The first attempt had no effect, and its client no longer exists: start again as a
                # new client.
                await self._pause(pauses, deadline, error)
            finally:
                client.finish(number)
                self._wake()

    def forget(self) -> None:
        """Write as a new client from now on, since the log may be a different one. Writes in
        progress keep their numbers.
        """
        self._client = None
        self._wake()

    async def close(self, timeout_s: float = 10.0) -> None:
        """Close the client in the cluster, which forgets its results. Raises ApiError if it may
        still be open.
        """
        client, self._client = self._client, None
        self._wake()
        try:
            if client is not None:
                await self._close_client(client, timeout_s)
        finally:
            self._closed.set()

    async def _close_client(self, client: OpenClient, timeout_s: float) -> None:
        request = controller_request(
            controller_pb2.CloseClientRequest(client_id=client.id, generation=client.generation),
            cluster_id=self._cluster_id,
        )
        try:
            await self._until_known(request, self._loop.time() + timeout_s)
        except ApiError as error:
            if error.code is not ErrorCode.UNKNOWN_PRODUCER_ID:
                raise

    # --- one write -------------------------------------------------------------------------------

    async def _until_known(
        self,
        request: controller_pb2.ControllerRequest,
        deadline: float,
        client: OpenClient | None = None,
        number: int = 0,
    ) -> controller_pb2.ControllerResponse:
        """Send a request until its outcome is known. Without a client, the request has no number,
        and may be executed twice.
        """
        pauses = Backoff(_PAUSES, self._rng)
        on_the_way = 0
        standing: controller_pb2.ControllerResponse | None = None
        """Response to the write if that is committed; an error of a later attempt is then not its
        outcome.
        """
        while True:
            remaining_s = deadline - self._loop.time()
            if client is not None:
                client.put_into(request, number)
            request.timeout_ms = timeout_ms(min(ATTEMPT_S, remaining_s))
            copy = controller_pb2.ControllerRequest()
            copy.CopyFrom(request)
            try:
                response = await self._attempt(copy, request.timeout_ms / 1000)
                require_success(response)
                error = None
            except ApiError as failed:
                error = failed
            if error is None and response.HasField("write"):
                response = response if standing is None else joined(standing, response)
                if client is None or response.write.reached >= request.acks:
                    return response
                standing = response
            if standing is not None:
                if not await self._paused(pauses.next_s(), deadline):
                    return standing
                continue
            if error is None:
                if client is None or not on_the_way or response.HasField("write"):
                    return response
                _unknown(
                    "an attempt wrote nothing, but an earlier one may still be executed",
                    ErrorCode.NETWORK_EXCEPTION,
                )
            if error.outcome_unknown:
                on_the_way += 1
            elif error.code not in TRANSIENT or isinstance(error, OtherServerError):
                if on_the_way and client is not None:
                    _unknown(f"{error.message}{_EARLIER_ATTEMPT}", error.code, error)
                raise error
            await self._pause(pauses, deadline, error, on_the_way)

    async def _paused(self, pause_s: float, deadline: float) -> bool:
        """Pause. Return False if the deadline would be reached or the session is closed."""
        if self._loop.time() + pause_s >= deadline:
            return False
        return not await happens(self._closed, pause_s)

    async def _pause(
        self, pauses: Backoff, deadline: float, error: ApiError, on_the_way: int = 0
    ) -> None:
        """Pause before the next attempt, at least as long as the last refusing server demands.

        If that would reach the deadline, or the session is closed, raise the error instead, as
        unknown if an attempt is in flight.
        """
        if not await self._paused(pause_after(error, pauses.next_s()), deadline):
            earlier = "" if error.outcome_unknown or not on_the_way else _EARLIER_ATTEMPT
            raise ApiError(
                error.code,
                f"{error.message}{earlier}",
                field=error.field,
                outcome_unknown=on_the_way > 0,
            )

    # --- the client ------------------------------------------------------------------------------

    async def _admit(self, deadline: float) -> OpenClient:
        """Return an open client that has room for one more write."""
        while True:
            client = self._client or await self._open(deadline)
            if client.room:
                return client
            if len(self._turns) >= MAX_WAITING:
                raise ApiError(
                    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                    f"{MAX_WAITING} writes are already waiting for their turn",
                )
            turn = self._loop.create_future()
            self._turns.append(turn)
            try:
                await self._in_time(
                    turn, deadline, "too many writes were in flight; this one was not sent"
                )
            except BaseException:
                self._wake()  # its turn may just have come
                raise

    async def _open(self, deadline: float) -> OpenClient:
        await self._in_time(
            self._opening.acquire(), deadline, "no client could be opened; nothing was written"
        )
        try:
            if self._client is None:
                # A lost answer may leave two clients: the cluster closes an unused one.
                request = controller_request(
                    controller_pb2.OpenClientRequest(name=self._name), cluster_id=self._cluster_id
                )
                response = await self._until_known(request, deadline)
                self._client = OpenClient(
                    response.open_client.client_id, response.write.token.generation
                )
            return self._client
        except OtherServerError:
            raise
        except ApiError as error:
            # The write itself was not sent.
            raise NoSessionError(
                error.code, f"opening a client: {error.message}", field=error.field
            ) from error
        finally:
            self._opening.release()

    async def _in_time(self, awaitable: Awaitable[object], deadline: float, message: str) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                await awaitable
        except TimeoutError:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, message) from None

    def _forget(self, client: OpenClient) -> None:
        """Forget a client that the cluster does not know; the next write opens another."""
        if self._client is client:
            self.forget()

    def _wake(self) -> None:
        """Wake as many waiting writes as there is room for, as the oldest write may have ended."""
        room = self._client.room if self._client is not None else len(self._turns)
        while room > 0 and self._turns:
            turn = self._turns.popleft()
            if not turn.done():
                turn.set_result(None)
                room -= 1


def _unknown(message: str, code: ErrorCode, cause: ApiError | None = None) -> NoReturn:
    field = cause.field if cause is not None else ""
    raise ApiError(code, message, field=field, outcome_unknown=True) from cause


class Writer(Router):
    """A router for writes to the active controller, sent singly or, with numbers, in a session."""

    @abstractmethod
    def attempt(
        self, request: controller_pb2.ControllerRequest, timeout_s: float, /
    ) -> Awaitable[controller_pb2.ControllerResponse]:
        """Send one attempt of a request: see :data:`Attempt`."""

    async def call(
        self,
        body: Message,
        *,
        acks: common_pb2.Acks = common_pb2.ACKS_COMMITTED,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        principal: str = "",
        raise_refused: bool = True,
    ) -> controller_pb2.ControllerResponse:
        """Send one body of ControllerRequest, or a whole request, and return the response.

        Raises ApiError for an error of the request, and RefusedItemsError for a refused item; if
        ``raise_refused`` is false, the response has all results instead. The write's position is
        ``response.write.token``.
        """
        request = controller_request(
            body, acks=acks, principal=principal, cluster_id=self._cluster_id
        )
        request.timeout_ms = request.timeout_ms or timeout_ms(timeout_s)
        response = require_success(await self.attempt(request, timeout_s))
        return check_items(response) if raise_refused else response

    def session(self, name: str = "") -> Session:
        """Return a session of exactly-once writes, retried across failovers. ``name``: a
        description for operators.
        """
        return Session(self.attempt, name=name, rng=self._rng, cluster_id=self._cluster_id)
