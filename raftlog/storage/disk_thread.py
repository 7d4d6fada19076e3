"""Where blocking disk calls run: on the event loop while they are fast and few, else in one thread
of their own.

Why: docs/decisions/006-vote-outside-the-log.md
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from raftlog.errors import FatalError

Job = Callable[[], None]
JobDone = Callable[[FatalError | None], None]

SLOW_CALL_S = 0.020
"""A call on the loop that took longer must not be repeated there: heartbeats and elections would
wait for the disk.
"""
SLOW_PENALTY_S, SLOW_PENALTY_MAX_S = 0.5, 10.0
"""So long after a slow call, wherever it ran, nothing runs on the loop; twice as long after each
further one that comes within twice that time. [A busy machine takes the CPU away from one call in a
thousand: in the thread each of the others would cost two more wake-ups.]
"""


class DiskThread:
    """Runs jobs one after the other, in order; reports each exactly once, in order, on the loop;
    nothing after ``close``.

    A job may raise FatalError, and nothing else.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._queue: SimpleQueue[tuple[Job, JobDone] | None] = SimpleQueue()
        self._pending = 0
        # Written by the one who is at the disk: this thread or the other, never both.
        self._began_s: float | None = None
        self.last_s = 0.0
        """What the job took of which ``done`` is told."""
        self._inline_from_s = float("-inf")
        self._penalty_s = 0.0
        self._thread: threading.Thread | None = None
        self._closed = False

    def run(self, job: Job, done: JobDone, *, inline: bool) -> None:
        """Run ``job`` and then ``done`` with its error: right here if ``inline`` is asked for,
        nothing waits and the disk was fast.
        """
        if inline and not self._pending and self._clock() >= self._inline_from_s:
            error, elapsed_s = self._timed(job)
            self._note(elapsed_s)
            done(error)
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="raftlog-disk", daemon=True)
            self._thread.start()
        self._pending += 1
        self._queue.put((job, done))

    @property
    def busy_s(self) -> float:
        """How long the job under way has taken by now; 0: none is.

        What waits, for the thread or for the loop, is no time of the disk.
        """
        began_s = self._began_s
        return 0.0 if began_s is None else self._clock() - began_s

    def close(self) -> None:
        """Wait for what was queued; report nothing more."""
        self._closed = True
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()

    def _timed(self, job: Job) -> tuple[FatalError | None, float]:
        began_s = self._began_s = self._clock()
        failure: FatalError | None = None
        try:
            job()
        except FatalError as error:
            failure = error
        self._began_s = None
        return failure, self._clock() - began_s

    def _note(self, elapsed_s: float) -> None:
        self.last_s = elapsed_s
        if elapsed_s > SLOW_CALL_S:
            now_s, penalty_s = self._clock(), SLOW_PENALTY_S
            if now_s < self._inline_from_s + self._penalty_s:
                penalty_s = min(2 * self._penalty_s, SLOW_PENALTY_MAX_S)
            self._penalty_s, self._inline_from_s = penalty_s, now_s + penalty_s

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            job, done = item
            error, elapsed_s = self._timed(job)
            try:
                self._loop.call_soon_threadsafe(self._report, done, error, elapsed_s)
            except RuntimeError:
                return  # The loop is closed: there is nobody to tell.

    def _report(self, done: JobDone, error: FatalError | None, elapsed_s: float) -> None:
        self._pending -= 1
        self._note(elapsed_s)
        if not self._closed:
            done(error)
