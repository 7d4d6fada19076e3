"""An export in an object store, or in any other fsspec file system.

A store has no reliable rename, and none is needed: a file is first written in a local directory and
then uploaded whole under its final name, and a file that the manifest does not list is not part of
the export. The manifest is one small object, replaced by one put.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from raftlog.segments.errors import ExportError

LOCK_NAME = ".lock"
_WITHOUT_DIRECTORIES = frozenset(
    {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "memory"}
)
"""File systems in which a name with slashes needs no directory. Creating a directory there might
create a bucket from a mistyped name.
"""
LOCK_EXPIRES_S = 300.0
"""Seconds after its last renewal until a writer is considered dead. A writer renews its claim
before each upload and each publish.
"""


def open_remote(uri: str) -> RemotePlace:
    """Return the place at a URI.

    Raises ExportError if fsspec, or its plugin for the URI's scheme, is not installed.
    """
    try:
        import fsspec
    except ImportError as error:
        raise ExportError(
            f"{uri}: to export to a URI, install fsspec: pip install 'raftlog[remote]'"
        ) from error
    try:
        # No cached listings: other processes write, too.
        file_system, root = fsspec.core.url_to_fs(uri, use_listings_cache=False)
    except (ImportError, ValueError) as error:
        raise ExportError(f"{uri} cannot be opened: {error}") from error
    return RemotePlace(uri, file_system, root.rstrip("/"))


@contextmanager
def _as_os_error() -> Iterator[None]:
    """Convert a plugin's error to an OSError, as plugins raise their libraries' errors (no
    credentials, no such bucket).
    """
    try:
        yield
    except (OSError, ExportError):
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


class RemotePlace:
    """A place below ``root`` of an fsspec file system. Blocking; one thread."""

    def __init__(
        self, uri: str, file_system: Any, root: str, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._uri, self._fs, self._root, self._clock = uri, file_system, root, clock
        self._spool: Path | None = None
        self._lock: RemoteLock | None = None

    def __str__(self) -> str:
        return self._uri

    def path(self, name: str) -> str:
        """Return a file's path in the file system."""
        return f"{self._root}/{name}"

    def open(self, name: str) -> BinaryIO:
        """See Place."""
        with _as_os_error():
            file: BinaryIO = self._fs.open(self.path(name), "rb")
            return file

    def size(self, name: str) -> int:
        """See Place."""
        with _as_os_error():
            return int(self._fs.info(self.path(name))["size"])

    def begin(self) -> None:
        """See Place."""
        with _as_os_error():
            self._make_directory(self._root)
            self._lock = RemoteLock(self._fs, self.path(LOCK_NAME), self._uri, self._clock)
        self._spool = Path(tempfile.mkdtemp(prefix="raftlog-export-"))

    def _make_directory(self, path: str) -> None:
        protocols = self._fs.protocol
        if _WITHOUT_DIRECTORIES.isdisjoint(
            [protocols] if isinstance(protocols, str) else protocols
        ):
            self._fs.makedirs(path, exist_ok=True)

    def renew(self) -> None:
        """See Place."""
        if self._lock is not None:
            with _as_os_error():
                self._lock.renew()

    def end(self) -> None:
        """See Place. Also removes the local files."""
        if self._spool is not None:
            shutil.rmtree(self._spool, ignore_errors=True)
            self._spool = None
        lock, self._lock = self._lock, None
        if lock is not None:
            # If the release fails, nothing is lost: the lock expires.
            with suppress(OSError), _as_os_error():
                lock.release()

    def names(self, kind: str) -> list[str]:
        """See Place."""
        with _as_os_error():
            try:
                found = self._fs.ls(self.path(kind) if kind else self._root, detail=False)
            except FileNotFoundError:
                # In an object store, an empty directory does not exist.
                return []
        return sorted(str(path).rstrip("/").rpartition("/")[2] for path in found)

    def temporary(self, name: str) -> Path:
        """See Place. The path is in a local directory below TMPDIR."""
        if self._spool is None:
            raise OSError("no writer has started here")
        return self._spool / name.replace("/", "-")

    def put(self, temporary: Path, name: str) -> None:
        """See Place."""
        size = temporary.stat().st_size
        with _as_os_error():
            self._make_directory(self.path(name).rpartition("/")[0])
            self._fs.put_file(str(temporary), self.path(name))
        if (there := self.size(name)) != size:
            raise OSError(f"the upload of {name} is incomplete: {there} of {size} bytes arrived")
        temporary.unlink()

    def replace(self, name: str, data: bytes) -> None:
        """See Place. As atomic as the store's put."""
        with _as_os_error():
            self._fs.pipe_file(self.path(name), data)

    def remove(self, name: str) -> None:
        """See Place."""
        with _as_os_error():
            self._fs.rm_file(self.path(name))


class RemoteLock:
    """An object that names the writer, and the time until which its claim is valid.

    If clocks differ by minutes, the lock is unreliable. A writer that died on this host is known to
    be dead; one on another host is considered alive for ``LOCK_EXPIRES_S`` after its last renewal.
    """

    def __init__(self, file_system: Any, path: str, uri: str, clock: Callable[[], float]) -> None:
        self._fs, self._path, self._uri, self._clock = file_system, path, uri, clock
        self._token = uuid.uuid4().hex
        holder = self._read()
        if holder is not None and self._lives(holder):
            raise ExportError(
                f"another export is writing to {uri}: process {holder.get('pid')} on"
                f" {holder.get('host')}. If it has exited, remove {LOCK_NAME} there, or wait"
                f" {LOCK_EXPIRES_S / 60:.0f} minutes"
            )
        self._write()
        # If two writers start at once, the later one holds the lock.
        self._require_mine()

    def _read(self) -> dict[str, Any] | None:
        try:
            found = json.loads(self._fs.cat_file(self._path))
        except FileNotFoundError:
            return None
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def _lives(self, holder: dict[str, Any]) -> bool:
        expires = holder.get("expires_at_s")
        if not isinstance(expires, int | float) or expires <= self._clock():
            return False
        return holder.get("host") != socket.gethostname() or _runs(holder.get("pid"))

    def _write(self) -> None:
        holder = {
            "token": self._token,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "expires_at_s": self._clock() + LOCK_EXPIRES_S,
        }
        self._fs.pipe_file(self._path, json.dumps(holder).encode())

    def _require_mine(self) -> None:
        holder = self._read()
        if holder is None or holder.get("token") != self._token:
            raise ExportError(
                f"another export has started to write to {self._uri}, so this one has stopped"
            )

    def renew(self) -> None:
        """Extend the claim. Raises ExportError if another writer has taken over."""
        self._require_mine()
        self._write()

    def release(self) -> None:
        """Release the lock for the next writer, unless another writer has already taken it."""
        holder = self._read()
        if holder is not None and holder.get("token") == self._token:
            self._fs.rm_file(self._path)


def _runs(pid: object) -> bool:
    """Return whether a process with this id is running on this host, even if it is a later process
    with the same id.
    """
    if not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
