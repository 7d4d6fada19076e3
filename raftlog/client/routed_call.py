"""One call on its way through the router: what the end of an attempt means for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from raftlog.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from raftlog.client.router import Route, Router


class RoutedCall:
    """One call on its way."""

    __slots__ = (
        "attempts",
        "deadline",
        "future",
        "idempotent",
        "last",
        "request",
        "route",
        "router",
    )

    def __init__(
        self,
        router: Router,
        request: Any,
        deadline: float,
        future: asyncio.Future[Any],
        idempotent: bool,
    ) -> None:
        self.router = router
        self.request = request
        self.deadline = deadline
        self.future = future
        self.idempotent = idempotent
        self.attempts = 0
        self.route: Route | None = None
        self.last: Any = None

    def done(self) -> bool:
        """Never: whatever an attempt says may be news to the router."""
        return False

    def set_result(self, response: Any) -> None:
        """The current attempt has ended with a response."""
        # Nearly every answer: no error, so no refusal either.
        refusal = self.router.refusal(response) if response.HasField("error") else None
        if refusal is None:
            if not self.future.done():
                self.future.set_result(response)
            self.router.succeeded(self._route())
            return
        self.router.refused(self._route(), refusal)
        self.last = response
        may_retry = (refusal.definite or self.idempotent) and not self.future.done()
        if not (may_retry and self.router.retry(self)):
            self._resolve(response)

    def expired(self, message: str) -> None:
        """The deadline came while it waited for a link: say what the last server said, if one was
        asked.
        """
        if self.last is not None:
            self._resolve(self.last)
        else:
            self.fail(ApiError(ErrorCode.REQUEST_TIMED_OUT, message))

    def turned_away(self, error: ApiError) -> None:
        """Nobody lets this client in. As when the deadline comes, but the cause is known."""
        if self.last is not None:
            self._resolve(self.last)
        else:
            self.fail(ApiError(error.code, f"{error.message}; the request was not executed"))

    def fail(self, error: BaseException) -> None:
        """End it with an error."""
        if not self.future.done():
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

    def _resolve(self, response: Any) -> None:
        if not self.future.done():
            self.future.set_result(response)
