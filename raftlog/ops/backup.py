"""Backups: the newest committed state of a running cluster, as one snapshot file
(raftlog/metadata/snapshot_file.py).

The state is folded from the log, from its start or from the snapshot with which it begins, while
writes continue. The file is written under a temporary name, read back, checked against the state's
hash, and only then renamed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from raftlog.client.log_reader import LogReader, Progress, committed_state
from raftlog.errors import ConfigError, CorruptLogError, StorageError
from raftlog.files import fsync_directory
from raftlog.metadata.image import Image
from raftlog.metadata.snapshot import header_of, load, pieces
from raftlog.metadata.snapshot_file import SnapshotHeader

_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class BackupSummary:
    """The contents of a backup."""

    file: Path
    header: SnapshotHeader
    state_hash: int
    bytes: int


@dataclass(frozen=True, slots=True)
class InspectedBackup:
    """A complete backup, whose checksums and state hash were verified."""

    header: SnapshotHeader
    image: Image
    bytes: int


def inspect(file: Path) -> InspectedBackup:
    """Read a backup and verify it completely. Raises ConfigError, CorruptLogError."""
    try:
        with file.open("rb") as source:
            header, image = load(iter(lambda: source.read(_READ_BYTES), b""))
        return InspectedBackup(header, image, file.stat().st_size)
    except CorruptLogError as error:
        raise CorruptLogError(
            f"{file} is not a valid snapshot: {error}", offset=error.offset
        ) from error
    except OSError as error:
        raise ConfigError(f"can't read {file}: {error.strerror}") from error


async def backup(reader: LogReader, file: Path, progress: Progress | None = None) -> BackupSummary:
    """Write the newest committed state to ``file``, which must not exist yet: complete and checked,
    or not at all.

    Raises ConfigError, ApiError, StorageError, CorruptLogError, UnknownRecordError, FoldError.
    """
    _check_target(file)
    info, image = await committed_state(reader, progress)
    header = header_of(image, cluster_id=info.cluster_id, generations=info.generations)
    return write_backup(file, image, header)


def _check_target(file: Path) -> None:
    if file.exists():
        raise ConfigError(f"{file} already exists: a backup is never overwritten")
    if not file.parent.is_dir():
        raise ConfigError(f"{file.parent} is not a directory")


def write_backup(file: Path, image: Image, header: SnapshotHeader) -> BackupSummary:
    """Write, sync, read back, compare and rename a backup, and sync its directory. Raises
    StorageError, CorruptLogError.
    """
    temporary = file.with_name(f".{file.name}.tmp-{os.getpid()}")
    try:
        with temporary.open("xb") as out:
            for piece in pieces(image, header):
                out.write(piece)
            out.flush()
            os.fsync(out.fileno())
            size = out.tell()
        written, read_back = load(_pieces_of(temporary))
        if written != header or read_back.state_hash != image.state_hash:
            raise CorruptLogError(f"{temporary} differs from the data written to it")
        # Not replace: another backup may have taken the name meanwhile.
        os.link(temporary, file)
        fsync_directory(file.parent)
    except FileExistsError as error:
        raise ConfigError(
            f"{error.filename2 or error.filename} already exists: a backup is never overwritten"
        ) from error
    except OSError as error:
        raise StorageError(f"cannot write {file}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return BackupSummary(file, header, image.state_hash, size)


def _pieces_of(file: Path) -> Iterator[bytes]:
    with file.open("rb") as source:
        while piece := source.read(_READ_BYTES):
            yield piece
