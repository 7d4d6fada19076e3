"""Jobs classify the departures of brokers by cause, not by text."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from caused_log import Story
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from spark_runs import Replay

from controller.rules import fencing
from raftlog.metadata.entities import SHUT_DOWN, Cause, has_left
from raftlog.segments.export import export
from replay.engine.passes import ExportLog
from replay.engine.pool import Pool
from replay.export import open_export
from replay.kernels.passes import facts_of
from replay.outages.service import departures, fencings, service
from replay.request import JobRequest
from replay.spark.views import VIEWS, Views

SAME_WORDS = dict.fromkeys(fencing._WORDS, "controlled shutdown")


def exported(directory: Path) -> Path:
    export(Story(), directory)
    return directory


def classes(directory: Path) -> dict[str, list[list[Any]]]:
    """Return the replay's classification of the log without its texts."""
    with Pool(0) as one:
        log = ExportLog(open_export(JobRequest(job="sql", export=str(directory))), one)
        served = service(facts_of(log).brokers)
    left = departures(served)
    shut_down = {each.name for each in SHUT_DOWN}
    return {
        "fencings": sorted(
            [each.broker_id, each.begins, each.planned, each.unregistered]
            for each in fencings(served)
        ),
        "departures": sorted([each.broker_id, each.offset, each.cause] for each in left),
        "abrupt": sorted(
            [each.broker_id, each.offset] for each in left if each.cause not in shut_down
        ),
    }


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(tmp_path_factory.mktemp("plain") / "export")


def test_rewording_changes_no_classification(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fencing, "_WORDS", SAME_WORDS)
    reworded = classes(exported(tmp_path / "export"))
    assert reworded == classes(plain)
    gone = {cause for _, _, cause in reworded["departures"]}
    assert gone >= {"SESSION_TIMED_OUT", "PROCESS_GONE", "METADATA_LAG", "CONTROLLED_SHUTDOWN"}
    assert len(reworded["abrupt"]) < len(reworded["departures"])


@pytest.mark.nightly
def test_jobs_show_the_reason_and_the_cause(replay: Replay, plain: Path) -> None:
    available = msgspec.to_builtins(replay("availability", plain, limit=100))
    lao = msgspec.to_builtins(replay("lao", plain, limit=100))
    told = {(each["reason"], each["cause"]) for each in available["fencings"]}
    assert told > {("session timed out", "SESSION_TIMED_OUT"), ("registered anew", "REGISTERED")}
    told = {(each["reason"], each["broker_cause"]) for each in lao["hold_ups"]}
    assert told > {("session timed out", "SESSION_TIMED_OUT"), (None, None)}


def test_causes_and_departures_are_columns(spark: SparkSession, plain: Path) -> None:
    opened = open_export(JobRequest(job="sql", export=str(plain)))
    brokers = VIEWS["brokers"](Views(spark, opened))
    left = brokers.where(has_left(sf.col("fenced"), sf.col("in_controlled_shutdown")))
    assert {row.cause for row in left.select("cause").collect()} == {Cause.CONTROLLED_SHUTDOWN.name}
    registered = brokers.where("registration").select("cause").distinct().collect()
    assert [row.cause for row in registered] == [Cause.REGISTERED.name]
