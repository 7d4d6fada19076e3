"""A check of this node's wall clock, which reports a deviation in the log and in the journal."""

from __future__ import annotations

from collections.abc import Callable

from raftlog.clock import TOLERANCE_MS
from raftlog.logger import get_logger
from raftlog.node.observability.journal import Journal, Kind

log = get_logger(__name__)

LOOK_EVERY_S = 1.0


class ClockWatch:
    """A check of the clock once a second. ``ahead_ms`` returns how far it is ahead of the quorum's
    time, in ms, or None if unknown.
    """

    def __init__(self, ahead_ms: Callable[[], int | None], journal: Journal) -> None:
        self._ahead_ms, self._journal = ahead_ms, journal
        self._look_at = 0.0
        self._overruled = self._differed = False

    def tick(self, now: float) -> None:
        """Report changes. ``now``: in seconds of the monotonic clock."""
        if now < self._look_at:
            return
        self._look_at = now + LOOK_EVERY_S
        ahead_ms = self._ahead_ms()
        if ahead_ms is None:
            return
        # Two checks must agree: a process that was suspended first reads old messages.
        differed, self._differed = self._differed, abs(ahead_ms) > TOLERANCE_MS
        if differed and self._differed and not self._overruled:
            self._overruled = True
            log.warning(
                "this node's clock differs from the majority's, whose time is used instead",
                ahead_ms=ahead_ms,
            )
            self._journal.note(Kind.CLOCK_OVERRULED, ahead_ms=ahead_ms)
        elif abs(ahead_ms) < TOLERANCE_MS // 2 and self._overruled:
            self._overruled = False
            log.info("this node's clock agrees with the majority's again")
            self._journal.note(Kind.CLOCK_AGREES)
