"""One timer for many deadlines: it may be early, and is never late.

Deadlines move all the time, mostly back: a fetch is answered, a heartbeat arrives. To set a timer
anew for each would cost more than the work itself. So a timer that is set for an earlier time
stays; what it calls looks at what is due, which may be nothing, and arms it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from raftlog.deadline import NEVER


class DeadlineTimer:
    """Calls ``due`` by the earliest deadline it was armed with since it last did.

    Times are those of the loop's clock, in seconds.
    """

    __slots__ = ("_due", "_handle", "_loop", "at")

    def __init__(self, loop: asyncio.AbstractEventLoop, due: Callable[[], None]) -> None:
        self._loop, self._due = loop, due
        self._handle: asyncio.TimerHandle | None = None
        # Not Handle.when: uvloop gives a handle without it for what is due at once.
        self.at = NEVER
        """When it calls, at the latest: only an earlier deadline needs ``arm``."""

    def arm(self, deadline: float) -> None:
        """Be called by ``deadline``; NEVER asks for nothing, and takes back nothing."""
        if deadline >= self.at:
            return
        if self._handle is not None:
            self._handle.cancel()
        self.at = deadline
        self._handle = self._loop.call_at(deadline, self._fire)

    def cancel(self) -> None:
        """Call nobody until it is armed again."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle, self.at = None, NEVER

    def _fire(self) -> None:
        self._handle, self.at = None, NEVER
        self._due()
