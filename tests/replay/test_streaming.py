"""Streams over a growing export, and jobs on them: each record and each alert once."""

import shutil
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from exports import written
from log_history import CLUSTER_ID, LogHistory
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles

from raftlog.segments.errors import ExportError, ExportGapError, ExportMismatchError
from raftlog.segments.writer import ExportWriter
from replay.errors import ReplayError
from replay.spark.datasource import RawStreamReader, full_schema
from replay.streaming import ledger as ledgers
from replay.streaming.ledger import Done, Ledger
from replay.streaming.watch import STARTS_MAX, Judged, Piece, run_to_end, start, take


def write(directory: Path, log: LogHistory, until: int) -> None:
    """Write the log up to ``until`` in files of 50 records."""
    with ExportWriter(directory, CLUSTER_ID, log.generation, max_segment_records=50) as writer:
        while writer.next_offset < until:
            writer.append_chunk(log.read(writer.next_offset, 1))
        writer.commit(log.end_offset)


def reader(directory: Path, **options: str) -> RawStreamReader:
    return RawStreamReader({"path": str(directory)} | options, full_schema())


def test_stream_continues_from_file_to_file(tmp_path: Path) -> None:
    write(tmp_path, LogHistory(91).run(400), 120)
    stream = reader(tmp_path, maxFilesPerTrigger="1")
    position = stream.initialOffset()
    assert position["offset"] == 0
    first = stream.latestOffset(position, stream.getDefaultReadLimit())
    assert 50 <= first["offset"] < 100
    # A trigger that wants everything gets everything, whatever the option says.
    everything = stream.latestOffset(position, ReadAllAvailable())
    assert everything == stream.reportLatestOffset()
    assert everything["offset"] >= 120
    assert stream.latestOffset(everything, ReadMaxFiles(1)) == everything
    assert stream.partitions(everything, everything) == []
    offsets = [
        offset
        for start_, end in ((position, first), (first, everything))
        for part in stream.partitions(start_, end)
        for batch in stream.read(part)
        for offset in batch.column("offset").to_pylist()
    ]
    assert offsets == list(range(everything["offset"]))


def test_stream_leaves_later_records_for_the_next_trigger(tmp_path: Path) -> None:
    log = LogHistory(92).run(300)
    write(tmp_path, log, 100)
    stream = reader(tmp_path)
    stream.prepareForTriggerAvailableNow()
    before = stream.reportLatestOffset()
    write(tmp_path, log, 200)
    assert stream.latestOffset(stream.initialOffset(), ReadAllAvailable()) == before
    assert stream.latestOffset(before, ReadAllAvailable()) == before


def test_stream_starts_at_the_requested_offset(tmp_path: Path) -> None:
    write(tmp_path, LogHistory(93).run(100), 100)
    end = reader(tmp_path).reportLatestOffset()["offset"]
    for at, offset in (("latest", end), ("7", 7)):
        assert reader(tmp_path, startingOffset=at).initialOffset()["offset"] == offset
    for option, value, why in (
        ("startingOffset", str(end + 1), f"startingOffset {end + 1} is not in"),
        ("startingOffset", "now", "'now' is not earliest, latest or an offset"),
        ("maxFilesPerTrigger", "0", "maxFilesPerTrigger '0' is not valid: give a number above"),
    ):
        with pytest.raises(ReplayError, match=why):
            reader(tmp_path, **{option: value}).initialOffset()


def test_stream_does_not_continue_on_another_log_or_an_older_export(tmp_path: Path) -> None:
    write(tmp_path / "one", LogHistory(94).run(200), 200)
    position = reader(tmp_path / "one").reportLatestOffset()
    write(tmp_path / "older", LogHistory(94).run(60), 60)
    gap = rf"continues at offset {position['offset']}, but .* holds offsets 0"
    with pytest.raises(ExportGapError, match=gap):
        reader(tmp_path / "older").latestOffset(position, ReadAllAvailable())
    write(tmp_path / "restored", LogHistory(94, generation=1).run(300), 300)
    other = r"generation 1, but the stream has read .* generation 0"
    with pytest.raises(ExportMismatchError, match=other):
        reader(tmp_path / "restored").partitions(position, position)


