"""Tasks of a pool that Spark runs: their results in order, their errors as they are, and no record
through a shuffle.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from log_history import LogHistory
from pyspark.sql import SparkSession
from spark_runs import Replay

from raftlog.segments.errors import CorruptExportError
from raftlog.segments.export import export
from replay.jobs import audit
from replay.local import pool
from replay.opened import open_export
from replay.request import JobRequest
from replay.spark_pool import MOST_READERS, SparkPool


def halving() -> Callable[[int], float]:
    """Inside, as Spark's workers know no module of tests."""

    def halved(number: int) -> float:
        if number == 13:
            raise CorruptExportError("file x is corrupt", file="x", base_offset=7, last_offset=9)
        return number / 2

    return halved


def test_results_come_in_the_order_of_the_tasks(spark: SparkSession) -> None:
    tasks = SparkPool(spark, 0)
    assert list(tasks.map(halving(), range(12))) == [number / 2 for number in range(12)]
    assert list(tasks.map(halving(), [])) == []


def test_an_error_of_a_task_arrives_as_it_is(spark: SparkSession) -> None:
    with pytest.raises(CorruptExportError, match="file x is corrupt") as caught:
        list(SparkPool(spark, 0).map(halving(), range(15)))
    assert (caught.value.file, caught.value.base_offset) == ("x", 7)


def test_much_is_shared_by_as_many_tasks_as_pay(spark: SparkSession) -> None:
    cores = spark.sparkContext.defaultParallelism
    assert SparkPool(spark, pool.ALONE_RECORDS).size == 1
    assert SparkPool(spark, pool.ALONE_RECORDS + 1).size == min(cores, MOST_READERS)


def test_the_audit_of_many_tasks_is_that_of_one_process(
    spark: SparkSession, replay: Replay, tmp_path: Path
) -> None:
    """Of a history of invented changes, in which many rules are broken."""
    export(LogHistory(11).run(400), tmp_path)
    request = JobRequest(job="audit", export=str(tmp_path), limit=50)
    expected = replay("audit", tmp_path, limit=50)
    assert expected.total > 50
    with pool.Pool(0) as alone:
        assert audit.run_local(open_export(request), request, alone) == expected
    shared = SparkPool(spark, 0)
    shared.size = 5
    assert audit.run_local(open_export(request), request, shared) == expected
