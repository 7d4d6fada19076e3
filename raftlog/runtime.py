"""What a node's process sets up for itself: memory (no stop of the world for what lives for ever,
no pages zeroed twice) and signals.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import signal
from collections.abc import Callable

YOUNG_ALLOCATIONS = 50_000
YOUNG_PER_MIDDLE = 2
MIDDLE_PER_FULL = 1_000_000

_PR_SET_PDEATHSIG = 1
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 256 << 20
OWN_PAGES_FROM_BYTES = 32 << 20


def tune_memory() -> None:
    """Make full collections rare, set aside what importing has made, and let the allocator keep
    what it was given.

    An image is millions of small objects without cycles: looking through all of them takes tenths
    of a second, in which nothing is answered, and finds nothing. Reference counts free what dies;
    the collector is left for the rare cycle among the young.

    A chunk of the log is larger than what glibc takes from its heap by default: it would be mapped,
    zeroed by the kernel and unmapped for each message.
    """
    gc.set_threshold(YOUNG_ALLOCATIONS, YOUNG_PER_MIDDLE, MIDDLE_PER_FULL)
    gc.collect()
    gc.freeze()
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc; another libc has its own ways
        mallopt(_M_MMAP_THRESHOLD, OWN_PAGES_FROM_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, also by SIGKILL.

    Ends it at once if ``parent`` is not its parent any more. Does nothing outside of Linux.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is None:
        return
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


class StopSignals:
    """SIGTERM, SIGINT and SIGHUP ask a node to stop in order.

    SIGHUP is the end of the terminal; a node that was started with nohup goes on. On the running
    event loop of the main thread.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        self._first: int | None = None
        self.call(stop)

    def call(self, stop: Callable[[], None]) -> None:
        """Call ``stop`` from now on, at each signal; at once if one has come before."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue
            loop.add_signal_handler(number, self._asked, number, stop)
        if self._first is not None:
            stop()

    def _asked(self, number: int, stop: Callable[[], None]) -> None:
        if self._first is None:
            self._first = number
        stop()

    @property
    def exit_code(self) -> int:
        """Of a node that has stopped in order: 0, or 130 after SIGINT, so that a shell's loop ends
        too.
        """
        return 130 if self._first == signal.SIGINT else 0
