"""The records by entity group: each row where the rule says, nothing else, made again after a
crash, and held against the records.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from log_history import CLUSTER_ID, LogHistory
from msgspec.structs import replace

from raftlog.segments import files, range_checks
from raftlog.segments.buckets import COUNT, add_buckets
from raftlog.segments.compact import compact
from raftlog.segments.errors import CorruptExportError, ExportDiskError
from raftlog.segments.files import LocalPlace
from raftlog.segments.manifest import (
    BY_GROUP,
    MANIFEST_NAME,
    RAW,
    RECORDS,
    Bucket,
    Manifest,
    encode,
    read_manifest,
)
from raftlog.segments.parquet_files import buckets_of_range
from raftlog.segments.range_checks import Fault, check_range
from raftlog.segments.verify import verify_export
from raftlog.segments.writer import KEEP_RETIRED_MS, ExportWriter

ROWS = 100


@pytest.fixture
def history() -> LogHistory:
    return LogHistory(33).run(440)


@pytest.fixture
def exported(history: LogHistory, tmp_path: Path) -> Path:
    """Ranges of about a hundred records, the last one smaller than half of that."""
    with at(tmp_path) as writer:
        writer.append_chunk(b"".join(history.batches))
        writer.commit(history.end_offset)
    return tmp_path


def at(directory: Path, *, max_records: int = ROWS, now_ms: int = 1_000_000_000) -> ExportWriter:
    return ExportWriter(
        directory,
        CLUSTER_ID,
        0,
        max_segment_records=max_records,
        checkpoint_records=0,
        clock=lambda: now_ms / 1000,
    )


def rows(directory: Path, *segments: Bucket) -> list[dict[str, object]]:
    return [row for one in segments for row in pq.read_table(directory / one.file).to_pylist()]


def faults(directory: Path) -> list[Fault]:
    manifest, place = read_manifest(directory), LocalPlace(directory)
    checked = [check_range(place, manifest, raw) for raw in manifest.of_kind(RAW)]
    return [fault for one in checked for fault in one.faults]


def test_each_row_is_where_its_group_is_and_where_its_client_is(exported: Path) -> None:
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


def test_what_is_merged_again_loses_its_buckets(history: LogHistory, exported: Path) -> None:
    with at(exported) as writer:
        add_buckets(writer)
        old = {one.file for one in writer.manifest.buckets}
    with at(exported, max_records=10_000) as writer:
        assert compact(writer) > 2
        assert writer.manifest.buckets == ()
        assert old <= {one.file for one in writer.manifest.retired}
        assert add_buckets(writer) == 0
    with at(exported, max_records=300) as writer:
        assert add_buckets(writer) == 1
    verify_export(exported)
    with at(exported, now_ms=1_000_000_000 + KEEP_RETIRED_MS) as writer:
        writer.commit(history.end_offset)
    there = {f"buckets/{path.name}" for path in (exported / "buckets").iterdir()}
    assert there == {one.file for one in read_manifest(exported).buckets}


@pytest.mark.parametrize("call", [0, 1, COUNT - 1, COUNT])
def test_a_crash_leaves_nothing_that_the_next_writer_keeps(
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


def test_what_is_not_what_the_records_say_is_found(exported: Path) -> None:
    with at(exported) as writer:
        add_buckets(writer)
    manifest = read_manifest(exported)
    one = max(manifest.buckets, key=lambda each: each.records)
    path, good = exported / one.file, (exported / one.file).read_bytes()

    def forged(table: pa.Table) -> list[Fault]:
        """With a manifest that says that it is right."""
        pq.write_table(table, path)
        other = replace(
            one,
            bytes=path.stat().st_size,
            sha256=files.sha256_of(path),
            records=table.num_rows,
        )
        publish(exported, manifest, [other if each == one else each for each in manifest.buckets])
        return faults(exported)

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
    publish(exported, manifest, list(manifest.buckets))
    (damaged,) = faults(exported)
    assert (damaged.check, damaged.file) == ("FILE", one.file)
    with pytest.raises(CorruptExportError, match=one.file):
        verify_export(exported)


def publish(directory: Path, manifest: Manifest, buckets: list[Bucket]) -> None:
    assert manifest.bucketing is not None
    bucketing = replace(manifest.bucketing, segments=tuple(buckets))
    (directory / MANIFEST_NAME).write_bytes(encode(replace(manifest, bucketing=bucketing)))


def test_a_range_has_all_of_its_buckets(exported: Path) -> None:
    with at(exported) as writer:
        add_buckets(writer)
    manifest = read_manifest(exported)
    for wrong in (
        list(manifest.buckets[1:]),
        [replace(manifest.buckets[0], last_offset=5), *manifest.buckets[1:]],
        [replace(manifest.buckets[0], bucket=1), *manifest.buckets[1:]],
    ):
        publish(exported, manifest, wrong)
        with pytest.raises(CorruptExportError, match=r"manifest.json names buckets"):
            read_manifest(exported)
    publish(exported, manifest, [replace(manifest.buckets[0], file="../x"), *manifest.buckets[1:]])
    with pytest.raises(CorruptExportError, match=r"names \.\./x"):
        read_manifest(exported)


def test_a_disk_that_fails_while_rows_are_compared_is_no_fault_of_theirs(
    exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    # Behind the hashes, which are sound.
    monkeypatch.setattr(range_checks, "pq", SimpleNamespace(ParquetFile=failing))
    with pytest.raises(ExportDiskError, match="Input/output error"):
        faults(exported)


def test_another_rule_is_let_alone(exported: Path) -> None:
    with at(exported) as writer:
        add_buckets(writer)
        bucketing = writer.manifest.bucketing
        assert bucketing is not None
        # What would be wrong by our rule may be right by theirs.
        first, second, *others = bucketing.segments
        swapped = (replace(second, bucket=0), replace(first, bucket=1), *others)
        writer.amend(bucketing=replace(bucketing, by="murmur3(topic)", segments=swapped))
        assert add_buckets(writer) == 0
        assert buckets_of_range(writer.manifest, writer.manifest.of_kind(RECORDS)[0]) == ()
    assert faults(exported) == []
    ours = replace(read_manifest(exported), bucketing=replace(bucketing, by=BY_GROUP))
    publish(exported, ours, list(swapped))
    assert {one.check for one in faults(exported)} == {"FORMS"}
