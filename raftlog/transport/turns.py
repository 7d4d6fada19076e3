"""Sharing the loop: what links have received is worked on for a bounded time in each turn of it.

A link whose messages cost more than the turn has left waits and goes on in a later turn; connections take turns, however many links or
calls of one wait. Between two turns the loop serves everything else: sockets, timers, votes, HTTP. Without it one message of many costly
requests holds up everybody, and so do many links with one costly request each.
"""

from __future__ import annotations

import asyncio
import math
from time import perf_counter, thread_time

from raftlog.fair_queue import FairQueue

PAUSE_MAX_S = 1.0


class Turns:
    """One share of the loop's time. ``spent`` is told what was used; while ``over``, ``next`` is to be awaited."""

    def __init__(self, loop: asyncio.AbstractEventLoop, turn_ms: float, *, long_turn_ms: float = math.inf) -> None:
        """``long_turn_ms``: a turn that takes so much of the CPU is followed by as long a pause."""
        self._loop = loop
        self._long_turn_s = long_turn_ms / 1000
        self._turn_s = self._left_s = turn_ms / 1000
        self._begun_at = 0.0
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue()
        self._begin_due = self._paused = False

    @property
    def over(self) -> bool:
        """Whether this turn's time is used up."""
        return self._left_s <= 0

    @property
    def busy(self) -> bool:
        """Whether a newcomer has to wait: the time is used up, or others wait already."""
        return self._left_s <= 0 or len(self._waiting) > 0

    @staticmethod
    def now() -> float:
        """Seconds, of the real clock: the loop's own stands still within a turn."""
        return perf_counter()

    def spent(self, seconds: float) -> None:
        """So much of this turn has been used."""
        self._left_s -= seconds
        if not self._begin_due:
            self._begin_due = True
            self._begun_at = thread_time() - seconds
            self._loop.call_soon(self._begin)

    def begin_last(self) -> None:
        """All that is left of this turn goes to what begins now."""
        self.spent(0.0)
        self._left_s = 0.0

    async def next(self, peer: str) -> None:
        """Wait for a turn: one for each peer that waits, then the next one for each."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiting.push(peer, waiter)
        if not self._begin_due:
            self._begin_due = True
            self._begun_at = thread_time()
            self._loop.call_soon(self._begin)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.pass_on()
            raise

    def pass_on(self) -> None:
        """Let the next one work: what this one did left some of the turn."""
        while (waiter := self._waiting.pop()) is not None:
            if not waiter.done():
                waiter.set_result(None)
                return

    def _begin(self) -> None:
        # Of the CPU, not of the clock: a busy machine makes every turn look long.
        took_s = thread_time() - self._begun_at
        if took_s > self._long_turn_s and not self._paused:
            # One message took that long. gRPC hands over one new call in each turn of the loop: without a pause, whoever calls now would
            # be met only when as many such messages are done as there are calls before his.
            self._paused = True
            self._loop.call_later(min(took_s, PAUSE_MAX_S), self._begin)
            return
        self._paused = False
        self._begin_due = False
        self._left_s = self._turn_s
        self.pass_on()
