"""Common parts of both stores on RocksDB: the disk thread, group commit, failure and closing.

Why: docs/decisions/006-vote-outside-the-log.md
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from raftlog.errors import FatalError, StorageError
from raftlog.files import BackgroundLook

if TYPE_CHECKING:
    from raftlog.node.storage.rocks_adapter import RocksLog, RocksPartitions

Job = Callable[[], None]
JobDone = Callable[[FatalError | None], None]

SLOW_CALL_S = 0.020
"""Duration of a call, in seconds, above which the next calls must not run on the event loop, where
heartbeats and elections would wait for the disk.
"""
SLOW_PENALTY_S, SLOW_PENALTY_MAX_S = 0.5, 10.0
"""Seconds after a slow call during which no call runs on the event loop; doubled, up to the
maximum, after each further slow call within twice that time.

On a busy machine one call in a thousand loses the CPU. Running all later calls in the thread would
cost each of them two more wake-ups.
"""


class DiskThread:
    """A thread for blocking disk calls, which run on the event loop while they are fast and few.

    Jobs run one after the other, in order, and each is reported exactly once, in order, on the
    event loop; nothing is reported after ``close``. A job may raise only FatalError.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._queue: SimpleQueue[tuple[Job, JobDone] | None] = SimpleQueue()
        self._pending = 0
        # Written by the thread that runs a job: the event loop's or the disk thread, never both.
        self._began_s: float | None = None
        self.last_s = 0.0
        """Duration of the last reported job, in seconds."""
        self._inline_from_s = float("-inf")
        self._penalty_s = 0.0
        self._thread: threading.Thread | None = None
        self._closed = False

    def run(self, job: Job, done: JobDone, *, inline: bool) -> None:
        """Run ``job``, then call ``done`` with its error or None.

        Both run right here if ``inline`` is True, no job is waiting and the disk was fast.
        """
        if inline and not self._pending and self._clock() >= self._inline_from_s:
            error, elapsed_s = self._timed(job)
            self._update_penalty(elapsed_s)
            done(error)
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="raftlog-disk", daemon=True)
            self._thread.start()
        self._pending += 1
        self._queue.put((job, done))

    @property
    def busy_s(self) -> float:
        """Duration of the job in progress in seconds, or 0. It excludes waiting for the thread or
        the event loop.
        """
        began_s = self._began_s
        return 0.0 if began_s is None else self._clock() - began_s

    def close(self) -> None:
        """Wait for the queued jobs, without reporting them."""
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

    def _update_penalty(self, elapsed_s: float) -> None:
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
                return  # The event loop is closed: no caller waits.

    def _report(self, done: JobDone, error: FatalError | None, elapsed_s: float) -> None:
        self._pending -= 1
        self._update_penalty(elapsed_s)
        if not self._closed:
            done(error)


FlushDone = Callable[[int | StorageError], None]


