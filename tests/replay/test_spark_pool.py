"""Tasks of a pool run by Spark: order of results, errors, and shuffles."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from asking import opened, written
from command_runs import run_text
from log_history import LogHistory
from pyspark.sql import SparkSession

from raftlog.segments.errors import CorruptExportError
from replay.engine import pool
from replay.engine.fold import fold
from replay.engine.plan import stretches
from replay.errors import ReplayError, error_from_columns
from replay.spark.java import spark_environment
from replay.spark.pool import SparkPool
from simulation.generate.history import write_export
from simulation.generate.schedule import Profile


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("shuffled")
    return written(LogHistory(11).run(400), directory, max_segment_records=90)


@pytest.fixture
def shared(spark: SparkSession) -> SparkPool:
    tasks = SparkPool(spark, 0)
    tasks.size = 3
    return tasks


def halving() -> Callable[[int], float]:
    """Defined inside, as Spark's workers know no test module."""

    def halved(number: int) -> float:
        if number == 13:
            raise CorruptExportError("file x is corrupt", file="x", base_offset=7, last_offset=9)
        return number / 2

    return halved


def test_results_are_in_the_order_of_the_tasks(shared: SparkPool) -> None:
    assert list(shared.map(halving(), range(12))) == [number / 2 for number in range(12)]
    assert list(shared.map(halving(), [])) == []


def test_task_error_keeps_its_type_and_fields(shared: SparkPool) -> None:
    with pytest.raises(CorruptExportError, match=r"^file x is corrupt$") as caught:
        list(shared.map(halving(), range(15)))
    error = caught.value
    assert (error.file, error.base_offset, error.last_offset) == ("x", 7, 9)
    other = error_from_columns("FileNotFoundError", "no file", "{}")
    assert (type(other), str(other)) == (ReplayError, "no file")


def test_large_work_is_split_into_one_task_per_core(spark: SparkSession) -> None:
    assert SparkPool(spark, pool.ALONE_RECORDS).size == 1
    cores = spark.sparkContext.defaultParallelism
    assert SparkPool(spark, pool.ALONE_RECORDS + 1).size == cores


def test_shuffle_task_reads_only_its_part_of_the_files(shared: SparkPool, history: Path) -> None:
    export = opened(history)
    parts = stretches(export, shared.stretches(export))
    assert len(parts) == 3
    assert sorted(one.file for part in parts for one in part) == [
        one.file for one in export.segments
    ]
    sizes = [sum(one.bytes for one in part) for part in parts]
    assert max(sizes) < sum(sizes) / 2


def test_shuffle_reports_a_damaged_file_of_its_first_stage(
    shared: SparkPool, history: Path, tmp_path: Path
) -> None:
    export = opened(shutil.copytree(history, tmp_path / "copy"), job="state")
    segment = export.segments[1]
    (tmp_path / "copy" / segment.file).write_bytes(b"PAR1 and no more PAR1")
    with pytest.raises(CorruptExportError, match=f"{segment.file} .*it does not parse"):
        fold(export, shared)


SCRIPT = Path(__file__).with_name("on_two_workers.py")
SETTINGS = {
    "spark.master": "local-cluster[2,1,2048]",
    # Wait for both, or the first would do it all.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
    "spark.sql.shuffle.partitions": "4",
    "spark.executor.memory": "1g",
    # Three Java processes that live for a minute: the better compiler would not pay.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
OPTIONS = [word for key, value in SETTINGS.items() for word in ("--conf", f"{key}={value}")]
PATIENCE_S = 1200
"""Each takes half a minute of CPU, which is scarce on a busy machine."""


@pytest.mark.nightly
def test_users_own_job_runs_on_two_workers(tmp_path: Path) -> None:
    profile = Profile(seed=11, brokers=6, topics=20, partitions=4)
    history, _ = write_export(tmp_path / "made-up", profile, 4_000)
    environ = spark_environment(os.environ)
    submit = str(Path(environ["SPARK_HOME"]) / "bin" / "spark-submit")
    done = run_text(
        [submit, *OPTIONS, str(SCRIPT), str(tmp_path / "made-up")],
        # Workers announce themselves by the machine's name, unless told otherwise.
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"} | environ,
        cwd=tmp_path,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found["executors"]) == 2
    assert found["state_hash"] == history.state_hash
    assert found["records"] == history.records
    assert (found["audited"], found["offences"]) == (history.records, 0)
