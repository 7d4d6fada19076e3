"""The files of an export, and their place: a directory, or any fsspec file system
(``s3://bucket/export``, ``memory://export``; see remote.py).

A place contains files by name, relative to the export, with slashes. A file is written whole or not
at all. In a directory a file is written under a temporary name, synced, and renamed; then the
directory is synced. In other places each file is one upload. Readers (including Spark) ignore names
that begin with a dot, so an unfinished file is never read.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from raftlog.errors import is_disk_error
from raftlog.files import fsync_directory, make_directories
from raftlog.segments.errors import ExportDiskError, ExportError

TEMP_PREFIX = ".tmp-"
_READ_BYTES = 1 << 20


@contextmanager
def named_errors(action: str, path: object) -> Iterator[None]:
    """Convert an OSError to an ExportError that names the action and the path, or to an
    ExportDiskError if the disk is the cause.
    """
    try:
        yield
    except OSError as error:
        kind = ExportDiskError if is_disk_error(error) else ExportError
        raise kind(f"cannot {action} {path}: {error.strerror or error}") from error


def temporary(path: Path) -> Path:
    """Return the name under which ``path`` is written until it is complete."""
    return path.with_name(f"{TEMP_PREFIX}{path.name}")


def sync_file(path: Path) -> None:
    """Make a closed file's bytes durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(temp: Path, final: Path) -> None:
    """Give a synced file its final name, durably."""
    os.replace(temp, final)
    sync_file(final.parent)


def require_inside(directory: Path, path: Path) -> Path:
    """Return a path below a directory. Raises ExportError if a symbolic link in between leads
    elsewhere.
    """
    if path.parent.resolve() != directory.resolve() / path.parent.relative_to(directory):
        raise ExportError(
            f"{path.parent} is a symbolic link, or below one: the export writes and removes nothing"
            " there"
        )
    return path


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a small file atomically: afterwards it has either its old contents or ``data``."""
    temp = temporary(path)
    temp.unlink(missing_ok=True)
    with temp.open("xb") as file:
        file.write(data)
    sync_file(temp)
    publish(temp, path)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, as ``sha256sum`` prints it."""
    with path.open("rb") as file:
        return sha256_of_stream(file)


def sha256_of_stream(file: BinaryIO) -> str:
    """Return the SHA-256 of a file from its current position to its end."""
    digest = hashlib.sha256()
    while block := file.read(_READ_BYTES):
        digest.update(block)
    return digest.hexdigest()


class DirectoryLock:
    """A lock that admits one writer per directory. It is released when its process exits, however
    that happens.
    """

    def __init__(self, directory: Path, other: str = "another export") -> None:
        """Lock the directory. Raises ExportError if another writer has locked it. ``other``: that
        writer's name, for the message.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.fdopen(os.open(directory / ".lock", flags, 0o666), "r+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise ExportError(f"{other} is writing to {directory}") from error

    def release(self) -> None:
        """Release the lock for the next writer."""
        self._file.close()


class Place(Protocol):
    """The files of one export.

    ``str()`` returns the operator's name for the place. Every method raises OSError.
    """

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading, seekable. Raises FileNotFoundError or NotADirectoryError if it
        is missing.
        """

    def size(self, name: str) -> int:
        """Return a file's size in bytes. Raises FileNotFoundError or NotADirectoryError if it is
        missing.
        """

    def begin(self) -> None:
        """Become the only writer of the place. Raises ExportError if there is another."""

    def renew(self) -> None:
        """Renew the writer's claim; called before each publish. Raises ExportError if another
        writer has taken over.
        """

    def end(self) -> None:
        """Release the place for the next writer. May be called twice."""

    def names(self, kind: str) -> list[str]:
        """Return the sorted names in the directory of one kind, including a crashed writer's files;
        "" is the top directory.
        """

    def temporary(self, name: str) -> Path:
        """Return a local path at which the file ``name`` is written until it is complete."""

    def put(self, temporary: Path, name: str) -> None:
        """Publish a file under its final name, complete and durable; the temporary file is
        removed.
        """

    def replace(self, name: str, data: bytes) -> None:
        """See ``write_atomically``."""

    def remove(self, name: str) -> None:
        """Remove a file durably, as the next manifest may no longer list it, and the file would be
        refused if it reappeared.
        """


class LocalPlace:
    """A place in a local directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock: DirectoryLock | None = None

    def __str__(self) -> str:
        return str(self.directory)

    def open(self, name: str) -> BinaryIO:
        """See Place."""
        try:
            return (self.directory / name).open("rb")
        except IsADirectoryError as error:
            raise FileNotFoundError(name) from error

    def size(self, name: str) -> int:
        """See Place."""
        path = self.directory / name
        if path.is_dir():
            raise FileNotFoundError(name)
        return path.stat().st_size

    def begin(self) -> None:
        """See Place."""
        make_directories(self.directory)
        self._lock = DirectoryLock(self.directory)

    def renew(self) -> None:
        """See Place. Does nothing, as the lock is held until its process exits."""

    def end(self) -> None:
        """See Place."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def names(self, kind: str) -> list[str]:
        """See Place."""
        folder = self.directory / kind
        if kind:
            make_directories(folder)
        return sorted(path.name for path in folder.iterdir())

    def temporary(self, name: str) -> Path:
        """See Place."""
        found = require_inside(self.directory, temporary(self.directory / name))
        # A crashed writer may have left a file there, or it may be a link to another place.
        found.unlink(missing_ok=True)
        return found

    def put(self, temporary: Path, name: str) -> None:
        """See Place."""
        sync_file(temporary)
        publish(temporary, require_inside(self.directory, self.directory / name))

    def replace(self, name: str, data: bytes) -> None:
        """See Place."""
        write_atomically(self.directory / name, data)

    def remove(self, name: str) -> None:
        """See Place."""
        path = require_inside(self.directory, self.directory / name)
        path.unlink()
        fsync_directory(path.parent)


def is_uri(target: Path | str) -> bool:
    """Return whether a target is an fsspec URI. A path, or a ``file:`` URI, names a directory."""
    return (
        isinstance(target, str)
        and not target.startswith("file:")
        and ("://" in target or target.startswith("memory:"))
    )


def open_place(target: Path | str | Place) -> Place:
    """Return the place at a path or a URI, without accessing it.

    Raises ExportError for a URI without an installed file system.
    """
    if isinstance(target, Path):
        return LocalPlace(target)
    if not isinstance(target, str):
        return target
    if is_uri(target):
        from raftlog.segments.remote import open_remote

        return open_remote(target)
    return LocalPlace(Path(target.removeprefix("file://").removeprefix("file:")))
