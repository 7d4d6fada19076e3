"""Calls to several servers in turn, so that their load is shared: each call goes to the next one
that can be reached.

What is retried, and what never is, is as with the router: a call that was not sent, one that was
definitely refused, and any that changes nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from functools import partial
from typing import Any

from raftlog.client.endpoints import with_reasons
from raftlog.client.router import ANSWER_MARGIN_S, Protocol, greet
from raftlog.errors import ApiError, ConfigError, ErrorCode
from raftlog.transport.api import Link, Transport
from raftlog.transport.rpc_client import RpcClient

MAX_WAITING = 65_536
PASSED_OVER_S = 0.5
"""How long a server that refused, or could not be reached, is left out, as long as there are
others.
"""
SILENT_PASSED_OVER_S = 5.0
"""The same for one that let a read time out: to try it again may cost another call its deadline."""


class _Call:
    """One call on its way."""

    __slots__ = ("attempts", "deadline", "future", "idempotent", "last", "request")

    def __init__(
        self, request: Any, deadline: float, future: asyncio.Future[Any], idempotent: bool
    ) -> None:
        self.request = request
        self.deadline = deadline
        self.future = future
        self.idempotent = idempotent
        self.attempts = 0
        self.last: Any = None


class RoundRobin:
    """As a :class:`~raftlog.client.router.Router`, for servers of which each will do.

    Links are made with the first call, to all.
    """

    def __init__(
        self,
        transport: Transport,
        endpoints: Sequence[str],
        protocol: Protocol,
        *,
        rng: random.Random,
    ) -> None:
        """Raises ConfigError if there is no endpoint."""
        if not endpoints:
            raise ConfigError("no endpoint to connect to was given")
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._endpoints = tuple(dict.fromkeys(endpoints))
        self.protocol = protocol
        self._lanes: dict[str, _Lane] = {}
        self._retired: list[_Lane] = []
        self._waiting: dict[_Call, asyncio.TimerHandle] = {}
        self._passed_over: dict[str, float] = {}
        self._out: set[str] = set()
        """Those that do not let this client in."""
        self._turn = rng.randrange(len(self._endpoints))
        self._closed = False

    def send(
        self, request: Any, timeout_s: float, *, idempotent: bool = False
    ) -> asyncio.Future[Any]:
        """Send a request, given away; the future ends with the response, an error in it included,
        or with an ApiError.
        """
        call = _Call(request, self._loop.time() + timeout_s, self._loop.create_future(), idempotent)
        if self._closed:
            call.future.set_exception(
                ApiError(ErrorCode.NETWORK_EXCEPTION, "the client was closed")
            )
        else:
            self._attempt(call)
        return call.future

    @property
    def servers(self) -> str:
        """The servers, each with the reason why it could not be reached, for people."""
        return with_reasons(
            {endpoint: lane.failure or "does not answer" for endpoint, lane in self._lanes.items()}
        )

    def close(self) -> None:
        """End all calls and links. Idempotent."""
        self._closed = True
        for call in self._take_waiting():
            self._fail(call, ApiError(ErrorCode.NETWORK_EXCEPTION, "the client was closed"))
        lanes, self._lanes = self._lanes, {}
        for lane in (*lanes.values(), *self._retired):
            lane.close()

    def noticed(self, lane: _Lane, notice: Any) -> None:
        """A server says something unasked.

        If it wants a new connection, calls from now on take that; the old one ends when it is done.
        """
        if self.protocol.notice(notice) and self._lanes.get(lane.address) is lane:
            self._lanes[lane.address] = _Lane(self, self._transport, lane.address, self.protocol)
            self._retired = [other for other in self._retired if not other.ended]
            self._retired.append(lane)
            lane.retire()

    def turned_away(self, endpoint: str, error: ApiError) -> None:
        """A server does not let this client in: what waits is told so, unless another one may yet
        take it.
        """
        self._out.add(endpoint)
        if not any(lane.connected for lane in self._lanes.values()) and all(
            one in self._out or self._lanes[one].failure for one in self._endpoints
        ):
            message = f"{error.message}; the request was not executed"
            for call in self._take_waiting():
                self._fail(call, error.saying(message))

    def opened(self, endpoint: str) -> None:
        """A link is up: what waits for one leaves, in order."""
        self._out.discard(endpoint)
        for call in self._take_waiting():
            self._attempt(call)

    def _attempt(self, call: _Call) -> None:
        if not self._lanes:
            self._lanes = {
                endpoint: _Lane(self, self._transport, endpoint, self.protocol)
                for endpoint in self._endpoints
            }
        now = self._loop.time()
        endpoint = self._next(now)
        if endpoint is None:
            self._wait(call)
            return
        call.attempts += 1
        future = self._lanes[endpoint].call(call.request, call.deadline - now + ANSWER_MARGIN_S)
        future.add_done_callback(partial(self._ended, call, endpoint))

    def _next(self, now: float) -> str | None:
        """The next in turn that is connected and was not found wanting lately; else the next that
        is connected; None: nobody is.
        """
        count = len(self._endpoints)
        turn = [self._endpoints[(self._turn + step) % count] for step in range(count)]
        connected = [endpoint for endpoint in turn if self._lanes[endpoint].connected]
        if not connected:
            return None
        good = (endpoint for endpoint in connected if self._passed_over.get(endpoint, now) <= now)
        chosen = next(good, connected[0])
        self._turn = (self._endpoints.index(chosen) + 1) % count
        return chosen

    def _wait(self, call: _Call) -> None:
        if len(self._waiting) >= MAX_WAITING:
            message = f"{MAX_WAITING} calls wait for a connection"
            self._fail(call, ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, message))
        else:
            self._waiting[call] = self._loop.call_at(call.deadline, self._expired, call)

    def _take_waiting(self) -> list[_Call]:
        waiting, self._waiting = self._waiting, {}
        for timer in waiting.values():
            timer.cancel()
        return list(waiting)

    def _expired(self, call: _Call) -> None:
        self._waiting.pop(call, None)
        message = f"nobody of {self.servers} could be asked in time; the request was not executed"
        self._fail(call, ApiError(ErrorCode.REQUEST_TIMED_OUT, message))

    def _ended(self, call: _Call, endpoint: str, attempt: asyncio.Future[Any]) -> None:
        now = self._loop.time()
        try:
            response = attempt.result()
        except ApiError as error:
            silent = error.code is ErrorCode.REQUEST_TIMED_OUT and error.outcome_unknown
            # A write may hang elsewhere: whoever was asked to forward it need not be the one who is
            # silent.
            long = silent and call.idempotent
            self._passed_over[endpoint] = now + (SILENT_PASSED_OVER_S if long else PASSED_OVER_S)
            safe = not silent and (call.idempotent or not error.outcome_unknown)
            if not (
                safe
                and error.code is not ErrorCode.THROTTLING_QUOTA_EXCEEDED
                and self._retry(call, now)
            ):
                self._fail(call, error)
            return
        refusal = self.protocol.refusal(response) if response.HasField("error") else None
        if refusal is not None:
            self._passed_over[endpoint] = now + PASSED_OVER_S
            call.last = response
            may_retry = refusal.definite or call.idempotent
            if (
                may_retry
                and call.attempts < self.protocol.max_attempts()
                and self._retry(call, now)
            ):
                return
        if not call.future.done():
            call.future.set_result(response)

    def _retry(self, call: _Call, now: float) -> bool:
        remaining_s = call.deadline - now
        if self._closed or call.future.done() or remaining_s <= 0:
            return False
        call.request = self.protocol.again(call.request, remaining_s)
        self._attempt(call)
        return True

    def _fail(self, call: _Call, error: ApiError) -> None:
        if call.future.done():
            return
        if call.last is not None and not error.outcome_unknown:
            # Whoever could be asked has refused: that says more than that nobody else could be.
            call.future.set_result(call.last)
        else:
            call.future.set_exception(error)


class _Lane(RpcClient):
    """The link to one server."""

    def __init__(
        self, turns: RoundRobin, transport: Transport, endpoint: str, protocol: Protocol
    ) -> None:
        self._turns = turns
        super().__init__(transport, endpoint, protocol.conversation)

    def opened(self, link: Link) -> None:
        """Tell whoever waits for a link."""
        super().opened(link)
        greet(self, self._turns.protocol)
        self._turns.opened(self.address)

    def attempt_failed(self, reason: str, error: ApiError | None) -> None:
        """Tell the round robin what the server says."""
        if error is not None:
            self._turns.turned_away(self.address, error)

    def noticed(self, notice: Any) -> None:
        """Tell the round robin."""
        self._turns.noticed(self, notice)
