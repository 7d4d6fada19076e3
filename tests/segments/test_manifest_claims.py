"""Claims of a manifest or a Parquet file about the log: for each forgery with valid checksums,
`raftlog verify` names the contradicted fact and its offset.
"""

import hashlib
import json
import shutil
import struct
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import google_crc32c
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from exports import written
from log_history import CLUSTER_ID, LogHistory
from msgspec.structs import replace

from raftlog.cli.main import main
from raftlog.clock import MAX_MS
from raftlog.segments import manifest as manifests
from raftlog.segments.buckets import add_buckets
from raftlog.segments.errors import CorruptExportError, ExportError, UnsupportedExportError
from raftlog.segments.files import open_place
from raftlog.segments.manifest import read_manifest
from raftlog.segments.parquet_files import RowGroupStatistics
from raftlog.segments.range_checks import check_range
from raftlog.segments.verify import claim_faults
from raftlog.segments.writer import ExportWriter
from replay.request import JobRequest
from replay.run import run_job

Document = dict[str, Any]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export a log in some pairs of files, with checkpoints."""
    where = tmp_path_factory.mktemp("honest") / "exported"
    written(LogHistory(5).run(300), where, max_segment_records=100, checkpoint_records=150)
    assert read_manifest(where).checkpoints
    return where


@pytest.fixture
def forged(honest: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(honest, tmp_path / "forged"))


def sealed(where: Path, document: Document) -> None:
    """Update the hashes of the files and the manifest's checksum."""
    buckets = (document.get("bucketing") or {}).get("segments") or []
    for one in (*document["segments"], *buckets):
        data = (where / one["file"]).read_bytes()
        one["bytes"], one["sha256"] = len(data), hashlib.sha256(data).hexdigest()
    document.pop("checksum", None)
    document["checksum"] = hashlib.sha256(msgspec.json.encode(document, order="sorted")).hexdigest()
    (where / "manifest.json").write_text(json.dumps(document))


def document_of(where: Path) -> Document:
    document: Document = json.loads((where / "manifest.json").read_text())
    return document


def changed(where: Path, **fields: Any) -> Path:
    sealed(where, document_of(where) | fields)
    return where


def rewritten(where: Path, edit: Callable[[pa.Table], pa.Table], **options: Any) -> Path:
    for path in (where / "records").glob("*.parquet"):
        file = pq.ParquetFile(path)
        pq.write_table(edit(file.read()), path, write_page_checksum=True, **options)
    return changed(where)


def verified(where: Path, *more: str) -> tuple[int, str]:
    """Return exit code and output, on one line."""
    out, err = StringIO(), StringIO()
    code = 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main(["verify", str(where), *more])
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
    return code, " ".join((out.getvalue() + err.getvalue()).split())


def test_honest_export_contradicts_nothing(honest: Path) -> None:
    code, said = verified(honest)
    assert code == 0
    assert "lacks" not in said
    assert "MANIFEST" not in said


def with_footer(where: Path, edit: Callable[[bytes], bytes]) -> Path:
    for path in (where / "records").glob("*.parquet"):
        data = path.read_bytes()
        size = int.from_bytes(data[-8:-4], "little")
        footer = edit(data[-8 - size : -8])
        assert len(footer) == size
        path.write_bytes(data[: -8 - size] + footer + data[-8:])
    return changed(where)


def twice(table: pa.Table) -> pa.Table:
    names = [*table.column_names, "leader"]
    return pa.Table.from_arrays([*table.columns, table["offset"]], names=names)


def of_another_type(table: pa.Table) -> pa.Table:
    index = table.column_names.index("leader")
    return table.set_column(index, "leader", table["leader"].cast(pa.int64()))


def lower_statistics(where: Path) -> Path:
    """Spark would skip the row group for a condition on that column."""
    files = [pq.ParquetFile(path) for path in (where / "records").glob("*.parquet")]
    index = files[0].schema_arrow.names.index("type_name")
    (last,) = {one.metadata.row_group(0).column(index).statistics.max for one in files}
    return with_footer(
        where, lambda footer: footer.replace(last.encode(), b"C" + last.encode()[1:])
    )


def cluster_id_that_is_no_text(where: Path) -> Path:
    path = min((where / "raw").iterdir())
    data = bytearray(path.read_bytes())
    (length,) = struct.unpack(">H", data[10:12])
    data[28:30] = b"\xff\xfe"
    crc = google_crc32c.value(bytes(data[: 28 + length]))
    data[28 + length : 32 + length] = crc.to_bytes(4, "big")
    data[-32:] = hashlib.sha256(data[:-32]).digest()
    path.write_bytes(data)
    return changed(where)


def directory_for_a_file(where: Path) -> Path:
    path = min((where / "raw").iterdir())
    path.unlink()
    path.mkdir()
    return where


