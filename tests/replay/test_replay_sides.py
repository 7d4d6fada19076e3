"""The sides of the benchmark (Spark, DuckDB, one process of pyarrow) give the same answers."""

import sys
from io import StringIO
from pathlib import Path

import pytest
from asking import opened
from pyspark.sql import SparkSession
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.replay import runner, tables
from benchmarks.replay.questions import QUESTIONS, answer
from benchmarks.replay.watch import Measured, Side, watch
from replay.spark.views import records
from simulation.generate.history import write_export
from simulation.generate.schedule import Profile


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    directory = tmp_path_factory.mktemp("history") / "it's made up"
    history, _ = write_export(
        directory, Profile(seed=2, brokers=6, topics=20, partitions=4), 12_000
    )
    return directory, history.state_hash


@pytest.mark.nightly
def test_all_sides_give_the_same_answers(exported: tuple[Path, str], spark: SparkSession) -> None:
    directory, _ = exported
    rows = records(spark, opened(directory))
    rows.withColumnRenamed("offset", "at_offset").createOrReplaceTempView("records")
    # In a process of its own: at the end of this one it would say what its module still holds.
    duckdb = watch("benchmarks.replay.duckdb_side", [str(directory)], limit_s=120)
    for name, text in QUESTIONS.items():
        theirs = duckdb.steps[name].answer
        assert theirs, name
        assert answer([tuple(row) for row in spark.sql(text).collect()]) == theirs, name


def test_side_is_measured_from_outside_and_ended_in_time(exported: tuple[Path, str]) -> None:
    directory, state_hash = exported
    side = watch("benchmarks.replay.arrow_side", [str(directory)], limit_s=60)
    assert list(side.steps) == ["scan", "fold"]
    assert side.steps["fold"].answer == state_hash
    assert side.steps["fold"].cpu_s > 0
    assert 10 < side.steps["fold"].peak_mb < 2000
    assert (
        watch("benchmarks.replay.arrow_side", [str(directory / "none")], limit_s=60).failed
        == "scan"
    )
    assert watch("benchmarks.replay.arrow_side", [str(directory)], limit_s=0.01).over == "start"


def test_measurement_fails_when_the_sides_disagree(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"benchmarks.replay.spark_side": "a", "benchmarks.replay.arrow_side": "b"}

    def watched(module: str, arguments: list[str], *, limit_s: float) -> Side:
        return Side({"fold": Measured(1.0, 1.0, 1.0, said[module])} if module in said else {})

    monkeypatch.setattr(runner, "watch", watched)
    with pytest.raises(RuntimeError, match="fold: pyarrow answers b, but Spark answers a"):
        runner.measure(Path("x"), [], 1.0)


def test_failing_side_does_not_prevent_the_table() -> None:
    measured = {
        "job: audit": Measured(1.0, 1.0, 1.0, "audit found something"),
        "job: lao": Measured(1.0, 1.0, 1.0),
    }
    side = tables.plain(Side(measured, failed="job: report"))
    result = {
        "records": 10, "skew": "none", "made": {"seconds": 1.0, "bytes": {"raw": 1, "records": 1}},
        "sides": {"Spark": side} | {peer: tables.plain(Side()) for peer in tables.PEERS},
    }  # fmt: skip
    console = Console(width=150, file=StringIO())
    tables.show({}, [result], console)
    assert isinstance(console.file, StringIO)
    text = console.file.getvalue()
    assert "job: lao" in text
    assert "Spark failed in step 'job: report'" in text
    assert "Spark: audit found something" in text
