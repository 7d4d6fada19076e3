"""Where an export lies: a directory, or anything that fsspec has a file system for
(``s3://bucket/export``, ``memory://export``).

A place holds files by name, relative to the export and with slashes. Who writes puts whole files
only: into a directory by renaming what was synced, elsewhere by one upload a file
(raftlog/segments/remote.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, Protocol

from raftlog.durable import fsync_directory, make_directories
from raftlog.segments import files


class Place(Protocol):
    """The files of one export.

    ``str()`` of it is what the operator called it. Every method raises OSError.
    """

    def open(self, name: str) -> BinaryIO:
        """A file to read, seekable. FileNotFoundError, NotADirectoryError if it is not there."""

    def size(self, name: str) -> int:
        """Bytes. FileNotFoundError, NotADirectoryError if it is not there."""

    def begin(self) -> None:
        """Become the one writer that a place may have. Raises ExportError if there is another."""

    def renew(self) -> None:
        """Say that the writer lives; before each publish.

        Raises ExportError if another has taken over.
        """

    def end(self) -> None:
        """Let the next writer in. May be called twice."""

    def names(self, kind: str) -> list[str]:
        """What is in the directory of one kind, sorted, a crashed writer's files included; "": what
        is at the top.
        """

    def temporary(self, name: str) -> Path:
        """A local path at which to write the file ``name`` until it is whole."""

    def put(self, temporary: Path, name: str) -> None:
        """Give a file its name, whole and durable; the temporary one is gone afterwards."""

    def replace(self, name: str, data: bytes) -> None:
        """Replace a small file: afterwards it holds either what it held before, or ``data``."""

    def remove(self, name: str) -> None:
        """Remove a file, durably: what is published next may not know it any more, and would refuse
        it if it came back.
        """


class LocalPlace:
    """A directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock: files.DirectoryLock | None = None

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
        self._lock = files.DirectoryLock(self.directory)

    def renew(self) -> None:
        """See Place: the lock goes with the process."""

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
        found = files.require_inside(self.directory, files.temporary(self.directory / name))
        # Of a writer that crashed; or a link to somewhere else.
        found.unlink(missing_ok=True)
        return found

    def put(self, temporary: Path, name: str) -> None:
        """See Place."""
        files.sync_file(temporary)
        files.publish(temporary, files.require_inside(self.directory, self.directory / name))

    def replace(self, name: str, data: bytes) -> None:
        """See Place."""
        files.write_atomically(self.directory / name, data)

    def remove(self, name: str) -> None:
        """See Place."""
        path = files.require_inside(self.directory, self.directory / name)
        path.unlink()
        fsync_directory(path.parent)


def is_uri(target: Path | str) -> bool:
    """Whether this names a place for fsspec. A path, and a ``file:`` URI, name a directory."""
    return (
        isinstance(target, str)
        and not target.startswith("file:")
        and ("://" in target or target.startswith("memory:"))
    )


def open_place(target: Path | str | Place) -> Place:
    """The place that a path or a URI names; nothing is touched yet.

    Raises ExportError for a URI that nothing here can open.
    """
    if isinstance(target, Path):
        return LocalPlace(target)
    if not isinstance(target, str):
        return target
    if is_uri(target):
        from raftlog.segments.remote import open_remote

        return open_remote(target)
    return LocalPlace(Path(target.removeprefix("file://").removeprefix("file:")))