@pytest.mark.nightly
def test_spark_reads_each_record_once_over_restarts(spark: SparkSession, tmp_path: Path) -> None:
    log = LogHistory(95).run(300)
    directory, out = tmp_path / "export", tmp_path / "out"
    for until in (60, 60, 200):
        write(directory, log, until)
        stream = spark.readStream.format("raftlog").option("maxFilesPerTrigger", 2)
        rows = stream.load(str(directory)).select("offset", "type_name").writeStream
        query = rows.option("checkpointLocation", str(tmp_path / "checkpoint")).format("parquet")
        run_to_end(partial(query.trigger(availableNow=True).start, str(out)))
    found = [row.offset for row in spark.read.parquet(str(out)).orderBy("offset").collect()]
    assert found == list(range(reader(directory).reportLatestOffset()["offset"]))


class CrashError(Exception):
    pass


def count_elections(piece: Piece) -> Judged:
    """An alert for each election with its number: the remembered one plus one."""
    known = piece.remembered("elections")
    elections = piece.records.where("type_name = 'LEADER_CHANGE'").select("offset", "leader_id")
    before = 0 if known is None else known.count()
    alerts = elections.withColumn("number", sf.lit(before) + 1)
    return Judged(
        alerts, {"elections": elections if known is None else known.unionByName(elections)}
    )


def pieces(spark: SparkSession, log: LogHistory, tmp_path: Path) -> list[DataFrame]:
    """Return pieces with one election each, and a last piece without any."""
    ends = [log.end_offset]
    for leader_id in (2, 3):
        log.elect(leader_id)
        ends.append(log.end_offset)
    log.progress()
    written(log, tmp_path / "export")
    rows = spark.read.format("raftlog").load(str(tmp_path / "export")).cache()
    bounds = [0, *ends, log.end_offset]
    return [rows.where(f"offset >= {low} and offset < {high}") for low, high in pairwise(bounds)]


def follow(spark: SparkSession, tmp_path: Path, **options: Any) -> Ledger:
    """Run the job on the export until it has judged everything."""
    ledger = Ledger(tmp_path / "job")
    run_to_end(lambda: start(spark, str(tmp_path / "export"), ledger, count_elections, **options))
    return ledger


@pytest.mark.nightly
@pytest.mark.parametrize("step", ["rename", "remember", "finish"])
def test_alert_is_written_once_whenever_the_job_is_killed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    batches = pieces(spark, LogHistory(96), tmp_path)
    directory = tmp_path / "job"

    def crash(*_: Any, **__: Any) -> Any:
        raise CrashError

    take(batches[0], 0, Ledger(directory), count_elections)
    with monkeypatch.context() as broken:
        broken.setattr(Path if step == "rename" else Ledger, step, crash)
        with pytest.raises(CrashError):
            take(batches[1], 1, Ledger(directory), count_elections)
    for number, batch in enumerate(batches[1:], start=1):
        take(batch, number, Ledger(directory), count_elections)
        # Spark may repeat what it has not noted.
        take(batch, number, Ledger(directory), count_elections)
    found = ledgers.output(spark, directory)
    assert found is not None
    rows = [(row.batch, row.leader_id, row.number) for row in found.orderBy("offset").collect()]
    assert rows == [(0, 1, 1), (1, 2, 2), (2, 3, 3)]
    assert Ledger(directory).done.alerts == 3
    assert sorted(path.name for path in (directory / "state").iterdir())[-1] == "3"


@pytest.mark.nightly
def test_ledger_is_bound_to_its_job_and_offsets(spark: SparkSession, tmp_path: Path) -> None:
    batches = pieces(spark, LogHistory(97), tmp_path)
    ledger = Ledger(tmp_path / "job")
    assert ledgers.output(spark, tmp_path / "job") is None
    told = r"has checked the log up to offset 0, but .* use a new directory"
    with pytest.raises(ReplayError, match=told):
        take(batches[1], 0, ledger, count_elections)
    with pytest.raises(ReplayError, match="has checked the log up to offset 0"):
        take(batches[0].union(batches[0].limit(1)), 0, ledger, count_elections)
    (tmp_path / "job" / "done.json").write_text("{")
    with pytest.raises(ReplayError, match=r"done\.json is damaged"):
        Ledger(tmp_path / "job")
    with pytest.raises(ReplayError, match=r"is not empty and has no done\.json"):
        Ledger(tmp_path / "export")