class GroupCommit:
    """The waiting flushes, the durable end of the log, and the failure of a broken store. Does no
    I/O.

    One sync runs at a time. It covers the log up to its end when the sync began, lowered by every
    truncation since. Records appended after a truncation are not covered, even if their offsets lie
    below that. Flushes requested in the meantime share the next sync. ``start_sync(inline)`` starts
    a sync, which calls ``sync_finished`` at once or later.
    """

    def __init__(self, start_sync: Callable[[bool], None]) -> None:
        self._start_sync = start_sync
        self.end_offset = 0
        self.durable_end_offset = 0
        self.failure: FatalError | None = None
        self._covered_end_offset = 0
        self._syncing: list[FlushDone] = []
        self._waiting: list[FlushDone] = []
        self._reporting = False

    def recovered(self, end_offset: int) -> None:
        """Set the end of the recovered log, all of which is durable."""
        self.end_offset = self.durable_end_offset = end_offset

    def truncated(self, end_offset: int) -> None:
        """Lower the end of the log, and the durable end, current and pending."""
        self.end_offset = end_offset
        self.durable_end_offset = min(self.durable_end_offset, end_offset)
        self._covered_end_offset = min(self._covered_end_offset, end_offset)

    def flush(self, done: FlushDone, *, inline: bool) -> None:
        """Call ``done`` once, after all earlier calls, when the current log is durable or the store
        is broken.
        """
        self._waiting.append(done)
        if not self._syncing:
            # Never inline during a report: this callback would overtake those not yet called.
            self._sync(inline=inline and not self._reporting)

    def fail(self, error: FatalError) -> FatalError:
        """Break the store, and return its first error, which every later call raises."""
        if self.failure is None:
            self.failure = error
        return self.failure

    def outcome(self) -> StorageError | None:
        """Return the failure as a StorageError for a callback, or None if the store works."""
        if self.failure is None or isinstance(self.failure, StorageError):
            return self.failure
        return StorageError(str(self.failure))

    def sync_finished(self, error: FatalError | None) -> None:
        """Process the completion of the sync."""
        if error is not None:
            self.fail(error)
        dones, self._syncing = self._syncing, []
        if self.failure is not None:
            dones, self._waiting = dones + self._waiting, []
        else:
            self.durable_end_offset = self._covered_end_offset
            if self._waiting:
                self._sync(inline=False)
        self._reporting = True
        try:
            for done in dones:
                # Evaluated for each callback: the previous one may have truncated or failed.
                done(self.outcome() or self.durable_end_offset)
        finally:
            self._reporting = False

    def _sync(self, *, inline: bool) -> None:
        self._syncing, self._waiting = self._waiting, []
        self._covered_end_offset = self.end_offset
        self._start_sync(inline)


class RocksStore(ABC):
    """A store on one RocksDB, which it owns: its disk threads, group commit and closing.

    After the first error each later call raises that error.
    """

    def __init__(
        self,
        directory: Path,
        rocks: RocksLog | RocksPartitions,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._database = rocks
        self._space = BackgroundLook(lambda: os.statvfs(directory))
        self._disk = DiskThread(loop, clock)
        # A separate thread: a compaction must not delay a sync.
        self._compaction = DiskThread(loop, clock)
        self._commit = GroupCommit(self._start_sync)
        self._recovered = False
        self._closed = False

    @property
    def busy_s(self) -> float:
        """Duration of the sync or vote in progress in seconds, or 0."""
        return self._disk.busy_s

    def _start_sync(self, inline: bool) -> None:
        self._disk.run(self._database.sync, self._synced, inline=inline)

    def _synced(self, error: FatalError | None) -> None:
        self._commit.sync_finished(error)

    def free_bytes(self) -> int:
        """Return the space that an unprivileged process can use, in bytes, as of the previous call.

        Does not wait for a file system that hangs. Raises StorageError.
        """
        try:
            found = self._space.poll()
        except OSError as error:
            raise self._commit.fail(
                StorageError(f"cannot read the free space of {self._directory}: {error}")
            ) from error
        return found.f_bavail * found.f_frsize

    def close(self) -> None:
        """Close the files, and mark them clean if nothing failed. Idempotent.

        RocksDB makes its writes durable when it closes; that is not reported, and waiting callbacks
        are dropped. Raises StorageError if closing fails.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self._disk.close()
            self._compaction.close()
            self._close_database()
            self._mark_closed(in_order=self._recovered and self._commit.failure is None)
        finally:
            self._release()

    def _close_database(self) -> None:
        try:
            self._database.close()
        except FatalError:
            # The error that broke the store, and was reported, also keeps RocksDB from closing.
            if self._commit.failure is None:
                raise

    @abstractmethod
    def _mark_closed(self, *, in_order: bool) -> None:
        """Durably record how the store was left."""

    @abstractmethod
    def _release(self) -> None:
        """Release the resources of the store, even after a failure."""

    def _check(self, *, recovered: bool = True) -> None:
        if self._commit.failure is not None:
            raise self._commit.failure
        if self._closed:
            raise StorageError("the store is closed")
        if self._recovered is not recovered:
            raise ValueError("recover() must be called first, and only once")
