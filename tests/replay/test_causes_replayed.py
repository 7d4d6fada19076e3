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
from replay.audit.history import remembered_spans
from replay.kernels.causes import cause_named
from replay.kernels.facts import BrokerSpan
from replay.kernels.passes import facts_of
from replay.local.passes import ExportLog
from replay.local.pool import Pool
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
    return records(spark, open_export(asked_of(directory)))


def classes(directory: Path) -> dict[str, Rows]:
    with Pool(0) as one:
        served = service(facts_of(ExportLog(open_export(asked_of(directory)), one)).brokers)
    left = departures(served)
    shut_down = {each.name for each in SHUT_DOWN}
    found: dict[str, Rows] = {
        "fencings": [
            [each.broker_id, each.begins, each.reason, each.planned, each.unregistered]
            for each in fencings(served)
        ],
        "departures": [[each.broker_id, each.offset, each.reason] for each in left],
        "abrupt": [[each.broker_id, each.offset] for each in left if each.cause not in shut_down],
    }
    return {name: sorted(table) for name, table in found.items()}


def asked_of(directory: Path) -> JobRequest:
    return JobRequest(job="sql", export=str(directory))


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(OldLog(), tmp_path_factory.mktemp("old") / "export")


@pytest.mark.nightly
def test_a_log_of_before_is_judged_as_it_was(old: Path) -> None:
    assert classes(old) == {name: OLD[name] for name in ("fencings", "departures", "abrupt")}


@pytest.mark.nightly
def test_jobs_say_of_a_log_of_before_what_they_said(replay: Replay, old: Path) -> None:
    available = msgspec.to_builtins(replay("availability", old, limit=100))
    assert _without(available["fencings"], "cause") > {
        ("session timed out", "SESSION_TIMED_OUT"),
        ANEW,
    }
    for each in available["objectives"]:
        each.pop("unknown_ms")  # That build took silence for absence, or for none.
        each.pop("counted_in")
    assert {name: available[name] for name in OLD["availability"]} == OLD["availability"]
    lao = msgspec.to_builtins(replay("lao", old, limit=100))
    assert _without(lao["hold_ups"], "broker_cause") > {
        ("session timed out", "SESSION_TIMED_OUT"),
        (None, None),
    }
    # That build told one a row, and twice of one that left twice; its percentiles were of another
    # kind.
    assert {
        (broker, up["began_ms"], up["cause"])
        for up in lao["hold_ups"]
        for broker in up["broker_ids"]
    } == {(up["broker_id"], up["began_ms"], up["cause"]) for up in OLD["lao"]["hold_ups"]}
    for name in ("timeline", "held_ms", "records", "waiting", "max_ms", "samples", "unknown"):
        assert lao[name] == OLD["lao"][name]
    said = {
        broker["broker_id"]: (broker["max_lag_ms"], broker["longest_ms"], broker["reports"])
        for broker in lao["brokers"]
    }
    assert said == {
        broker["broker_id"]: (broker["max_lag_ms"], broker["longest_ms"], broker["reports"])
        for broker in OLD["lao"]["brokers"]
    }


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
    directory = exported(Story(LATEST_METADATA_VERSION), tmp_path / "export")
    found = rows(spark, directory)
    assert {row.reason for row in found.where("cause is not null").select("reason").collect()} == {
        "controlled shutdown"
    }
    unworded = {
        name: [[*row[:2], *row[3:]] for row in OLD[name]] for name in ("fencings", "departures")
    }
    told = classes(directory)
    assert {name: [[*row[:2], *row[3:]] for row in told[name]] for name in unworded} == unworded
    assert told["abrupt"] == OLD["abrupt"]


@pytest.mark.nightly
def test_what_a_build_of_before_remembered_is_read_by_the_table(
    spark: SparkSession, old: Path
) -> None:
    """Streaming jobs keep open intervals and departures: those of before have no causes."""
    first = timelines.brokers(rows(spark, old).where("offset <= 80"))
    remembered = remembered_spans(first.drop("cause"), BrokerSpan)
    assert {each.cause for each in remembered} == {None}
    both = sorted((each.broker_id, each.cause) for each in service(remembered))
    expected = [(row.broker_id, row.cause) for row in first.where("ends is null").collect()]
    assert both == sorted(expected)
    assert {cause for _, cause in both} <= {cause.name for cause in OLD_TEXTS.values()}


def test_causes_and_leaves_in_columns(spark: SparkSession, old: Path) -> None:
    brokers = timelines.brokers(rows(spark, old))
    left = brokers.where(has_left(sf.col("fenced"), sf.col("in_controlled_shutdown")))
    assert {row.cause for row in left.select("cause").collect()} == {Cause.CONTROLLED_SHUTDOWN.name}
    assert cause_named(None, "another text") is None