def test_streaming_directory_admits_one_job(tmp_path: Path) -> None:
    first, second = Ledger(tmp_path / "job"), Ledger(tmp_path / "job")
    with first.alone():
        with pytest.raises(ExportError, match="another job is writing to"), second.alone():
            pass
        first.finish(0, 50, 2)
    with second.alone():
        # What it has read when it was opened is old.
        assert second.done.end_offset == 50


def test_job_with_a_deleted_checkpoint_does_not_start(tmp_path: Path) -> None:
    """Spark would count from 0 again, and skip what is recorded as done."""
    ledger = Ledger(tmp_path / "job")
    ledger.finish(3, 50, 2)
    told = r"checked the log up to offset 50, but Spark's .*checkpoint is missing"
    with pytest.raises(ReplayError, match=told):
        start(cast(SparkSession, None), str(tmp_path / "export"), ledger, count_elections)


@pytest.mark.nightly
def test_another_checkpoint_skips_nothing(spark: SparkSession, tmp_path: Path) -> None:
    log = LogHistory(99).run(120)
    write(tmp_path / "export", log, log.end_offset)
    checkpoint = tmp_path / "job" / "checkpoint"
    done = follow(spark, tmp_path, max_files=1).done
    assert done.batch >= 1
    shutil.rmtree(checkpoint)
    with pytest.raises(ReplayError, match="later records would be skipped"):
        follow(spark, tmp_path, max_files=1)
    # An empty one: the micro-batches of what was judged come again, and are passed over.
    checkpoint.mkdir()
    assert follow(spark, tmp_path, max_files=1).done == done
    shutil.rmtree(checkpoint)
    checkpoint.mkdir()
    write(tmp_path / "export", log.run(log.end_offset + 60), log.end_offset)
    with pytest.raises(StreamingQueryException, match="later records would be skipped"):
        follow(spark, tmp_path)
    assert Ledger(tmp_path / "job").done == done


@pytest.mark.nightly
def test_job_follows_an_export_over_restarts(spark: SparkSession, tmp_path: Path) -> None:
    log = LogHistory(98).run(120)
    log.elect(2)
    befores: list[Done] = []
    for until in (100, log.end_offset):
        write(tmp_path / "export", log, until)
        ledger = follow(spark, tmp_path, max_files=1, done=befores.append)
    assert ledger.done.end_offset == log.end_offset
    # Each micro-batch is told of once, with what was done before it.
    ends = [before.end_offset for before in befores]
    assert ends[0] == 0
    assert ends == sorted({*ends})
    assert len(ends) == ledger.done.batch + 1
    assert ledger.done.batch >= 2
    assert ledger.done.alerts == log.epoch
    (tmp_path / "job" / "done.json").write_bytes(b"{}")
    write(tmp_path / "export", log.run(log.end_offset + 10), log.end_offset)
    with pytest.raises(StreamingQueryException, match="has checked the log up to offset 0"):
        follow(spark, tmp_path)


LATE = (
    "[STREAM_FAILED] Query [id = 1] terminated with exception: Python worker failed to connect"
    " back. SQLSTATE: XXKST"
)


class Query:
    def __init__(self, failure: str | None) -> None:
        self._failure = failure

    def awaitTermination(self) -> None:  # noqa: N802 (Spark's name)
        if self._failure:
            raise StreamingQueryException(self._failure)


@pytest.mark.parametrize(
    ("failures", "begun", "ends"),
    [
        ([None], 1, True),
        ([LATE, None], 2, True),
        ([LATE] * STARTS_MAX, STARTS_MAX, False),
        (["ReplayError: offsets are missing", None], 1, False),
    ],
)
def test_query_whose_source_was_late_is_restarted(
    failures: list[str | None], begun: int, ends: bool
) -> None:
    left = iter(failures)

    def begin() -> Any:
        return Query(next(left))

    with nullcontext() if ends else pytest.raises(StreamingQueryException):
        run_to_end(begin)
    assert len(failures) - len(list(left)) == begun
