"""An end for each run: a bound on the steps of its loop, and one on real time for a step that does
not return.

Counter-example: two hosts answer each other without a delay. Virtual time stands still, no deadline
of the run ever comes, and a soak waits for this one seed forever.

The bound on steps is exact: the same seed reaches it at the same step on any machine. The bound on
real time is not; it is for code that never returns to the loop.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MAX_STEPS = 5_000_000
"""A hundred times what the longest runs take."""
MAX_REAL_S = 300.0
_AGAIN_S = 5.0
"""The alarm rings again after this long: a task or an ``except BaseException`` may have kept the
first one to itself.
"""


class RunTooLongError(BaseException):
    """A run has gone past one of its bounds.

    Not an Exception: the code that runs away must not handle it and go on.
    """


@contextmanager
def real_time(max_s: float) -> Iterator[None]:
    """Raise RunTooLongError inside after ``max_s`` of real time, or at the end if it was swallowed
    there. 0: no bound.

    Only the main thread gets signals: elsewhere nothing happens.
    """
    if not max_s or threading.current_thread() is not threading.main_thread():
        yield
        return
    error = RunTooLongError(f"the run has not ended after {max_s:g} s of real time")
    rung: list[int] = []

    def ring(number: int, _frame: Any) -> None:
        rung.append(number)
        raise error

    before = signal.signal(signal.SIGALRM, ring)
    began = time.monotonic()
    left_s, again_s = signal.setitimer(signal.ITIMER_REAL, max_s, _AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left_s:
            # The alarm of whoever calls, a test's: it rings when it would have.
            signal.setitimer(
                signal.ITIMER_REAL, max(left_s - (time.monotonic() - began), 0.001), again_s
            )
    if rung:
        raise error