def without(column: str) -> Callable[[Path], Path]:
    return lambda where: rewritten(where, lambda table: table.drop_columns([column]))


OF_KAFKA = "manifest.json does not match this log: it claims to describe the log of kafka"
LEVEL = "claims level 1 of metadata.version at the end, but the log sets 2"
FORGERIES: list[tuple[Callable[[Path], Path], str]] = [
    (lambda where: changed(where, origin="kafka"), f"MANIFEST: {OF_KAFKA}"),
    (
        lambda where: changed(where, metadata_version=7),
        "its metadata_version differs from the level",
    ),
    (lambda where: changed(where, features={"metadata.version": 1}), LEVEL),
    (
        lambda where: changed(where, features=None, metadata_version=None),
        "claims level 0 of metadata",
    ),
    (lambda where: rewritten(where, twice), "it contains the column leader twice"),
    (lambda where: rewritten(where, of_another_type), "leader has the type int64, not int32"),
    (without("principal"), "it lacks the column principal"),
    (without("offset"), "it lacks the column offset"),
    (without("isr"), "it lacks the column isr"),
    (lambda where: rewritten(where, lambda rows: rows, write_page_index=True), "page index"),
    (lower_statistics, "contradict column type_name"),
    (cluster_id_that_is_no_text, "its cluster id is not UTF-8"),
    (directory_for_a_file, "it is missing"),
]


@pytest.mark.parametrize(("forge", "why"), FORGERIES, ids=[why for _, why in FORGERIES])
def test_forgery_is_detected(forged: Path, forge: Callable[[Path], Path], why: str) -> None:
    code, said = verified(forge(forged))
    assert (code, why in said) == (3, True), said


def test_claimed_difference_is_shown_without_control_characters(
    forged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed(forged, origin="kafka", differs_from=30, differs_in="\x1b[2J1 topic: name")
    assert run_job(JobRequest(job="state", export=str(forged)), spark=False) == 0
    assert capsys.readouterr().err == (
        "raftlog replay: the state in this export differs from Kafka's own snapshot at offset 30,"
        " and perhaps from others, in \\x1b[2J1 topic: name\n"
    )


def test_imported_log_does_not_count_as_raftlogs_own(forged: Path) -> None:
    manifest = read_manifest(forged)
    place = open_place(forged)
    (checked, *_) = [check_range(place, manifest, one) for one in manifest.of_kind("raw")]
    other = replace(checked, record_facts=replace(checked.record_facts, imported=17))
    faults = [one for one in claim_faults(manifest, [other]) if "system" in one.message]
    assert [(one.check, one.first_offset) for one in faults] == [("MANIFEST", 17)]


def test_named_nodes_are_never_omitted_silently(forged: Path) -> None:
    code, said = verified(changed(forged, origin="kafka"), "--bootstrap-controller", "127.0.0.1:1")
    assert code == 3
    assert "cannot vouch for it" in said


@pytest.mark.parametrize(
    "fields",
    [{"origin": "zookeeper"}, {"state_from": 30}, {"format_version": 0}, {"history_begin": -5}],
)
def test_impossible_manifest_is_refused(forged: Path, fields: Document) -> None:
    with pytest.raises(
        (UnsupportedExportError, CorruptExportError),
        match=r"zookeeper|state_from|format|history_begin",
    ):
        read_manifest(changed(forged, **fields))


@pytest.mark.parametrize("time_ms", [-1, MAX_MS + 1, 2**63, 10**30])
@pytest.mark.parametrize(
    ("files", "field"),
    [
        ("segments", "min_timestamp_ms"),
        ("segments", "max_timestamp_ms"),
        ("checkpoints", "timestamp_ms"),
    ],
)
def test_manifest_with_a_time_outside_the_calendar_is_refused(
    forged: Path, files: str, field: str, time_ms: int
) -> None:
    document = document_of(forged)
    document[files][-1][field] = time_ms
    sealed(forged, document)
    with pytest.raises(CorruptExportError, match=r"is not a valid time|is not a manifest"):
        read_manifest(forged)


@pytest.mark.parametrize("statistics", [True, False])
def test_rows_with_a_time_outside_the_calendar_are_damage(forged: Path, statistics: bool) -> None:
    def edit(rows: pa.Table) -> pa.Table:
        index, field = rows.column_names.index("timestamp"), rows.schema.field("timestamp")
        times = pa.array([1 << 62] * rows.num_rows, pa.int64()).cast(field.type)
        return rows.set_column(index, field, times)

    code, said = verified(rewritten(forged, edit, write_statistics=statistics))
    assert code == 3
    assert "column timestamp has" in said or "contradict column timestamp" in said


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("min_timestamp_ms", 1),
        ("max_timestamp_ms", 2),
        ("first_epoch", 0),
        ("last_epoch", 77),
        ("batches", 1),
    ],
)
def test_batch_figures_in_the_manifest_are_checked_against_the_rows(
    forged: Path, field: str, value: int
) -> None:
    document = document_of(forged)
    first = next(one for one in document["segments"] if one["kind"] == "records")
    first[field] = value
    sealed(forged, document)
    code, said = verified(forged)
    assert code == 3
    assert f"{first['file']} (offsets 0 to {first['last_offset']}) is corrupt: expected" in said
    assert f" {value}, found " in said


