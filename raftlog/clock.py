"""Deadlines on the monotonic clock, and the wall-clock time of a majority of the voters."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import asyncio

NEVER: Final = math.inf
"""A deadline that never passes: its timer does not run."""


class DeadlineTimer:
    """One timer for many deadlines, in seconds of the event loop's clock. It may fire early, never
    late.

    Deadlines move often, mostly later, and a new timer for each move would cost more than the work
    itself. A timer that was set for an earlier time is kept: ``due`` checks which deadlines have
    passed, possibly none, and arms the timer again.
    """

    __slots__ = ("_due", "_handle", "_loop", "at")

    def __init__(self, loop: asyncio.AbstractEventLoop, due: Callable[[], None]) -> None:
        self._loop, self._due = loop, due
        self._handle: asyncio.TimerHandle | None = None
        # Not Handle.when, which uvloop's handles lack if they are due at once.
        self.at = NEVER
        """Latest time of the next call: only an earlier deadline needs ``arm``."""

    def arm(self, deadline: float) -> None:
        """Have ``due`` called no later than ``deadline``; does nothing for NEVER."""
        if deadline >= self.at:
            return
        if self._handle is not None:
            self._handle.cancel()
        self.at = deadline
        self._handle = self._loop.call_at(deadline, self._fire)

    def cancel(self) -> None:
        """Prevent ``due`` from being called until the timer is armed again."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle, self.at = None, NEVER

    def _fire(self) -> None:
        self._handle, self.at = None, NEVER
        self._due()


TOLERANCE_MS = 1_000
"""Largest difference in ms between a node's clock and quorum time that is not corrected. It exceeds
the transit time of a message, so that clocks that agree are never adjusted.
"""
STAND_STILL_MAX_MS = 10_000
"""Longest lead, in ms, of log time over the clocks for which log time stops until the clocks reach
it. With a longer lead, log time is set back.
"""
HEARD_FOR_S = 10.0
"""Time in seconds for which a voter's clock counts after the voter was last heard; voters fetch
much more often.
"""
RECEIVED_FOR_S = 600.0
"""Time in seconds for which a node uses the last received time; afterwards it uses its own
clock.
"""
AGAIN_S = 0.1
"""Interval in seconds at which a replica reports its clock, and a leader compares the voters'
clocks.
"""
AWAY_S = 1.0
"""Time in seconds for which the received time must be earlier than expected before it is used, as a
single message may have waited in a socket while this process did not run.
"""
_SENDER = -2
MAX_MS = 253_402_300_799_999
"""Latest time accepted from a clock, in ms: the end of the year 9999."""


def _corrected(clock_ms: int, time_ms: int) -> int:
    """Return a clock's time, corrected to within the tolerance around quorum time."""
    return max(time_ms - TOLERANCE_MS, min(clock_ms, time_ms + TOLERANCE_MS))


def stamp_after(last_ms: int, time_ms: int, passed_ms: int) -> int:
    """Return the timestamp of the batch after one with timestamp ``last_ms``: not earlier, unless
    ``last_ms`` is far ahead of ``passed_ms``.
    """
    return time_ms if last_ms - passed_ms > STAND_STILL_MAX_MS else max(last_ms, time_ms)


class Majority(NamedTuple):
    """Two times in ms since 1970, which differ only if some clocks are unknown."""

    reached_ms: int
    """Latest time that a majority's clocks have reached."""
    passed_ms: int
    """Earliest time that a majority's clocks have not passed."""


