"""Files and directories: durable names, private keys, rotated logs, and file-system calls off the
event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shlex
import stat
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar


def fsync_directory(directory: Path) -> None:
    """Make the names in ``directory`` durable. Raises OSError."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directories(directory: Path, mode: int = 0o777) -> None:
    """Create ``directory`` and its missing parents, all durable on return. Raises OSError.

    A power cut removes an unsynced directory with everything in it, synced or not. Existing parents
    are synced, too, up to the mount point: a killed process may have created them. A parent without
    read permission is skipped unless something was created in it.
    """
    missing = {one.parent.resolve() for one in (directory, *directory.parents) if not one.exists()}
    directory.mkdir(mode, parents=True, exist_ok=True)
    path = directory.resolve()
    device = path.stat().st_dev
    for above in path.parents:
        if above.stat().st_dev != device:
            return
        try:
            fsync_directory(above)
        except PermissionError:
            if above in missing:
                raise


OWNER_ONLY = 0o600
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_ROOTS = stat.S_IWGRP | stat.S_IXGRP | stat.S_IRWXO


def exposed(path: Path) -> str:
    """Return the fault in the permissions of a private key file, or "" if none. Only the file's
    owner, or root and one group, may read it. Raises OSError. Windows has no such permissions.
    """
    if os.name != "posix":
        return ""
    status = path.stat()
    mode = stat.S_IMODE(status.st_mode)
    if not mode & forbidden(status.st_uid, os.geteuid()):
        return ""
    return (
        f"users other than its owner can access the private key {path} (mode {mode:04o}): chmod 600"
        f" {shlex.quote(str(path))}"
    )


def forbidden(owner: int, us: int) -> int:
    """Return the permission bits that a key must not have. A key owned by root may be readable for
    a group: orchestrators pass secrets to other users that way.
    """
    return _ROOTS if owner == 0 and us != 0 else _OTHERS


FILE_MODE = 0o600


class RotatedFile:
    """A file of whole lines that is rotated above ``max_bytes``: to ``NAME.1`` and so on, up to
    ``max_backups``.

    Raises OSError. A file that was moved or removed is created again. Only its owner can read it.
    Never writes to a symbolic link or to anything but a regular file. Lines survive a crash of the
    process but not of the machine, as nothing is synced. (``logging.handlers.RotatingFileHandler``
    follows symbolic links, leaves half a line on a full disk, and does not report how many lines it
    has written.)
    """

    def __init__(self, path: Path, *, max_bytes: int, max_backups: int) -> None:
        self._path, self._max_bytes, self._max_backups = path, max_bytes, max_backups
        self.rotation_failure = ""
        """Why the last rotation failed, so that the file grows beyond its limit; "" if it did not
        fail.
        """
        self._fd = self._open()
        self._size = os.fstat(self._fd).st_size

    def append(self, lines: Sequence[bytes], written: list[int]) -> None:
        """Append lines in order.

        ``written``: a list whose only item is set to the number of lines written, even if OSError
        is raised.
        """
        self._keep_name()
        while written[0] < len(lines):
            begin = written[0]
            full = self._size and self._size + len(lines[begin]) > self._max_bytes
            # Written even if rotation fails: a file that is too long can still be read.
            grows = full and not self._rotated()
            end, size = begin + 1, self._size + len(lines[begin])
            while end < len(lines) and (grows or size + len(lines[end]) <= self._max_bytes):
                size += len(lines[end])
                end += 1
            written[0] += self._append(lines[begin:end])

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _keep_name(self) -> None:
        """Create the file again if it was moved or removed. If that fails, lines go to the file
        that is open.
        """
        try:
            if os.path.samestat(os.lstat(self._path), os.fstat(self._fd)):
                return
        except FileNotFoundError:
            pass  # The file was moved or removed.
        except OSError:
            return
        with contextlib.suppress(OSError):
            self._begin()

    def _begin(self) -> None:
        fresh = self._open()
        os.close(self._fd)
        self._fd, self._size = fresh, os.fstat(fresh).st_size
        self.rotation_failure = ""

    def _append(self, lines: Sequence[bytes]) -> int:
        """Append lines; return how many were written, which is fewer on a full disk. Raises OSError
        if none was.
        """
        written, whole = os.write(self._fd, b"".join(lines)), 0
        for count, line in enumerate(lines):
            if whole + len(line) > written:
                # A partial line would make the next one unreadable, so it is removed.
                os.ftruncate(self._fd, self._size + whole)
                if not count:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._size += whole
                return count
            whole += len(line)
        self._size += whole
        return len(lines)

    def _rotated(self) -> bool:
        try:
            self._rotate()
        except OSError as error:
            self.rotation_failure = error.strerror or str(error)
            return False
        return True

    def _rotate(self) -> None:
        names = [self._path, *(backup_of(self._path, n + 1) for n in range(self._max_backups))]
        # Rename up to the first free name, which a failed attempt may have left [else each further
        # attempt would drop a backup].
        free = next((at for at, name in enumerate(names) if not name.exists()), len(names) - 1)
        for newer, older in reversed(list(pairwise(names[: free + 1]))):
            os.replace(newer, older)
        if not self._max_backups:
            self._path.unlink(missing_ok=True)
        self._begin()

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        # O_NONBLOCK: opening a pipe without a reader would block.
        opened = os.open(self._path, flags | os.O_NONBLOCK, FILE_MODE)
        try:
            _make_private(opened)
        except OSError:
            os.close(opened)
            raise
        return opened