def test_removed_column_is_reported_with_its_first_offset(forged: Path) -> None:
    files = sorted((forged / "records").glob("*.parquet"))
    rows = pa.concat_tables(map(pq.read_table, files)).select(["offset", "supported_features"])
    first = next(row["offset"] for row in rows.to_pylist() if row["supported_features"] is not None)
    code, said = verified(without("supported_features")(forged))
    assert code == 0
    assert f"column supported_features, for which the log has values from offset {first} on" in said


def test_empty_column_may_be_missing(forged: Path) -> None:
    code, said = verified(without("last_known_elr")(forged))
    assert (code, "lacks" in said) == (0, False)


def test_wrong_null_counts_are_detected(honest: Path) -> None:
    file = pq.ParquetFile(min((honest / "records").glob("*.parquet")))
    rows = pa.RecordBatch.from_struct_array(file.read().to_struct_array().combine_chunks())
    denied = RowGroupStatistics(file.metadata, 0)
    assert denied.by(rows) == ""
    assert denied.at_end() == ""
    some = RowGroupStatistics(file.metadata, 0)
    some.by(rows.slice(1))
    assert "nulls in column" in some.at_end()


def test_column_removed_from_buckets_only_is_reported(forged: Path) -> None:
    """Jobs read buckets instead of the records."""
    with ExportWriter(forged, CLUSTER_ID, 0, max_segment_records=100) as writer:
        assert add_buckets(writer)
    buckets = sorted((forged / "buckets").rglob("*.parquet"))
    assert len(buckets) >= 2
    code, said = verified(forged)
    assert (code, "lacks" in said) == (0, False), said
    for path in buckets:
        table = pq.read_table(path).drop_columns(["supported_features"])
        pq.write_table(table, path, write_page_checksum=True)
    code, said = verified(changed(forged))
    assert code == 0
    assert "lacks the column supported_features, for which the log has values from" in said
    assert "buckets/" in said


@pytest.mark.parametrize("count", [10**12, 2**63 - 1, -1])
def test_huge_bucket_count_takes_no_memory(forged: Path, count: int) -> None:
    document = document_of(forged)
    first = next(one for one in document["segments"] if one["kind"] == "records")
    bucket = first | {"kind": "buckets", "bucket": 0}
    bucketing = {"by": "crc32(group_id)", "count": count, "segments": [bucket]}
    with pytest.raises(CorruptExportError, match="buckets"):
        read_manifest(changed(forged, bucketing=bucketing))


def test_deeply_nested_manifest_is_damage(forged: Path) -> None:
    (forged / "manifest.json").write_bytes(b'{"a":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}")
    with pytest.raises(CorruptExportError, match="corrupt"):
        read_manifest(forged)


def test_manifest_size_is_bounded(forged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "MAX_BYTES", 1 << 20)
    with (forged / "manifest.json").open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(CorruptExportError, match="a manifest has at most 1048576"):
        read_manifest(forged)


def test_unreadable_file_is_an_error_and_no_finding(forged: Path) -> None:
    """A link to itself: unreadable here, though the export may be whole elsewhere."""
    path = min((forged / "records").iterdir())
    path.unlink()
    path.symlink_to(path.name)
    manifest = read_manifest(forged)
    with pytest.raises(ExportError, match="cannot read") as raised:
        check_range(open_place(forged), manifest, manifest.of_kind("raw")[0])
    assert type(raised.value) is ExportError
    code, said = verified(forged)
    assert (code, "cannot read" in said) == (1, True), said


def test_truncated_beginning_is_reported(forged: Path) -> None:
    """The level in the manifest shows that there must have been hashes."""
    document = document_of(forged)
    begin = sorted({one["base_offset"] for one in document["segments"]})[1]
    document |= {
        "segments": [one for one in document["segments"] if one["base_offset"] >= begin],
        "history_begin": begin,
        "log_hash": "",
        "log_hash_begin_offset": -1,
    }
    sealed(forged, document)
    code, said = verified(forged)
    assert code == 0
    assert f"This export begins at offset {begin}: it lacks the earlier records." in said
    assert "the chain of log hashes begins before this export" in said
