"""What lies where in a data directory, and the lock that gives it to one process.

::

    meta.json           who the directory belongs to; if it is there, the directory is formatted
    quorum-state.json   the vote: see vote_file.py
    bootstrap.json      how the quorum begins, if formatting said so
    log-state.json      how the log was left: see LogState
    snapshots/          see snapshot_files.py
    lock                flock'ed by the process that uses the directory, and holding its pid
    log/                RocksDB
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from raftlog.errors import CorruptLogError, DirectoryInUseError, StorageError
from raftlog.storage.checked_file import convert, read_content, write_checked
from raftlog.storage.private import FILE_MODE

LOG_DIRECTORY = "log"
JOURNAL_DIRECTORY = "journal"
META_FILE = "meta.json"
LOCK_FILE = "lock"
LOG_STATE_FILE = "log-state.json"
_STATE_KIND = "log-state"


@dataclass(frozen=True, slots=True)
class LogState:
    """How the log was left. ``clean``: closed in order, so nothing on disk can be torn.

    ``end_offset_at_least``: the log was durable up to here, and was not truncated below since. It
    finds what no checksum inside the log can: a tail that is missing altogether.
    """

    clean: bool
    end_offset_at_least: int
    start_offset: int = 0
    """Where the log begins: what lies before is in a snapshot that ends here or later."""
    start_epoch: int = 0
    """Of the record before the start."""


@dataclass(frozen=True, slots=True)
class _LogStateV1:
    """The state of a log that still begins at 0, as format version 1 has it."""

    clean: bool
    end_offset_at_least: int


def write_log_state(directory: Path, state: LogState) -> None:
    """Replace the state, durably when this returns. Raises StorageError."""
    content = state if state.start_offset else _LogStateV1(state.clean, state.end_offset_at_least)
    write_checked(directory / LOG_STATE_FILE, _STATE_KIND, content)


def read_log_state(directory: Path) -> LogState:
    """How the log was left. Raises CorruptLogError, StorageError."""
    path = directory / LOG_STATE_FILE
    try:
        content = read_content(path, _STATE_KIND)
        if "start_offset" in content:
            return convert(path, content, LogState)
        old = convert(path, content, _LogStateV1)
        return LogState(old.clean, old.end_offset_at_least)
    except FileNotFoundError:
        raise CorruptLogError(
            f"{directory / LOG_STATE_FILE} is missing from a formatted directory"
        ) from None


class DirectoryLock:
    """An exclusive (a node) or shared (readers of a stopped node) hold on a data directory; the
    kernel drops it with the process.
    """

    def __init__(self, fd: int, *, exclusive: bool) -> None:
        self._fd = fd
        self._exclusive = exclusive

    @classmethod
    def exclusive(cls, directory: Path) -> DirectoryLock:
        """Take the directory for this process. Raises ConfigError naming the pid that has it."""
        try:
            fd = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT, FILE_MODE)
        except OSError as error:
            raise StorageError(f"can't open {directory / LOCK_FILE}: {error}") from error
        _flock(fd, fcntl.LOCK_EX, directory)
        try:
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            os.close(fd)
            raise StorageError(f"can't write {directory / LOCK_FILE}: {error}") from error
        return cls(fd, exclusive=True)

    @classmethod
    def shared(cls, directory: Path) -> DirectoryLock | None:
        """Keep nodes out while reading, changing nothing; None if there is no lock file (a copy).

        Raises ConfigError.
        """
        try:
            fd = os.open(directory / LOCK_FILE, os.O_RDONLY)
        except OSError:
            return None
        _flock(fd, fcntl.LOCK_SH, directory)
        return cls(fd, exclusive=False)

    def release(self) -> None:
        """Give the directory back.

        Idempotent, and never an error: the lock goes with the descriptor, the pid in it is for
        people.
        """
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        with contextlib.suppress(OSError):
            if self._exclusive:
                os.ftruncate(fd, 0)
        with contextlib.suppress(OSError):
            os.close(fd)


def _flock(fd: int, how: int, directory: Path) -> None:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(fd, 32, 0).decode(errors="replace").strip()
        os.close(fd)
        who = f"pid {pid}" if pid else "a process that reads it"
        raise DirectoryInUseError(f"data directory {directory} is in use by {who}") from None
    except OSError as error:
        os.close(fd)
        raise StorageError(f"can't lock {directory}: {error}") from error


def disk_bytes(directory: Path) -> int:
    """The size of the file system that holds a data directory. Raises StorageError."""
    try:
        return shutil.disk_usage(directory).total
    except OSError as error:
        raise StorageError(f"can't look at {directory}: {error}") from error
