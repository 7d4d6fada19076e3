"""What the replay makes of broker changes: by their causes, and of a log of before what the build
before made of its words.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from old_texts import OLD, OldLog, Story
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from spark_runs import Replay

from controller.rules import fencing
from raftlog.metadata.causes import OLD_TEXTS, SHUT_DOWN, Cause
from raftlog.metadata.entities import has_left
from raftlog.metadata.versions import LATEST_METADATA_VERSION
from raftlog.segments.export import export
from replay import timelines
from replay.causes import is_one_of, with_causes
from replay.opened import open_export
from replay.outages.fencings import departures, fencings, service
from replay.request import JobRequest
from replay.source import records

Rows = list[list[Any]]
ANEW = ("registered anew", "REGISTERED")


def exported(source: Any, directory: Path) -> Path:
    export(source, directory)
    return directory


def rows(spark: SparkSession, directory: Path) -> DataFrame:
    return records(spark, open_export(JobRequest(job="sql", export=str(directory))))


def classes(brokers: DataFrame) -> dict[str, Rows]:
    served = service(brokers)
    left = departures(served)
    asked = {
        "fencings": fencings(served).select(
            "broker_id", "begins", "reason", "planned", "unregistered"
        ),
        "departures": left.select("broker_id", "offset", "reason"),
        "abrupt": left.where(~is_one_of(SHUT_DOWN)).select("broker_id", "offset"),
    }
    return {name: sorted(map(list, table.collect())) for name, table in asked.items()}


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(OldLog(), tmp_path_factory.mktemp("old") / "export")


@pytest.mark.nightly
def test_a_log_of_before_is_judged_as_it_was(spark: SparkSession, old: Path) -> None:
    assert classes(timelines.brokers(rows(spark, old))) == {
        name: OLD[name] for name in ("fencings", "departures", "abrupt")
    }


@pytest.mark.nightly
def test_jobs_say_of_a_log_of_before_what_they_said(replay: Replay, old: Path) -> None:
    available = msgspec.to_builtins(replay("availability", old, limit=100))
    assert _without(available["fencings"], "cause") > {
        ("session timed out", "SESSION_TIMED_OUT"),
        ANEW,
    }
    assert {name: available[name] for name in OLD["availability"]} == OLD["availability"]
    lao = msgspec.to_builtins(replay("lao", old, limit=100))
    assert _without(lao["hold_ups"], "broker_cause") > {
        ("session timed out", "SESSION_TIMED_OUT"),
        ANEW,
        (None, None),
    }
    assert lao == OLD["lao"]


def _without(told: list[dict[str, Any]], name: str) -> set[tuple[str | None, str | None]]:
    """Takes out what that build did not say: the reasons there are, each with what is said beside
    it.
    """
    said = {(each["reason"], each.pop(name)) for each in told}
    assert {
        pair for pair in said - {ANEW, (None, None)} if OLD_TEXTS[pair[0]].name != pair[1]
    } == set()
    return said


@pytest.mark.nightly
def test_rewording_changes_no_class(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fencing, "_WORDS", dict.fromkeys(fencing._WORDS, "controlled shutdown"))
    found = rows(spark, exported(Story(LATEST_METADATA_VERSION), tmp_path / "export"))
    assert {row.reason for row in found.where("cause is not null").select("reason").collect()} == {
        "controlled shutdown"
    }
    unworded = {
        name: [[*row[:2], *row[3:]] for row in OLD[name]] for name in ("fencings", "departures")
    }
    told = classes(timelines.brokers(found))
    assert {name: [[*row[:2], *row[3:]] for row in told[name]] for name in unworded} == unworded
    assert told["abrupt"] == OLD["abrupt"]


@pytest.mark.nightly
def test_what_a_build_of_before_remembered_is_read_by_the_table(
    spark: SparkSession, old: Path
) -> None:
    """Streaming jobs keep open intervals and departures: those of before have no causes."""
    whole = rows(spark, old)
    first, second = whole.where("offset <= 80"), whole.where("offset > 80")
    remembered = timelines.brokers(first).where("ends is null").drop("cause")
    both = (
        timelines.brokers(second, remembered)
        .where("begins <= 80")
        .select("broker_id", "cause")
        .collect()
    )
    expected = timelines.brokers(first).where("ends is null").select("broker_id", "cause").collect()
    assert sorted(both) == sorted(expected)
    assert {row.cause for row in both} <= {cause.name for cause in OLD_TEXTS.values()}


def test_causes_and_leaves_in_columns(spark: SparkSession, old: Path) -> None:
    brokers = timelines.brokers(rows(spark, old))
    left = brokers.where(has_left(sf.col("fenced"), sf.col("in_controlled_shutdown")))
    assert {row.cause for row in left.select("cause").collect()} == {Cause.CONTROLLED_SHUTDOWN.name}
    other = with_causes(brokers.withColumn("reason", sf.lit("another text")).drop("cause"))
    assert other.where("cause is not null").count() == 0
    assert (
        other.where(is_one_of(Cause)).count() == other.where(is_one_of(Cause).isNull()).count() == 0
    )
