"""What peers did that a peer must not do: counted each time, logged now and then, never with a
traceback.

A stranger decides how often it happens, so it must not decide how much is written.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from enum import StrEnum

from raftlog.logger import get_logger

log = get_logger(__name__)

LOGGED_A_PERIOD = 10
PERIOD_S = 10.0
_SHOWN_CHARACTERS = 300


class Complaint(StrEnum):
    """The kinds; the value is the metric's label."""

    MALFORMED = "malformed"
    TOO_LARGE = "too_large"
    TOO_MANY_ITEMS = "too_many_items"
    TOO_MANY_STREAMS = "too_many_streams"
    TOO_MANY_CONNECTIONS = "too_many_connections"
    TOO_MUCH_WAITING = "too_much_waiting"
    THROTTLED = "throttled"
    UNFINISHED = "unfinished"
    UNKNOWN_KIND = "unknown_kind"
    SLOW_READER = "slow_reader"
    FORBIDDEN = "forbidden"
    UNAUTHENTICATED = "unauthenticated"
    HTTP = "http"


_EVENT = {
    Complaint.MALFORMED: "malformed message",
    Complaint.TOO_LARGE: "message too large",
    Complaint.TOO_MANY_ITEMS: "too many items in a message",
    Complaint.TOO_MANY_STREAMS: "too many streams",
    Complaint.TOO_MANY_CONNECTIONS: "too many connections",
    Complaint.TOO_MUCH_WAITING: "too many bytes wait",
    Complaint.THROTTLED: "a peer is told to wait",
    Complaint.UNFINISHED: "messages are not complete",
    Complaint.UNKNOWN_KIND: "message of an unknown kind",
    Complaint.SLOW_READER: "a peer does not read",
    Complaint.FORBIDDEN: "a peer may not do this",
    Complaint.HTTP: "an HTTP client does what it must not",
    Complaint.UNAUTHENTICATED: "a peer has not proved who it is",
}


class Complaints:
    """Of one process's transport."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.counts: Counter[Complaint] = Counter()
        self._logged = 0
        self._left_out: Counter[Complaint] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, complaint: Complaint, peer: str, detail: str) -> None:
        """Count one; log it, if not too much was logged lately."""
        self.counts[complaint] += 1
        if self._timer is None:
            self._timer = self._loop.call_later(PERIOD_S, self._period_over)
        if self._logged < LOGGED_A_PERIOD:
            self._logged += 1
            # repr without its quotes: what a stranger sent is never written as it is.
            log.warning(_EVENT[complaint], peer=peer, error=repr(detail)[1:-1][:_SHOWN_CHARACTERS])
        else:
            self._left_out[complaint] += 1

    def close(self) -> None:
        """Say what was left out. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._period_over()

    def _period_over(self) -> None:
        self._timer, self._logged = None, 0
        if self._left_out:
            log.warning(
                "more complaints about peers were left out",
                **{str(kind): count for kind, count in sorted(self._left_out.items())},
            )
            self._left_out.clear()
