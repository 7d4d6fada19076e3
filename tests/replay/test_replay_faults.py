"""Damage and misuse are reported in one readable paragraph, never by a wrong answer."""

import json
import shutil
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
from asking import ask, opened
from log_history import CLUSTER_ID, LogHistory
from msgspec.structs import replace
from spark_runs import Replay

from raftlog import batch
from raftlog.cli.exits import Exit
from raftlog.metadata.image import FoldError
from raftlog.metadata.records import record
from raftlog.segments import files
from raftlog.segments.errors import CorruptExportError, ExportError, ExportMismatchError
from raftlog.segments.export import export
from raftlog.segments.manifest import MANIFEST_NAME, RECORDS, Segment, encode, read_manifest
from raftlog.segments.writer import ExportWriter
from raftlog.text import counted
from raftlog.wire.records.v1 import records_pb2 as pb
from replay.errors import ReplayError, exit_code, explain


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    history = LogHistory(61)
    export(history.run(100), tmp_path / "export")
    export(history.run(200), tmp_path / "export")
    return tmp_path / "export"


def second(directory: Path) -> Segment:
    return read_manifest(directory).of_kind(RECORDS)[1]


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def readable(error: Exception) -> str:
    text = str(error)
    assert len(text.splitlines()) == 1
    for noise in ("Traceback", "py4j", "org.apache", "\tat "):
        assert noise not in text
    return text


def test_corrupt_file_is_reported_with_its_offsets(replay: Replay, exported: Path) -> None:
    segment = second(exported)
    flip(exported / segment.file, 1000)
    with pytest.raises(CorruptExportError) as caught:
        replay("summary", exported)
    assert (
        f"{segment.file} (offsets {segment.base_offset} to {segment.last_offset}) is corrupt"
        in readable(caught.value)
    )


def test_corrupt_file_that_is_not_needed_does_not_matter(exported: Path) -> None:
    segment = second(exported)
    flip(exported / segment.file, 1000)
    assert (
        ask("state", exported, at_offset=segment.base_offset - 1).point.offset
        == segment.base_offset - 1
    )


