"""Exports: round trip, continuation, and crashes."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from exports import Crash, written
from log_history import CLUSTER_ID, LogHistory

from raftlog import batch
from raftlog.errors import CorruptLogError
from raftlog.metadata.acls import AclOperation, AclPermission, AclResourceType, PatternType
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import RecordType, UnknownRecordError
from raftlog.segments import files
from raftlog.segments.columns import SCHEMA, plain_fields, typed_values
from raftlog.segments.errors import ExportError, ExportGapError, ExportMismatchError
from raftlog.segments.export import export
from raftlog.segments.manifest import RAW, RECORDS, read_manifest
from raftlog.segments.raw import read_batches
from raftlog.segments.verify import verify_export
from raftlog.segments.writer import ExportWriter, OpenPair
from raftlog.wire.records.v1 import records_pb2 as pb


@pytest.fixture(scope="module")
def history() -> LogHistory:
    return LogHistory(3).run(600)


def raw_bytes(directory: Path) -> bytes:
    files = [directory / one.file for one in read_manifest(directory).of_kind(RAW)]
    return b"".join(data for file in files for data in read_batches(file))


def row_list(directory: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(directory / RECORDS).to_pylist()
    return rows


def test_rows_hold_the_records_and_fold_to_their_state(history: LogHistory, tmp_path: Path) -> None:
    export(history, tmp_path)
    rows = row_list(tmp_path)
    assert [row["offset"] for row in rows] == list(range(history.end_offset))
    by_batch: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        by_batch.setdefault(row["batch_base_offset"], []).append(row)
    of_batch = ["epoch", "timestamp_ms", "control", "principal"]
    of_batch += ["client_id", "sequence", "all_below_done"]
    rebuilt = []
    for base, group in sorted(by_batch.items()):
        records = [batch.RecordData(row["type"], row["version"], row["body"]) for row in group]
        fields = {name: group[0][name] for name in of_batch}
        rebuilt.append(batch.encode(records, base_offset=base, **fields))
        assert {row["batch_last_offset"] for row in group} == {base + len(group) - 1}
    assert rebuilt == history.batches
    draft = ImageBuilder(Image())
    draft.apply_chunk(b"".join(rebuilt))
    assert draft.snapshot().state_hash == history.hashes[history.end_offset - 1]


def test_typed_columns_hold_the_fields_of_records(tmp_path: Path) -> None:
    history = LogHistory(4)
    topic_id = history.create_topic("orders", 1)
    set_at = history.alter_config("orders", "retention.ms", "5", principal="User:bob")
    deleted_at = history.alter_config("orders", "retention.ms", None)
    isr_at = history.alter_isr("orders", 0, [1, 2])
    unclean = history.changed(topic_id, isr=[3], leader=3, leader_recovery_state=1)
    unclean_at = history.append(unclean)
    moving_at = history.append(history.changed(topic_id, adding_replicas=[2], removing_replicas=[]))
    history.progress()
    export(history, tmp_path)
    assert pq.read_table(tmp_path / RECORDS).schema.equals(SCHEMA, check_metadata=False)
    rows = row_list(tmp_path)

    def told(at: int, *names: str) -> tuple[Any, ...]:
        return tuple(rows[at][name] for name in names)

    first = told(0, "type_name", "control", "leader_id", "group_kind")
    assert first == ("LEADER_CHANGE", True, 1, "leader")
    config = ("principal", "config_name", "config_value")
    assert told(set_at, *config) == ("User:bob", "retention.ms", "5")
    assert told(deleted_at, "config_value") == (None,)
    epochs = ("leader_epoch", "partition_epoch", "leader_recovery_state", "adding_replicas")
    assert told(set_at - 1, *epochs) == (0, 0, 0, [])
    assert told(isr_at, "topic_id", "isr", "leader") == (topic_id.hex(), [1, 2], None)
    assert told(isr_at, "leader_recovery_state") == (None,)
    assert [member["broker_id"] for member in rows[isr_at]["isr_with_epochs"]] == [1, 2]
    led = ("leader_recovery_state", "leader", "leader_epoch", "replicas")
    assert told(unclean_at, *led) == (1, 3, None, None)
    assert told(moving_at, "adding_replicas", "removing_replicas") == ([2], [])
    assert [entry["broker_id"] for entry in rows[-1]["applied"]] == [1, 2, 3]
    assert rows[-1]["high_watermark"] == history.end_offset - 1
    assert int(rows[5]["timestamp"].timestamp() * 1000) == rows[5]["timestamp_ms"]


def test_columns_contain_entries_and_owners(tmp_path: Path) -> None:
    """An entry's principal and resource type are not in the columns of batches and configs."""
    log = LogHistory(5)
    added_at = log.end_offset
    id_ = log.add_entry(
        "User:alice", AclOperation.READ, AclResourceType.CLIENT_SESSION, "s-",
        pattern=PatternType.PREFIXED, host="10.0.0.1", permission=AclPermission.DENY, by="User:admin",
    )  # fmt: skip
    removed_at = log.remove_entry(id_)
    owned_at = log.append(pb.OpenClientRecord(name="c", principal="User:bob"))
    free_at = log.append(pb.OpenClientRecord(name="d"))
    export(log, tmp_path)
    rows = row_list(tmp_path)
    added = rows[added_at]
    assert (added["principal"], added["acl_principal"]) == ("User:admin", "User:alice")
    assert (added["resource_type"], added["acl_resource_type"]) == (None, 100)
    names = ("resource_name", "pattern_type", "host", "operation", "permission_type")
    assert [added[name] for name in names] == ["s-", 4, "10.0.0.1", 3, 2]
    for at in (added_at, removed_at):
        assert (rows[at]["group_kind"], rows[at]["group_id"]) == ("acl", id_.hex())
    assert rows[removed_at]["acl_principal"] is None
    clients = [
        (rows[at]["client_name"], rows[at]["client_principal"]) for at in (owned_at, free_at)
    ]
    assert clients == [("c", "User:bob"), ("d", None)]


