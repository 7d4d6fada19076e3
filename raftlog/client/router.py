"""Calls that reach the right one of several servers within a deadline, and are never executed twice
by mistake.

A call is retried if it was never sent, or if a server definitely refused it because it was the
wrong one. A call whose outcome is unknown is not retried: its caller decides. Reads are
``idempotent``: they change nothing.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import msgspec

from raftlog import tracing
from raftlog.client.endpoints import Endpoints, EndpointSelector, with_reasons
from raftlog.client.requests import joined, pause_after
from raftlog.errors import ApiError, ErrorCode
from raftlog.transport.api import Conversation, Link, Transport
from raftlog.transport.rpc_client import RpcClient
from raftlog.transport.statuses import error_from_wire

PAUSE_S = 0.02
"""Shortest pause in seconds before retrying a wait for which a server had no room."""


class RoutedCall(msgspec.Struct, eq=False):
    """One call in progress."""

    router: Router
    request: Any
    deadline: float
    future: asyncio.Future[Any]
    idempotent: bool
    waits: bool = False
    """Whether a response may have ended the server's wait too early."""
    attempts: int = 0
    route: Route | None = None
    """The route of the current attempt, or None."""
    last: Any = None
    """The response of the last server that refused the call."""
    standing: Any = None
    """The response to a write that is committed, while its wait continues at another server. The
    call ends with this response or a better one, as an error of a later attempt is not the outcome
    of the write.
    """

    def done(self) -> bool:
        """Return False, as the router may need the result of any attempt."""
        return False

    def set_result(self, response: Any) -> None:
        """End the current attempt with a response."""
        # Nearly every response has no error, and so is no refusal.
        refusal = self.router.refusal(response) if response.HasField("error") else None
        if refusal is None:
            future, router = self.future, self.router
            if self.waits and (response := self._after_wait(response)) is None:
                return
            if not future.done():
                future.set_result(response)
            if not router.settled:
                router.succeeded(self._route())
            return
        elsewhere = self.router.refused(self._route(), refusal)
        if not (refusal.foreign and elsewhere):
            self.last = response
        may_retry = elsewhere and (refusal.definite or self.idempotent) and not self.future.done()
        if not (may_retry and self.router.retry(self)):
            self.expired("no node of this cluster answered; the request was not executed")

    def expired(self, message: str) -> None:
        """End the call at its deadline, with the refusal of the last server if there was one."""
        if self.last is not None:
            self._end_refused()
        else:
            self.fail(ApiError(ErrorCode.REQUEST_TIMED_OUT, message))

    def _end_refused(self) -> None:
        """End the call with the last refusal, unless that names a server that could not be reached.

        Otherwise, if the leader had run out of descriptors, the only message would be that another
        node does not lead.
        """
        refusal, unreached = self.router.refusal(self.last), self.router.unreached
        if refusal is not None and refusal.definite and refusal.hint and unreached:
            said = f"{self.last.error.error_message}; {unreached} could not be reached in time"
            self.fail(
                ApiError(ErrorCode.REQUEST_TIMED_OUT, f"{said}; the request was not executed")
            )
        else:
            self._resolve(self.last)

    def turned_away(self, error: ApiError) -> None:
        """End the call as at the deadline, but with the cause: no server accepts this client."""
        if self.last is not None:
            self._resolve(self.last)
        else:
            self.fail(error.saying(f"{error.message}; the request was not executed"))

    def fail(self, error: BaseException) -> None:
        """Fail the call, unless the write is known to be committed."""
        if self.standing is not None:
            self._resolve(self.standing)
        elif not self.future.done():
            self.future.set_exception(error)

    def set_exception(self, error: BaseException) -> None:
        """End the current attempt without a response."""
        assert isinstance(error, ApiError)
        if error.code is ErrorCode.REQUEST_TIMED_OUT:
            self.router.silent(self._route())
        safe = error.code is ErrorCode.NETWORK_EXCEPTION and (
            self.idempotent or not error.outcome_unknown
        )
        if self.future.done() or not (safe and self.router.retry(self)):
            self.fail(error)

    def _route(self) -> Route:
        assert self.route is not None, "an attempt ended that was never started"
        return self.route

    def _after_wait(self, response: Any) -> Any:
        """Return the response that ends the call, or None if its wait continues elsewhere."""
        router = self.router
        if not response.HasField("error"):
            if self.standing is not None:
                response = joined(self.standing, response)
            again = router.wait_on(self.request, response)
            if again is None:
                return response
            self.standing, self.request, self.idempotent = response, again, True
            return None if router.retry(self) else response
        if self.standing is None:
            return response
        error = error_from_wire(response.error)
        if not error.retriable:
            return self.standing
        asyncio.get_running_loop().call_later(pause_after(error, PAUSE_S), self._wait_on)
        return None

    def _wait_on(self) -> None:
        if not self.router.retry(self):
            self._resolve(self.standing)

    def _resolve(self, response: Any) -> None:
        if not self.future.done():
            self.future.set_result(response if self.standing is None else self.standing)


