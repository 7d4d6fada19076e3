"""The data source: the rows of the Parquet form, from the raw segments."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from asking import written
from log_history import LogHistory
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from raftlog.segments.columns import SCHEMA
from raftlog.segments.errors import CorruptExportError, ExportMismatchError
from raftlog.segments.manifest import RAW, RECORDS, read_manifest
from replay.errors import ReplayError
from replay.spark import datasource
from replay.spark.raw_runs import RawRun, Span, plan, read


@pytest.fixture(scope="module")
def log() -> LogHistory:
    return LogHistory(71).run(700)


@pytest.fixture(scope="module")
def exported(log: LogHistory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("exports") / "raw [and] more"
    written(log, directory, max_segment_records=150)
    assert len(read_manifest(directory).of_kind(RAW)) >= 4
    return directory


def parquet(directory: Path) -> pa.Table:
    files = [directory / segment.file for segment in read_manifest(directory).of_kind(RECORDS)]
    return pa.concat_tables(pq.read_table(file, partitioning=None) for file in files).cast(SCHEMA)


def runs(directory: Path, wanted: Span, max_records: int = 60) -> list[RawRun]:
    manifest = read_manifest(directory)
    return plan(str(directory), manifest, manifest.of_kind(RAW), wanted, max_records)


def raw(directory: Path, wanted: Span | None = None, max_records: int = 60) -> pa.Table:
    tables = [
        table for run in runs(directory, wanted or Span(), max_records) for table in read(run)
    ]
    return pa.concat_tables([SCHEMA.empty_table(), *tables])


@pytest.mark.parametrize("max_records", [1, 7, 10**6])
def test_runs_of_any_length_return_each_record_once(exported: Path, max_records: int) -> None:
    assert raw(exported, max_records=max_records).equals(parquet(exported))


@pytest.mark.parametrize("column", ["offset", "timestamp_ms"])
def test_options_select_exactly_their_range(exported: Path, column: str) -> None:
    whole = parquet(exported)
    values = whole.column(column).to_pylist()
    name = {"offset": "Offset", "timestamp_ms": "Timestamp"}[column]
    for first, end in ((values[0], values[333]), (values[333] + 1, values[-1] + 1), (9, 9)):
        options = {f"starting{name}": str(first), f"ending{name}": str(end)}
        reader = datasource.RawReader({"path": str(exported)} | options, datasource.full_schema())
        expected = whole.filter(pa.array([first <= each < end for each in values]))
        assert raw(exported, reader.wanted).equals(expected)
    assert [row for part in reader.partitions() for row in reader.read(part)] == []


def test_every_flipped_byte_is_an_error_that_names_file_and_offset(tmp_path: Path) -> None:
    written(LogHistory(72).run(40), tmp_path)
    whole = parquet(tmp_path)
    (segment,) = read_manifest(tmp_path).of_kind(RAW)
    path = tmp_path / segment.file
    good = path.read_bytes()
    footer = 48
    for position in range(0, len(good) - footer, 3):
        path.write_bytes(good[:position] + bytes((good[position] ^ 0x55,)) + good[position + 1 :])
        with pytest.raises((CorruptExportError, ExportMismatchError)) as raised:
            raw(tmp_path)
        assert segment.file in str(raised.value)
        # A condition never makes a damaged file look as if it held less, either.
        try:
            found = raw(tmp_path, Span(offset=(20, 25)))
        except (CorruptExportError, ExportMismatchError):
            continue
        assert found.equals(whole.slice(20, 6))


def test_truncated_or_exchanged_file_is_refused(tmp_path: Path) -> None:
    directory = written(LogHistory(73).run(60), tmp_path / "export")
    other = written(LogHistory(73, generation=1).run(60), tmp_path / "other")
    (segment,) = read_manifest(directory).of_kind(RAW)
    path, good = directory / segment.file, (directory / segment.file).read_bytes()
    path.write_bytes(good[:-60])
    sizes = rf"expected {len(good)} bytes, found {len(good) - 60}"
    with pytest.raises(CorruptExportError, match=sizes):
        raw(directory)
    path.write_bytes((other / segment.file).read_bytes())
    owners = r"generation 1, but the export belongs to cluster .* generation 0"
    with pytest.raises(ExportMismatchError, match=owners):
        raw(directory)


@pytest.mark.parametrize(
    ("options", "schema", "message"),
    [
        ({}, "offset long", "needs the path of an export"),
        ({"path": "x"}, "offset long, nothing string", "no column 'nothing': it has offset, epoch"),
        ({"path": "x"}, "offset int", "column 'offset' is of type bigint, not int"),
        ({"path": "x", "startingOffset": "latest"}, "offset long", "'latest' is not an offset"),
        ({"path": "x", "endingTimestamp": "now"}, "offset long", "'now' is not a time"),
    ],
)
def test_datasource_refuses_invalid_options_and_columns(
    spark: SparkSession, options: dict[str, str], schema: str, message: str
) -> None:
    columns = StructType.fromDDL(schema)
    assert isinstance(columns, StructType)
    with pytest.raises(ReplayError, match=message):
        datasource.RawReader(options, columns)


def offsets(rows: DataFrame) -> list[int]:
    return sorted(row.offset for row in rows.select("offset").collect())


def test_spark_finds_the_data_source_by_name(spark: SparkSession, exported: Path) -> None:
    rows = spark.read.format("raftlog").load(str(exported))
    assert rows.schema == from_arrow_schema(SCHEMA)
    wanted = "offset between 100 and 333 and timestamp >= '2023-01-01' and type_name <> 'CONFIG'"
    found = rows.where(wanted).orderBy("offset").collect()
    expected = [
        row
        for row in parquet(exported).to_pylist()
        if row["type_name"] != "CONFIG" and 100 <= row["offset"] <= 333
    ]
    for row in expected:
        row["timestamp"] = row["timestamp"].replace(tzinfo=None)
        row["body"] = bytearray(row["body"])
    assert [row.asDict(recursive=True) for row in found] == expected


def test_datasource_skips_files_that_the_options_exclude(
    spark: SparkSession, log: LogHistory, tmp_path: Path
) -> None:
    written(log, tmp_path, max_segment_records=150)
    damaged = read_manifest(tmp_path).of_kind(RAW)[1]
    (tmp_path / damaged.file).write_bytes(b"")

    def rows(**options: Any) -> DataFrame:
        reader = spark.read.schema("offset long, timestamp_ms long").format("raftlog")
        return reader.load(str(tmp_path), **options)

    after = list(range(damaged.last_offset + 1, log.end_offset))
    before = list(range(damaged.base_offset))
    assert offsets(rows(startingOffset=damaged.last_offset + 1)) == after
    assert offsets(rows(endingTimestamp=damaged.min_timestamp_ms)) == before
    with pytest.raises(PySparkException, match=f"CorruptExportError: {damaged.file}.* is corrupt"):
        rows().where(sf.col("offset") > damaged.last_offset).count()
