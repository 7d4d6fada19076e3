"""Worker processes of this machine."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from multiprocessing.context import BaseContext
from typing import TypeVar

from replay.errors import ReplayError
from replay.heap import keep_heap
from replay.local.light import spare_pandas

Task = TypeVar("Task")
Result = TypeVar("Result")

ALONE_RECORDS = 300_000
"""Number of records that this process handles before others would have begun."""

_NEW_OBJECTS = 50_000


def workers() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Pool:
    """Pool that runs tasks, in processes of their own if the work is large enough."""

    def __init__(self, records: int) -> None:
        self.size = 1 if records <= ALONE_RECORDS else workers()
        self._processes = (
            ProcessPoolExecutor(self.size, mp_context=_context(), initializer=_begin)
            if self.size > 1
            else None
        )

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        if self._processes is not None:
            self._processes.shutdown(cancel_futures=True)

    def map(self, work: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """Yield the results, in the order of the tasks.

        Raises what a task raises, and ReplayError if a worker ends by itself.
        """
        if self._processes is None:
            yield from map(work, tasks)
            return
        try:
            yield from self._processes.map(work, tasks)
        except BrokenProcessPool as error:
            raise ReplayError(
                "a worker process has ended by itself: most likely there was no memory left"
            ) from error


def _context() -> BaseContext:
    """Fork a process with a single Python thread, with all its imported modules: to import them
    again takes each worker most of a second. With more threads a copy may hold a lock that is never
    released.
    """
    alone = threading.active_count() == 1 and sys.platform == "linux"
    return get_context("fork" if alone else "spawn")


def prepare_process() -> None:
    """Prepare each process of our own for its work; not for a process of another program."""
    keep_heap()
    spare_pandas()
    _collect_rarely()


def _collect_rarely() -> None:
    """Collect garbage rarely: imported modules are no garbage, and the objects of folds and kernels
    have no cycles. A collection after each 700 objects takes a twentieth of the time.
    """
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, 20, 20)


def _begin() -> None:
    # Interrupts are the parent's.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    prepare_process()
