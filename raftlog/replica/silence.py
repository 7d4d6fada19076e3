"""When a link to a peer is to be replaced: it is up, something was asked on it, and nothing at all
has come since.

A keepalive tells of a host or a whole connection that is gone. It does not tell of one stream that
carries nothing, nor of a process that has lost it. Who waits longer than a request may take makes
another link.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from raftlog.deadline_timer import DeadlineTimer

LONGEST = 8
"""Times the first patience. A link whose answers take that long is of no use to a quorum."""


class Silence:
    """Watches one conversation with one peer.

    A request costs a comparison; there is one timer, while anything is awaited.

    The patience doubles with each link that is given up and is at least twice what an answer took:
    a slow link, or a peer that is away, is not dialed again and again.
    """

    def __init__(self, patience_s: float, silent: Callable[[], None]) -> None:
        """``silent`` is called when patience has ended, and again after twice as long if nothing
        has come by then.
        """
        self._loop = asyncio.get_running_loop()
        self._shortest_s = self._patience_s = patience_s
        self._silent = silent
        self._since: float | None = None
        self._timer = DeadlineTimer(self._loop, self._look)

    def asked(self) -> None:
        """A request was sent, to which there is always an answer."""
        if self._since is None:
            self._since = self._loop.time()
            self._timer.arm(self._since + self._patience_s)

    def heard(self) -> None:
        """Something came."""
        if self._since is not None:
            took_s, self._since = self._loop.time() - self._since, None
            self._patience_s = min(max(self._shortest_s, 2 * took_s), LONGEST * self._shortest_s)

    @property
    def since(self) -> float | None:
        """When the oldest request was sent that nothing has followed; None: nothing is awaited."""
        return self._since

    def over(self) -> None:
        """The link is gone: nothing is awaited on it."""
        self._since = None

    def close(self) -> None:
        """Watch no more."""
        self._since = None
        self._timer.cancel()

    def _look(self) -> None:
        if self._since is None:
            return
        now, due = self._loop.time(), self._since + self._patience_s
        if due <= now:
            self._patience_s = min(2 * self._patience_s, LONGEST * self._shortest_s)
            due = now + self._patience_s
            self._silent()
        if self._since is not None:
            self._timer.arm(due)
