"""Read a stopped or copied data directory without changing it."""

from __future__ import annotations

import os
import tempfile
from contextlib import closing
from pathlib import Path
from types import TracebackType

from raftlog.errors import CorruptLogError, FatalError, StorageError
from raftlog.node.storage.api import NodeIdentity, SnapshotId, VoteState
from raftlog.node.storage.chunks import epoch_at, walk
from raftlog.node.storage.directory import (
    LOG_DIRECTORY,
    LOG_STATE_FILE,
    DirectoryLock,
    LogState,
    read_identity,
    read_log_state,
)
from raftlog.node.storage.files import read_vote_file
from raftlog.node.storage.log_bounds import is_part, require_snapshot
from raftlog.node.storage.log_store import read_between, require_end
from raftlog.node.storage.opening import PROBE_TIMEOUT_S, check_openable, open_rocks
from raftlog.node.storage.rocks_adapter import RocksLog
from raftlog.node.storage.snapshot_files import SnapshotFiles
from raftlog.node.storage.wal_repair import find_torn_tails


def open_read_only(directory: Path, *, probe_timeout_s: float = PROBE_TIMEOUT_S) -> LogReader:
    """Open a data directory for reading. No node can start on it until the reader is closed.

    Raises ConfigError (not formatted, in use), CorruptLogError, StorageError.
    """
    identity = read_identity(directory)
    lock = DirectoryLock.shared(directory)
    mirror: tempfile.TemporaryDirectory[str] | None = None
    try:
        state = read_log_state(directory)
        mirror = mirror_of(directory / LOG_DIRECTORY)
        if not state.clean:
            leave_torn_tails_out(Path(mirror.name))
        torn = check_openable(Path(mirror.name), probe_timeout_s, clean=state.clean)
        rocks = open_rocks(Path(mirror.name), read_only=True)
        reader = LogReader(directory, identity, state, rocks, lock, mirror)
        reader.torn = tuple(
            one.replace(mirror.name, str(directory / LOG_DIRECTORY)) for one in torn
        )
    except FatalError as error:
        _release(lock, mirror)
        raise _with_original_path(error, mirror, directory) from error
    except BaseException:
        _release(lock, mirror)
        raise
    return reader