class QuorumTime:
    """The time that the wall clocks of a majority of the voters show, as far as one node knows.

    A leader stamps batches with this time, not with its own clock's; every other node uses the time
    that the leader sends. Safety does not depend on it. Each clock is kept as its difference to
    this process's monotonic clock, so that setting one wall clock changes only its own
    contribution.

    Why: docs/decisions/032-the-majority-says-what-time-it-is.md

    ``now``: seconds of the monotonic clock. ``node_id``: the node whose clock ``clock_ms`` reads.
    ``voters``: the voters if this node leads; empty on other nodes, which use the time they
    receive.
    """

    def __init__(
        self, clock_ms: Callable[[], int], now: Callable[[], float], node_id: int = -1
    ) -> None:
        self._clock_ms, self._now, self._node_id = clock_ms, now, node_id
        self._heard: dict[int, tuple[float, float]] = {}
        """Node id -> lead of its clock over the local monotonic clock in ms, and when it
        was heard.
        """
        self._received: tuple[float, float] | None = None
        self._compared: tuple[float, float] | None = None
        self._compared_at = 0.0
        self._compared_voters: Collection[int] = ()
        self._doubted: dict[int, float] = {}
        """Node id -> time since which its clock has been earlier than expected; under _SENDER, the
        same for the received time.
        """

    def heard(self, node_id: int, clock_ms: int) -> None:
        """Record a node's clock. It counts while the node is a voter."""
        if 0 < clock_ms <= MAX_MS:
            now, known = self._now(), self._heard.get(node_id)
            found = clock_ms - now * 1000, now
            if not self._is_late(node_id, found, known):
                self._heard[node_id] = found

    def received(self, time_ms: int) -> None:
        """Record the time sent by the leader or the active controller."""
        if 0 < time_ms <= MAX_MS:
            now = self._now()
            found = time_ms - now * 1000, now
            if not self._is_late(_SENDER, found, self._received):
                self._received = found

    def _is_late(
        self, source: int, found: tuple[float, float], known: tuple[float, float] | None
    ) -> bool:
        """Return whether a message probably waited while this process did not run."""
        if known is None or found[0] >= known[0] - TOLERANCE_MS:
            self._doubted.pop(source, None)
            return False
        return found[1] - self._doubted.setdefault(source, found[1]) < AWAY_S

    def now_ms(self, voters: Collection[int] = ()) -> int:
        """Return the local clock's time in ms, corrected to within the tolerance around quorum time
        if that is known.
        """
        clock_ms, time_ms = self._clock_ms(), self.quorum_ms(voters)
        if time_ms is None:
            return clock_ms
        return _corrected(clock_ms, time_ms)

    def ahead_ms(self, voters: Collection[int] = ()) -> int | None:
        """Return the local clock's lead over quorum time in ms, or None if quorum time is
        unknown.
        """
        time_ms = self.quorum_ms(voters)
        return None if time_ms is None else self._clock_ms() - time_ms

    def quorum_ms(self, voters: Collection[int] = ()) -> int | None:
        """Return the quorum time to send to other nodes in ms, or None if it is unknown here."""
        majority = self.majority(voters) if voters else None
        if majority is not None:
            return majority.reached_ms
        now = self._now()
        if self._received is None or now - self._received[1] > RECEIVED_FOR_S:
            return None
        return round(self._received[0] + now * 1000)

    def next_stamp_ms(self, last_ms: int, voters: Collection[int]) -> int:
        """Return the timestamp of the batch after one with timestamp ``last_ms``."""
        majority = self.majority(voters)
        if majority is None:
            return stamp_after(last_ms, self.now_ms(), last_ms)
        time_ms = _corrected(self._clock_ms(), majority.reached_ms)
        return stamp_after(last_ms, time_ms, majority.passed_ms)

    def majority(self, voters: Collection[int]) -> Majority | None:
        """Return the times of a majority of the voters, or None if too few were heard recently."""
        now = self._now()
        if (
            self._compared is None
            or now - self._compared_at > AGAIN_S
            or voters != self._compared_voters
        ):
            self._compared, self._compared_at = self._compare(voters, now), now
            self._compared_voters = voters
        if self._compared is None:
            return None
        reached_ms, passed_ms = self._compared
        return Majority(round(reached_ms + now * 1000), round(passed_ms + now * 1000))

    def _compare(self, voters: Collection[int], now: float) -> tuple[float, float] | None:
        """Return a Majority as leads over the monotonic clock in ms, or None."""
        self.heard(self._node_id, self._clock_ms())
        heard = self._heard
        found = sorted(
            heard[one][0] for one in voters if one in heard and now - heard[one][1] <= HEARD_FOR_S
        )
        needed = len(voters) // 2 + 1
        return None if len(found) < needed else (found[-needed], found[needed - 1])
