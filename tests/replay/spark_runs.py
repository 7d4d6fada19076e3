"""One Spark for all tests of the directory: its start takes seconds."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).parents[1] / "segments"))

from replay.request import JobRequest
from replay.run import compute
from replay.spark.session import build_session, expect_records

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
