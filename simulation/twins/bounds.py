"""Bounds of a run: steps of its loop (exact on any machine), and real time for a step that does not
return. Two hosts that answer each other without a delay stop virtual time, and a soak would wait
forever.
"""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MAX_STEPS = 5_000_000
"""A hundred times the duration of the longest runs."""
MAX_REAL_S = 300.0
_AGAIN_S = 5.0
"""Interval at which the alarm repeats, as a handler may have swallowed the first one."""


class RunTooLongError(BaseException):
    """A run beyond one of its bounds. Not an Exception, so that the code does not handle it."""


@contextmanager
def real_time(max_s: float) -> Iterator[None]:
    """Raise RunTooLongError after ``max_s`` of real time; 0: never. Only in the main thread."""
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
