"""When a snapshot is due, and which are kept."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from controller.disk.snapshot_generator import (
    ASK_AGAIN_S,
    RETENTION_EVERY_S,
    SMALL_BYTES,
    SnapshotGenerator,
    SnapshotLoad,
    Trigger,
)
from controller.settings import ControllerSettings
from raftlog.errors import CorruptLogError
from raftlog.metadata.control_records import GenerationAt, Lineage
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.log_hash import unknown
from raftlog.metadata.records import record
from raftlog.metadata.snapshot import BATCH_BYTES, header_of, pieces
from raftlog.metadata.snapshot_file import SnapshotHeader, read_header
from raftlog.node.storage.api import SnapshotId
from raftlog.wire.records.v1 import records_pb2 as pb

SETTINGS = ControllerSettings(
    metadata_log_max_record_bytes_between_snapshots=1000,
    metadata_log_max_snapshot_interval_ms=60_000,
    metadata_max_retention_bytes=5000,
    metadata_max_retention_ms=100_000,
)


@pytest.mark.parametrize(
    ("applied", "now", "due"),
    [(0, 10.0, False), (999, 69.9, False), (1000, 10.0, True), (1, 70.0, True), (0, 1e9, False)],
)
def test_snapshot_is_due_by_bytes_or_time(applied: int, now: float, due: bool) -> None:
    assert Trigger(10.0, 7).due(now, 7 + applied, 0, SETTINGS) is due


def test_large_state_is_written_less_often() -> None:
    settings = ControllerSettings()
    large = SMALL_BYTES + 1
    assert Trigger(0.0).due(0.0, 20 << 20, SMALL_BYTES, settings)
    assert not Trigger(0.0).due(0.0, 79 << 20, 20 << 20, settings)
    assert Trigger(0.0).due(0.0, 80 << 20, 20 << 20, settings)
    assert Trigger(0.0).due(0.0, 20 << 20, large, settings), (
        "never less often than by bytes where four times is less"
    )
    assert not Trigger(0.0).due(0.0, 100 << 20, 100 << 20, settings), (
        "all of it new: the log is as good as a snapshot"
    )
    assert Trigger(0.0).due(3600.0, 1, 20 << 20, settings), "its age counts all the same"
    ageless = ControllerSettings(metadata_log_max_snapshot_interval_ms=0)
    assert not Trigger(0.0).due(1e12, 1, 0, ageless)


class FakeSnapshots:
    """Writes a snapshot when the test says so."""

    def __init__(self) -> None:
        self.ids: tuple[SnapshotId, ...] = ()
        self.content: dict[SnapshotId, bytes] = {}
        self.asked_for: list[SnapshotId] = []
        self.writing: (
            tuple[SnapshotHeader, Iterator[bytes], Callable[[SnapshotId, int], None]] | None
        ) = None

    @property
    def newest(self) -> SnapshotId | None:
        return self.ids[-1] if self.ids else None

    def fetched(self) -> list[SnapshotId]:
        return self.asked_for

    def write(self, header: SnapshotHeader, content: Iterator[bytes], done: Any) -> None:
        assert self.writing is None
        self.writing = (header, content, done)

    def finish(self) -> None:
        assert self.writing is not None
        (header, content, done), self.writing = self.writing, None
        snapshot_id = SnapshotId(header.end_offset, header.epoch)
        self.content[snapshot_id] = b"".join(content)
        self.ids = (*self.ids, snapshot_id)
        done(snapshot_id, len(self.content[snapshot_id]))

    def size(self, snapshot_id: SnapshotId) -> int:
        return len(self.content[snapshot_id])

    def header(self, snapshot_id: SnapshotId) -> SnapshotHeader:
        return read_header(self.content[snapshot_id][:200])

    def read(self, snapshot_id: SnapshotId, position: int, max_bytes: int) -> bytes:
        return self.content[snapshot_id][position : position + max_bytes]


class FakeReplica:
    """Holds snapshots."""

    def __init__(self) -> None:
        self.snapshots = FakeSnapshots()
        self.lineage = Lineage([GenerationAt(0, 7), GenerationAt(5, 0), GenerationAt(8, 2)])
        self.log_start_offset = 0
        self.used = 0
        self.now_ms = 0
        self.advanced: list[int] = []

    def advance_log_start(self, snapshot_id: SnapshotId) -> bool:
        self.advanced.append(snapshot_id.end_offset)
        self.log_start_offset = snapshot_id.end_offset
        self.snapshots.ids = tuple(one for one in self.snapshots.ids if one >= snapshot_id)
        return True

    def time_ms(self) -> int:
        return self.now_ms

    def used_bytes(self) -> int:
        return self.used


def image(offset: int, level: int = 2, timestamp_ms: int = 0) -> Image:
    builder = ImageBuilder(Image(offset - 1, 1))
    feature = pb.FeatureLevelRecord(name="metadata.version", feature_level=level)
    builder.apply_batch([record(feature)], base_offset=offset, epoch=1, timestamp_ms=timestamp_ms)
    return builder.snapshot()


class Stage:
    def __init__(self) -> None:
        self.replica = FakeReplica()
        self.images = self.applied_bytes = 0
        self.snapshots = SnapshotGenerator(
            SETTINGS, cast(Any, self.replica), cluster_id="c", now=0.0
        )

    def tick(self, now: float, offset: int, *, state_bytes: int = 0, **fields: Any) -> bool:
        def made() -> Image:
            self.images += 1
            return image(offset, **fields)

        self.snapshots.tick(now, self.applied_bytes, state_bytes, made, unknown(offset + 1))
        return self.replica.snapshots.writing is not None

    def take(self, *ends: int) -> None:
        """Take snapshots at these end offsets, one every two seconds."""
        for number, end in enumerate(ends, 1):
            self.applied_bytes += 1000
            assert self.tick(2.0 * number, end - 1, timestamp_ms=end)
            self.replica.snapshots.finish()

    def holding(self) -> int:
        return self.snapshots.figures(0.0).cursors_holding


def test_snapshot_is_taken_after_enough_applied_bytes() -> None:
    stage = Stage()
    stage.applied_bytes += 999
    assert not stage.tick(1.0, 9)
    assert stage.images == 0, "no image is made for nothing"
    stage.applied_bytes += 1
    assert not stage.tick(1.0, 9, state_bytes=SMALL_BYTES + 1)
    assert stage.tick(1.1, 10)
    stage.applied_bytes += 500
    assert stage.tick(1.2, 11)
    assert stage.images == 1
    stage.replica.snapshots.finish()
    assert stage.replica.snapshots.ids == (SnapshotId(11, 1),)
    assert (stage.snapshots.generated, stage.snapshots.generated_at) == (1, 1.1)
    assert stage.snapshots.generated_bytes == len(
        stage.replica.snapshots.content[SnapshotId(11, 1)]
    )
    assert stage.replica.snapshots.header(SnapshotId(11, 1)).generation == 2
    stage.applied_bytes += 499
    assert not stage.tick(1.3, 20)
    stage.applied_bytes += 1
    assert stage.tick(1.4, 20)


def test_no_snapshot_is_taken_where_one_exists() -> None:
    stage = Stage()
    stage.take(11)
    stage.applied_bytes += 1000
    assert not stage.tick(9.0, 10)
    assert stage.tick(9.0 + ASK_AGAIN_S, 11)


def test_installed_snapshot_restarts_the_count_and_another_can_be_taken() -> None:
    stage = Stage()
    stage.applied_bytes += 1000
    assert stage.tick(1.0, 10)
    stage.replica.snapshots.writing = None  # given up by the replica
    stage.snapshots.installed(2.0, stage.applied_bytes)
    assert stage.snapshots.loaded == 1
    assert not stage.tick(20.0, 50)
    stage.applied_bytes += 1
    assert not stage.tick(61.9, 50)
    assert stage.tick(62.0, 50)


def test_retention_moves_the_log_start_one_snapshot_at_a_time() -> None:
    stage = Stage()
    stage.take(10, 20, 30, 40)
    now = 8.0
    stage.tick(now, 39)
    assert stage.replica.advanced == []
    stage.replica.used = 5001
    stage.tick(now + RETENTION_EVERY_S, 39)
    assert stage.replica.advanced == [20]
    stage.tick(now + RETENTION_EVERY_S + 0.1, 39)
    assert stage.replica.advanced == [20], "the space comes back late"
    stage.tick(now + 2 * RETENTION_EVERY_S, 39)
    stage.replica.used = 4000
    stage.tick(now + 3 * RETENTION_EVERY_S, 39)
    assert stage.replica.advanced == [20, 30]
    stage.replica.now_ms = 100_031
    stage.tick(now + 4 * RETENTION_EVERY_S, 39)
    assert stage.replica.advanced == [20, 30, 40]
    stage.replica.used = 1 << 40
    stage.tick(now + 5 * RETENTION_EVERY_S, 39)
    assert stage.replica.snapshots.ids == (SnapshotId(40, 1),)


def test_fetched_snapshot_and_the_log_after_it_are_kept() -> None:
    stage = Stage()
    stage.take(10, 20, 30)
    stage.replica.used = 5001
    stage.replica.snapshots.asked_for = [SnapshotId(10, 1)]
    stage.tick(6 + RETENTION_EVERY_S, 29)
    assert stage.replica.advanced == []
    stage.replica.snapshots.asked_for = []
    stage.tick(6 + 2 * RETENTION_EVERY_S, 29)
    assert stage.replica.advanced == [20]


def test_retention_asks_the_committed_image_for_export_cursors() -> None:
    stage = Stage()
    stage.take(10, 20)
    stage.replica.used, made = 5001, ImageBuilder(image(29))
    cursor = pb.ExportCursorRecord(name="nightly", end_offset=15)
    made.apply_batch([record(cursor)], base_offset=30, epoch=1, timestamp_ms=0)
    committed = made.snapshot()
    stage.snapshots.tick(RETENTION_EVERY_S + 4, 0, 0, lambda: committed, unknown(31))
    assert stage.replica.advanced == []
    assert stage.holding() == 1
    stage.tick(2 * RETENTION_EVERY_S + 4, 31)
    assert stage.replica.advanced == [20], "the cursor was removed"
    assert stage.holding() == 0


def loading(content: bytes, snapshot_id: SnapshotId) -> tuple[Image | None, int]:
    snapshots = FakeSnapshots()
    snapshots.content[snapshot_id] = content
    load = SnapshotLoad(snapshots, snapshot_id)  # type: ignore[arg-type]
    for step in range(10_000):
        found = load.step()
        if found is not None:
            return found, step
    raise AssertionError("never")


def large(offset: int) -> bytes:
    builder = ImageBuilder(Image())
    messages = [
        pb.ConfigRecord(resource_type=2, resource_name=f"r{n}", name="k", value="v" * 100)
        for n in range(offset + 1)
    ]
    builder.apply_batch([record(m) for m in messages], base_offset=0, epoch=1, timestamp_ms=1)
    made = builder.snapshot()
    return b"".join(pieces(made, header_of(made, cluster_id="c", generations=())))


def test_loading_processes_one_batch_a_step() -> None:
    content = large(3000)
    found, steps = loading(content, SnapshotId(3001, 1))
    assert found is not None
    assert found.offset == 3000
    assert len(found.configs) == 3001
    assert steps >= len(content) // BATCH_BYTES > 10


def test_missing_or_differently_named_snapshot_yields_no_state() -> None:
    with pytest.raises(CorruptLogError, match="has a header with end offset"):
        loading(large(3), SnapshotId(5, 1))

    class Gone(FakeSnapshots):
        def read(self, snapshot_id: SnapshotId, position: int, max_bytes: int) -> bytes:
            raise LookupError(snapshot_id)

    with pytest.raises(CorruptLogError, match="does not exist"):
        SnapshotLoad(Gone(), SnapshotId(5, 1)).step()  # type: ignore[arg-type]


def test_metrics_show_the_snapshot_figures() -> None:
    from prometheus_client import generate_latest

    from raftlog.node.observability.node_metrics import add_snapshot_metrics
    from raftlog.node.observability.registry import MetricsRegistry

    stage = Stage()
    now = 7.0
    registry = MetricsRegistry(process=False)
    add_snapshot_metrics(registry, lambda: stage.snapshots.figures(now))

    def shown() -> dict[str, float]:
        lines = generate_latest(registry.registry).decode().splitlines()
        return {
            line.split()[0]: float(line.split()[1]) for line in lines if not line.startswith("#")
        }

    age = "kafka_server_snapshot_emitter_latest_snapshot_generated_age_seconds"
    size = "kafka_server_snapshot_emitter_latest_snapshot_generated_bytes"
    loads = "kafka_server_metadata_loader_handle_load_snapshot_count_total"
    cursors = {"raftlog_export_cursors_holding_log": 0, "raftlog_export_cursors_passed_total": 0}
    nothing = {"raftlog_snapshots": 0, "raftlog_snapshot_size_bytes": 0, size: 0, age: 7, loads: 0}
    assert shown() == nothing | cursors
    stage.take(11)
    stage.snapshots.installed(9.0, stage.applied_bytes)
    now = 4.0
    written = len(stage.replica.snapshots.content[SnapshotId(11, 1)])
    assert shown() == {
        "raftlog_snapshots": 1, "raftlog_snapshot_size_bytes": written, size: written, age: 2, loads: 1, **cursors
    }  # fmt: skip
