"""The real LogStore: chunks in RocksDB, the vote in a file beside it, disk calls on the loop while they are fast."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from raftlog.errors import CorruptLogError, FatalError, StorageError
from raftlog.storage.api import NodeIdentity, RecoveredLog, VoteState
from raftlog.storage.chunks import cut, read_span, scan_log
from raftlog.storage.disk_thread import DiskThread
from raftlog.storage.group_commit import FlushDone, GroupCommit
from raftlog.storage.layout import DirectoryLock, LogState, write_log_state
from raftlog.storage.rocks_adapter import RocksLog
from raftlog.storage.vote_file import read_vote_file, write_vote_file

VoteDone = Callable[[StorageError | None], None]

LOG_START_OFFSET = 0
"""Where a log begins that no snapshot has shortened."""


class RocksLogStore:
    """See ``raftlog.storage.api.LogStore``; made by ``open_store``. Owns ``rocks`` and ``lock``."""

    def __init__(
        self,
        directory: Path,
        identity: NodeIdentity,
        state: LogState,
        rocks: RocksLog,
        *,
        lock: DirectoryLock,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._identity = identity
        self._state = state
        self._rocks = rocks
        self._lock = lock
        self._disk = DiskThread(loop, clock)
        self._commit = GroupCommit(self._start_sync)
        self._recovered = False
        self._closed = False

    @property
    def identity(self) -> NodeIdentity:
        """Who this directory belongs to."""
        return self._identity

    def recover(self) -> RecoveredLog:
        """Check the whole log and the vote. Raises CorruptLogError naming the offset, StorageError."""
        self._check(recovered=False)
        try:
            vote = read_vote_file(self._directory)
            # RocksDB has made durable what it replayed from its WAL; this covers what it might have kept there.
            self._rocks.sync()
            with closing(self._rocks.scan(LOG_START_OFFSET)) as chunks:
                found = scan_log(chunks, LOG_START_OFFSET)
            end = found.end_offset
            require_end(end, self._state)
            self._keep_state(LogState(clean=False, end_offset_at_least=end))
        except FatalError as error:
            raise self._commit.fail(error) from None
        self._commit.recovered(end)
        self._recovered = True
        return RecoveredLog(vote, LOG_START_OFFSET, end, found.epochs, found.last_timestamp_ms)

    def append(self, chunk: bytes, base_offset: int, end_offset: int) -> None:
        """Write a chunk at the log end. Raises StorageError; ValueError if it does not begin there."""
        self._check()
        end = self._commit.end_offset
        if base_offset != end or end_offset <= base_offset:
            raise ValueError(f"append of [{base_offset}, {end_offset}) to a log that ends at {end}")
        try:
            self._rocks.put(base_offset, chunk)
        except FatalError as error:
            raise self._commit.fail(error) from None
        self._commit.end_offset = end_offset

    def flush(self, done: FlushDone, *, inline: bool) -> None:
        """Make durable what was appended so far, then call ``done``; see the protocol. Raises what broke the store before."""
        self._check()
        self._commit.flush(done, inline=inline)

    def _start_sync(self, inline: bool) -> None:
        self._disk.run(self._rocks.sync, self._commit.sync_finished, inline=inline)

    def truncate(self, end_offset: int) -> None:
        """Drop everything at or above ``end_offset``. Raises StorageError; ValueError if that is no batch boundary of the log."""
        self._check()
        end = self._commit.end_offset
        if not LOG_START_OFFSET <= end_offset <= end:
            raise ValueError(f"truncate to {end_offset}: the log is [{LOG_START_OFFSET}, {end})")
        if end_offset == end:
            return
        try:
            last = self._shortened(end_offset)
            if end_offset < self._state.end_offset_at_least:
                self._keep_state(replace(self._state, end_offset_at_least=end_offset))
            self._rocks.replace_tail(end_offset, last)
        except FatalError as error:
            raise self._commit.fail(error) from None
        self._commit.truncated(end_offset)

    def _shortened(self, end_offset: int) -> tuple[int, bytes] | None:
        """What remains of the chunk that reaches over ``end_offset``, if one does."""
        if end_offset == LOG_START_OFFSET:
            return None
        with closing(self._rocks.scan(end_offset - 1)) as chunks:
            for base, chunk in chunks:
                kept = cut(chunk, base, end_offset)
                return None if len(kept) == len(chunk) else (base, kept)
        raise CorruptLogError(f"the log has nothing at offset {end_offset - 1}", offset=end_offset - 1)

    def read(self, offset: int, *, until: int, max_bytes: int) -> bytes:
        """Whole verified batches; see the protocol. Raises CorruptLogError, StorageError, ValueError."""
        self._check()
        try:
            return read_between(self._rocks, offset, until=until, max_bytes=max_bytes, end=self._commit.end_offset)
        except FatalError as error:
            raise self._commit.fail(error) from None

    def write_vote(self, vote: VoteState, done: VoteDone) -> None:
        """Replace the vote durably, then call ``done``. Raises what broke the store before."""
        self._check()

        def written(error: FatalError | None) -> None:
            if error is not None:
                self._commit.fail(error)
            done(self._commit.outcome())

        self._disk.run(lambda: write_vote_file(self._directory, vote), written, inline=True)

    def close(self) -> None:
        """Give the directory back, marked clean if nothing failed. Idempotent. Raises StorageError if that goes wrong.

        RocksDB makes what was appended durable on its way out; that is not reported, and callbacks that wait are dropped.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self._disk.close()
            self._close_rocks()
            if self._recovered and self._commit.failure is None:
                self._keep_state(LogState(clean=True, end_offset_at_least=self._commit.end_offset))
        finally:
            self._lock.release()

    def _close_rocks(self) -> None:
        try:
            self._rocks.close()
        except FatalError:
            # What broke the store before also keeps RocksDB from closing in order; it has been told.
            if self._commit.failure is None:
                raise

    def _keep_state(self, state: LogState) -> None:
        if state != self._state:
            write_log_state(self._directory, state)
            self._state = state

    def _check(self, *, recovered: bool = True) -> None:
        if self._commit.failure is not None:
            raise self._commit.failure
        if self._closed:
            raise StorageError("the store is closed")
        if self._recovered is not recovered:
            raise ValueError("recover() comes first, and once")


def require_end(end_offset: int, state: LogState) -> None:
    """Raise CorruptLogError if the log ends before what is known to have been durable."""
    if end_offset < state.end_offset_at_least:
        raise CorruptLogError(
            f"the log ends at offset {end_offset}, but was durable up to {state.end_offset_at_least}", offset=end_offset
        )


def read_between(rocks: RocksLog, offset: int, *, until: int, max_bytes: int, end: int) -> bytes:
    """``LogStore.read`` on a log that ends at ``end``."""
    if not LOG_START_OFFSET <= offset <= until <= end:
        raise ValueError(f"read of [{offset}, {until}): the log is [{LOG_START_OFFSET}, {end})")
    if offset == until:
        return b""
    with closing(rocks.scan(offset)) as chunks:
        return read_span(chunks, offset, until, max_bytes)
