"""The snapshot files of a data directory: written under a temporary name, verified, synced, renamed
(KIP-630).

``%020d-%010d.checkpoint`` (end offset, epoch) is a complete snapshot; with the suffix ``.part`` it
is incomplete. After a crash a file is either complete or a leftover that ``find`` deletes. A
complete file that fails verification is renamed to ``.corrupt``, and kept for examination.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from raftlog.errors import CorruptLogError, StorageError
from raftlog.files import fsync_directory
from raftlog.logger import get_logger
from raftlog.metadata import snapshot_file
from raftlog.metadata.snapshot_file import SnapshotHeader
from raftlog.node.storage.api import AcceptHeader, SnapshotId
from raftlog.node.storage.files import DIRECTORY_MODE, private_opener

log = get_logger(__name__)

SNAPSHOT_DIRECTORY = "snapshots"
_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_PART, _CORRUPT = ".part", ".corrupt"
_READ_BYTES = 1 << 20
_HEADER_BYTES_MAX = 1 << 20


def file_name(snapshot_id: SnapshotId) -> str:
    """Return the file name of a snapshot, in Kafka's form."""
    return f"{snapshot_id.end_offset:020d}-{snapshot_id.epoch:010d}.checkpoint"


class SnapshotFiles:
    """The snapshot files of one node. Raises StorageError for errors of the file system."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / SNAPSHOT_DIRECTORY
        self._parts: dict[SnapshotId, BinaryIO] = {}
        self._sizes: dict[SnapshotId, int] = {}
        self._freezes = 0
        self.unsound: list[CorruptLogError] = []
        """Errors of the damaged snapshots that ``newest_sound`` has found."""
        self._open: tuple[SnapshotId, BinaryIO] | None = None

    # --- complete ones ---------------------------------------------------------------------------

    @property
    def complete(self) -> tuple[SnapshotId, ...]:
        """Ids of the complete snapshots, ascending."""
        return tuple(sorted(self._sizes))

    def find(self, *, clean: bool) -> None:
        """Find the complete files; with ``clean``, delete those that a crash left incomplete."""
        if not self._directory.exists():
            return
        try:
            for path in sorted(self._directory.iterdir()):
                if (match := _NAME.fullmatch(path.name)) is not None:
                    self._sizes[SnapshotId(int(match[1]), int(match[2]))] = path.stat().st_size
                elif clean and path.name.endswith(_PART):
                    path.unlink()
        except OSError as error:
            raise StorageError(f"cannot list {self._directory}: {error}") from error

    def newest_sound(self) -> tuple[SnapshotId, SnapshotHeader] | None:
        """Return the newest complete snapshot that passes verification, or None.

        Newer ones that fail are no longer listed in ``complete``.
        """
        for snapshot_id in reversed(self.complete):
            try:
                return snapshot_id, self.verify(snapshot_id)
            except CorruptLogError as error:
                self.unsound.append(error)
                del self._sizes[snapshot_id]
        return None

    def set_aside_unsound(self) -> None:
        """Rename the files that ``newest_sound`` found damaged."""
        try:
            for path in sorted(self._directory.glob("*.checkpoint")):
                if self._id_of(path) not in self._sizes:
                    log.critical(
                        "a snapshot is corrupt and was renamed; an older one and the log are used",
                        file=str(path),
                    )
                    path.replace(path.with_name(path.name + _CORRUPT))
        except OSError as error:
            raise StorageError(
                f"cannot rename a corrupt snapshot in {self._directory}: {error}"
            ) from error

    @staticmethod
    def _id_of(path: Path) -> SnapshotId | None:
        match = _NAME.fullmatch(path.name)
        return SnapshotId(int(match[1]), int(match[2])) if match else None

    def verify(self, snapshot_id: SnapshotId) -> SnapshotHeader:
        """Check a complete snapshot from end to end. Raises CorruptLogError, StorageError."""
        return _verify(self._directory / file_name(snapshot_id), snapshot_id)

    def size(self, snapshot_id: SnapshotId) -> int:
        """Return the size of a snapshot, in bytes. Raises LookupError."""
        return self._sizes[snapshot_id]

    def total_bytes(self) -> int:
        """Return the size of all complete snapshots, in bytes."""
        return sum(self._sizes.values())

    def header(self, snapshot_id: SnapshotId) -> SnapshotHeader:
        """Return the header of a snapshot. Raises LookupError, CorruptLogError, StorageError."""
        return snapshot_file.read_header(self.read(snapshot_id, 0, _HEADER_BYTES_MAX))

    def read(self, snapshot_id: SnapshotId, position: int, max_bytes: int) -> bytes:
        """Return bytes from ``position`` onwards. Raises LookupError, ValueError, StorageError."""
        size = self._sizes[snapshot_id]
        if not 0 <= position <= size:
            raise ValueError(f"position {position} is outside the snapshot, which has {size} bytes")
        try:
            if self._open is None or self._open[0] != snapshot_id:
                self._close_open()
                self._open = snapshot_id, (self._directory / file_name(snapshot_id)).open("rb")
            return os.pread(self._open[1].fileno(), max_bytes, position)
        except OSError as error:
            raise StorageError(f"cannot read snapshot {file_name(snapshot_id)}: {error}") from error

    def delete_before(self, snapshot_id: SnapshotId) -> None:
        """Delete the complete snapshots before ``snapshot_id``."""
        try:
            for one in self.complete:
                if one < snapshot_id:
                    if self._open is not None and self._open[0] == one:
                        self._close_open()
                    (self._directory / file_name(one)).unlink()
                    del self._sizes[one]
        except OSError as error:
            raise StorageError(f"cannot delete a snapshot: {error}") from error

    # --- in the making ---------------------------------------------------------------------------

    def store(self, snapshot_id: SnapshotId, position: int, data: bytes) -> None:
        """Write a part of an incomplete snapshot; position 0 starts it over.

        Raises ValueError if ``position`` is not where the last part ended.
        """
        try:
            if position == 0:
                self.drop(snapshot_id)
                self._directory.mkdir(DIRECTORY_MODE, exist_ok=True)
                part = self._part(snapshot_id)
                descriptor = private_opener(str(part), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                self._parts[snapshot_id] = os.fdopen(descriptor, "wb", buffering=0)
            file = self._parts.get(snapshot_id)
            if file is None or file.tell() != position:
                at = -1 if file is None else file.tell()
                raise ValueError(
                    f"snapshot {file_name(snapshot_id)}: the part is for position {position}, but"
                    f" the last one ended at {at}"
                )
            while data:
                data = data[file.write(data) :]
        except OSError as error:
            raise StorageError(
                f"cannot write snapshot {file_name(snapshot_id)}: {error}"
            ) from error

    def freezer(
        self, snapshot_id: SnapshotId, accept: AcceptHeader | None = None
    ) -> Callable[[], None]:
        """Return a function that verifies, syncs and renames a snapshot; call it once, in any
        thread.

        The function raises StorageError, and CorruptLogError after deleting the snapshot. The
        incomplete file belongs to the function at once: dropping or restarting the snapshot in the
        meantime does not affect it. Raises StorageError.
        """
        file, part = self._parts.pop(snapshot_id, None), self._part(snapshot_id)
        self._freezes += 1
        own = part.with_name(f"{file_name(snapshot_id)}.{self._freezes}{_PART}")
        if file is not None:
            try:
                part.replace(own)
            except OSError as error:
                file.close()
                raise StorageError(f"cannot complete snapshot {part.name}: {error}") from error
        return lambda: self._freeze(snapshot_id, file, own, accept)

    def _freeze(
        self,
        snapshot_id: SnapshotId,
        file: BinaryIO | None,
        part: Path,
        accept: AcceptHeader | None,
    ) -> None:
        if file is None:
            raise CorruptLogError(
                f"snapshot {file_name(snapshot_id)} was completed before any part was stored"
            )
        path = self._directory / file_name(snapshot_id)
        try:
            with file:
                os.fsync(file.fileno())
            try:
                header = _verify(part, snapshot_id)
                if accept is not None:
                    accept(header)
            except CorruptLogError:
                part.unlink()
                raise
            size = part.stat().st_size
            part.replace(path)
            fsync_directory(self._directory)
            fsync_directory(self._directory.parent)
        except OSError as error:
            raise StorageError(f"cannot complete snapshot {path.name}: {error}") from error
        self._sizes[snapshot_id] = size

    def drop(self, snapshot_id: SnapshotId) -> None:
        """Delete an incomplete snapshot, if it exists."""
        file = self._parts.pop(snapshot_id, None)
        if file is not None:
            file.close()
            try:
                self._part(snapshot_id).unlink(missing_ok=True)
            except OSError as error:
                raise StorageError(
                    f"cannot delete the incomplete snapshot {file_name(snapshot_id)}: {error}"
                ) from error

    def close(self) -> None:
        """Close the files. Incomplete snapshots stay until the next ``find``."""
        self._close_open()
        for file in self._parts.values():
            file.close()
        self._parts.clear()

    def _close_open(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def _part(self, snapshot_id: SnapshotId) -> Path:
        return self._directory / (file_name(snapshot_id) + _PART)


def _verify(path: Path, snapshot_id: SnapshotId) -> SnapshotHeader:
    try:
        with path.open("rb") as file:
            header = snapshot_file.verify(_pieces(file))
    except CorruptLogError as error:
        raise CorruptLogError(f"snapshot {path} is corrupt: {error}") from error
    except OSError as error:
        raise StorageError(f"cannot read snapshot {path}: {error}") from error
    if SnapshotId(header.end_offset, header.epoch) != snapshot_id:
        raise CorruptLogError(
            f"snapshot {path} is corrupt: its header has end offset {header.end_offset} and epoch"
            f" {header.epoch}"
        )
    return header


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(_READ_BYTES):
        yield piece
