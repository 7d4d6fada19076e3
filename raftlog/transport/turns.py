"""Sharing of the event loop: received messages are processed for a bounded time in each iteration.

A link whose messages cost more than the rest of the turn continues in a later turn; connections
take turns, however many links or calls of one connection are waiting. Between two turns the loop
serves everything else: sockets, timers, votes, HTTP. Without this, one message with many costly
requests would delay all peers, and so would many links with one costly request each.

Why: docs/decisions/022-a-peer-can-cost-only-so-much.md
"""

from __future__ import annotations

import asyncio
import math
from time import perf_counter, thread_time

from raftlog.bounds import FairQueue

PAUSE_MAX_S = 1.0
MEETING_S = 0.001
"""Seconds that costly work waits while new calls arrive; repeated up to MEETINGS times."""
MEETINGS = 64
"""Maximum number of consecutive MEETING_S pauses."""
WORTH_MEETING_S = 0.001
"""CPU seconds below which work delays no caller."""
SHORT = 1 / 8
"""Fraction of a turn's time below which work, in however many iterations, does not start a turn: a
turn costs a reading of the CPU clock and an iteration of the loop, more than delivering most
messages.
"""


OTHERS_MAX_S = 0.1
"""Seconds of a turn for which other processes may use the CPU. A longer time counts as a wait (e.g.
for a disk), which delays the loop.
"""


class Newcomers:
    """A counter of the calls that a server has accepted, of any kind, shared by all ``Turns`` of
    its loop.
    """

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Turns:
    """One share of the loop's time.

    ``spent`` records used time; while the share is ``over``, a worker awaits ``next``, and so does
    a newcomer while it is ``busy``. At most a turn's time is used in one iteration of the loop. It
    may be a little less, as time used by short turns is returned only when it has reached ``SHORT``
    of a turn.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        turn_ms: float,
        *,
        long_turn_ms: float = math.inf,
        newcomers: Newcomers | None = None,
    ) -> None:
        """``long_turn_ms``: CPU time of a turn above which a pause of the same length follows."""
        self._loop = loop
        self._newcomers = newcomers or Newcomers()
        self._met = self._meetings = 0
        self._long_turn_s = long_turn_ms / 1000
        self._turn_s = self._left_s = turn_ms / 1000
        self._enough_s = self._turn_s * (1 - SHORT)
        self._begun_at = 0.0
        self._cpu_at = -math.inf
        """CPU clock at the beginning of this turn, or -inf if it was not read."""
        self._others_s = 0.0
        """Seconds of this turn in which other processes had the CPU."""
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue()
        self._called = False
        """Whether a waiter has been given its turn and has not started yet."""
        self._begin_due = self._paused = False

    @property
    def over(self) -> bool:
        """Whether this turn's time is used up."""
        return self._left_s <= 0

    @property
    def busy(self) -> bool:
        """Whether a newcomer must wait, because the time is used up or others already wait.

        A waiter that was given its turn counts as waiting until it starts. (Otherwise a newcomer
        could use up a turn just before it, and both would run in one iteration of the loop.)
        """
        return self._left_s <= 0 or self._waiting.length > 0 or self._called

    @property
    def others_may_go(self) -> bool:
        """Whether others wait and time is left for them."""
        return self._waiting.length > 0 and self._left_s > 0

    now = staticmethod(perf_counter)
    """The real clock, in seconds, as the loop's own clock does not advance within an iteration."""

    def spent(self, seconds: float) -> None:
        """Subtract ``seconds`` from this turn."""
        left_s = self._left_s = self._left_s - seconds
        if left_s < self._enough_s and (left_s <= 0 or not self._begin_due):
            self._look(seconds)

    def used(self, seconds: float) -> None:
        """Record time like ``spent``, and start the next waiter. For small messages."""
        left_s = self._left_s = self._left_s - seconds
        if left_s < self._enough_s and (left_s <= 0 or not self._begin_due):
            left_s = self._look(seconds)
        if self._waiting.length and left_s > 0:
            self.pass_on()

    def begin_last(self) -> None:
        """Use up this turn, so that the caller's work, whose cost is unknown, is the last to start
        in it.
        """
        self._left_s, self._cpu_at = 0.0, -math.inf
        if not self._begin_due:
            self._begin_soon(thread_time())

    async def next(self, peer: str) -> None:
        """Wait for a turn; waiting peers alternate.

        The worker calls ``pass_on`` when it finishes, even on failure.
        """
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiting.push(peer, waiter)
        if not self._begin_due:
            self._begin_soon(thread_time())
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._called = False
                self.pass_on()
            raise
        self._called = False

    def pass_on(self) -> None:
        """Start the next waiter if time is left, unless a waiter is about to start, which will then
        pass on the rest.
        """
        while self.others_may_go and not self._called:
            waiter = self._waiting.pop()
            if waiter is not None and not waiter.done():
                self._called = True
                waiter.set_result(None)

    def _look(self, seconds: float) -> float:
        """Return the rest of a turn that is long by the wall clock.

        The CPU clock may show less: on a busy machine other processes have used the difference, and
        a short message looks like a whole turn.
        """
        now = thread_time()
        used_s = now - self._cpu_at
        others_s = max(0.0, self._turn_s - used_s - self._left_s)
        self._others_s += others_s
        if self._others_s <= OTHERS_MAX_S:
            self._left_s += others_s
        if self._left_s < self._enough_s and not self._begin_due:
            self._begin_soon(now - min(seconds, used_s))
        return self._left_s

    def _begin_soon(self, begun_at: float) -> None:
        """Begin a turn in the next iteration of the loop. ``begun_at``: the CPU clock when its work
        began.
        """
        self._begin_due = True
        self._begun_at = begun_at
        self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        # By the CPU clock: on a busy machine the wall clock makes every turn look long.
        now = thread_time()
        took_s = now - self._begun_at
        if took_s > self._long_turn_s and not self._paused:
            # One message took that long. gRPC delivers one new call per iteration of the loop:
            # without a pause, a new call would be accepted only after as many such messages as
            # there are calls before it.
            self._paused = True
            self._loop.call_later(min(took_s, PAUSE_MAX_S), self._begin)
            return
        if self._meets_newcomers(took_s):
            return
        self._paused = False
        self._begin_due = False
        self._left_s, self._cpu_at, self._others_s = self._turn_s, now, 0.0
        self.pass_on()

    def _meets_newcomers(self, took_s: float) -> bool:
        """Delay the next turn while new calls arrive.

        gRPC delivers one call per iteration of the loop, and each share works in each iteration.
        (Otherwise, with a hundred costly calls on one connection and as many on streams, a later
        call would wait for a hundred turns of both: two seconds.)
        """
        met, self._met = self._met, self._newcomers.count
        if (
            met == self._met
            or self._meetings >= MEETINGS
            or (took_s < WORTH_MEETING_S and not self._meetings)
        ):
            self._meetings = 0
            return False
        self._meetings += 1
        self._paused = True
        self._loop.call_later(MEETING_S, self._begin)
        return True
