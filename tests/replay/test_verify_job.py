"""The job verify: a good export passes, and every defect is named at once."""

import shutil
from io import StringIO
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from asking import ask, ask_shared
from log_history import CLUSTER_ID, LogHistory
from msgspec.structs import replace
from rich.console import Console
from spark_runs import Replay
from tiers import nightly

from raftlog import batch
from raftlog.metadata.entities import format_hash
from raftlog.segments import files
from raftlog.segments.errors import CorruptExportError
from raftlog.segments.manifest import (
    MANIFEST_NAME,
    RAW,
    RECORDS,
    Segment,
    StateHash,
    encode,
    read_manifest,
)
from raftlog.segments.range_checks import Fault
from raftlog.segments.writer import ExportWriter
from replay.errors import ReplayError
from replay.jobs import verify


def said(
    history: LogHistory, offset: int, node_id: int, source: str = "image", **other: object
) -> StateHash:
    one = StateHash(
        offset=offset,
        epoch=epoch_at(history, offset),
        state_hash=format_hash(history.hashes[offset]),
        node_id=node_id,
        source=source,
    )
    return replace(one, **other)


def epoch_at(history: LogHistory, offset: int) -> int:
    (header,) = [
        header
        for data in history.batches
        for header in batch.headers(data, verify=False)
        if header.last_offset == offset
    ]
    return header.epoch


@pytest.fixture(scope="module")
def history() -> LogHistory:
    return LogHistory(91).run(400)


@pytest.fixture(scope="module")
def good(history: LogHistory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four pairs of files, the reports of two nodes at the end, and a snapshot's in between."""
    directory = tmp_path_factory.mktemp("verify") / "export"
    ends = sorted(history.hashes)
    with ExportWriter(directory, CLUSTER_ID, 0, max_segment_records=100) as writer:
        writer.append_chunk(b"".join(history.batches))
        writer.record(
            [
                said(history, ends[-1], 1),
                said(history, ends[-1], 2),
                said(history, ends[90], 3, "snapshot"),
            ]
        )
        writer.commit(history.end_offset)
    return directory


@pytest.fixture
def copy(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "copy"))


def refit(directory: Path, *segments: Segment, **fields: object) -> None:
    """Make the manifest match the modified files, as a forger would."""
    manifest = read_manifest(directory)
    fitting = {one.file: one for one in segments}
    changed = []
    for one in manifest.segments:
        path = directory / one.file
        named = fitting.get(one.file, one)
        changed.append(replace(named, bytes=path.stat().st_size, sha256=files.sha256_of(path)))
    (directory / MANIFEST_NAME).write_bytes(
        encode(replace(manifest, segments=tuple(changed), **fields))
    )


def rewrite_column(path: Path, name: str, column: pa.Array) -> None:
    """Replace a column of a Parquet file."""
    table = pq.read_table(path)
    metadata = pq.read_metadata(path).metadata
    table = table.set_column(table.schema.get_field_index(name), table.schema.field(name), column)
    table = table.replace_schema_metadata(metadata)
    pq.write_table(table, path, compression="zstd", write_page_checksum=True, store_schema=False)


def only_fault(result: verify.VerifyResult) -> Fault:
    assert not result.passed
    (fault,) = result.faults
    assert result.total == 1
    return fault


@pytest.mark.parametrize("tasks", [None, 1, 7, nightly(200)])
def test_verify_passes_a_good_export_in_any_number_of_tasks(
    replay: Replay, history: LogHistory, good: Path, tasks: int | None
) -> None:
    result = ask_shared(tasks, "verify", good) if tasks else replay("verify", good)
    assert result.passed
    assert (result.files, result.records, result.batches) == (
        len(read_manifest(good).segments), history.end_offset, len(history.batches),
    )  # fmt: skip
    assert result.state_hash == format_hash(history.hashes[history.end_offset - 1])
    assert result.end_said_by == ["node 1", "node 2"]
    assert [(state.said_by, state.agrees) for state in result.states] == [
        (["a snapshot of node 3"], True), (["node 1", "node 2"], True),
    ]  # fmt: skip
    out = StringIO()
    verify.render(result, Console(file=out, width=200))
    assert "2 recorded states agree with the fold" in out.getvalue()


def test_state_that_no_node_had_is_reported(history: LogHistory, copy: Path) -> None:
    ends = sorted(history.hashes)
    other = said(history, ends[50], 2, state_hash="0" * 32)
    refit(copy, state_hashes=(said(history, ends[50], 1), other))
    result = ask_shared(2, "verify", copy)
    fault = only_fault(result)
    assert (fault.check, fault.first_offset) == ("STATE", ends[50])
    right = format_hash(history.hashes[ends[50]])
    assert f"the fold gives the state hash {right}, but node 2 had {'0' * 32}" in fault.message
    assert [state.agrees for state in result.states] == [False, True]
    assert result.end_said_by == []


