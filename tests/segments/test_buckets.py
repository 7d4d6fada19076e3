"""Records by entity group."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from exports import publish, written
from log_history import CLUSTER_ID, LogHistory
from msgspec.structs import replace

from raftlog.segments import files, range_checks
from raftlog.segments.buckets import COUNT, add_buckets
from raftlog.segments.compact import compact
from raftlog.segments.errors import CorruptExportError, ExportDiskError
from raftlog.segments.files import LocalPlace
from raftlog.segments.manifest import BY_GROUP, RAW, RECORDS, Bucket, Manifest, read_manifest
from raftlog.segments.parquet_files import buckets_of_range
from raftlog.segments.range_checks import Fault, check_range
from raftlog.segments.verify import verify_export
from raftlog.segments.writer import KEEP_RETIRED_MS, ExportWriter

ROWS = 100


@pytest.fixture(scope="module")
def history() -> LogHistory:
    return LogHistory(33).run(440)


@pytest.fixture(scope="module")
def exports(history: LogHistory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export without buckets, and the same with them. Not to be modified: take a copy."""
    exports = tmp_path_factory.mktemp("exports")
    written(history, exports / "plain", max_segment_records=ROWS, checkpoint_records=0)
    with at(shutil.copytree(exports / "plain", exports / "bucketed")) as writer:
        assert add_buckets(writer)
    return exports


@pytest.fixture
def exported(exports: Path, tmp_path: Path) -> Path:
    """Ranges of about a hundred records, the last one smaller than half of that."""
    return Path(shutil.copytree(exports / "plain", tmp_path / "exported"))


@pytest.fixture
def bucketed(exports: Path, tmp_path: Path) -> Path:
    """Export as ``exported`` does, with buckets."""
    return Path(shutil.copytree(exports / "bucketed", tmp_path / "bucketed"))


def at(directory: Path, *, max_records: int = ROWS, now_ms: int = 1_000_000_000) -> ExportWriter:
    sizes: dict[str, Any] = {"max_segment_records": max_records, "checkpoint_records": 0}
    return ExportWriter(directory, CLUSTER_ID, 0, clock=lambda: now_ms / 1000, **sizes)


def rows(directory: Path, *segments: Bucket) -> list[dict[str, object]]:
    return [row for one in segments for row in pq.read_table(directory / one.file).to_pylist()]


def faults(directory: Path, begin: int = -1) -> list[Fault]:
    """Return the faults of all ranges, or of the one that begins at this offset."""
    manifest, place = read_manifest(directory), LocalPlace(directory)
    raws = [one for one in manifest.of_kind(RAW) if begin in (-1, one.base_offset)]
    return [fault for one in raws for fault in check_range(place, manifest, one).faults]


def test_each_row_is_in_the_bucket_of_its_group_and_of_its_client(exported: Path) -> None:
    with at(exported) as writer:
        large = [one for one in writer.manifest.of_kind(RECORDS) if one.records * 2 > ROWS]
        assert add_buckets(writer) == len(large)
        assert add_buckets(writer) == 0
    manifest = verify_export(exported)
    assert faults(exported) == []
    (last,) = set(manifest.of_kind(RECORDS)) - set(large)
    assert buckets_of_range(manifest, last) == []
    both = 0
    for segment in large:
        expected: list[list[dict[str, object]]] = [[] for _ in range(COUNT)]
        for row in pq.read_table(exported / segment.file).to_pylist():
            ids = [row["group_id"]] if row["group_id"] is not None else []
            if row["client_id"] and row["sequence"] and row["offset"] == row["batch_last_offset"]:
                ids.append(str(row["client_id"]))
            places = {crc32(each.encode()) % COUNT for each in ids}
            both += len(places) == 2
            for bucket in places:
                expected[bucket].append(row)
        buckets = buckets_of_range(manifest, segment)
        assert [rows(exported, one) for one in buckets] == expected
        assert [one.records for one in buckets] == [len(some) for some in expected]
    assert both > 5


def test_merged_bucketed_files_lose_their_buckets(history: LogHistory, bucketed: Path) -> None:
    old = {one.file for one in read_manifest(bucketed).buckets}
    with at(bucketed, max_records=10_000) as writer:
        assert compact(writer) > 2
        assert writer.manifest.buckets == ()
        assert old <= {one.file for one in writer.manifest.retired}
        assert add_buckets(writer) == 0
    with at(bucketed, max_records=300) as writer:
        assert add_buckets(writer) == 1
    verify_export(bucketed)
    with at(bucketed, now_ms=1_000_000_000 + KEEP_RETIRED_MS) as writer:
        writer.commit(history.end_offset)
    there = {f"buckets/{path.name}" for path in (bucketed / "buckets").iterdir()}
    assert there == {one.file for one in read_manifest(bucketed).buckets}


