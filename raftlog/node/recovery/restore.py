"""A new cluster from an old state: a data directory that begins with a snapshot, with a new cluster
id or, if the old controllers are lost, with the same id.

The log is derived from the state alone, so all nodes restored from one state have equal logs, and
any majority of them may lead. Its first leader chooses its generation: two clusters restored from
one state have two generations. The identity is renamed into place last, as when formatting: an
interrupted restore leaves no valid data directory, and can be run again.

A cluster that keeps its id also keeps its brokers: their directories belong to a generation from
which the new log descends, as after an unsafe recovery. Its epochs begin far above those of the
state, because later records and votes had higher epochs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from raftlog.errors import ConfigError
from raftlog.metadata.control_records import MAX_RECOVERIES, RESTORED, to_entries
from raftlog.metadata.image import Image
from raftlog.metadata.snapshot import pieces
from raftlog.metadata.snapshot_file import SnapshotHeader
from raftlog.node.recovery.first_chunk import RECORDS, beginning_chunk
from raftlog.node.recovery.unsafe_recovery import EPOCHS_SKIPPED
from raftlog.node.storage.api import FORMAT_VERSION, NodeIdentity, SnapshotId, VoteState
from raftlog.node.storage.directory import LOG_DIRECTORY, LogState, format_storage
from raftlog.node.storage.files import NO_BOOTSTRAP, Bootstrap
from raftlog.node.storage.rocks_adapter import RocksLog
from raftlog.node.storage.snapshot_files import SnapshotFiles
from raftlog.node.storage.wal import LogEnd
from raftlog.quorum.admission import MAX_EPOCH
from raftlog.wire.records.v1 import records_pb2 as pb


@dataclass(frozen=True, slots=True)
class Restored:
    """Result of a restore. ``source``: header of the state."""

    identity: NodeIdentity
    source: SnapshotHeader
    state_hash: int
    epoch: int
    end_offset: int


def restore(
    directory: Path,
    image: Image,
    source: SnapshotHeader,
    *,
    cluster_id: str,
    node_id: int,
    directory_id: str,
    same_cluster: bool = False,
    bootstrap: Bootstrap = NO_BOOTSTRAP,
) -> Restored:
    """Make ``directory`` the data directory of a node in a cluster that begins with ``image``.

    ``source``: header of a snapshot of ``image``, with all generations of its log.
    ``same_cluster``: whether the cluster keeps the old id. Raises ConfigError (also if the
    directory is not empty, or if ``cluster_id`` does not fit ``same_cluster``), StorageError.
    """
    if (cluster_id == source.cluster_id) != same_cluster:
        raise ConfigError(
            f"the state belongs to cluster {source.cluster_id!r}, but the directory would belong to"
            f" {cluster_id!r}: --same-cluster requires the old id"
            if same_cluster
            else f"the state belongs to cluster {cluster_id!r}: give a restored cluster a new id,"
            " so that nodes of the two clusters refuse each other. Only if all controllers of the"
            " old cluster are lost for good, keep the id, and with it the brokers: --same-cluster"
        )
    if len(source.generations) > MAX_RECOVERIES:
        raise ConfigError(
            f"the log was recovered {MAX_RECOVERIES} times, the limit: no leader epochs are left"
        )
    identity = NodeIdentity(cluster_id, node_id, directory_id, format_version=FORMAT_VERSION)
    epoch = source.epoch + (EPOCHS_SKIPPED if same_cluster else 1)
    if epoch > MAX_EPOCH:
        raise ConfigError(f"no epoch is left above {source.epoch}, the epoch of the state")
    end = source.end_offset + RECORDS
    header = replace(source, cluster_id=cluster_id, voters=())

    def fill(where: Path) -> tuple[VoteState, LogState]:
        _write_snapshot(where, image, header)
        _write_log(where / LOG_DIRECTORY, source, epoch)
        return VoteState(epoch=epoch), LogState(
            clean=True,
            end_offset_at_least=end,
            start_offset=source.end_offset,
            start_epoch=source.epoch,
        )

    format_storage(directory, identity, bootstrap=bootstrap, fill=fill)
    return Restored(identity, source, image.state_hash, epoch, end)


def _write_snapshot(directory: Path, image: Image, header: SnapshotHeader) -> None:
    """Write the snapshot. It is verified and durable when this returns."""
    snapshot_id = SnapshotId(header.end_offset, header.epoch)
    files = SnapshotFiles(directory)
    position = 0
    for piece in pieces(image, header):
        if piece:
            files.store(snapshot_id, position, piece)
            position += len(piece)
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
        rocks.put(source.end_offset, chunk, LogEnd(source.end_offset + RECORDS, epoch))
        rocks.sync()
    finally:
        rocks.close()
