"""Recorded programs on files that belong to no node: exports, backups, and a restore."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from marks import mark
from said import batches_of, vote_as_said

from raftlog import batch
from raftlog.endpoint import Voter
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import record
from raftlog.metadata.snapshot import header_of, pieces
from raftlog.node.recovery import restore as restoring
from raftlog.node.recovery.restore import restore
from raftlog.node.storage.api import NodeIdentity, SnapshotId, VoteState
from raftlog.node.storage.files import Bootstrap
from raftlog.node.storage.snapshot_files import file_name
from raftlog.ops.backup import inspect, write_backup
from raftlog.segments.compact import compact
from raftlog.segments.manifest import Manifest
from raftlog.segments.writer import KEEP_RETIRED_MS, ExportWriter
from raftlog.wire.records.v1 import records_pb2 as pb


def _records(at: int) -> list[batch.RecordData]:
    if at == 0:
        return [record(pb.FeatureLevelRecord(name="metadata.version", feature_level=2)).data]
    return [
        record(
            pb.ConfigRecord(resource_type=16, resource_name=f"r{at}", name="match", value="v" * 500)
        ).data
        for _ in range(3)
    ]


def _image() -> Image:
    builder = ImageBuilder(Image())
    messages = [
        pb.ConfigRecord(resource_type=16, resource_name=f"r{at}", name="match", value="v" * 90)
        for at in range(30)
    ]
    builder.apply_batch(
        [record(message) for message in messages], base_offset=0, epoch=6, timestamp_ms=4_000
    )
    return builder.snapshot()


# --- exports ------------------------------------------------------------------------------------


def export(root: Path) -> None:
    """Three publishes with a checkpoint each, merged, and published by the next writer, which
    removes the merged files. A cursor follows each.
    """
    mark("begins")
    directory = root / "srv" / "exports" / "export"
    offset = _publish(directory, 0, 3, 1_000_000, compact)
    _publish(directory, offset, 1, 1_000_000 + KEEP_RETIRED_MS, lambda _: 0)


def _publish(
    directory: Path, offset: int, times: int, now_s: float, then: Callable[[ExportWriter], int]
) -> int:
    def published(manifest: Manifest) -> None:
        mark("written", number=manifest.end_offset)

    with ExportWriter(
        directory, "c1", 0, checkpoint_records=1, published=published, clock=lambda: now_s
    ) as writer:
        for _ in range(times):
            data = _records(offset)
            chunk = batch.encode(data, base_offset=offset, epoch=1, timestamp_ms=1_000)
            offset += len(data)
            mark("writing", number=offset)
            writer.append_chunk(chunk)
            writer.commit(offset)
        assert writer.manifest.checkpoints
        then(writer)
    return offset


# --- what a streaming job remembers -------------------------------------------------------------


class _Rows:
    """A table as Spark writes it: a directory of files that are never synced."""

    def __init__(self, number: int) -> None:
        self._data = b"%d" % number * 2000
        self.write = self

    def mode(self, _: str) -> _Rows:
        return self

    def parquet(self, directory: str) -> None:
        Path(directory).mkdir(parents=True)
        (Path(directory) / "part-0.parquet").write_bytes(self._data)


def ledger(root: Path) -> None:
    """Three micro-batches: done when reported, with the state for the next one."""
    from replay.streaming.ledger import Ledger

    mark("begins")
    job = Ledger(root / "srv" / "jobs" / "audit")
    for number in range(3):
        mark("writing", number=number)
        job.remember(number, {"open": _Rows(number)})  # type: ignore[dict-item]
        job.finish(number, number, 0)
        mark("written", number=number)


# --- backups ------------------------------------------------------------------------------------


def backup(root: Path) -> None:
    """One file, all or nothing."""
    mark("begins")
    image = _image()
    mark("writing", number=image.offset)
    write_backup(root / "backup", image, header_of(image, cluster_id="old", generations=(3,)))
    mark("written", number=image.offset)


def prepare_restore_backup(root: Path) -> None:
    image = _image()
    (root / "backup").write_bytes(
        b"".join(pieces(image, header_of(image, cluster_id="old", generations=(3,))))
    )


def restore_backup(root: Path) -> None:
    """A node of a new cluster from a backup, in directories that are not there."""
    mark("unformatted")
    mark("begins")
    image = _image()
    identity = NodeIdentity("c1", 1, "d1", format_version=2)
    directory, end = root / "srv" / "raftlog" / "data", image.offset + 1
    made = restoring.beginning_chunk

    def said(*args: object, **details: object) -> bytes:
        chunk = made(*args, **details)  # type: ignore[arg-type]
        mark("log", start=end, end=end + restoring.RECORDS, batches=batches_of(chunk, end))
        snapshot = directory / "snapshots" / file_name(SnapshotId(end, 6))
        mark("storing", name=snapshot.name, data=snapshot.read_bytes().hex())
        return chunk

    restoring.beginning_chunk = said
    mark("identifying", identity=asdict(identity))
    mark("voting", vote=vote_as_said(VoteState(epoch=7)))
    read = inspect(root / "backup")
    restore(
        directory, read.image, read.header, cluster_id="c1", node_id=1, directory_id="d1",
        bootstrap=Bootstrap((Voter(1, "h:1", "d1"),), 2),
    )  # fmt: skip
    mark("formatted")
    mark("stored", name=file_name(SnapshotId(end, 6)))
