"""Requests and their responses over a dialed link, for clients, brokers and the command line.

A call costs one dict entry and one future: no Task, no timer and no await of its own. All calls in
one iteration of the loop share an envelope, and so do the responses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from raftlog.clock import NEVER, DeadlineTimer
from raftlog.errors import ApiError, ErrorCode
from raftlog.transport.api import Conversation, Link, LinkClosedError, Transport

DEADLINE_GRAIN_S = 0.01
"""Shortest interval between two checks for expired calls, in seconds; calls whose deadlines are
close expire together.
"""


class Ending(Protocol):
    """The receiver of a call's result, such as a future. A refused call completes inside
    ``start``.
    """

    def done(self) -> bool:
        """Return whether the receiver no longer waits."""

    def set_result(self, response: Any, /) -> None:
        """Process the response."""

    def set_exception(self, error: BaseException, /) -> None:
        """Process the error of a call without a response."""


Open = tuple[Ending, float, Any]
"""An open call: receiver, deadline and request."""


def _take_late(calls: dict[int, Open], now: float) -> list[Open]:
    """Remove and return the calls that have expired or were abandoned."""
    late = [key for key, call in calls.items() if call[1] <= now or call[0].done()]
    return [calls.pop(key) for key in late]


class RpcClient:
    """Calls to one address over one conversation whose items have a ``correlation_id``.

    The result of a call that gets no response:

    * Deadline while it waited for a connection: REQUEST_TIMED_OUT, definite: it was never sent.
    * Deadline after it was sent: REQUEST_TIMED_OUT, outcome unknown.
    * The link that carried it closes: NETWORK_EXCEPTION, outcome unknown. The client does not send
      it again.
    * More than ``max_calls`` are unanswered: THROTTLING_QUOTA_EXCEEDED, definite.
    * The client is closed: NETWORK_EXCEPTION, outcome unknown if the request had been sent.
    """

    def __init__(
        self,
        transport: Transport,
        address: str,
        conversation: Conversation,
        *,
        max_calls: int = 65536,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._address = address
        self._max_calls = max_calls
        self._last_id = 0
        # By correlation id: future, deadline, and ``_heard`` when the call was sent; calls that
        # wait for a link have their request instead of ``_heard``.
        self._sent: dict[int, Open] = {}
        self._waiting: dict[int, Open] = {}
        self.link: Link | None = None
        """The live link, or None; calls then wait for one."""
        # Counts envelopes and links; equals ``_silent_at`` if nothing was received since a call
        # was sent that has timed out.
        self._heard = 0
        self._silent_at = -1
        self._closed = False
        self._retiring = False
        self._timer = DeadlineTimer(self._loop, self._expire)
        self._dialer = transport.dial(address, conversation, self)

    @property
    def address(self) -> str:
        """Address of the server."""
        return self._address

    @property
    def connected(self) -> bool:
        """Whether a call would be sent at once."""
        return self.link is not None

    @property
    def ended(self) -> bool:
        """Whether the client is closed."""
        return self._closed

    @property
    def stuck(self) -> bool:
        """Whether calls wait for a connection."""
        return self.link is None and bool(self._waiting)

    @property
    def silent(self) -> bool:
        """Whether a call has timed out and its link has received nothing since that call was sent:
        a new connection may help.
        """
        return self._silent_at == self._heard

    @property
    def failure(self) -> str:
        """Why there is no connection, or empty if the reason is unknown."""
        return self._dialer.last_failure

    def call(self, request: Any, timeout_s: float) -> asyncio.Future[Any]:
        """Send a request. The future completes with the response or an ApiError within
        ``timeout_s`` (accurate to 10 ms).

        From then on the request belongs to the client: its ``correlation_id`` is overwritten, and
        the caller must not change or send it again. To abandon a call, cancel the future.
        """
        future: asyncio.Future[Any] = self._loop.create_future()
        self.start(request, self._loop.time() + timeout_s, future)
        return future

    def start(self, request: Any, deadline: float, ending: Ending) -> None:
        """Send a request like ``call``, but without creating a future, for the hot path.
        ``deadline``: in seconds of the loop's clock.
        """
        if self._closed or len(self._sent) + len(self._waiting) >= self._max_calls:
            ending.set_exception(self._refusal())
            return
        correlation_id = self._last_id = self._last_id + 1
        request.correlation_id = correlation_id
        link = self.link
        if link is None or not self._send(link, correlation_id, ending, deadline, request):
            self._waiting[correlation_id] = (ending, deadline, request)
        timer = self._timer
        if deadline < timer.at:
            timer.arm(deadline)

    def close(self) -> None:
        """End all calls and the connection. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._dialer.close()
        self.link = None
        self._timer.cancel()
        self._fail_sent("the client was closed")
        waiting, self._waiting = self._waiting, {}
        for future, _, _ in waiting.values():
            if not future.done():
                future.set_exception(
                    ApiError(ErrorCode.NETWORK_EXCEPTION, f"{self._address}: the client was closed")
                )

    def opened(self, link: Link) -> None:
        """Send the waiting requests, in order."""
        if self._closed:
            return
        self.link = link
        self._heard += 1
        waiting, self._waiting = self._waiting, {}
        for correlation_id, entry in waiting.items():
            future, deadline, request = entry
            if not future.done() and not self._send(
                link, correlation_id, future, deadline, request
            ):
                self._waiting[correlation_id] = entry

    def received(self, link: Link, messages: Sequence[Any]) -> None:
        """Resolve calls. A response to an abandoned call, or on another link, is ignored."""
        if link is not self.link:
            return
        self._heard += 1
        take = self._sent.pop
        # All calls are removed before the first one ends: its callbacks may close this client, and
        # the others must be answered all the same.
        answered = [(take(response.correlation_id, None), response) for response in messages]
        for call, response in answered:
            if call is None:
                if not response.correlation_id:
                    self.noticed(response)
            elif not call[0].done():
                call[0].set_result(response)
        if self._retiring and not self._sent:
            self.close()

    def noticed(self, notice: Any) -> None:
        """Process an unsolicited notice from the server. To be overridden."""

    def retire(self) -> None:
        """Close once all requests in flight are answered, or can no longer be answered. No call may
        follow.
        """
        self._retiring = True
        if not self._sent:
            self.close()

    def closed(self, link: Link, reason: str) -> None:
        """End the calls in flight with an unknown outcome."""
        if link is self.link:
            self.link = None
            self._fail_sent(reason)
            if self._retiring:
                self.close()

    def _send(
        self,
        link: Link,
        correlation_id: int,
        ending: Ending,
        deadline: float,
        request: Any,
    ) -> bool:
        """Send a call. Return False if the link is closed; the call then waits for the next
        link.
        """
        try:
            link.send(request)
        except LinkClosedError:
            return False
        except ApiError as error:
            ending.set_exception(error)
        else:
            self._sent[correlation_id] = (ending, deadline, self._heard)
        return True

    def _refusal(self) -> ApiError:
        if self._closed:
            return ApiError(ErrorCode.NETWORK_EXCEPTION, f"{self._address}: the client was closed")
        message = f"{self._address}: {self._max_calls} calls are already unanswered, the limit"
        return ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, message)

    def _fail_sent(self, reason: str) -> None:
        sent, self._sent = self._sent, {}
        message = f"{self._address}: {reason}"
        for future, _, _ in sent.values():
            if not future.done():
                future.set_exception(
                    ApiError(ErrorCode.NETWORK_EXCEPTION, message, outcome_unknown=True)
                )

    def _expire(self) -> None:
        """End the expired calls. One timer is set to the earliest deadline, so an answered call
        costs no timer; each run visits all open calls.
        """
        now = self._loop.time()
        # As in ``received``: all calls are removed before the first one ends.
        late_sent, late_waiting = _take_late(self._sent, now), _take_late(self._waiting, now)
        if any(heard == self._heard and not ending.done() for ending, _, heard in late_sent):
            self._silent_at = self._heard
        for ending, _, _ in late_sent:
            if not ending.done():
                message = f"{self._address}: no response in time"
                ending.set_exception(
                    ApiError(ErrorCode.REQUEST_TIMED_OUT, message, outcome_unknown=True)
                )
        for ending, _, _ in late_waiting:
            if not ending.done():
                why = f" ({self.failure})" if self.failure else ""
                message = f"{self._address}: no connection in time{why}; the request was not sent"
                ending.set_exception(ApiError(ErrorCode.REQUEST_TIMED_OUT, message))
        if self._closed:
            return
        if self._retiring and not self._sent:
            self.close()
            return
        earliest = min(
            min((call[1] for call in self._sent.values()), default=NEVER),
            min((call[1] for call in self._waiting.values()), default=NEVER),
        )
        if earliest != NEVER:
            self._timer.arm(max(earliest, now + DEADLINE_GRAIN_S))