class LogReader:
    """A log without a writer; a context manager.

    The high watermark is unknown, so ``end_offset`` is the end of the log.
    """

    def __init__(
        self,
        directory: Path,
        identity: NodeIdentity,
        state: LogState,
        rocks: RocksLog,
        lock: DirectoryLock | None,
        mirror: tempfile.TemporaryDirectory[str],
    ) -> None:
        self.identity = identity
        self.start_offset = self.end_offset = state.start_offset
        self._directory = directory
        self._rocks = rocks
        self._lock = lock
        self._mirror = mirror
        self._snapshots = SnapshotFiles(directory)
        self.torn: tuple[str, ...] = ()
        """Descriptions of the files that end within a record, which is not read."""
        try:
            if (last := rocks.last()) is not None:
                for _, end_offset, _, _, _ in walk(last[1], last[0]):
                    self.end_offset = max(self.end_offset, end_offset)
            require_end(self.end_offset, state)
            # Before the log is compared with its snapshots: a log that has lost its beginning must
            # not be mistaken for one that a snapshot replaced.
            self._require_start()
            self._snapshots.find(clean=False)
            newest = self._snapshots.newest_sound()
            require_snapshot(directory, state, newest)
            self.was_replaced = newest is not None and not is_part(
                newest[0], state, self._epoch_before(newest[0].end_offset)
            )
            """Whether the installation of the newest snapshot was interrupted before the log was
            emptied, so that no record of the log is valid.
            """
            if newest is not None and self.was_replaced:
                self.start_offset = self.end_offset = newest[0].end_offset
        except BaseException:
            self._rocks.close()
            raise

    def _require_start(self) -> None:
        """Raise CorruptLogError if log-state.json is out of date: records at or above the start
        that it names have been deleted.
        """
        with closing(self._rocks.scan(self.start_offset)) as chunks:
            first_offset = next((base_offset for base_offset, _ in chunks), self.start_offset)
        if first_offset > self.start_offset:
            raise CorruptLogError(
                f"{self._directory / LOG_STATE_FILE} says that the log begins at offset"
                f" {self.start_offset}, but its first record has offset {first_offset}: the file is"
                " out of date, or records are missing",
                offset=self.start_offset,
            )

    def _epoch_before(self, offset: int) -> int | None:
        with closing(self._rocks.scan(offset - 1)) as chunks:
            return epoch_at(chunks, offset - 1)

    @property
    def snapshots(self) -> tuple[SnapshotId, ...]:
        """Ids of the complete and valid snapshots, ascending."""
        return self._snapshots.complete

    @property
    def left_out(self) -> tuple[str, ...]:
        """Descriptions of the damaged snapshots and torn files that are not read."""
        return (*self.torn, *map(str, self._snapshots.unsound))

    def read_snapshot(self, snapshot_id: SnapshotId, position: int, max_bytes: int) -> bytes:
        """Return bytes of a snapshot from ``position`` onwards; empty at its end.

        Raises LookupError, ValueError, StorageError.
        """
        return self._snapshots.read(snapshot_id, position, max_bytes)

    @property
    def vote(self) -> VoteState:
        """The vote.

        Raises CorruptLogError if it is missing or corrupt; the log can still be read.
        """
        return read_vote_file(self._directory)

    def read(self, offset: int, until: int, max_bytes: int) -> bytes:
        """Return whole verified batches from ``offset`` to ``until`` (exclusive): at least one,
        then as many as fit ``max_bytes``.

        Raises CorruptLogError with the offset, StorageError, and ValueError if an offset is not a
        batch boundary of the log.
        """
        return read_between(
            self._rocks,
            offset,
            until=until,
            max_bytes=max_bytes,
            start=self.start_offset,
            end=self.end_offset,
        )

    def close(self) -> None:
        """Release the directory."""
        try:
            self._snapshots.close()
            self._rocks.close()
        finally:
            _release(self._lock, self._mirror)

    def __enter__(self) -> LogReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def mirror_of(rocks: Path) -> tempfile.TemporaryDirectory[str]:
    """Return a directory of links to RocksDB's files, because rocksdict writes its configuration
    file even when it opens read-only.
    """
    mirror = tempfile.TemporaryDirectory(prefix="raftlog-read-")
    try:
        for name in sorted(os.listdir(rocks)):
            if name != "rocksdict-config.json":
                (Path(mirror.name) / name).symlink_to(rocks.resolve() / name)
    except (FileNotFoundError, NotADirectoryError) as error:
        mirror.cleanup()
        raise CorruptLogError(f"{rocks} is missing from a formatted directory") from error
    except OSError as error:
        mirror.cleanup()
        raise StorageError(f"cannot read {rocks}: {error}") from error
    return mirror


def _with_original_path(
    error: FatalError, mirror: tempfile.TemporaryDirectory[str] | None, directory: Path
) -> FatalError:
    """Return the error with the path of the original directory instead of the temporary mirror."""
    if mirror is None or mirror.name not in str(error):
        return error
    text = str(error).replace(mirror.name, str(directory / LOG_DIRECTORY))
    return (
        CorruptLogError(text, offset=error.offset)
        if isinstance(error, CorruptLogError)
        else StorageError(text)
    )


def leave_torn_tails_out(mirror: Path) -> None:
    """Replace the links to files that power loss tore with copies without their torn tails."""
    for tail in find_torn_tails(mirror):
        try:
            content = tail.path.read_bytes()[: tail.new_end]
            tail.path.unlink()
            tail.path.write_bytes(content)
        except OSError as error:
            raise StorageError(f"cannot copy {tail.path.name}: {error}") from error


def _release(lock: DirectoryLock | None, mirror: tempfile.TemporaryDirectory[str] | None) -> None:
    if mirror is not None:
        mirror.cleanup()
    if lock is not None:
        lock.release()