def test_column_contains_voters(tmp_path: Path) -> None:
    log = LogHistory(5)
    names = ("voter_id", "voter_directory_id", "endpoint")
    entries: list[Any] = [
        dict(zip(names, each, strict=True)) for each in ((1, "one", "h:1"), (2, "", "h:2"))
    ]
    voters = [pb.VoterEntry(**each) for each in entries]
    at = log.append(pb.VotersRecord(voters=voters), control=True)
    export(log, tmp_path)
    column = pq.read_table(tmp_path / RECORDS)["voters"].to_pylist()
    assert column == [None] * at + [entries]


def test_export_has_the_exact_bytes_and_its_manifest_describes_it(
    history: LogHistory, tmp_path: Path
) -> None:
    seen: list[tuple[int, int]] = []
    summary = export(history, tmp_path, lambda done, total: seen.append((done, total)))
    assert seen[-1] == (history.end_offset, history.end_offset)
    assert raw_bytes(tmp_path) == b"".join(history.batches)
    assert (summary.first_offset, summary.end_offset) == (0, history.end_offset)
    assert summary.batches == len(history.batches)
    manifest = read_manifest(tmp_path)
    assert (manifest.cluster_id, manifest.generation, manifest.history_begin) == (CLUSTER_ID, 0, 0)
    assert (manifest.metadata_version, manifest.features) == (2, {"metadata.version": 2})
    assert manifest.high_watermark == manifest.end_offset == history.end_offset
    for segment in manifest.segments:
        assert segment.records == history.end_offset
        assert segment.batches == len(history.batches)
        assert (segment.first_epoch, segment.last_epoch) == (1, history.epoch)
        assert segment.bytes == (tmp_path / segment.file).stat().st_size
        assert segment.sha256 == files.sha256_of(tmp_path / segment.file)
        assert segment.max_timestamp_ms == history.timestamp_ms


def test_segments_are_bounded_and_named_by_offset(history: LogHistory, tmp_path: Path) -> None:
    written(history, tmp_path / "records", max_segment_records=100)
    manifest = verify_export(tmp_path / "records")
    assert len(manifest.of_kind(RECORDS)) >= 5
    for segment in manifest.of_kind(RECORDS):
        span = f"{segment.base_offset:020d}-{segment.last_offset:020d}"
        assert segment.file == f"records/{span}.parquet"
        assert segment.records < 100 + 40
    assert raw_bytes(tmp_path / "records") == b"".join(history.batches)
    written(history, tmp_path / "bytes", max_segment_bytes=10_000)
    assert len(verify_export(tmp_path / "bytes").of_kind(RAW)) > 3