@pytest.mark.parametrize("call", [0, 1, COUNT - 1, COUNT])
def test_next_writer_removes_what_a_crash_left(
    exported: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    calls = 0

    def counted(real: Callable[..., None]) -> Callable[..., None]:
        def step(*arguments: object) -> None:
            nonlocal calls
            calls += 1
            if calls > call:
                raise KeyboardInterrupt
            real(*arguments)

        return step

    with monkeypatch.context() as patch:
        for name in ("put", "replace"):
            patch.setattr(LocalPlace, name, counted(getattr(LocalPlace, name)))
        with at(exported) as writer, pytest.raises(KeyboardInterrupt):
            add_buckets(writer)
    assert read_manifest(exported).buckets == ()
    with at(exported):
        assert list((exported / "buckets").iterdir()) == []


def test_bucket_contents_are_checked_against_the_records(bucketed: Path) -> None:
    manifest = read_manifest(bucketed)
    one = max(manifest.buckets, key=lambda each: each.records)
    path, good = bucketed / one.file, (bucketed / one.file).read_bytes()

    def forged(table: pa.Table) -> list[Fault]:
        """Make the manifest match the forged file."""
        pq.write_table(table, path)
        other = replace(
            one, bytes=path.stat().st_size, sha256=files.sha256_of(path), records=table.num_rows
        )
        exchange(bucketed, manifest, [other if each == one else each for each in manifest.buckets])
        return faults(bucketed, one.base_offset)

    whole = pq.read_table(path)
    (left_out,) = forged(whole.slice(0, whole.num_rows - 1))
    assert (left_out.check, left_out.file) == ("FORMS", one.file)
    assert "it ends before offset" in left_out.message
    (added,) = forged(pa.concat_tables([whole, whole.slice(0, 1)]))
    assert (added.check, added.file) == ("FORMS", one.file)
    at_name = whole.schema.get_field_index("principal")
    (told,) = forged(
        whole.set_column(at_name, "principal", pa.array(["mallory"] * whole.num_rows, pa.string()))
    )
    assert "column principal has mallory at offset" in told.message
    path.write_bytes(good[:-1])
    exchange(bucketed, manifest, list(manifest.buckets))
    (damaged,) = faults(bucketed, one.base_offset)
    assert (damaged.check, damaged.file) == ("FILE", one.file)
    with pytest.raises(CorruptExportError, match=one.file):
        verify_export(bucketed)


def exchange(directory: Path, manifest: Manifest, buckets: list[Bucket]) -> None:
    assert manifest.bucketing is not None
    publish(directory, manifest, bucketing=replace(manifest.bucketing, segments=tuple(buckets)))


def test_range_has_all_of_its_buckets(bucketed: Path) -> None:
    manifest = read_manifest(bucketed)
    for wrong in (
        list(manifest.buckets[1:]),
        [replace(manifest.buckets[0], last_offset=5), *manifest.buckets[1:]],
        [replace(manifest.buckets[0], bucket=1), *manifest.buckets[1:]],
    ):
        exchange(bucketed, manifest, wrong)
        with pytest.raises(CorruptExportError, match=r"manifest.json lists the buckets"):
            read_manifest(bucketed)
    exchange(bucketed, manifest, [replace(manifest.buckets[0], file="../x"), *manifest.buckets[1:]])
    with pytest.raises(CorruptExportError, match=r"lists \.\./x"):
        read_manifest(bucketed)


def test_disk_error_during_the_comparison_is_not_reported_as_a_fault(
    exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    # Behind the hashes, which are sound.
    monkeypatch.setattr(range_checks, "pq", SimpleNamespace(ParquetFile=failing))
    with pytest.raises(ExportDiskError, match="Input/output error"):
        faults(exported)


def test_buckets_by_another_rule_are_left_alone(bucketed: Path) -> None:
    with at(bucketed) as writer:
        bucketing = writer.manifest.bucketing
        assert bucketing is not None
        # What would be wrong by our rule may be right by theirs.
        first, second, *others = bucketing.segments
        swapped = (replace(second, bucket=0), replace(first, bucket=1), *others)
        writer.amend(bucketing=replace(bucketing, by="murmur3(topic)", segments=swapped))
        assert add_buckets(writer) == 0
        assert buckets_of_range(writer.manifest, writer.manifest.of_kind(RECORDS)[0]) == ()
    assert faults(bucketed) == []
    ours = replace(read_manifest(bucketed), bucketing=replace(bucketing, by=BY_GROUP))
    exchange(bucketed, ours, list(swapped))
    assert {one.check for one in faults(bucketed)} == {"FORMS"}