PATIENCE_MIN_S = 0.25
PATIENCE_MAX_S = 2.0
"""Seconds until another server is tried; doubled each time, for slow machines."""
REFUSED_PAUSE_MAX_S = 0.1
"""Longest pause in seconds after a refusal: a silent leader has a successor within milliseconds of
the first server that notices, and asking again on an open link is cheap.
"""
ROUTES_MAX = 16
"""Maximum number of links, including current ones, when a server's notice opens one in advance."""
ANSWER_MARGIN_S = 0.5
"""Extra seconds for an answer that the server sends at the deadline."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A response from a server that is the wrong one for a request.

    ``hint``: the right server, or "". ``definite``: nothing was executed, so the call may be
    retried. ``foreign``: the server belongs to another cluster; reported once all known servers do.
    """

    hint: str = ""
    definite: bool = True
    foreign: bool = False


class Router(ABC):
    """Calls in one conversation to the right one of several servers. Links are opened when first
    needed. Must be created on the event loop.
    """

    conversation: Conversation
    max_waiting = 65536

    def __init__(
        self,
        transport: Transport,
        endpoints: Endpoints,
        *,
        rng: random.Random,
        cluster_id: str = "",
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport, self._rng, self._cluster_id = transport, rng, cluster_id
        self._selector = EndpointSelector(endpoints, rng)
        self._routes: dict[str, Route] = {}
        self._retired: list[Route] = []
        self._failures: dict[str, str] = {}
        """Servers that could not be reached or refuse this client, with the reasons."""
        self._foreign: set[str] = set()
        """Servers of another cluster, since the last successful answer."""
        self._waiting: dict[RoutedCall, asyncio.TimerHandle] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._pausing = False
        self.settled = False
        """Whether the target has answered without a refusal; ``succeeded`` then has no further
        effect.
        """
        self._patience_s = PATIENCE_MIN_S
        self._closed = False

    # --- the rules of the conversation -----------------------------------------------------------

    @property
    def max_attempts(self) -> int:
        """Maximum number of attempts of one call."""
        return 1 << 30

    @abstractmethod
    def refusal(self, response: Any) -> Refusal | None:
        """Return the refusal in a response, or None."""

    @abstractmethod
    def again(self, request: Any, remaining_s: float) -> Any:
        """Return a copy of a request for another attempt."""

    def greeting(self) -> Any:
        """Return the request for each new connection, or None."""
        return None

    def greeted(self, response: Any) -> None:  # noqa: B027
        """Process the response to the greeting."""

    def notice(self, notice: Any) -> bool:
        """Process a server's notice; return whether it asks for a new connection."""
        return False

    def successor(self, notice: Any) -> tuple[str, bool]:
        """Return the successor that a notice names, or "", and whether it serves already: a link to
        it can then be opened in time.
        """
        return "", False

    def waits(self, request: Any) -> bool:
        """Return whether the server delays the response until a condition holds, so that another
        server may have to continue the wait.
        """
        return False

    def wait_on(self, request: Any, response: Any) -> Any:
        """Return the request that continues a wait that ended too early, or None if it did not."""
        return None

    # --- calls -----------------------------------------------------------------------------------

    @property
    def target(self) -> str:
        """The server for the next call."""
        return self._selector.target

    @property
    def connected(self) -> bool:
        """Whether a call would be sent at once."""
        return self._ready() is not None

    @property
    def servers(self) -> str:
        """The servers, each with the reason why it could not be reached, for messages."""
        return with_reasons({one: self._failure_of(one) for one in self._selector.known})

    @property
    def unreached(self) -> str:
        """The servers that could not be reached, with the reasons; "" if none."""
        every = dict.fromkeys((*self._selector.known, *self._failures))
        return with_reasons({one: why for one in every if (why := self._failure_of(one))})

    def start(
        self, request: Any, timeout_s: float, *, idempotent: bool = False
    ) -> asyncio.Future[Any]:
        """Send a request, which the caller must not change afterwards. The future ends with the
        response or an ApiError, by ``timeout_s`` + ANSWER_MARGIN_S.

        Creates no Task if a link is open.
        """
        loop = self._loop
        future: asyncio.Future[Any] = loop.create_future()
        if tracing.active is not None:
            request = tracing.active.calling(request, future)
        deadline = loop.time() + timeout_s
        call = RoutedCall(self, request, deadline, future, idempotent, self.waits(request))
        self._dispatch(call, deadline)
        return future

    def leave(self, address: str, reason: str) -> None:
        """Close the link to a server that is known to be silent: the outcome of its calls is
        unknown, and later calls try another server.
        """
        route = self._routes.get(address)
        if route is not None and route.link is not None:
            route.link.close(reason)

    def close(self) -> None:
        """End all calls and links. Idempotent."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for call in self._take_waiting():
            call.fail(ApiError(ErrorCode.NETWORK_EXCEPTION, "the client was closed"))
        for address in sorted(self._routes):
            self._routes.pop(address).close()
        for route in self._retired:
            route.close()

    # --- one call --------------------------------------------------------------------------------

    def _dispatch(self, call: RoutedCall, deadline: float) -> None:
        """Send a call on the current route, or queue it until there is one."""
        # ``_ready`` inlined, since every call passes here.
        route = None if self._pausing else self._routes.get(self._selector.target)
        if route is None or route.link is None:
            self._wait(call)
            return
        call.route = route
        call.attempts += 1
        route.start(call.request, deadline + ANSWER_MARGIN_S, call)

    def succeeded(self, route: Route) -> None:
        """Record a successful answer on a route."""
        if not self.settled and self._is_current(route):
            self.settled = True
            self._foreign.clear()
            self._selector.reached()
            self._patience_s = PATIENCE_MIN_S

    def refused(self, route: Route, refusal: Refusal) -> bool:
        """Leave a route that is not the right one; return whether another may be."""
        if refusal.foreign:
            self._foreign.add(route.address)
            self._failures[route.address] = "belongs to another cluster"
        if self._is_current(route):
            pause_s = self._selector.redirected(refusal.hint, self._loop.time())
            self._retarget(min(REFUSED_PAUSE_MAX_S, pause_s))
        return not (refusal.foreign and self._foreign.issuperset(self._selector.known))

    def silent(self, route: Route) -> None:
        """Leave a route on which a call timed out, so that the next call tries another server.

        A link that has received nothing since that call was sent is not used again: it may be dead
        without being closed. Its server is skipped for a while, even if the others still take it
        for the leader.
        """
        current, now = self._is_current(route), self._loop.time()
        if route.silent:
            self._retire(route)
        if current:
            leave = self._selector.unreachable if route.silent else self._selector.lost
            self._retarget(leave(now))

    def retry(self, call: RoutedCall) -> bool:
        """Retry a call if time and attempts are left; return whether it will be retried."""
        remaining_s = call.deadline - self._loop.time()
        if self._closed or remaining_s <= 0 or call.attempts >= self.max_attempts:
            return False
        call.request = self.again(call.request, remaining_s)
        self._dispatch(call, call.deadline)
        return True

    # --- routes ----------------------------------------------------------------------------------

    def route_opened(self, route: Route) -> None:
        """Send the calls that wait for a link, in order."""
        self._failures.pop(route.address, None)
        if self._is_current(route):
            self._stop_timer()
            self._send_waiting()

    def route_closed(self, route: Route) -> None:
        """Drop a route whose link was lost, so that its unsent calls go elsewhere at once."""
        if self._routes.get(route.address) is not route:
            return
        current = self._is_current(route)
        del self._routes[route.address]
        if current:
            # Others may already know the next leader: each is tried at once, and once.
            now = self._loop.time()
            self._retarget(self._selector.unreachable(now, served=self.settled))
        route.close()

    def route_turned_away(self, route: Route, error: ApiError) -> None:
        """Record that a server refuses this client. Waiting calls fail once all servers do, so that
        an expired token is reported before the deadline.
        """
        if self._routes.get(route.address) is not route:
            return
        self._failures[route.address] = str(error)
        if not self._is_current(route):
            return
        del self._routes[route.address]
        pause_s = self._selector.unreachable(self._loop.time())
        if self._failures.keys() >= set(self._selector.known):
            for call in self._take_waiting():
                call.turned_away(error)
        self._retarget(pause_s)
        route.close()

    def route_noticed(self, route: Route, notice: Any) -> None:
        """Process a server's notice: later calls may need a new connection."""
        ahead, serves = self.successor(notice)
        if ahead and ahead not in self._routes and len(self._routes) < ROUTES_MAX:
            self._dial(ahead)
        if ahead and serves:
            # Requests already sent on this route are answered on it.
            self.refused(route, Refusal(ahead))
        if self.notice(notice):
            self._retire(route)
            refusal = self.refusal(notice) if notice.HasField("error") else None
            if refusal is not None:
                # The server is stopping: later calls go to another one.
                self.refused(route, refusal)

    def _retire(self, route: Route) -> None:
        if self._routes.get(route.address) is route:
            del self._routes[route.address]
            self._retired = [other for other in self._retired if not other.ended]
            self._retired.append(route)
            route.retire()

    def _is_current(self, route: Route) -> bool:
        return not self._pausing and route.address == self._selector.target

    def _ready(self) -> Route | None:
        if self._pausing:
            return None
        route = self._routes.get(self._selector.target)
        return route if route is not None and route.connected else None

    def _wait(self, call: RoutedCall) -> None:
        if self._closed or len(self._waiting) >= self.max_waiting:
            message = (
                "the client was closed"
                if self._closed
                else f"{self.max_waiting} calls are already waiting for a connection"
            )
            code = (
                ErrorCode.NETWORK_EXCEPTION if self._closed else ErrorCode.THROTTLING_QUOTA_EXCEEDED
            )
            call.fail(ApiError(code, message))
            return
        self._waiting[call] = self._loop.call_at(call.deadline, self._expired, call)
        if not self._pausing and self._timer is None:
            self._connect()

    def _take_waiting(self) -> list[RoutedCall]:
        waiting, self._waiting = self._waiting, {}
        for timer in waiting.values():
            timer.cancel()
        return list(waiting)

    def _send_waiting(self) -> None:
        for call in self._take_waiting():
            self._dispatch(call, call.deadline)

    def _expired(self, call: RoutedCall) -> None:
        self._waiting.pop(call, None)
        message = f"none of {self.servers} could be reached in time; the request was not executed"
        call.expired(message)

    def _failure_of(self, address: str) -> str:
        route = self._routes.get(address)
        return (route.failure if route is not None else "") or self._failures.get(address, "")

    def _retarget(self, pause_s: float) -> None:
        self._stop_timer()
        self.settled = False
        if pause_s:
            self._pausing = True
            self._timer = self._loop.call_later(pause_s, self._resume)
        else:
            self._resume()

    def _resume(self) -> None:
        self._pausing, self._timer = False, None
        if self._ready() is not None:
            self._send_waiting()
        elif self._waiting:
            self._connect()

    def _connect(self) -> None:
        """Connect to the target unless an attempt is in progress, and set a time limit for it."""
        address = self._selector.target
        if address not in self._routes:
            self._dial(address)
        self._stop_timer()
        if self._ready() is None:
            self._timer = self._loop.call_later(self._patience_s, self._out_of_patience)

    def _dial(self, address: str) -> None:
        self._routes[address] = Route(self, self._transport, address)

    def _out_of_patience(self) -> None:
        self._timer = None
        self._patience_s = min(PATIENCE_MAX_S, self._patience_s * 2)
        address = self._selector.target
        pause_s = self._selector.unreachable(self._loop.time())
        if (
            self._selector.target != address
            and (route := self._routes.pop(address, None)) is not None
        ):
            self._failures[address] = route.failure or "does not answer"
            route.close()
        self._retarget(pause_s)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._pausing = False


class Route(RpcClient):
    """A connection to one server, which reports to the router."""

    def __init__(self, router: Router, transport: Transport, address: str) -> None:
        self._router = router
        super().__init__(transport, address, router.conversation)

    def opened(self, link: Link) -> None:
        """Send the greeting, again if the last link got no answer, and report the link."""
        super().opened(link)
        if (greeting := self._router.greeting()) is not None:
            self.call(greeting, ANSWER_MARGIN_S).add_done_callback(self._greeted)
        self._router.route_opened(self)

    def _greeted(self, future: asyncio.Future[Any]) -> None:
        if future.exception() is None:
            self._router.greeted(future.result())

    def attempt_failed(self, reason: str, error: ApiError | None) -> None:
        """Report the server's refusal to the router."""
        if error is not None:
            self._router.route_turned_away(self, error)

    def closed(self, link: Link, reason: str) -> None:
        """Fail the calls in flight, then report the loss to the router."""
        super().closed(link, reason)
        self._router.route_closed(self)

    def noticed(self, notice: Any) -> None:
        """Report the notice to the router."""
        self._router.route_noticed(self, notice)
