"""One call on its way through the router: what the end of an attempt means for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from raftlog.client.throttling import pause_after
from raftlog.errors import ApiError, ErrorCode
from raftlog.transport.wire_errors import error_from_wire

if TYPE_CHECKING:
    from raftlog.client.router import Route, Router

PAUSE_S = 0.02
"""Shortest pause before a wait that a server had no room for is tried again."""


class RoutedCall(msgspec.Struct, eq=False):
    """One call on its way."""

    router: Router
    request: Any
    deadline: float
    future: asyncio.Future[Any]
    idempotent: bool
    waits: bool = False
    """Whether a response may have ended the server's wait too early."""
    attempts: int = 0
    route: Route | None = None
    """Of the current attempt."""
    last: Any = None
    """What the last server said that refused it."""
    standing: Any = None
    """The response to a write that is done, while its wait continues at another server. The call
    ends with it, or with a better one: no error of a later attempt is the outcome of the write.
    """

    def done(self) -> bool:
        """Never: whatever an attempt says may be news to the router."""
        return False

    def set_result(self, response: Any) -> None:
        """The current attempt has ended with a response."""
        # Nearly every answer: no error, so no refusal either.
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
            self.expired("no controller of this cluster answered; the request was not executed")

    def expired(self, message: str) -> None:
        """The deadline came while it waited for a link: say what the last server said, if one was
        asked.
        """
        if self.last is not None:
            self._end_refused()
        else:
            self.fail(ApiError(ErrorCode.REQUEST_TIMED_OUT, message))

    def _end_refused(self) -> None:
        """End it with the last refusal, unless that names a server that could not be asked [the
        leader was out of descriptors, and all that was said was that another node is no leader].
        """
        refusal, unreached = self.router.refusal(self.last), self.router.unreached
        if refusal is not None and refusal.definite and refusal.hint and unreached:
            said = f"{self.last.error.error_message}; {unreached} could not be asked in time"
            self.fail(
                ApiError(ErrorCode.REQUEST_TIMED_OUT, f"{said}; the request was not executed")
            )
        else:
            self._resolve(self.last)

    def turned_away(self, error: ApiError) -> None:
        """Nobody lets this client in. As when the deadline comes, but the cause is known."""
        if self.last is not None:
            self._resolve(self.last)
        else:
            self.fail(error.saying(f"{error.message}; the request was not executed"))

    def fail(self, error: BaseException) -> None:
        """End it with an error, unless the write is known to stand."""
        if self.standing is not None:
            self._resolve(self.standing)
        elif not self.future.done():
            self.future.set_exception(error)

    def set_exception(self, error: BaseException) -> None:
        """The current attempt has ended without one."""
        assert isinstance(error, ApiError)
        if error.code is ErrorCode.REQUEST_TIMED_OUT:
            self.router.silent(self._route())
        safe = error.code is ErrorCode.NETWORK_EXCEPTION and (
            self.idempotent or not error.outcome_unknown
        )
        if self.future.done() or not (safe and self.router.retry(self)):
            self.fail(error)

    def _route(self) -> Route:
        assert self.route is not None, "an attempt ended that was never begun"
        return self.route

    def _after_wait(self, response: Any) -> Any:
        """Return the response that the call ends with; None: the wait continues elsewhere."""
        router = self.router
        if not response.HasField("error"):
            if self.standing is not None:
                response = router.protocol.joined(self.standing, response)
            again = router.protocol.wait_on(self.request, response)
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
