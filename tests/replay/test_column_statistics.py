"""Columns without values are not read, and the rows are unchanged."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from asking import opened, written
from log_history import LogHistory

from raftlog.segments.columns import SCHEMA
from raftlog.segments.parquet_files import ColumnStatistics
from replay.engine.reading import slices


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    log = LogHistory(31).run(600)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("raftlog.segments.writer.ROW_GROUP_RECORDS", 40)
        return written(log, tmp_path_factory.mktemp("export"), max_segment_records=250)


def test_rows_equal_those_of_the_files(exported: Path) -> None:
    export = opened(exported)
    files = [pq.read_table(exported / one.file) for one in export.segments]
    assert len(files) > 1
    read = list(slices(export, SCHEMA.names))
    for name in SCHEMA.names:
        whole = [value for table in files for value in table[name].to_pylist()]
        assert [value for table in read for value in table[name].to_pylist()] == whole


def test_empty_columns_are_skipped_in_each_row_group(exported: Path) -> None:
    export = opened(exported)
    skipped = 0
    for one in export.segments:
        file = pq.ParquetFile(exported / one.file)
        told = ColumnStatistics(file.metadata, imported=False)
        groups = list(range(file.metadata.num_row_groups))
        runs = list(told.runs(groups, SCHEMA.names))
        assert [group for run, _ in runs for group in run] == groups
        for run, names in runs:
            left_out = set(SCHEMA.names) - set(names)
            skipped += len(left_out)
            rows = file.read_row_groups(run)
            assert all(rows[name].null_count == rows.num_rows for name in left_out)
            assert not left_out & {"isr", "last_known_elr", "applied", "offset", "type"}
            assert {"directories", "recovery"} <= left_out
    assert skipped > 100


def test_lists_of_an_imported_log_are_read(exported: Path) -> None:
    one = opened(exported).segments[0]
    told = ColumnStatistics(pq.read_metadata(exported / one.file), imported=True)
    assert list(told.runs([0], ["directories"])) == [([0], ["directories"])]


def test_rows_are_counted_when_all_columns_are_empty(exported: Path) -> None:
    export = opened(exported)
    assert sum(table.num_rows for table in slices(export, ["directories"])) == export.record_count


def test_statistics_that_contradict_the_rows_are_detected(tmp_path: Path) -> None:
    """A reader that trusts the statistics would not see the rows."""
    said = pa.table({"offset": [3, 4], "leader": [1, None], "isr": [[1], []], "rack": ["a", None]})
    silent = pa.table(
        {
            "offset": pa.array([3, 4]),
            "leader": pa.nulls(2, pa.int64()),
            "isr": pa.array([[], None], pa.list_(pa.int64())),
            "rack": pa.nulls(2, pa.string()),
        }
    )
    told = {}
    for name, table in (("said", said), ("silent", silent)):
        pq.write_table(table, tmp_path / name)
        told[name] = ColumnStatistics(pq.read_metadata(tmp_path / name), imported=False)
    rows, nothing = said.to_batches()[0], silent.to_batches()[0]
    for each in told.values():
        assert each.contradicted(0, nothing) == ""
    assert told["said"].contradicted(0, rows) == ""
    for name in ("leader", "isr", "rack"):
        assert told["silent"].contradicted(0, rows.select([name])) == name
    elsewhere = rows.select(["offset"]).set_column(0, "offset", pa.array([4, 5]))
    assert told["said"].contradicted(0, elsewhere) == "offset"
