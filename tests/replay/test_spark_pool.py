"""Tasks of a pool run by Spark: order of results, errors, and shuffles."""

import importlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asking import opened, written
from log_history import LogHistory
from pyspark.sql import SparkSession
from tiers import in_gate

from raftlog.segments.errors import CorruptExportError
from replay.engine import pool
from replay.engine.fold import fold
from replay.engine.plan import stretches
from replay.errors import ReplayError, error_from_columns
from replay.export import open_export
from replay.request import JobRequest
from replay.spark.pool import SparkPool

QUESTIONS: tuple[dict[str, Any], ...] = (
    {"job": "audit", "limit": 50},
    {"job": "state", "limit": 5000},
    {"job": "state", "key": ("topic", "topic-3")},
    {"job": "diff", "from_offset": 150, "limit": 5000},
    {"job": "history", "key": ("topic", ""), "limit": 90},
    {"job": "verify"},
    {"job": "summary"},
    {"job": "lao"},
    {"job": "availability"},
)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generated history in several files, in which many rules are violated."""
    directory = tmp_path_factory.mktemp("shuffled")
    log = LogHistory(11).run(400)
    return written(log, directory, max_segment_records=90)


def halving() -> Callable[[int], float]:
    """Defined inside, as Spark's workers know no test module."""

    def halved(number: int) -> float:
        if number == 13:
            raise CorruptExportError("file x is corrupt", file="x", base_offset=7, last_offset=9)
        return number / 2

    return halved


def test_results_are_in_the_order_of_the_tasks(spark: SparkSession) -> None:
    tasks = SparkPool(spark, 0)
    assert list(tasks.map(halving(), range(12))) == [number / 2 for number in range(12)]
    assert list(tasks.map(halving(), [])) == []


def test_task_error_keeps_its_type_and_fields(spark: SparkSession) -> None:
    with pytest.raises(CorruptExportError, match=r"^file x is corrupt$") as caught:
        list(SparkPool(spark, 0).map(halving(), range(15)))
    error = caught.value
    assert (error.file, error.base_offset, error.last_offset) == ("x", 7, 9)


def test_error_of_another_program_becomes_a_replay_error() -> None:
    error = error_from_columns("FileNotFoundError", "no file", "{}")
    assert (type(error), str(error)) == (ReplayError, "no file")


def test_large_work_is_split_into_one_task_per_core(spark: SparkSession) -> None:
    cores = spark.sparkContext.defaultParallelism
    assert SparkPool(spark, pool.ALONE_RECORDS).size == 1
    assert SparkPool(spark, pool.ALONE_RECORDS + 1).size == cores


@pytest.mark.parametrize(
    "asked", in_gate(QUESTIONS, QUESTIONS[:6]), ids=lambda asked: str(asked["job"])
)
def test_result_of_a_spark_shuffle_equals_that_of_one_process(
    spark: SparkSession, history: Path, asked: dict[str, Any]
) -> None:
    request = JobRequest(export=str(history), **asked)
    job = importlib.import_module(f"replay.jobs.{request.job}")
    expected = job.run(open_export(request), request, pool.Pool(0))
    for size in (2, 5):
        shared = SparkPool(spark, 0)
        shared.size = size
        assert job.run(open_export(request), request, shared) == expected


def test_shuffle_task_reads_only_its_part_of_the_files(spark: SparkSession, history: Path) -> None:
    """The bytes that a task reads fall with the number of tasks."""
    export = opened(history)
    shared = SparkPool(spark, 0)
    shared.size = 3
    parts = stretches(export, shared.stretches(export))
    assert len(parts) == 3
    assert sorted(one.file for part in parts for one in part) == [
        one.file for one in export.segments
    ]
    sizes = [sum(one.bytes for one in part) for part in parts]
    assert max(sizes) < sum(sizes) / 2


def test_shuffle_reports_a_damaged_file_of_its_first_stage(
    spark: SparkSession, history: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(history, tmp_path / "copy")
    request = JobRequest(job="state", export=str(copy))
    export = open_export(request)
    (copy / export.segments[1].file).write_bytes(b"PAR1 and no more PAR1")
    shared = SparkPool(spark, 0)
    shared.size = 3
    with pytest.raises(CorruptExportError, match=f"{export.segments[1].file} .*it does not parse"):
        fold(export, shared)
