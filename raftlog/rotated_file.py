"""A file of lines that never grows above a size: it becomes ``NAME.1``, and so on up to a number of
backups.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

FILE_MODE = 0o600


class RotatedFile:
    """Appends whole lines to ``path``; above ``max_bytes`` it is rotated. Raises OSError.

    A file that others have moved away or removed is begun anew. Only its owner can read the file. A
    symbolic link, or what is no regular file, is not written to. What is written survives the
    process, not the machine: nothing is synced.
    """

    def __init__(self, path: Path, *, max_bytes: int, max_backups: int) -> None:
        self._path, self._max_bytes, self._max_backups = path, max_bytes, max_backups
        self.rotation_failure = ""
        """Why the file has grown beyond its size; empty: it has not."""
        self._fd = self._open()
        self._size = os.fstat(self._fd).st_size

    def append(self, lines: Sequence[bytes], written: list[int]) -> None:
        """Append them in order. ``written``: its only item counts those that are in the file, also
        when OSError is raised.
        """
        self._keep_name()
        while written[0] < len(lines):
            begin = written[0]
            full = self._size and self._size + len(lines[begin]) > self._max_bytes
            # What can be written is written: a file that is too long can be read.
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
        """Begin the file anew if it no longer has its name. Where that fails, the file that is open
        takes what comes.
        """
        try:
            if os.path.samestat(os.lstat(self._path), os.fstat(self._fd)):
                return
        except FileNotFoundError:
            pass  # It has no name any more.
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
        """How many were written: on a full disk fewer. Raises OSError if it is none."""
        written, whole = os.write(self._fd, b"".join(lines)), 0
        for count, line in enumerate(lines):
            if whole + len(line) > written:
                # A part of a line makes the next one unreadable, so it is taken back.
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
        # Up to the first name that is free, which the last attempt may have left [each attempt
        # after it would drop a backup].
        free = next((at for at, name in enumerate(names) if not name.exists()), len(names) - 1)
        for newer, older in reversed(list(pairwise(names[: free + 1]))):
            os.replace(newer, older)
        if not self._max_backups:
            self._path.unlink(missing_ok=True)
        self._begin()

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        # Without waiting: a pipe that nobody reads would be waited for.
        opened = os.open(self._path, flags | os.O_NONBLOCK, FILE_MODE)
        try:
            _make_private(opened)
        except OSError:
            os.close(opened)
            raise
        return opened


def _make_private(opened: int) -> None:
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        raise OSError(errno.EINVAL, "it is no regular file")
    os.fchmod(opened, FILE_MODE)


def backup_of(path: Path, number: int) -> Path:
    """The name that a file has after so many rotations; 0: its own."""
    return path.with_name(f"{path.name}.{number}") if number else path