def _make_private(opened: int) -> None:
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    os.fchmod(opened, FILE_MODE)


def backup_of(path: Path, number: int) -> Path:
    """Return the name of a file after ``number`` rotations."""
    return path.with_name(f"{path.name}.{number}") if number else path


T = TypeVar("T")
PATIENCE_S = 0.05
"""Maximum time in seconds that a status page waits for the disk: a slow disk must not hide
everything else.
"""


class _Answer(NamedTuple, Generic[T]):
    found: T | None
    failure: OSError | None


class BackgroundLook(Generic[T]):
    """A file-system query that runs in a thread, so that the event loop never waits for it.

    ``statvfs`` and ``open`` take microseconds, but hang on a network file system whose server is
    down; the node must still vote and report. There is at most one thread, and the process does not
    wait for it at exit. For use by the event loop's thread only.
    """

    def __init__(self, ask: Callable[[], T]) -> None:
        """Create a look with the query ``ask``, which may raise only OSError."""
        self._ask = ask
        self._asking: Future[_Answer[T]] | None = None
        self._awaited: asyncio.Future[_Answer[T]] | None = None
        self._last: _Answer[T] | None = None

    @property
    def latest(self) -> T | None:
        """The last result, or None if there is none yet or the last query failed."""
        self._collect()
        return None if self._last is None else self._last.found

    def poll(self) -> T:
        """Return the newest result, and start another query. Only the first call waits. Raises
        OSError.
        """
        self._collect()
        if self._last is None:
            self._last = self._answer()
        else:
            self._begin()
        if self._last.failure is not None:
            raise self._last.failure
        assert self._last.found is not None
        return self._last.found

    async def now(self, patience_s: float = PATIENCE_S) -> T | None:
        """Start a query, or join one in progress, and return its result, or None if it failed or
        took longer than ``patience_s``.
        """
        awaited = self._awaited
        if awaited is None or awaited.done():
            # Another caller may start a query as soon as this one ends, before this caller resumes.
            awaited = self._awaited = asyncio.wrap_future(self._begin())
        await asyncio.wait([awaited], timeout=patience_s)
        return awaited.result().found if awaited.done() else None

    def _begin(self) -> Future[_Answer[T]]:
        self._collect()
        if self._asking is None:
            asking = self._asking = Future()
            asking.set_running_or_notify_cancel()
            threading.Thread(
                target=lambda: asking.set_result(self._answer()), name="raftlog-look", daemon=True
            ).start()
        return self._asking

    def _collect(self) -> None:
        if self._asking is not None and self._asking.done():
            self._last, self._asking = self._asking.result(), None

    def _answer(self) -> _Answer[T]:
        try:
            return _Answer(self._ask(), None)
        except OSError as error:
            return _Answer(None, error)
