"""Records and files out of order or doubled: the same answers, or a clear error."""

import dataclasses
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from asking import ask, written
from exports import publish, rewrite
from log_history import LogHistory
from pyspark.sql import SparkSession

from raftlog.errors import RaftlogError
from raftlog.metadata.entities import format_hash
from raftlog.segments.errors import CorruptExportError, ExportGapError
from raftlog.segments.manifest import RAW, RECORDS, read_manifest
from raftlog.segments.raw import read_batches
from replay.engine import reading
from replay.engine.fold import state_hashes
from replay.engine.pool import Pool
from replay.export import open_export
from replay.jobs import lao
from replay.request import JobRequest
from replay.spark.pool import SparkPool

HISTORY = LogHistory(71).run(400)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pristine")
    written(HISTORY, directory, max_segment_records=150)
    assert len(read_manifest(directory).of_kind(RECORDS)) >= 3
    return directory


@pytest.fixture
def exported(pristine: Path, tmp_path: Path) -> Path:
    return shutil.copytree(pristine, tmp_path / "export")


def backwards(table: pa.Table) -> pa.Table:
    return table.take(pa.array(range(table.num_rows - 1, -1, -1)))


@pytest.mark.parametrize("job", ["lao", "availability", "audit", "state"])
def test_records_out_of_order_change_no_answer(pristine: Path, exported: Path, job: str) -> None:
    rewrite(exported, backwards)
    turned, straight = (ask(job, one) for one in (exported, pristine))
    assert turned == straight


@pytest.mark.parametrize("job", ["lao", "audit", "state"])
def test_records_far_out_of_order_are_refused(
    exported: Path, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slices are sorted one by one: records further off are detected."""
    monkeypatch.setattr(reading, "SLICE_ROWS", 20)
    segment = rewrite(exported, backwards)
    with pytest.raises(CorruptExportError, match=rf"{segment.file} .* follows offset \d+"):
        ask(job, exported)


@pytest.mark.nightly
def test_files_in_any_order_change_no_answer(spark: SparkSession, pristine: Path) -> None:
    request = JobRequest(job="state", export=str(pristine), limit=5000)
    export = open_export(request)
    turned = dataclasses.replace(export, segments=export.segments[1:] + export.segments[:1])
    for pool in (Pool(0), SparkPool(spark, 0)):
        assert state_hashes(turned, pool, HISTORY.hashes) == HISTORY.hashes
        assert lao.run(turned, request, pool) == lao.run(export, request, pool)


def test_manifest_with_files_out_of_order_or_twice_is_refused(exported: Path) -> None:
    segments = read_manifest(exported).segments
    manifest = publish(exported, segments=segments[::-1])
    with pytest.raises(ExportGapError, match="history begins at 0, but the first segment is "):
        ask("state", exported)
    publish(exported, manifest, segments=(*segments[:4], *segments[2:4], *segments[4:]))
    with pytest.raises(ExportGapError, match=r"an overlap between .* and"):
        ask("state", exported)


def test_unnamed_copy_of_a_segment_is_ignored(exported: Path) -> None:
    segment = read_manifest(exported).of_kind(RECORDS)[0]
    shutil.copy(exported / segment.file, exported / RECORDS / f"{7:020d}-{9:020d}.parquet")
    result = ask("state", exported, limit=1)
    assert result.state_hash == format_hash(HISTORY.hashes[HISTORY.end_offset - 1])


def test_duplicate_rows_are_refused_by_their_number(exported: Path) -> None:
    segment = rewrite(exported, lambda table: pa.concat_tables([table, table.slice(3, 5)]))
    rows = f"expected {segment.records} records, found {segment.records + 5} rows"
    with pytest.raises(RaftlogError, match=rf"{segment.file} .* is corrupt: {rows}"):
        ask("audit", exported)


def test_duplicate_record_in_place_of_another_is_refused_by_the_fold(exported: Path) -> None:
    """The number of rows matches: one record is duplicated, and another is missing."""

    def change(table: pa.Table) -> pa.Table:
        changing = pc.indices_nonzero(pc.is_valid(table["group_kind"])).to_pylist()
        kept = [row for row in range(table.num_rows) if row != changing[5]]
        return table.take(pa.array([*kept, changing[9]]))

    rewrite(exported, change)
    with pytest.raises(RaftlogError, match=r"contains the record at offset \d+ twice"):
        ask("state", exported)


def test_batches_out_of_order_in_a_raw_file_are_reported(exported: Path) -> None:
    path = exported / read_manifest(exported).of_kind(RAW)[0].file
    batches = list(read_batches(path))
    one, other = batches[4], batches[5]
    path.write_bytes(path.read_bytes().replace(one + other, other + one))
    with pytest.raises(CorruptExportError, match="corrupt from offset"):
        list(read_batches(path))
