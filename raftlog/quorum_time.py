"""What time it is: what the wall clocks of a majority of the voters say.

A leader stamps batches with it, not with its own clock; every other node keeps to what the leader
tells it. Nothing here is needed for safety.

Each clock is known as its difference to the monotonic clock of this process: a wall clock that is
set while it runs changes its own part of the answer, and no other.

Why: docs/decisions/032-the-majority-says-what-time-it-is.md
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

TOLERANCE_MS = 1_000
"""How far a node's own clock may differ from the majority's before it is overruled: more than a
message takes, so that clocks that agree are never adjusted.
"""
STAND_STILL_MAX_MS = 10_000
"""How far log time may be ahead and stand still until the clocks reach it. If it is farther ahead,
it goes back.
"""
HEARD_FOR_S = 10.0
"""For how long a voter's clock counts after the voter was heard; voters fetch much more often."""
TOLD_FOR_S = 600.0
"""For how long a node goes by what it was told last; then by its own clock."""
AGAIN_S = 0.1
"""How often a replica says what its clock shows, and the clocks of the voters are compared."""
AWAY_S = 1.0
"""For how long a time that is earlier than expected must be told before it is used: one message may
have waited in a socket while this process did not run."""
_TELLER = -2
MAX_MS = 253_402_300_799_999
"""The end of the year 9999: no clock says more."""


def stamp_after(last_ms: int, time_ms: int, passed_ms: int) -> int:
    """The timestamp of the batch behind one of ``last_ms``: not before that, unless that is far
    ahead of a time that the clocks have not passed.
    """
    return time_ms if last_ms - passed_ms > STAND_STILL_MAX_MS else max(last_ms, time_ms)


class Majority(NamedTuple):
    """Two times, in ms since 1970, that differ only if some of the clocks are not known."""

    reached_ms: int
    """The latest time that the clocks of a majority have reached."""
    passed_ms: int
    """The earliest time that the clocks of a majority have not passed."""


class QuorumTime:
    """What one node knows of it. ``now``: seconds of the monotonic clock. ``node_id``: whose clock
    ``clock_ms`` is.

    ``voters``: those of a leader, which asks them; empty: this node goes by what it is told.
    """

    def __init__(
        self, clock_ms: Callable[[], int], now: Callable[[], float], node_id: int = -1
    ) -> None:
        self._clock_ms, self._now, self._node_id = clock_ms, now, node_id
        self._heard: dict[int, tuple[float, float]] = {}
        """Node -> how far its clock is ahead of the monotonic one here, in ms, and when it was
        heard.
        """
        self._told: tuple[float, float] | None = None
        self._compared: tuple[float, float] | None = None
        self._compared_at = 0.0
        self._doubted: dict[int, float] = {}
        """Node -> since when its clock is earlier than expected; _TELLER: what is told."""

    def heard(self, node_id: int, clock_ms: int) -> None:
        """A node has said what its clock shows. It counts while the node is a voter."""
        if 0 < clock_ms <= MAX_MS:
            now, known = self._now(), self._heard.get(node_id)
            found = clock_ms - now * 1000, now
            if not self._is_late(node_id, found, known):
                self._heard[node_id] = found

    def told(self, time_ms: int) -> None:
        """The leader, or the active controller, has said what time it is."""
        if 0 < time_ms <= MAX_MS:
            now = self._now()
            found = time_ms - now * 1000, now
            if not self._is_late(_TELLER, found, self._told):
                self._told = found

    def _is_late(
        self, source: int, found: tuple[float, float], known: tuple[float, float] | None
    ) -> bool:
        """Return whether a message seems to have waited while this process did not run."""
        if known is None or found[0] >= known[0] - TOLERANCE_MS:
            self._doubted.pop(source, None)
            return False
        return found[1] - self._doubted.setdefault(source, found[1]) < AWAY_S

    def now_ms(self, voters: Collection[int] = ()) -> int:
        """The time here: the own clock, which differs from the quorum's time by the tolerance at
        most, as far as that is known.
        """
        clock_ms, time_ms = self._clock_ms(), self.quorum_ms(voters)
        if time_ms is None:
            return clock_ms
        return max(time_ms - TOLERANCE_MS, min(clock_ms, time_ms + TOLERANCE_MS))

    def ahead_ms(self, voters: Collection[int] = ()) -> int | None:
        """How far the own clock is ahead of the quorum's time; None: that is not known."""
        time_ms = self.quorum_ms(voters)
        return None if time_ms is None else self._clock_ms() - time_ms

    def quorum_ms(self, voters: Collection[int] = ()) -> int | None:
        """The quorum's time, as far as it is known here: what to tell others; None: it is not."""
        majority = self.majority(voters) if voters else None
        if majority is not None:
            return majority.reached_ms
        now = self._now()
        if self._told is None or now - self._told[1] > TOLD_FOR_S:
            return None
        return round(self._told[0] + now * 1000)

    def next_stamp_ms(self, last_ms: int, voters: Collection[int]) -> int:
        """The timestamp of the batch behind one of ``last_ms``."""
        majority = self.majority(voters)
        passed_ms = last_ms if majority is None else majority.passed_ms
        return stamp_after(last_ms, self.now_ms(voters), passed_ms)

    def majority(self, voters: Collection[int]) -> Majority | None:
        """What a majority of the voters says; None: not enough of them were heard lately."""
        now = self._now()
        if self._compared is None or now - self._compared_at > AGAIN_S:
            self._compared, self._compared_at = self._compare(voters, now), now
        if self._compared is None:
            return None
        reached_ms, passed_ms = self._compared
        return Majority(round(reached_ms + now * 1000), round(passed_ms + now * 1000))

    def _compare(self, voters: Collection[int], now: float) -> tuple[float, float] | None:
        """As a Majority, but ahead of the monotonic clock."""
        self.heard(self._node_id, self._clock_ms())
        heard = self._heard
        found = sorted(
            heard[one][0] for one in voters if one in heard and now - heard[one][1] <= HEARD_FOR_S
        )
        needed = len(voters) // 2 + 1
        return None if len(found) < needed else (found[-needed], found[needed - 1])
