"""Common parts of the real and the simulated network: a link without its medium, and a dialer that
keeps one link alive.

A link delivers messages, survives a handler that raises, and closes exactly once. A dialer pauses
for a bounded, random time between two attempts.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from raftlog.errors import ApiError
from raftlog.identity import ANONYMOUS
from raftlog.logger import get_logger
from raftlog.transport.api import DialHandler, Link, LinkClosedError, TransportLimits
from raftlog.transport.bounds import Complaint, Complaints

log = get_logger(__name__)

PEER_ENDED = "the peer ended the stream"
"""Close reason if the peer ended the stream regularly."""


class BaseLink(ABC):
    """A link without its medium. ``_reason`` is None while the link is open."""

    def __init__(self, loop: asyncio.AbstractEventLoop, peer: str) -> None:
        self._loop = loop
        self.peer = peer
        """The peer's address, for logs and to group the links of one connection."""
        self.identity = ANONYMOUS
        """Identity that the peer has proved; set by the serving side."""
        self.listener = ""
        """Name of the listener that accepted the link; set by the serving side."""
        self._complaints: Complaints | None = None
        self._reason: str | None = None
        self._received: Callable[[Link, Sequence[Any]], None] | None = None
        self._closed: Callable[[Link, str], None] | None = None

    @property
    def close_reason(self) -> str | None:
        """Why the link was closed, or None while it is open."""
        return self._reason

    @property
    @abstractmethod
    def unsent_bytes(self) -> int:
        """Size in bytes of the queued messages that have not been sent yet."""

    def attach(
        self, received: Callable[[Link, Sequence[Any]], None], closed: Callable[[Link, str], None]
    ) -> None:
        """Set the callbacks.

        ``closed`` is called once, from the loop, even if the link has ended before this call.
        """
        self._received = received
        self._closed = closed

    @abstractmethod
    def send(self, message: Any) -> None:
        """Queue a message."""

    def close(self, reason: str = "") -> None:
        """End the stream; queued messages may be lost. The handler's ``closed`` follows.
        Idempotent.
        """
        if self._reason is not None:
            return
        self._reason = reason or "closed here"
        # Deferred, as the caller is often in the middle of changing the handler's state.
        self._schedule(self._report_closed)
        self._shut()

    def deliver(self, messages: Sequence[Any]) -> None:
        """Deliver received messages, unless the link is closed."""
        if self._reason is None and self._received is not None:
            # Inlined ``guard``: it would cost another call for every message.
            try:
                self._received(self, messages)
            except Exception as error:
                self._end_failed(error)

    def unknown_kind(self, what: str) -> None:
        """See ``Link``."""
        if self._complaints is not None:
            self._complaints.add(Complaint.UNKNOWN_KIND, self.peer, what)

    def malformed(self, what: str) -> None:
        """See ``Link``."""
        if self._complaints is not None:
            self._complaints.add(Complaint.MALFORMED, self.peer, what)

    def forbidden(self, what: str) -> None:
        """See ``Link``."""
        if self._complaints is not None:
            self._complaints.add(Complaint.FORBIDDEN, self.peer, what)

    def throttled(self, what: str) -> None:
        """See ``Link``."""
        if self._complaints is not None:
            self._complaints.add(Complaint.THROTTLED, self.peer, what)

    def guard(self, callback: Callable[..., None], *args: Any) -> None:
        """Call a handler.

        If the handler raises, it has lost a message, so the error is logged, and the link is closed
        so that the peer notices.
        """
        try:
            callback(*args)
        except Exception as error:
            self._end_failed(error)

    def _end_failed(self, error: Exception) -> None:
        self._handler_failed(error)
        self.close(f"the handler failed: {error!r}")

    @abstractmethod
    def _shut(self) -> None:
        """Stop the medium. Called once."""

    def _schedule(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def _handler_failed(self, error: Exception) -> None:
        log.error("a link handler failed", peer=self.peer, exc_info=error)

    def _report_closed(self) -> None:
        if self._closed is None or self._reason is None:
            return
        try:
            self._closed(self, self._reason)
        except Exception as error:
            self._handler_failed(error)

    def _closed_error(self) -> LinkClosedError:
        return LinkClosedError(f"the link to {self.peer} is closed: {self._reason}")


class Backoff:
    """Pauses that double from the minimum to the maximum, each drawn from the upper half of its
    range.

    The randomness keeps the peers of a restarted node from all reconnecting in the same
    millisecond.
    """

    def __init__(self, limits: TransportLimits, rng: random.Random) -> None:
        self._min_s = limits.reconnect_backoff_min_ms / 1000
        self._max_s = limits.reconnect_backoff_max_ms / 1000
        self._rng = rng
        self._ceiling_s = self._min_s

    def next_s(self) -> float:
        """Return the pause before the next attempt, in seconds."""
        ceiling = self._ceiling_s
        self._ceiling_s = min(self._max_s, ceiling * 2)
        return ceiling * self._rng.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Return to short pauses after a successful link."""
        self._ceiling_s = self._min_s


class BaseDialer(ABC):
    """A dialer loop: attempt, keep the link, pause, attempt again, until closed.

    A subclass starts an attempt in :meth:`_attempt` and ends it with exactly one call of
    :meth:`_opened` or :meth:`_failed`, but never from within :meth:`_attempt` itself.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        address: str,
        handler: DialHandler,
        limits: TransportLimits,
        *,
        rng: random.Random,
    ) -> None:
        self._loop = loop
        self._address = address
        self._handler = handler
        self._backoff = Backoff(limits, rng)
        self._good_after_s = limits.reconnect_backoff_max_ms / 1000
        self._link: BaseLink | None = None
        self._opened_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._last_failure = ""

    @property
    def link(self) -> Link | None:
        """See ``Dialer``."""
        return self._link

    @property
    def last_failure(self) -> str:
        """See ``Dialer``."""
        return self._last_failure

    def close(self) -> None:
        """Stop permanently, and close the live link. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._abort()
        if self._link is not None:
            self._link.close("the dialer was closed")

    @abstractmethod
    def _attempt(self) -> None:
        """Start connecting."""

    @abstractmethod
    def _abort(self) -> None:
        """Stop the current attempt, if any."""

    def _start_attempt(self) -> None:
        self._timer = None
        self._attempt()

    def _opened(self, link: BaseLink) -> None:
        if self._closed:
            link.close("the dialer was closed")
            return
        self._link = link
        self._opened_at = self._loop.time()
        self._last_failure = ""
        link.attach(self._handler.received, self._link_closed)
        link.guard(self._handler.opened, link)

    def _failed(self, reason: str, error: ApiError | None = None) -> None:
        """Report a failed attempt. ``error``: the server's refusal of this client, or None for
        another reason.
        """
        if reason != self._last_failure and not self._closed:
            # Only a new reason is logged: a peer that stays down must not fill the log.
            log.info("cannot connect", address=self._address, reason=reason)
            self._last_failure = reason
        self._pause()
        tell = getattr(self._handler, "attempt_failed", None)
        if tell is not None and not self._closed:
            tell(reason, error)

    def _link_closed(self, link: Link, reason: str) -> None:
        self._link = None
        # Not as soon as the link opens: otherwise a server that accepts and hangs up would be
        # dialed as fast as it hangs up.
        if self._loop.time() - self._opened_at >= self._good_after_s:
            self._backoff.reset()
        try:
            self._handler.closed(link, reason)
        finally:
            self._pause()

    def _pause(self) -> None:
        if not self._closed:
            self._timer = self._loop.call_later(self._backoff.next_s(), self._start_attempt)
