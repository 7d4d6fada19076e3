"""The production LogStore: chunks in RocksDB, the vote in a file.

Disk calls run on the event loop while they are fast, otherwise in a thread.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from typing_extensions import override

from raftlog.errors import CorruptLogError, FatalError, StorageError
from raftlog.metadata.snapshot_file import SnapshotHeader
from raftlog.node.storage.api import (
    FORMAT_VERSION,
    AcceptHeader,
    DirectoryStarts,
    NodeIdentity,
    RecoveredLog,
    SnapshotId,
    VoteState,
)
from raftlog.node.storage.chunks import (
    LogScan,
    batch_before,
    batches_from,
    epoch_at,
    last_epoch,
    read_span,
    scan_log,
    shortened,
)
from raftlog.node.storage.directory import (
    DirectoryLock,
    LogState,
    read_starts,
    write_identity,
    write_log_state,
    write_starts,
)
from raftlog.node.storage.files import VOTE_FILE, VoteFile
from raftlog.node.storage.log_bounds import (
    emptied_at,
    is_part,
    log_start_of,
    recovered,
    require_snapshot,
    require_vote,
    started_at,
)
from raftlog.node.storage.rocks_adapter import RocksLog
from raftlog.node.storage.rocks_store import FlushDone, RocksStore
from raftlog.node.storage.snapshot_files import SnapshotFiles
from raftlog.node.storage.wal import LogEnd

VoteDone = Callable[[StorageError | None], None]
T = TypeVar("T")


class RocksLogStore(RocksStore):
    """A :class:`~raftlog.node.storage.api.LogStore` on RocksDB, created by ``open_store``. Owns
    ``rocks`` and ``lock``.
    """

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
        super().__init__(directory, rocks, loop=loop, clock=clock)
        self._identity = identity
        self._state = state
        self._rocks = rocks
        self._lock = lock
        self._snapshots = SnapshotFiles(directory)
        self._last_sync_s = 0.0
        self._vote: VoteFile | None = None
        self._starts = DirectoryStarts()

    @property
    def identity(self) -> NodeIdentity:
        """See ``LogStore``."""
        return self._identity

    @property
    def last_sync_s(self) -> float:
        """See ``LogStore``."""
        return self._last_sync_s

    def bind_generation(self, generation: int) -> None:
        """See ``LogStore``."""
        self._check()
        self._set_identity(replace(self._identity, generation=generation))

    @property
    def starts(self) -> DirectoryStarts:
        """The recorded starts; empty before ``recover``."""
        return self._starts

    def begin_start(self) -> None:
        """See ``LogStore``."""
        if not self._starts.refused:
            own = self._starts.own.next(secrets.randbits(64))
            self.keep_starts(replace(self._starts, count=own.count, nonces=own.nonces))

    def keep_starts(self, starts: DirectoryStarts) -> None:
        """See ``LogStore``."""
        self._check()
        try:
            write_starts(self._directory, starts)
        except FatalError as error:
            raise self._commit.fail(error) from None
        self._starts = starts

    def recover(self) -> RecoveredLog:
        """Check the whole log and the vote.

        Raises CorruptLogError with the offset, StorageError.
        """
        self._check(recovered=False)
        try:
            self._vote = VoteFile(self._directory)
            vote = self._vote.vote
            self._starts = read_starts(self._directory)
            # RocksDB has made durable what it replayed from its WAL; this syncs what it may have
            # left in the WAL.
            self._rocks.sync()
            self._snapshots.find(clean=True)
            newest = self._snapshots.newest_sound()
            self._snapshots.set_aside_unsound()
            require_snapshot(self._directory, self._state, newest)
            found = self._scan()
            # Before the log is emptied: a log that has lost its end must not be mistaken for one
            # that a snapshot was about to replace.
            require_end(found.end_offset, self._state)
            if newest is not None and not is_part(
                newest[0], self._state, self._epoch_before(newest[0].end_offset)
            ):
                self._empty_at(newest[0])
                found = self._scan()
            epoch = found.epochs[-1][0] if found.epochs else self._state.start_epoch
            require_vote(self._directory / VOTE_FILE, vote, epoch)
            self._keep_state(
                replace(
                    self._state, clean=False, end_offset_at_least=found.end_offset, end_epoch=-1
                )
            )
            self._rocks.end = LogEnd(found.end_offset, epoch)
            if self._state.start_offset:
                # A crash may have prevented or undone the deletion after a move of the start, and
                # an abandoned snapshot may have been completed after the move.
                self._snapshots.delete_before(log_start_of(self._state))
                self._drop_below_start()
        except FatalError as error:
            raise self._commit.fail(error) from None
        self._commit.recovered(found.end_offset)
        self._recovered = True
        return recovered(
            vote,
            self._state,
            found,
            self._snapshots.complete,
            newest,
            self._identity.generation,
        )

    def _scan(self) -> LogScan:
        with closing(self._rocks.scan(self._state.start_offset)) as chunks:
            return scan_log(chunks, self._state.start_offset, self._state.start_epoch)

    def _epoch_before(self, offset: int) -> int | None:
        with closing(self._rocks.scan(offset - 1)) as chunks:
            return epoch_at(chunks, offset - 1)

    def batch_before(self, end_offset: int) -> tuple[int, int] | None:
        """See ``LogStore``."""
        self._check()
        if end_offset <= self._state.start_offset:
            return None
        try:
            with closing(self._rocks.scan(end_offset - 1)) as chunks:
                return batch_before(chunks, end_offset)
        except FatalError as error:
            raise self._commit.fail(error) from None

    def append(self, chunk: bytes, base_offset: int, end_offset: int) -> None:
        """Write a chunk at the log end.

        Raises StorageError, and ValueError if the chunk does not begin at the log end.
        """
        self._check()
        end = self._commit.end_offset
        if base_offset != end or end_offset <= base_offset:
            raise ValueError(
                f"cannot append [{base_offset}, {end_offset}) to a log that ends at {end}"
            )
        try:
            self._rocks.put(base_offset, chunk, LogEnd(end_offset, last_epoch(chunk)))
        except FatalError as error:
            raise self._commit.fail(error) from None
        self._commit.end_offset = end_offset

    def flush(self, done: FlushDone, *, inline: bool) -> None:
        """See ``LogStore``. Raises the earlier error of a broken store."""
        self._check()
        self._commit.flush(done, inline=inline)

    @override
    def _synced(self, error: FatalError | None) -> None:
        self._last_sync_s = self._disk.last_s
        super()._synced(error)

    def truncate(self, end_offset: int) -> None:
        """Delete everything at or above ``end_offset``.

        Raises StorageError, and ValueError if ``end_offset`` is not a batch boundary of the log.
        """
        self._check()
        end = self._commit.end_offset
        if not self._state.start_offset <= end_offset <= end:
            raise ValueError(
                f"cannot truncate the log to {end_offset}: it has"
                f" [{self._state.start_offset}, {end})"
            )
        if end_offset == end:
            return
        try:
            last = self._last_chunk_below(end_offset)
            if end_offset < self._state.end_offset_at_least:
                self._keep_state(replace(self._state, end_offset_at_least=end_offset))
            epoch = self._state.start_epoch
            if end_offset > self._state.start_offset:
                epoch = self._epoch_before(end_offset) or 0
            self._rocks.replace_tail(end_offset, last, LogEnd(end_offset, epoch))
        except FatalError as error:
            raise self._commit.fail(error) from None
        self._commit.truncated(end_offset)

    def _last_chunk_below(self, end_offset: int) -> tuple[int, bytes] | None:
        if end_offset == 0:
            return None
        with closing(self._rocks.scan(end_offset - 1)) as chunks:
            return shortened(
                chunks, end_offset, may_be_empty=end_offset == self._state.start_offset
            )

    def read(self, offset: int, *, until: int, max_bytes: int) -> bytes:
        """See ``LogStore``. Raises CorruptLogError, StorageError, ValueError."""
        self._check()
        try:
            return read_between(
                self._rocks,
                offset,
                until=until,
                max_bytes=max_bytes,
                start=self._state.start_offset,
                end=self._commit.end_offset,
            )
        except FatalError as error:
            raise self._commit.fail(error) from None

    def write_vote(self, vote: VoteState, done: VoteDone, *, inline: bool = False) -> None:
        """See ``LogStore``. Raises the earlier error of a broken store."""
        self._check()
        assert self._vote is not None  # Since recover.

        def written(error: FatalError | None) -> None:
            if error is not None:
                self._commit.fail(error)
            done(self._commit.outcome())

        self._disk.run(partial(self._vote.write, vote), written, inline=inline)

    # --- snapshots -------------------------------------------------------------------------------

    def store_snapshot(self, snapshot_id: SnapshotId, position: int, data: bytes) -> None:
        """See ``LogStore``."""
        self._check()
        self._guarded(lambda: self._snapshots.store(snapshot_id, position, data))

    def freeze_snapshot(
        self,
        snapshot_id: SnapshotId,
        done: Callable[[FatalError | None], None],
        accept: AcceptHeader | None = None,
    ) -> None:
        """See ``LogStore``. Verifies, syncs and renames in the disk thread."""
        self._check()

        def frozen(error: FatalError | None) -> None:
            if error is not None and not isinstance(error, CorruptLogError):
                error = self._commit.fail(error)
            done(self._commit.outcome() or error)

        freeze = self._guarded(lambda: self._snapshots.freezer(snapshot_id, accept))
        self._disk.run(freeze, frozen, inline=False)

    def drop_snapshot(self, snapshot_id: SnapshotId) -> None:
        """See ``LogStore``."""
        self._check()
        self._guarded(lambda: self._snapshots.drop(snapshot_id))

    def snapshot_size(self, snapshot_id: SnapshotId) -> int:
        """See ``LogStore``."""
        return self._snapshots.size(snapshot_id)

    def snapshot_header(self, snapshot_id: SnapshotId) -> SnapshotHeader:
        """See ``LogStore``."""
        self._check()
        return self._guarded(lambda: self._snapshots.header(snapshot_id))

    def read_snapshot(self, snapshot_id: SnapshotId, position: int, max_bytes: int) -> bytes:
        """See ``LogStore``. Does not verify the bytes."""
        self._check()
        return self._guarded(lambda: self._snapshots.read(snapshot_id, position, max_bytes))

    def install_snapshot(self, snapshot_id: SnapshotId) -> None:
        """Empty the log, which then begins at the end of ``snapshot_id``.

        Raises LookupError, StorageError.
        """
        self._check()
        self._snapshots.size(snapshot_id)
        self._guarded(lambda: self._empty_at(snapshot_id))
        self._commit.truncated(snapshot_id.end_offset)

    def _empty_at(self, snapshot_id: SnapshotId) -> None:
        self._raise_format()
        # From here on the log may be emptied: a crash may leave it whole or empty, and neither is
        # damage.
        self._keep_state(
            replace(self._state, end_offset_at_least=self._state.start_offset, end_epoch=-1)
        )
        # Empty the log durably before the start moves: chunks that a crash restored would be read
        # as its continuation.
        self._rocks.replace_tail(0, None, LogEnd(snapshot_id.end_offset, snapshot_id.epoch))
        self._rocks.sync()
        self._keep_state(emptied_at(self._state, snapshot_id))
        self._snapshots.delete_before(snapshot_id)
        self._compaction.run(
            lambda: self._rocks.compact_below(snapshot_id.end_offset), self._compacted, inline=False
        )

    def advance_log_start(self, snapshot_id: SnapshotId) -> None:
        """See ``LogStore``. Raises LookupError, ValueError, StorageError."""
        self._check()
        self._snapshots.size(snapshot_id)
        start = snapshot_id.end_offset
        if not self._state.start_offset <= start <= self._commit.end_offset:
            raise ValueError(
                f"cannot move the log start to {start}: the log has"
                f" [{self._state.start_offset}, {self._commit.end_offset})"
            )
        self._guarded(lambda: self._advance(snapshot_id))

    def _advance(self, snapshot_id: SnapshotId) -> None:
        self._raise_format()
        self._keep_state(started_at(self._state, snapshot_id))
        self._snapshots.delete_before(snapshot_id)
        self._drop_below_start()

    def _drop_below_start(self) -> None:
        """Delete the chunks that end at or below the log start, and free their space in the
        background.
        """
        start = self._state.start_offset
        with closing(self._rocks.scan(start)) as chunks:
            base, chunk = next(chunks, (start, b""))
        if base < start and not batches_from(chunk, base, start):
            base = start
        below = min(base, start)
        if self._rocks.first_offset() < below:
            self._rocks.delete_below(below)
            self._compaction.run(
                lambda: self._rocks.compact_below(below), self._compacted, inline=False
            )

    def _compacted(self, error: FatalError | None) -> None:
        if error is not None:
            self._commit.fail(error)

    def _raise_format(self) -> None:
        if self._identity.format_version < FORMAT_VERSION:
            self._set_identity(replace(self._identity, format_version=FORMAT_VERSION))

    def _set_identity(self, identity: NodeIdentity) -> None:
        try:
            write_identity(self._directory, identity)
        except StorageError as error:
            raise self._commit.fail(error) from None
        self._identity = identity

    def used_bytes(self) -> int:
        """See ``LogStore``. Raises StorageError."""
        return self._rocks.size_bytes() + self._snapshots.total_bytes()

    def _guarded(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except FatalError as error:
            raise self._commit.fail(error) from None

    @override
    def _mark_closed(self, *, in_order: bool) -> None:
        if self._vote is not None:
            self._vote.close()
        if in_order:
            self._keep_state(
                replace(
                    self._state,
                    clean=True,
                    end_offset_at_least=self._commit.end_offset,
                    end_epoch=self._rocks.end.epoch,
                )
            )

    @override
    def _release(self) -> None:
        try:
            self._snapshots.close()
        finally:
            self._lock.release()

    def _keep_state(self, state: LogState) -> None:
        if state != self._state:
            write_log_state(self._directory, state)
            self._state = state


def require_end(end_offset: int, state: LogState) -> None:
    """Raise CorruptLogError if the log ends before its known durable end."""
    if end_offset < state.end_offset_at_least:
        raise CorruptLogError(
            f"the log ends at offset {end_offset}, but was durable up to"
            f" {state.end_offset_at_least}",
            offset=end_offset,
        )


def read_between(
    rocks: RocksLog, offset: int, *, until: int, max_bytes: int, start: int, end: int
) -> bytes:
    """Read from a log of [``start``, ``end``), as ``LogStore.read`` does."""
    if not start <= offset <= until <= end:
        raise ValueError(f"cannot read [{offset}, {until}) of the log: it has [{start}, {end})")
    if offset == until:
        return b""
    with closing(rocks.scan(offset)) as chunks:
        return read_span(chunks, offset, until, max_bytes)
