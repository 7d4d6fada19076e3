"""A task pool of worker processes on this machine; for Spark, see :mod:`replay.spark.pool`.

A job consists of planned tasks, a function that each task applies to its share of the log, and a
merge of the results. It works the same with every pool.
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
"""Number of records that this process can fold in the time that worker processes take to start."""
_NEW_OBJECTS = 50_000
_PANDAS = "pandas"
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt."""
_KEPT_BYTES = 64 << 20
_MAPPED_BYTES = 32 << 20
"""Minimum size in bytes of allocations that are returned to the kernel as soon as they are freed.
"""


def workers() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Pool:
    """A pool that runs tasks in worker processes, or in this process if there is little work.

    ``size``: the number of tasks into which work is split.
    """

    def __init__(self, records: int, pace: int = 1) -> None:
        """``pace``: the job's speed as a multiple of a fold's."""
        self.size = 1 if records <= ALONE_RECORDS * pace else workers()
        self._processes = (
            ProcessPoolExecutor(self.size, mp_context=_context(), initializer=_begin)
            if self.size > 1
            else None
        )

    def stretches(self, export: Export) -> int:
        """Return the number of stretches for a pass: several per worker, as they may take different
        times.
        """
        return 1 if self.size == 1 else min(len(export.segments), 4 * self.size)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        if self._processes is not None:
            self._processes.shutdown(cancel_futures=True)

    def map(self, work: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """Yield the results in the order of the tasks.

        Raises the error of a task, and ReplayError if a worker process dies.
        """
        if self._processes is None:
            yield from map(work, tasks)
            return
        try:
            yield from self._processes.map(work, tasks)
        except BrokenProcessPool as error:
            raise ReplayError(
                "a worker process died unexpectedly, most likely because memory ran out"
            ) from error

    def rows(
        self, work: Callable[[Task], pa.Table], tasks: Iterable[Task], schema: pa.Schema
    ) -> pa.Table:
        """Return the rows that the tasks find, in any order. Raises like ``map``."""
        return pa.concat_tables([schema.empty_table(), *self.map(work, tasks)])

    def map_buckets(self, work: Callable[[Bucket], Result], shuffle: Shuffle) -> Iterator[Result]:
        """Yield the result for each bucket of a shuffle. Raises like ``map``."""
        parts = shares(shuffle, shuffle.buckets or self.size)
        return chain.from_iterable(self.map(partial(_on_buckets, work, shuffle), parts))

    def bucket_rows(
        self, work: Callable[[Bucket], pa.Table], shuffle: Shuffle, schema: pa.Schema
    ) -> pa.Table:
        """Return the rows found in the buckets of a shuffle, in any order. Raises like ``map``."""
        return pa.concat_tables([schema.empty_table(), *self.map_buckets(work, shuffle)])


def _on_buckets(work: Callable[[Bucket], Result], shuffle: Shuffle, share: Share) -> list[Result]:
    """Return the results for a share's buckets, holding one bucket in memory at a time."""
    return [work(bucket) for bucket in bucket_share(shuffle, share)]


def _context() -> BaseContext:
    """Return the start method for workers: fork if this process has a single Python thread, which
    saves each worker most of a second of imports. With more threads, a forked process may inherit a
    lock that is never released.
    """
    alone = threading.active_count() == 1 and sys.platform == "linux"
    return get_context("fork" if alone else "spawn")


def _begin() -> None:
    # Interrupts are handled by the parent.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    prepare_process()


def prepare_process() -> None:
    """Tune one of raftlog's own processes for kernels; never call this in another program's
    process.

    Collects garbage rarely, as imported modules never become garbage, and objects of folds and
    kernels have no cycles. Collecting after every 700 objects takes 5 % of the time.
    """
    keep_heap()
    hide_pandas()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, 20, 20)


def prepare_worker() -> None:
    """Exclude imported modules from the garbage collections of a Spark Python worker, and keep
    freed memory for its next arrays.

    Spark reuses a worker for many tasks, with a full collection after each. Scanning the modules
    would take 50 ms, more than most tasks, and free nothing.
    """
    if not gc.get_freeze_count():
        gc.freeze()
    keep_heap()


def keep_heap() -> None:
    """Keep freed memory for the next array in a process that runs kernels.

    Kernels allocate and free arrays of a megabyte or two. By default, glibc and Arrow's own
    allocator return that memory to the kernel each time, which clears every page before its next
    use. That took a quarter of the time of reading and of the partition rules, so Arrow is also
    made to use glibc. This overrides MALLOC_TRIM_THRESHOLD_, and has no effect without glibc.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        pa.set_memory_pool(pa.system_memory_pool())


class _HiddenPandas(MetaPathFinder):
    """A module finder that reports pandas as missing."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == _PANDAS:
            raise ModuleNotFoundError(f"{name} is hidden from pyarrow", name=name)
        return None


def hide_pandas() -> None:
    """In one of raftlog's own processes, keep pyarrow from importing pandas with its first array,
    which takes half a second. Only Spark needs pandas; an explicit import still works.
    """
    if _PANDAS in sys.modules:
        return
    hidden = _HiddenPandas()
    sys.meta_path.insert(0, hidden)
    try:
        # pyarrow looks only once, and remembers the result.
        pa.array([0])
    finally:
        sys.meta_path.remove(hidden)
