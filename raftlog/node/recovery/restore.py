"""A new cluster from a backup: a data directory that begins with a snapshot, under another cluster
id.

All of the log is made from the file alone, so that all nodes restored from one file have equal
logs, and any majority of them may lead. Its generation is chosen by its first leader: two clusters
restored from one file have two. The identity is renamed into place last, as when formatting: an
interrupted restore is no directory of a node, and can be run again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from raftlog import batch
from raftlog.errors import ConfigError, CorruptLogError
from raftlog.metadata.control_records import RESTORED, to_entries
from raftlog.metadata.snapshot import SnapshotLoader
from raftlog.metadata.snapshot_file import MAX_BATCH_BYTES, SnapshotHeader, encode_header
from raftlog.node.recovery.first_chunk import RECORDS, beginning_chunk
from raftlog.node.storage.api import FORMAT_VERSION, NodeIdentity, SnapshotId, VoteState
from raftlog.node.storage.directory import LOG_DIRECTORY, LogState, format_storage
from raftlog.node.storage.files import NO_BOOTSTRAP, Bootstrap
from raftlog.node.storage.rocks_adapter import RocksLog
from raftlog.node.storage.snapshot_files import SnapshotFiles
from raftlog.wire.records.v1 import records_pb2 as pb

_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Restored:
    """Result of a restore. ``source``: header of the file, ``state_hash``: that of its image."""

    identity: NodeIdentity
    source: SnapshotHeader
    state_hash: int
    epoch: int
    end_offset: int


def restore(
    directory: Path,
    snapshot: Path,
    *,
    cluster_id: str,
    node_id: int,
    directory_id: str,
    bootstrap: Bootstrap = NO_BOOTSTRAP,
) -> Restored:
    """Make ``directory`` the data directory of a node of a new cluster that begins with the state
    in ``snapshot``.

    Raises ConfigError (also if the directory is not empty, or ``cluster_id`` is the old one),
    CorruptLogError (the file), StorageError.
    """
    source, state_hash = _checked(snapshot)
    if cluster_id == source.cluster_id:
        raise ConfigError(
            f"{snapshot} is of cluster {cluster_id!r}: give a restored cluster an id of its own,"
            " nodes of both must not meet"
        )
    identity = NodeIdentity(cluster_id, node_id, directory_id, format_version=FORMAT_VERSION)
    epoch, end = source.epoch + 1, source.end_offset + RECORDS
    header = replace(source, cluster_id=cluster_id, voters=())

    def fill(where: Path) -> tuple[VoteState, LogState]:
        _write_snapshot(where, snapshot, header)
        _write_log(where / LOG_DIRECTORY, source, epoch)
        return VoteState(epoch=epoch), LogState(
            clean=True,
            end_offset_at_least=end,
            start_offset=source.end_offset,
            start_epoch=source.epoch,
        )

    format_storage(directory, identity, bootstrap=bootstrap, fill=fill)
    return Restored(identity, source, state_hash, epoch, end)


def _checked(snapshot: Path) -> tuple[SnapshotHeader, int]:
    """Load the file as a node will; return its header, and the hash of its state."""
    loader = SnapshotLoader()
    try:
        with snapshot.open("rb") as file:
            for piece in _pieces(file):
                loader.feed(piece)
        image = loader.finish()
    except CorruptLogError as error:
        raise CorruptLogError(f"{snapshot} is no sound snapshot: {error}") from error
    except OSError as error:
        raise ConfigError(f"can't read {snapshot}: {error}") from error
    assert loader.header is not None
    return loader.header, image.state_hash


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(_READ_BYTES):
        yield piece


def _write_snapshot(directory: Path, snapshot: Path, header: SnapshotHeader) -> None:
    """Write the file with another header: content and footer are unchanged.

    Verified whole, and durable, when this returns.
    """
    snapshot_id = SnapshotId(header.end_offset, header.epoch)
    files = SnapshotFiles(directory)
    first = encode_header(header)
    files.store(snapshot_id, 0, first)
    position = len(first)
    try:
        with snapshot.open("rb") as file:
            file.seek(batch.size_at(file.read(MAX_BATCH_BYTES), 0) or 0)
            for piece in _pieces(file):
                files.store(snapshot_id, position, piece)
                position += len(piece)
    except OSError as error:
        raise ConfigError(f"can't read {snapshot}: {error}") from error
    files.freezer(snapshot_id)()
    files.close()


def _write_log(path: Path, source: SnapshotHeader, epoch: int) -> None:
    what = pb.RecoveryRecord(
        kind=RESTORED,
        previous_cluster_id=source.cluster_id,
        previous_generation=source.generation,
        previous_epoch=source.epoch,
        previous_voters=to_entries(source.voters),
        reason=f"restored from the state before offset {source.end_offset}",
    )
    chunk = beginning_chunk(
        what, (), base_offset=source.end_offset, epoch=epoch, timestamp_ms=source.last_timestamp_ms
    )
    rocks = RocksLog(path)
    try:
        rocks.put(source.end_offset, chunk)
        rocks.sync()
    finally:
        rocks.close()
