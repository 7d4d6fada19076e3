"""A temporary change to the log level of a running node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from raftlog.errors import ApiError, ErrorCode

LEVELS = ("debug", "info", "warning", "error")
DEFAULT_MS = 10 * 60 * 1000
MAX_MS = 24 * 3600 * 1000
"""Maximum duration of a changed level, in ms, as debug lines fill disks."""


class LogLevel:
    """The log level of one process.

    ``apply`` sets a level. ``wall_clock_ms`` returns the time, for reporting when the configured
    level returns.
    """

    def __init__(
        self, configured: str, apply: Callable[[str], None], wall_clock_ms: Callable[[], int]
    ) -> None:
        self._configured, self._apply, self._clock = configured, apply, wall_clock_ms
        self._timer: asyncio.TimerHandle | None = None
        self.level = configured
        self.until_ms = 0
        """Time at which the configured level returns, in ms, or 0 if it is active."""

    def alter(self, level: str, for_ms: int) -> None:
        """Set ``level`` for ``for_ms`` milliseconds (0: ten minutes); an empty level restores the
        configured one.

        Raises ApiError. Called on the event loop.
        """
        if level and level not in LEVELS:
            known = ", ".join(LEVELS)
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"{level[:80]!r} is not a log level: use one of {known}",
                field="level",
            )
        if not 0 <= for_ms <= MAX_MS:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"{for_ms} must be in 0 .. {MAX_MS}", field="for_ms"
            )
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not level:
            self._put_back()
            return
        for_ms = for_ms or DEFAULT_MS
        self._timer = asyncio.get_running_loop().call_later(for_ms / 1000, self._put_back)
        self.level, self.until_ms = level, self._clock() + for_ms
        self._apply(level)

    def _put_back(self) -> None:
        self._timer = None
        self.level, self.until_ms = self._configured, 0
        self._apply(self._configured)