def test_page_changed_after_the_check_fails_its_checksum(replay: Replay, exported: Path) -> None:
    """The hash in the manifest is made to match, as if the byte had flipped between check and read."""
    segment = second(exported)
    path = exported / segment.file
    body = next(
        column
        for column in (pq.read_metadata(path).row_group(0).column(index) for index in range(20))
        if column.path_in_schema == "body"
    )
    # The compressed data of the column's only page, well after its header.
    flip(path, body.data_page_offset + body.total_compressed_size // 2)
    manifest = read_manifest(exported)
    fitting = replace(segment, sha256=files.sha256_of(path))
    segments = tuple(fitting if each.file == segment.file else each for each in manifest.segments)
    (exported / MANIFEST_NAME).write_bytes(encode(replace(manifest, segments=segments)))
    with pytest.raises(CorruptExportError) as caught:
        replay("summary", exported)
    text = readable(caught.value)
    assert f"{segment.file} (offsets {segment.base_offset} to {segment.last_offset})" in text
    assert "checksum of a page does not match" in text


def test_missing_file_is_reported(replay: Replay, exported: Path) -> None:
    segment = second(exported)
    (exported / segment.file).unlink()
    with pytest.raises(CorruptExportError, match=f"{segment.file}.*is missing"):
        replay("summary", exported)


def test_file_of_another_cluster_is_reported(
    replay: Replay, exported: Path, tmp_path: Path
) -> None:
    other = LogHistory(61)
    other.cluster_id = "another-cluster"
    export(other.run(200), tmp_path / "other")
    segment = second(exported)
    shutil.copy(
        tmp_path / "other" / read_manifest(tmp_path / "other").of_kind(RECORDS)[0].file,
        exported / segment.file,
    )
    with pytest.raises(ExportMismatchError) as caught:
        replay("summary", exported)
    assert (
        "belongs to cluster another-cluster generation 0, but the export belongs to cluster"
        f" {CLUSTER_ID}" in readable(caught.value)
    )


def test_directory_without_a_manifest_is_not_an_export(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="is not an export"):
        ask("summary", tmp_path)


def test_export_without_records_is_refused(tmp_path: Path) -> None:
    ExportWriter(tmp_path, CLUSTER_ID, 0).close()
    with pytest.raises(ReplayError, match="is an export without records"):
        ask("summary", tmp_path)


def test_export_of_a_newer_format_is_refused(exported: Path) -> None:
    path = exported / MANIFEST_NAME
    path.write_bytes(msgspec.json.encode(json.loads(path.read_bytes()) | {"format_version": 9}))
    with pytest.raises(ExportError, match="format version 9"):
        ask("summary", exported)


@pytest.mark.parametrize("job", ["state", "audit", "history", "lao", "summary"])
def test_history_with_a_late_start_is_refused(tmp_path: Path, job: str) -> None:
    history = LogHistory(62).run(100)
    begin = sorted(history.positions)[5]
    with ExportWriter(tmp_path, CLUSTER_ID, 0, start_offset=begin) as writer:
        writer.append_chunk(b"".join(history.batches[5:]))
        writer.commit(history.end_offset)
    with pytest.raises(ReplayError, match=f"begins at offset {begin}"):
        ask(job, tmp_path, key=("broker", "1"))


def test_record_that_does_not_fit_is_reported(replay: Replay, tmp_path: Path) -> None:
    history = LogHistory(63).run(50)
    export(history, tmp_path)
    offset = history.end_offset
    lost = record(pb.PartitionChangeRecord(topic_id=b"x" * 16, partition_id=3)).data
    data = batch.encode(
        [lost], base_offset=offset, epoch=history.epoch, timestamp_ms=history.timestamp_ms
    )
    with ExportWriter(tmp_path, CLUSTER_ID, 0) as writer:
        writer.append_chunk(data)
        writer.commit(offset + 1)
    with pytest.raises(FoldError) as caught:
        replay("state", tmp_path)
    assert readable(caught.value).startswith(f"record PARTITION_CHANGE at offset {offset} names")


def test_unknown_spark_error_keeps_its_first_line() -> None:
    text = (
        "[OUT_OF_DISK] no space left on device\n\tat org.apache.spark.Something(Something.scala:1)"
    )
    assert str(explain(text, [])) == "Spark failed: [OUT_OF_DISK] no space left on device"


def test_time_range_after_the_end_is_refused(exported: Path) -> None:
    end_ms = read_manifest(exported).segments[-1].max_timestamp_ms
    assert opened(exported, since_ms=end_ms).segments
    with pytest.raises(ReplayError, match=r"holds nothing at or after 2023-.*Z: it ends at 2023-"):
        opened(exported, since_ms=end_ms + 1)


def test_count_of_one_is_printed_in_the_singular() -> None:
    assert [counted(count, "time") for count in (0, 1, 2)] == ["0 times", "1 time", "2 times"]
    assert [counted(count, "batch", "batches") for count in (1, 2)] == ["1 batch", "2 batches"]


@pytest.mark.parametrize(
    ("text", "said", "code"),
    [
        ("java.io.FileNotFoundException: File {} does not exist", "is missing", Exit.FOUND),
        (
            "java.io.IOException: Input/output error reading {}",
            "can't be read: Input/output error",
            Exit.DISK,
        ),
        ("java.io.IOException: {} (Permission denied)", "can't be read: Permission", Exit.USAGE),
        ("org.apache.parquet: CRC mismatch in {}", "checksum of a page does not", Exit.FOUND),
        ("org.apache.parquet: expected magic number at tail of {}", "not parse", Exit.FOUND),
        ("java.lang.OutOfMemoryError: Java heap space in {}", "ran out of memory", Exit.USAGE),
        ("java.io.IOException: No space left on device", "No space left on device", Exit.DISK),
    ],
)
def test_reasons_of_unreadable_files_are_distinguished(text: str, said: str, code: Exit) -> None:
    name = "00000000000000000000-00000000000000000009.parquet"
    segment = Segment(
        kind=RECORDS, file=f"records/{name}", base_offset=0, last_offset=9, first_epoch=1,
        last_epoch=1, min_timestamp_ms=0, max_timestamp_ms=0, batches=1, records=10, bytes=1,
        sha256="",
    )  # fmt: skip
    error = explain(text.format(name), [segment])
    found = str(error)
    assert said in found
    assert ("corrupt" in found) is ("parquet:" in text)
    assert exit_code(error) == code