def test_state_reported_after_another_record_is_reported(history: LogHistory, copy: Path) -> None:
    """By a node that followed another leader at that offset; and at an offset inside a batch."""
    ends = sorted(history.hashes)
    inside = next(end for before, end in pairwise(ends) if end - before > 1) - 1
    forked = said(history, ends[60], 3, epoch=epoch_at(history, ends[60]) + 1)
    refit(copy, state_hashes=(forked, replace(forked, offset=inside)))
    faults = ask_shared(2, "verify", copy).faults
    texts = {fault.first_offset: fault.message for fault in faults if fault.check == "CHAIN"}
    assert f"but a batch of epoch {forked.epoch - 1} ends there" in texts[ends[60]]
    assert "but no batch ends there" in texts[inside]


def test_damaged_files_are_all_reported(copy: Path) -> None:
    raw, records = read_manifest(copy).of_kind(RAW), read_manifest(copy).of_kind(RECORDS)
    (copy / raw[0].file).unlink()
    path = copy / records[2].file
    path.write_bytes(path.read_bytes()[:-1])
    result = ask("verify", copy)
    assert [(fault.check, fault.file) for fault in result.faults] == [
        ("FILE", raw[0].file),
        ("FILE", records[2].file),
    ]
    assert (result.end, result.not_folded) == (None, "files are damaged")
    assert [state.folded for state in result.states] == [None, None]


def test_altered_value_in_parquet_is_reported(copy: Path) -> None:
    """No checksum can detect it: the file was written so."""
    segment = read_manifest(copy).of_kind(RECORDS)[1]
    names = pq.read_table(copy / segment.file)["type_name"].to_pylist()
    at = names.index("PARTITION_CHANGE")
    isrs = pq.read_table(copy / segment.file)["isr"].to_pylist()
    isrs[at] = [99]
    rewrite_column(copy / segment.file, "isr", pa.array(isrs, pa.list_(pa.int32())))
    refit(copy)
    fault = only_fault(ask("verify", copy))
    assert fault.check == "FORMS"
    assert fault.file == segment.file
    assert fault.first_offset == segment.base_offset + at
    assert f"column isr has [99] at offset {segment.base_offset + at}, but raw/" in fault.message


def test_files_of_two_logs_in_one_export_are_reported(copy: Path) -> None:
    """Each is sound by itself, and every offset exists once."""
    manifest = read_manifest(copy)
    last = manifest.segments[-2]
    refit(copy, replace(last, first_epoch=0))
    faults = ask("verify", copy).faults
    assert any(
        fault.check == "CHAIN" and "one of the two is from another log" in fault.message
        for fault in faults
    )


def test_history_with_a_late_start_is_checked_and_not_folded(tmp_path: Path) -> None:
    history = LogHistory(92).run(100)
    begin = sorted(history.positions)[5]
    with ExportWriter(tmp_path, CLUSTER_ID, 0, start_offset=begin) as writer:
        writer.append_chunk(b"".join(history.batches[5:]))
        writer.commit(history.end_offset)
    result = ask("verify", tmp_path)
    assert result.passed
    assert result.not_folded == f"history begins at offset {begin}"
    assert result.records == history.end_offset - begin


def test_verify_stops_at_the_given_offset(history: LogHistory, good: Path) -> None:
    ends = sorted(history.hashes)
    result = ask_shared(2, "verify", good, at_offset=ends[95])
    assert result.passed
    assert (result.end.offset, result.states_total) == (ends[95], 1)
    assert result.files < len(read_manifest(good).segments)


@pytest.mark.nightly
def test_verify_reads_an_export_at_a_uri(
    replay: Replay, history: LogHistory, good: Path, copy: Path
) -> None:
    """A file system that only fsspec knows: the workers read it themselves."""
    uri = f"simplecache::file://{good}"
    (rows,) = replay("sql", uri, query="SELECT count(*) FROM records").rows
    assert rows == [history.end_offset]
    result = replay("summary", uri)
    assert result.state_hash == format_hash(history.hashes[history.end_offset - 1])
    assert replay("verify", uri).passed
    segment = read_manifest(copy).of_kind(RECORDS)[0]
    (copy / segment.file).write_bytes(b"x")
    with pytest.raises(CorruptExportError, match="is corrupt") as caught:
        replay("state", f"simplecache::file://{copy}")
    assert f"{segment.file} (offsets 0 to" in str(caught.value)


def test_unknown_level_is_refused(copy: Path) -> None:
    refit(copy, metadata_version=99)
    with pytest.raises(
        ReplayError, match=r"exported at metadata\.version 99, but this build supports at most"
    ):
        ask("verify", copy)
