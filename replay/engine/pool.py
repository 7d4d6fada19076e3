"""A pool of tasks: worker processes of this machine. In Spark: :mod:`replay.spark.pool`.

A job is a plan of tasks, a function that each task runs over its share of the log, and a merge of
the results. Which pool runs the tasks makes no difference to the job.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from itertools import chain
from multiprocessing import get_context
from multiprocessing.context import BaseContext
from types import ModuleType
from typing import TypeVar

import pyarrow as pa

from replay.engine.plan import Bucket, Share, Shuffle, bucket_share, shares
from replay.errors import ReplayError
from replay.export import Export

Task = TypeVar("Task")
Result = TypeVar("Result")

ALONE_RECORDS = 300_000
"""Number of records that this process folds before others would have begun."""
_NEW_OBJECTS = 50_000
_PANDAS = "pandas"
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt, as glibc numbers them."""
_KEPT_BYTES = 64 << 20
_MAPPED_BYTES = 32 << 20
"""Size from which an allocation returns to the kernel as soon as it is freed, in bytes."""


def workers() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Pool:
    """Pool that runs tasks, in processes of their own if the work is large enough.

    ``size``: the number of tasks that work is cut into.
    """

    def __init__(self, records: int, pace: int = 1) -> None:
        """``pace``: how many times as fast as a fold the job goes through the records."""
        self.size = 1 if records <= ALONE_RECORDS * pace else workers()
        self._processes = (
            ProcessPoolExecutor(self.size, mp_context=_context(), initializer=_begin)
            if self.size > 1
            else None
        )

    def stretches(self, export: Export) -> int:
        """Return the number of stretches that a pass over an export is cut into: several a worker,
        as they may take unequal time.
        """
        return 1 if self.size == 1 else min(len(export.segments), 4 * self.size)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        if self._processes is not None:
            self._processes.shutdown(cancel_futures=True)

    def map(self, work: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """Yield the results, in the order of the tasks.

        Raises the error of a task, and ReplayError if a worker ends by itself.
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

    def rows(
        self, work: Callable[[Task], pa.Table], tasks: Iterable[Task], schema: pa.Schema
    ) -> pa.Table:
        """Return the rows that the tasks find, in any order. Raises as ``map``."""
        return pa.concat_tables([schema.empty_table(), *self.map(work, tasks)])

    def map_buckets(self, work: Callable[[Bucket], Result], shuffle: Shuffle) -> Iterator[Result]:
        """Yield the result of each bucket of a shuffle. Raises as ``map``."""
        parts = shares(shuffle, shuffle.buckets or self.size)
        return chain.from_iterable(self.map(partial(_on_buckets, work, shuffle), parts))

    def bucket_rows(
        self, work: Callable[[Bucket], pa.Table], shuffle: Shuffle, schema: pa.Schema
    ) -> pa.Table:
        """Return the rows that are found in the buckets of a shuffle, in any order. Raises as
        ``map``.
        """
        return pa.concat_tables([schema.empty_table(), *self.map_buckets(work, shuffle)])


def _on_buckets(work: Callable[[Bucket], Result], shuffle: Shuffle, share: Share) -> list[Result]:
    """Return the results of the buckets of a share; one bucket is in memory at a time."""
    return [work(bucket) for bucket in bucket_share(shuffle, share)]


def _context() -> BaseContext:
    """Fork a process with a single Python thread, with all its imported modules: to import them
    again takes each worker most of a second. With more threads a copy may hold a lock that is never
    released.
    """
    alone = threading.active_count() == 1 and sys.platform == "linux"
    return get_context("fork" if alone else "spawn")


def _begin() -> None:
    # The parent handles interrupts.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    prepare_process()


def prepare_process() -> None:
    """Prepare a process of our own for its work; not a process of another program.

    Garbage is collected rarely: imported modules are no garbage, and the objects of folds and
    kernels have no cycles. A collection after each 700 objects takes a twentieth of the time.
    """
    keep_heap()
    hide_pandas()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, 20, 20)


def prepare_worker() -> None:
    """Keep the modules of a Python worker of Spark out of its garbage collections, and some memory
    for its next arrays.

    Spark uses a worker for many tasks, with a full collection after each. That would take 50 ms to
    look through modules, of which nothing is ever freed: more than most tasks take.
    """
    if not gc.get_freeze_count():
        gc.freeze()
    keep_heap()


def keep_heap() -> None:
    """Keep freed memory for the next array, in a process of kernels.

    Kernels make arrays of a megabyte or two, and free them. By default glibc and Arrow's own
    allocator return that memory to the kernel again and again, which clears each page before the
    next array uses it: a quarter of the time of the partition rules, and of the reading. So Arrow
    allocates by glibc, too. This setting overrides MALLOC_TRIM_THRESHOLD_; without glibc it changes
    nothing.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        pa.set_memory_pool(pa.system_memory_pool())


class _HiddenPandas(MetaPathFinder):
    """Finder of modules that reports pandas as missing."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == _PANDAS:
            raise ModuleNotFoundError(f"{name} is not looked for", name=name)
        return None


def hide_pandas() -> None:
    """Keep pyarrow from importing pandas, in a process of our own: with its first array it does so
    where pandas is installed, which takes half a second. Nothing without Spark needs it; an
    explicit import still works.
    """
    if _PANDAS in sys.modules:
        return
    hidden = _HiddenPandas()
    sys.meta_path.insert(0, hidden)
    try:
        # pyarrow looks once, and remembers what it found.
        pa.array([0])
    finally:
        sys.meta_path.remove(hidden)
