"""One Spark for all tests of the directory: its start takes seconds."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from asking import opened
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from replay.request import JobRequest
from replay.run import compute
from replay.spark.session import build_session, expect_records
from replay.spark.views import records
from replay.streaming import audit
from replay.streaming.ledger import Ledger, output
from replay.streaming.watch import Judge, Piece, take

Replay = Callable[..., Any]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    # A few hundred rows: planning and compiling queries would take most of the time.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        session = build_session("raftlog tests")
    expect_records(session, 0)
    session.conf.set("spark.sql.shuffle.partitions", "2")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def replay(spark: SparkSession) -> Replay:
    """Run a job on an export as the command line would, and return its result."""

    def run(job: str, directory: Path, **options: Any) -> Any:
        return compute(JobRequest(job=job, export=str(directory), **options), spark)

    return run


def rows_of(spark: SparkSession, directory: Path) -> DataFrame:
    return records(spark, opened(directory)).cache()


def in_pieces(rows: DataFrame, bounds: Sequence[int], directory: Path, judge: Judge) -> list[Any]:
    """Return the alerts of a watch that polls the records at the bounds (exclusive)."""
    for number, (low, high) in enumerate(pairwise(bounds)):
        piece = rows.where((sf.col("offset") >= low) & (sf.col("offset") < high))
        take(piece, number, Ledger(directory), judge)
    found = output(rows.sparkSession, directory)
    return [] if found is None else found.collect()


def audited_rows(rows: DataFrame) -> pa.Table:
    """Return the columns that the streaming audit reads, in order."""
    return audit.with_memory(Piece(rows, 0, 0, lambda _: None))
