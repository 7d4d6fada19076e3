"""Exports of a stopped node's log, which end with the last record that the log proves committed."""

from pathlib import Path
from typing import Any

import pytest
from scripted_log import ScriptedLog

from raftlog import batch
from raftlog.cli.log import find, fold
from raftlog.errors import ConfigError, CorruptLogError
from raftlog.metadata.describe import image_to_dict
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import record
from raftlog.metadata.snapshot import header_of, pieces
from raftlog.node.storage.api import SnapshotId
from raftlog.ops.logs import DirectoryLog, ExportLog, begins_late, chunks
from raftlog.segments.export import export
from raftlog.wire.records.v1 import records_pb2 as pb


class FakeReader(ScriptedLog):
    """Four batches in one chunk; the third proves the first two, the last proves nothing."""

    def __init__(self) -> None:
        super().__init__(
            pb.LeaderChangeRecord(leader_id=1, voters=[1, 2, 3]),
            pb.ConfigRecord(resource_type=16, resource_name="a", name="match", value="1"),
            pb.ProgressRecord(lowest_acknowledged_offset=1, high_watermark=2),
            pb.ConfigRecord(resource_type=16, resource_name="b", name="match", value="2"),
        )
        self.content: dict[SnapshotId, bytes] = {}

    def image(self, last: int) -> Image:
        builder = ImageBuilder(Image())
        builder.apply_chunk(self.chunk, until=last + 1)
        return builder.snapshot()

    def begin_late(self, start_offset: int, *ends: int) -> None:
        """Make the log start late, as after retention; snapshots hold the earlier state."""
        self.start_offset = start_offset
        for end in ends:
            image = self.image(end - 1)
            snapshot_id = SnapshotId(end, image.epoch)
            self.snapshots += (snapshot_id,)
            self.content[snapshot_id] = b"".join(
                pieces(image, header_of(image, cluster_id="c", generations=()))
            )

    def read_snapshot(self, snapshot_id: SnapshotId, position: int, max_bytes: int) -> bytes:
        return self.content[snapshot_id][position : position + 10]


def opened(reader: Any) -> DirectoryLog:
    return DirectoryLog(reader)


def test_only_proven_records_are_exported(tmp_path: Path) -> None:
    source = opened(FakeReader())
    assert (source.high_watermark, source.end_offset) == (2, 4)
    assert export(source, tmp_path).end_offset == 2


def test_whole_log_is_exported_on_the_operators_request(tmp_path: Path) -> None:
    source = opened(FakeReader())
    source.assume_committed()
    assert export(source, tmp_path).end_offset == 4


@pytest.mark.parametrize("last", [1, 3])
def test_image_of_a_log_that_starts_late_is_made_from_a_snapshot(last: int) -> None:
    reader = FakeReader()
    expected = reader.image(last)
    reader.begin_late(1, 1, 2, 3)
    found = fold(opened(reader), last)
    assert (found.offset, found.state_hash) == (last, expected.state_hash)
    assert expected.state_hash != reader.image(last - 1).state_hash


def test_state_before_the_oldest_snapshot_is_reported_as_deleted() -> None:
    reader = FakeReader()
    reader.begin_late(2, 3)
    with pytest.raises(
        ConfigError, match="offset 1 is too early: the oldest available state is at offset 2"
    ):
        fold(opened(reader), 1)


def test_records_in_a_snapshot_are_committed(tmp_path: Path) -> None:
    reader = FakeReader()
    reader.begin_late(2, 2, 3)
    source = opened(reader)
    assert source.high_watermark == 3
    summary = export(source, tmp_path)
    assert (summary.history_begin, summary.end_offset) == (2, 3)
    assert (
        begins_late(source)
        == "history begins at offset 2: earlier records were deleted after a snapshot"
    )
    assert begins_late(opened(FakeReader())) == ""


def test_log_that_gained_a_second_voter_is_not_committed_to_its_end() -> None:
    reader = ScriptedLog(
        pb.LeaderChangeRecord(leader_id=1, voters=[1]),
        pb.VotersRecord(voters=[pb.VoterEntry(voter_id=1), pb.VoterEntry(voter_id=2)]),
    )
    reader.end_offset = 1
    assert opened(reader).high_watermark == 1
    reader.end_offset = 2
    assert opened(reader).high_watermark == 0


def test_export_that_starts_late_holds_no_state(tmp_path: Path) -> None:
    reader = FakeReader()
    reader.begin_late(2, 3)
    export(opened(reader), tmp_path)
    with pytest.raises(ConfigError, match="begins at offset 2"):
        fold(ExportLog(tmp_path), None)


class Skipping:
    """A source that skips batches after the requested offset, or returns none."""

    cluster_id, generation, start_offset, high_watermark, end_offset = "c", 0, 0, 4, 4

    def __init__(self, chunk: bytes) -> None:
        self.chunk = chunk

    def read(self, offset: int, max_bytes: int) -> bytes:
        return self.chunk


def test_log_that_starts_at_another_offset_is_refused() -> None:
    reader = FakeReader()
    behind = b"".join(
        reader.chunk[one.position : one.position + one.size] for one in batch.headers(reader.chunk)
    )
    first, *_ = batch.headers(reader.chunk)
    with pytest.raises(CorruptLogError, match="offset 0") as caught:
        list(chunks(Skipping(behind[first.size :]), 4))  # type: ignore[arg-type]
    assert caught.value.offset == 0
    with pytest.raises(
        CorruptLogError, match="no records at offset 0, although it reports 4 as its end"
    ):
        list(chunks(Skipping(b""), 4))  # type: ignore[arg-type]


def test_entry_is_found_by_its_id() -> None:
    draft = ImageBuilder(Image())
    entries = [pb.AccessControlEntryRecord(id=bytes([each]) * 16) for each in (1, 2)]
    draft.apply_batch([record(one) for one in entries], base_offset=0, epoch=1, timestamp_ms=1)
    document = image_to_dict(draft.snapshot())
    assert find(document, f"acls/{'02' * 16}")["id"] == "02" * 16
    assert len(find(document, "acls")) == 2
