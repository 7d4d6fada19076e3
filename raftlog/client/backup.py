"""A backup: the newest committed state of a running cluster, as one snapshot file
(raftlog/metadata/snapshot_file.py).

The state is made from the log as any reader makes it, from its beginning or from the snapshot that
it begins with, so that writes go on meanwhile. The file is written under another name, read back
and checked against the state's hash, and only then gets its name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from raftlog.client.log_reader import BelowLogStartError, LogInfo, LogReader
from raftlog.durable import fsync_directory
from raftlog.errors import ApiError, ConfigError, CorruptLogError, ErrorCode, StorageError
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.snapshot import SnapshotLoader, header_of, load, pieces
from raftlog.metadata.snapshot_file import SnapshotHeader

ATTEMPTS = 5
"""The log may be dropped below what is being read, and the node may die: then it is begun anew, so
often.
"""
_READ_BYTES = 1 << 20
_AGAIN = (ErrorCode.SNAPSHOT_NOT_FOUND, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNKNOWN_SERVER_ERROR)

Progress = Callable[[int, int], None]
"""Called with (offset reached, offset to reach), both exclusive."""


@dataclass(frozen=True, slots=True)
class BackupSummary:
    """What a backup holds."""

    file: Path
    header: SnapshotHeader
    state_hash: int
    bytes: int


@dataclass(frozen=True, slots=True)
class InspectedBackup:
    """A backup that is whole: its checksums, and its state against its hash, were verified."""

    header: SnapshotHeader
    image: Image
    bytes: int


def inspect(file: Path) -> InspectedBackup:
    """Read a backup and verify all of it. Raises ConfigError, CorruptLogError."""
    try:
        with file.open("rb") as source:
            header, image = load(iter(lambda: source.read(_READ_BYTES), b""))
        return InspectedBackup(header, image, file.stat().st_size)
    except OSError as error:
        raise ConfigError(f"can't read {file}: {error.strerror}") from error


async def committed_state(
    reader: LogReader, progress: Progress | None = None
) -> tuple[LogInfo, Image]:
    """The state at the high watermark, as it is now.

    Raises ApiError, CorruptLogError, UnknownRecordError, FoldError.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return await _committed_state(reader, progress)
        except BelowLogStartError:
            if attempt == ATTEMPTS:
                raise
        except ApiError as error:
            if attempt == ATTEMPTS or error.code not in _AGAIN:
                raise
        except CorruptLogError:
            # What a damaged transfer looks like; what is damaged in the log itself stays so.
            if attempt == ATTEMPTS:
                raise
    raise AssertionError("unreachable")


async def _committed_state(reader: LogReader, progress: Progress | None) -> tuple[LogInfo, Image]:
    info = await reader.info()
    image = Image()
    if info.snapshot_id is not None:
        loader = SnapshotLoader()
        await reader.snapshot(info.snapshot_id, loader.feed)
        image = loader.finish()
    builder = ImageBuilder(image)
    async for chunk in reader.chunks(builder.offset + 1, info.high_watermark):
        builder.apply_chunk(chunk)
        if progress is not None:
            progress(builder.offset + 1, info.high_watermark)
    return info, builder.snapshot()


async def backup(reader: LogReader, file: Path, progress: Progress | None = None) -> BackupSummary:
    """Write the newest committed state to ``file``, which must not be there yet: whole and checked,
    or not at all.

    Raises ConfigError, ApiError, StorageError, CorruptLogError, UnknownRecordError, FoldError.
    """
    _check_target(file)
    info, image = await committed_state(reader, progress)
    header = header_of(image, cluster_id=info.cluster_id, generations=info.generations)
    return write_backup(file, image, header)


def _check_target(file: Path) -> None:
    if file.exists():
        raise ConfigError(f"{file} is there already: a backup is never overwritten")
    if not file.parent.is_dir():
        raise ConfigError(f"{file.parent} is no directory")


def write_backup(file: Path, image: Image, header: SnapshotHeader) -> BackupSummary:
    """Write, sync, read back, compare, rename, sync the directory.

    Raises StorageError, CorruptLogError.
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
            raise CorruptLogError(f"{temporary} does not hold what was written to it")
        # Not replace: another backup may have got the name meanwhile.
        os.link(temporary, file)
        fsync_directory(file.parent)
    except FileExistsError as error:
        raise ConfigError(
            f"{error.filename2 or error.filename} is there already: a backup is never overwritten"
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
