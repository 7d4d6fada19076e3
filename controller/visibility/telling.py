"""When brokers are told that LAO has moved: at once, unless what is about to be committed carries
it to them for nothing. Pure.

Each commit is told to every broker, and each of them says that it has it. LAO moves with the last
one, and telling that costs as many messages again. Where the next commit comes before they are
through, both get in each other's way [a write each 10 ms, thirty brokers, a slow hour: what a write
costs takes 18 ms, and every broker is late by more with each]. Then LAO waits for that commit, and
goes with its records.
"""

from __future__ import annotations

from collections import deque

HOLD_MAX_S = 0.025
"""LAO waits no longer for records that may not come."""
REMEMBERED = 64
"""Commits that LAO does not cover yet, and that are still measured."""
_NEW_SHARE = 0.25
_PAUSE_S = 1.0
"""A longer time between two commits is no rhythm."""


class Telling:
    """The rhythm of commits, and how long brokers take to have one."""

    def __init__(self) -> None:
        self._commits: deque[tuple[int, float]] = deque(maxlen=REMEMBERED)
        """(end offset, when) of those that LAO does not cover."""
        self._last = 0.0
        self._interval_s = _PAUSE_S

    def committed(self, high_watermark: int, now: float) -> None:
        """The high watermark (exclusive) has moved."""
        interval_s = min(max(now - self._last, 0.0), _PAUSE_S)
        self._last = now
        self._interval_s += _NEW_SHARE * (interval_s - self._interval_s)
        self._commits.append((high_watermark, now))

    def hold_s(self, lao: int, now: float) -> float:
        """LAO (inclusive) has moved: for how long that may wait for a commit to go with; 0: tell it
        at once.
        """
        commits, since = self._commits, None
        while commits and commits[0][0] <= lao + 1:
            since = commits.popleft()[1]
        if since is None:
            return 0.0
        took_s = now - since
        if self._last + self._interval_s - now >= took_s:
            return 0.0
        return min(took_s, HOLD_MAX_S)
