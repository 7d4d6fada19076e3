"""How files of an export come into being: whole, or not at all.

A file is written under a temporary name, synced, and renamed; the directory is synced after the
rename. Readers (Spark among them) ignore names that begin with a dot, so nobody sees a file in the
making.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from raftlog.errors import is_disk_error
from raftlog.segments.errors import ExportDiskError, ExportError

TEMP_PREFIX = ".tmp-"
_READ_BYTES = 1 << 20


@contextmanager
def named_errors(action: str, path: object) -> Iterator[None]:
    """Turn an OSError into an ExportError that says what was being done to which path: an
    ExportDiskError if the disk is to blame.
    """
    try:
        yield
    except OSError as error:
        kind = ExportDiskError if is_disk_error(error) else ExportError
        raise kind(f"cannot {action} {path}: {error.strerror or error}") from error


def temporary(path: Path) -> Path:
    """The name under which ``path`` is written until it is whole."""
    return path.with_name(f"{TEMP_PREFIX}{path.name}")


def sync_file(path: Path) -> None:
    """Make a closed file's bytes durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(temp: Path, final: Path) -> None:
    """Give a synced file its name, durably."""
    os.replace(temp, final)
    sync_file(final.parent)


def require_inside(directory: Path, path: Path) -> Path:
    """Return a path below a directory. Raises ExportError if a link in between leads elsewhere."""
    if path.parent.resolve() != directory.resolve() / path.parent.relative_to(directory):
        raise ExportError(
            f"{path.parent} is a link, or behind one: nothing is written or removed there"
        )
    return path


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a small file: afterwards it holds either what it held before, or ``data``."""
    temp = temporary(path)
    temp.unlink(missing_ok=True)
    with temp.open("xb") as file:
        file.write(data)
    sync_file(temp)
    publish(temp, path)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, as ``sha256sum`` prints it."""
    with path.open("rb") as file:
        return sha256_of_stream(file)


def sha256_of_stream(file: BinaryIO) -> str:
    """The SHA-256 of a file from where it is read to its end."""
    digest = hashlib.sha256()
    while block := file.read(_READ_BYTES):
        digest.update(block)
    return digest.hexdigest()


class DirectoryLock:
    """At most one writer a directory. The lock goes with its process, however that ends."""

    def __init__(self, directory: Path, other: str = "another export") -> None:
        """``other``: what the writer is that may have it. Raises ExportError if one has."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.fdopen(os.open(directory / ".lock", flags, 0o666), "r+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise ExportError(f"{other} is writing to {directory}") from error

    def release(self) -> None:
        """Let the next writer in."""
        self._file.close()
