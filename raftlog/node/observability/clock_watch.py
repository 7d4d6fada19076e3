"""The watch of this node's wall clock, which reports an error in the log and in the journal."""

from __future__ import annotations

from collections.abc import Callable

from raftlog.clock import TOLERANCE_MS
from raftlog.logger import get_logger
from raftlog.node.observability.journal import Journal, Kind

log = get_logger(__name__)

LOOK_EVERY_S = 1.0


class ClockWatch:
    """A look at the clock once a second. ``ahead_ms``: time in ms by which it is ahead of the
    quorum's time.
    """

    def __init__(self, ahead_ms: Callable[[], int | None], journal: Journal) -> None:
        self._ahead_ms, self._journal = ahead_ms, journal
        self._look_at = 0.0
        self._overruled = self._differed = False

    def tick(self, now: float) -> None:
        """Report changes. ``now``: seconds of the monotonic clock."""
        if now < self._look_at:
            return
        self._look_at = now + LOOK_EVERY_S
        ahead_ms = self._ahead_ms()
        if ahead_ms is None:
            return
        # Once is not enough: a process that was stopped first reads messages of before.
        differed, self._differed = self._differed, abs(ahead_ms) > TOLERANCE_MS
        if differed and self._differed and not self._overruled:
            self._overruled = True
            log.warning(
                "the clock of this node is wrong: the majority's is used instead",
                ahead_ms=ahead_ms,
            )
            self._journal.note(Kind.CLOCK_OVERRULED, ahead_ms=ahead_ms)
        elif abs(ahead_ms) < TOLERANCE_MS // 2 and self._overruled:
            self._overruled = False
            log.info("the clock of this node agrees with the majority's again")
            self._journal.note(Kind.CLOCK_AGREES)
