"""What the real and the simulated dialer share: one link at a time, and a bounded, spread pause
between attempts.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod

from raftlog.errors import ApiError
from raftlog.logger import get_logger
from raftlog.transport.api import DialHandler, Link, TransportLimits
from raftlog.transport.base_link import BaseLink

log = get_logger(__name__)


class Backoff:
    """Pauses that double from the minimum to the maximum, each drawn from the upper half of its
    range.

    The spread keeps the peers of a node that comes back from all knocking in the same millisecond.
    The first attempt after :meth:`reset` has no pause before it.
    """

    def __init__(self, limits: TransportLimits, rng: random.Random) -> None:
        self._min_s = limits.reconnect_backoff_min_ms / 1000
        self._max_s = limits.reconnect_backoff_max_ms / 1000
        self._rng = rng
        self._ceiling_s = self._min_s

    def next_s(self) -> float:
        """Seconds to wait before the next attempt."""
        ceiling = self._ceiling_s
        self._ceiling_s = min(self._max_s, ceiling * 2)
        return ceiling * self._rng.uniform(0.5, 1.0)

    def reset(self) -> None:
        """The last link was a good one: begin with short pauses again."""
        self._ceiling_s = self._min_s


class BaseDialer(ABC):
    """Attempt, hold the link, pause, attempt again, until closed. Subclasses know how to connect.

    A subclass begins an attempt in :meth:`_attempt` and ends it with exactly one of :meth:`_opened`
    and :meth:`_failed`, neither of them from within :meth:`_attempt` itself.
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
        """The live link, if there is one."""
        return self._link

    @property
    def last_failure(self) -> str:
        """Why the last attempt to connect failed; empty if none has since the last link."""
        return self._last_failure

    def close(self) -> None:
        """Stop for good; a live link is closed. Idempotent."""
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
        """Begin to connect."""

    @abstractmethod
    def _abort(self) -> None:
        """Give up the attempt under way, if there is one."""

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
        """``error``: the server's own, if it has refused who connects."""
        if reason != self._last_failure and not self._closed:
            # Once for each new reason: a peer that stays down must not fill the log.
            log.info("cannot connect", address=self._address, reason=reason)
            self._last_failure = reason
        self._pause()
        tell = getattr(self._handler, "attempt_failed", None)
        if tell is not None and not self._closed:
            tell(reason, error)

    def _link_closed(self, link: Link, reason: str) -> None:
        self._link = None
        # Not at once when it opened: a server that accepts and hangs up would be dialled as fast as
        # it hangs up.
        if self._loop.time() - self._opened_at >= self._good_after_s:
            self._backoff.reset()
        try:
            self._handler.closed(link, reason)
        finally:
            self._pause()

    def _pause(self) -> None:
        if not self._closed:
            self._timer = self._loop.call_later(self._backoff.next_s(), self._start_attempt)
