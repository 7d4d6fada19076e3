"""What every link does alike: hand messages over, survive a handler that fails, and close exactly
once.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from raftlog.identity import ANONYMOUS
from raftlog.logger import get_logger
from raftlog.transport.api import Link, LinkClosedError
from raftlog.transport.complaints import Complaint, Complaints

log = get_logger(__name__)

PEER_ENDED = "the peer ended the stream"
"""The reason when the other side ended the stream in good order."""


class BaseLink(ABC):
    """A link without its medium. ``_reason`` is None while the link is open."""

    def __init__(self, loop: asyncio.AbstractEventLoop, peer: str) -> None:
        self._loop = loop
        self.peer = peer
        """The other side's address, for logs, and to know which links are of one connection."""
        self.identity = ANONYMOUS
        """What the other side has proved about itself; the serving side sets it."""
        self.listener = ""
        """Which listener it has come to; the serving side sets it."""
        self._complaints: Complaints | None = None
        self._reason: str | None = None
        self._received: Callable[[Link, Sequence[Any]], None] | None = None
        self._closed: Callable[[Link, str], None] | None = None

    @property
    def close_reason(self) -> str | None:
        """Why it is closed; None while it is open."""
        return self._reason

    @property
    @abstractmethod
    def unsent_bytes(self) -> int:
        """Of what was sent here and has not left."""

    def attach(
        self, received: Callable[[Link, Sequence[Any]], None], closed: Callable[[Link, str], None]
    ) -> None:
        """Name what reacts.

        ``closed`` is called once, from the loop, even if the link has ended before this call.
        """
        self._received = received
        self._closed = closed

    @abstractmethod
    def send(self, message: Any) -> None:
        """Queue a message."""

    def close(self, reason: str = "") -> None:
        """End the stream; what is queued may be lost.

        ``closed`` follows on the handler. Idempotent.
        """
        if self._reason is not None:
            return
        self._reason = reason or "closed here"
        # Later, not now: whoever closes is often in the middle of changing what the handler would
        # touch.
        self._schedule(self._report_closed)
        self._shut()

    def deliver(self, messages: Sequence[Any]) -> None:
        """Hand over what arrived, unless the link is closed."""
        if self._reason is None and self._received is not None:
            # Not by ``guard``, which would be another call for every message.
            try:
                self._received(self, messages)
            except Exception as error:
                self._end_failed(error)

    def unknown_kind(self, what: str) -> None:
        """The peer sent what this side has no name for."""
        if self._complaints is not None:
            self._complaints.add(Complaint.UNKNOWN_KIND, self.peer, what)

    def malformed(self, what: str) -> None:
        """The peer sent what is beyond a limit."""
        if self._complaints is not None:
            self._complaints.add(Complaint.MALFORMED, self.peer, what)

    def forbidden(self, what: str) -> None:
        """The peer sent what it may not."""
        if self._complaints is not None:
            self._complaints.add(Complaint.FORBIDDEN, self.peer, what)

    def throttled(self, what: str) -> None:
        """The peer was told to wait."""
        if self._complaints is not None:
            self._complaints.add(Complaint.THROTTLED, self.peer, what)

    def guard(self, callback: Callable[..., None], *args: Any) -> None:
        """Call a handler.

        One that raises has lost a message: say so loudly, and end the link so that its peer knows.
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
