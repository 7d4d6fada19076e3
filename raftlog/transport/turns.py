"""Sharing the loop: what links have received is worked on for a bounded time in each turn of it.

A link whose messages cost more than the turn has left waits and goes on in a later turn;
connections take turns, however many links or calls of one wait. Between two turns the loop serves
everything else: sockets, timers, votes, HTTP. Without it one message of many costly requests holds
up everybody, and so do many links with one costly request each.

Why: docs/decisions/022-a-peer-can-cost-only-so-much.md
"""

from __future__ import annotations

import asyncio
import math
from time import perf_counter, thread_time

from raftlog.bounds import FairQueue

PAUSE_MAX_S = 1.0
MEETING_S = 0.001
"""While new calls come, work that is more than nothing waits for so long, and again,"""
MEETINGS = 64
"""but not more often than this."""
WORTH_MEETING_S = 0.001
"""Work that took less of the CPU keeps no caller waiting."""
SHORT = 1 / 8
"""Of a turn's time.

What takes less together, in however many turns of the loop, is not worth beginning a turn for: that
costs a look at the clock of the CPU and a turn of the loop each, more than handing over most
messages."""


OTHERS_MAX_S = 0.1
"""In a turn, so much of the clock may have been other processes' use of the CPU. More is a wait, as
for a disk, and holds up the loop."""


class Newcomers:
    """Counts the calls that a server has met, whatever they are.

    All shares of its loop look at one.
    """

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Turns:
    """One share of the loop's time.

    ``spent`` is told what was used; while it is ``over``, who works awaits ``next``, and who comes
    while it is ``busy``.

    Never more than a turn's time is used in one turn of the loop. It may be a little less: what
    short turns before it have used is given back only when it has become ``SHORT`` of a turn.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        turn_ms: float,
        *,
        long_turn_ms: float = math.inf,
        newcomers: Newcomers | None = None,
    ) -> None:
        """``long_turn_ms``: a turn that takes so much of the CPU is followed by as long a pause."""
        self._loop = loop
        self._newcomers = newcomers or Newcomers()
        self._met = self._meetings = 0
        self._long_turn_s = long_turn_ms / 1000
        self._turn_s = self._left_s = turn_ms / 1000
        self._enough_s = self._turn_s * (1 - SHORT)
        self._begun_at = 0.0
        self._cpu_at = -math.inf
        """Of the CPU's clock, when this turn began; -inf: not to be asked."""
        self._others_s = 0.0
        """Of this turn, by the clock, that others have had the CPU."""
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue()
        self._called = False
        """One of them has been given its turn, and is about to begin."""
        self._begin_due = self._paused = False

    @property
    def over(self) -> bool:
        """Whether this turn's time is used up."""
        return self._left_s <= 0

    @property
    def busy(self) -> bool:
        """Whether a newcomer has to wait: the time is used up, or others wait already.

        Who has been given its turn waits until it begins: [it was the only one, a newcomer used up
        the turn in front of it, and both were worked on in one turn of the loop].
        """
        return self._left_s <= 0 or self._waiting.length > 0 or self._called

    @property
    def others_may_go(self) -> bool:
        """Whether others wait, and there is time left for them."""
        return self._waiting.length > 0 and self._left_s > 0

    now = staticmethod(perf_counter)
    """Seconds, of the real clock: the loop's own stands still within a turn."""

    def spent(self, seconds: float) -> None:
        """So much of this turn has been used."""
        left_s = self._left_s = self._left_s - seconds
        if left_s < self._enough_s and (left_s <= 0 or not self._begin_due):
            self._look(seconds)

    def used(self, seconds: float) -> None:
        """As ``spent``, and then the next one may work: on the way of every small message."""
        left_s = self._left_s = self._left_s - seconds
        if left_s < self._enough_s and (left_s <= 0 or not self._begin_due):
            left_s = self._look(seconds)
        if self._waiting.length and left_s > 0:
            self.pass_on()

    def begin_last(self) -> None:
        """All that is left of this turn goes to what begins now."""
        self._left_s, self._cpu_at = 0.0, -math.inf
        if not self._begin_due:
            self._begin_soon(thread_time())

    async def next(self, peer: str) -> None:
        """Wait for a turn: one for each peer that waits, then the next one for each.

        Who has it calls ``pass_on`` at its end, even where it fails.
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
        """Let the next one work if some of the turn is left, unless one is about to begin: that one
        passes on what it leaves.
        """
        while self.others_may_go and not self._called:
            waiter = self._waiting.pop()
            if waiter is not None and not waiter.done():
                self._called = True
                waiter.set_result(None)

    def _look(self, seconds: float) -> float:
        """So much was used just now, and by the clock it is worth a turn: what is left of it.

        By the clock of the CPU it may be less: on a busy machine others have had the rest, and a
        message that takes nothing looks like a whole turn.
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
        """The next turn of the loop is one here, too.

        Its work began at that time of the CPU's clock.
        """
        self._begin_due = True
        self._begun_at = begun_at
        self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        # Of the CPU, not of the clock: a busy machine makes every turn look long.
        now = thread_time()
        took_s = now - self._begun_at
        if took_s > self._long_turn_s and not self._paused:
            # One message took that long. gRPC hands over one new call in each turn of the loop:
            # without a pause, whoever calls now would be met only when as many such messages are
            # done as there are calls before its own.
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
        """Put the next turn off while new calls come.

        gRPC hands over one in each turn of the loop, and each share works in each: [a hundred calls
        for everything on one connection, and as much on streams beside them: whoever calls then is
        met after a hundred turns of both, and that is two seconds].
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