def test_tilde_names_a_directory(
    history: LogHistory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[The rows of an export to "~/x", unexpanded by a shell, went into the home directory.]"""
    monkeypatch.chdir(tmp_path)
    export(history, Path("~/x"))
    verify_export(tmp_path / "~" / "x")


def test_incremental_export_adds_only_new_records(tmp_path: Path) -> None:
    history = LogHistory(5).run(100)
    first = export(history, tmp_path)
    before = read_manifest(tmp_path)
    history.run(250)
    second = export(history, tmp_path)
    assert (second.first_offset, second.end_offset) == (first.end_offset, history.end_offset)
    assert read_manifest(tmp_path).segments[:2] == before.segments
    assert raw_bytes(tmp_path) == b"".join(history.batches)
    third = export(history, tmp_path)
    assert (third.records, third.files) == (0, 0)
    verify_export(tmp_path)


class Trimmed:
    """A log whose first records are deleted."""

    cluster_id, generation, connections = CLUSTER_ID, 0, 0

    def __init__(self, history: LogHistory) -> None:
        self.start_offset, self.high_watermark = sorted(history.positions)[9], history.end_offset
        self.read = history.read


def first_batch(history: LogHistory, directory: Path) -> None:
    """Export the first batch."""
    with ExportWriter(directory, CLUSTER_ID, 0) as writer:
        writer.append_chunk(history.batches[0])
        writer.commit(1)


def test_log_with_a_late_start_is_exported(history: LogHistory, tmp_path: Path) -> None:
    source = Trimmed(history)
    assert export(source, tmp_path).history_begin == source.start_offset
    verify_export(tmp_path)


def test_retention_beyond_the_export_is_a_gap(history: LogHistory, tmp_path: Path) -> None:
    first_batch(history, tmp_path)
    source = Trimmed(history)
    told = f"before offset 1, but the log now starts at {source.start_offset};"
    with pytest.raises(ExportGapError, match=told):
        export(source, tmp_path)


@pytest.mark.parametrize(("index", "what"), [(2, "a gap"), (0, "an overlap")])
def test_gap_and_overlap_are_reported(
    history: LogHistory, tmp_path: Path, index: int, what: str
) -> None:
    first_batch(history, tmp_path)
    told = pytest.raises(ExportGapError, match=f"^{what}.* before offset 1,")
    with ExportWriter(tmp_path, CLUSTER_ID, 0) as writer, told:
        writer.append_chunk(history.batches[index])
    assert read_manifest(tmp_path).end_offset == 1


@pytest.mark.parametrize(("cluster_id", "generation"), [("another", 0), (CLUSTER_ID, 1)])
def test_another_log_is_refused(
    history: LogHistory, tmp_path: Path, cluster_id: str, generation: int
) -> None:
    export(history, tmp_path)
    told = f"not to cluster {cluster_id} generation {generation}"
    with pytest.raises(ExportMismatchError, match=told):
        ExportWriter(tmp_path, cluster_id, generation)


def test_decreasing_epoch_is_refused(history: LogHistory, tmp_path: Path) -> None:
    export(history, tmp_path)
    at: dict[str, Any] = {"base_offset": history.end_offset, "timestamp_ms": history.timestamp_ms}
    older = batch.encode([batch.RecordData(20, 0, b"")], epoch=0, **at)
    told = pytest.raises(ExportMismatchError, match="another log")
    with ExportWriter(tmp_path, CLUSTER_ID, 0) as writer, told:
        writer.append_chunk(older)


def test_corrupt_chunk_is_refused_and_changes_nothing(history: LogHistory, tmp_path: Path) -> None:
    data = bytearray(b"".join(history.batches[:5]))
    data[-1] ^= 1
    with ExportWriter(tmp_path, CLUSTER_ID, 0) as export_writer:
        with pytest.raises(CorruptLogError):
            export_writer.append_chunk(bytes(data))
        with pytest.raises(ExportError, match="failed earlier"):
            export_writer.append_chunk(history.batches[0])
    assert read_manifest(tmp_path).segments == ()
    assert [path.name for path in (tmp_path / RAW).iterdir()] == []


def test_unknown_record_is_refused(tmp_path: Path) -> None:
    data = batch.encode([batch.RecordData(999, 0, b"")], base_offset=0, epoch=1, timestamp_ms=1)
    told = pytest.raises(UnknownRecordError, match="999")
    with ExportWriter(tmp_path, CLUSTER_ID, 0) as writer, told:
        writer.append_chunk(data)


def test_commit_above_the_high_watermark_is_refused(history: LogHistory, tmp_path: Path) -> None:
    with ExportWriter(tmp_path, CLUSTER_ID, 0) as export_writer:
        export_writer.append_chunk(history.batches[0])
        with pytest.raises(ExportError, match="above the high watermark 0"):
            export_writer.commit(0)


def test_export_directory_admits_one_writer(tmp_path: Path) -> None:
    told = pytest.raises(ExportError, match="another export is writing")
    with ExportWriter(tmp_path, CLUSTER_ID, 0), told:
        ExportWriter(tmp_path, CLUSTER_ID, 0)
    ExportWriter(tmp_path, CLUSTER_ID, 0).close()


STEPS = ("sync_file", "publish", "sha256_of", "write_atomically")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("when", [0, 1])
def test_crash_between_steps_leaves_the_old_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, when: int
) -> None:
    history = LogHistory(6).run(80)
    export(history, tmp_path)
    before = (tmp_path / "manifest.json").read_bytes()
    history.run(160)
    calls = 0
    real = getattr(files, step)

    def crashing(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls > when or (calls == 1 and step in ("sha256_of", "write_atomically")):
            raise Crash
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(files, step, crashing)
        # A dead process tidies nothing up.
        patch.setattr(OpenPair, "abandon", lambda self: None)
        with pytest.raises(Crash):
            export(history, tmp_path)
    assert (tmp_path / "manifest.json").read_bytes() == before
    verify_export(tmp_path)

    # The log has grown, so the next files have other names than those left behind.
    export(history.run(200), tmp_path)
    assert raw_bytes(tmp_path) == b"".join(history.batches)
    named = {segment.file for segment in verify_export(tmp_path).segments}
    kinds = (RAW, RECORDS)
    assert named == {f"{kind}/{one.name}" for kind in kinds for one in (tmp_path / kind).iterdir()}


@pytest.mark.parametrize(
    ("file", "target", "why"),
    [
        ("thesis.txt", "", r"not empty \(thesis\.txt\) and contains no manifest"),
        ("e/records/mine.parquet", "e", r"mine\.parquet is not part of this export"),
        ("file", "file/export", r"cannot write to .*file/export"),
    ],
)
def test_directory_with_files_of_others_is_left_alone(
    history: LogHistory, tmp_path: Path, file: str, target: str, why: str
) -> None:
    if target == "e":
        export(history, tmp_path / target)
    (tmp_path / file).write_text("years of work")
    with pytest.raises(ExportError, match=why):
        ExportWriter(tmp_path / target, CLUSTER_ID, 0)
    assert (tmp_path / file).read_text() == "years of work"


def test_source_without_records_is_an_error(history: LogHistory, tmp_path: Path) -> None:
    class Empty:
        cluster_id, generation, start_offset, high_watermark = CLUSTER_ID, 0, 0, 5
        connections = 1

        def read(self, offset: int, max_bytes: int) -> bytes:
            return b""

    with pytest.raises(ExportError, match="returned no records at offset 0"):
        export(Empty(), tmp_path)


def test_record_without_own_columns_has_one_for_each_plain_field() -> None:
    assert plain_fields(RecordType.KEY_VALUE) == {
        "key_value_key": pa.string(), "key_value_value": pa.binary(), "key_value_lease_id": pa.int64(),
    }  # fmt: skip
    assert typed_values(RecordType.LEASE, pb.LeaseRecord(name="a")) == {
        "lease_name": "a", "lease_ttl_ms": 0, "lease_principal": "",
    }  # fmt: skip
    kept, removed = pb.ExportCursorRecord(name="a", end_offset=0), pb.ExportCursorRecord(name="a")
    assert typed_values(RecordType.EXPORT_CURSOR, kept) == {"cursor_end_offset": 0}
    assert typed_values(RecordType.EXPORT_CURSOR, removed) == {}
    assert "progress_applied" not in plain_fields(RecordType.PROGRESS)
