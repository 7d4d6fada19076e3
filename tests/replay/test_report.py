"""The report's aggregates: of two hours whose incidents are known, and of histories that would be
too much to draw.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from asking import ask
from incident_history import BEGIN_MS, BROKERS, two_hours
from log_history import LogHistory
from msgspec.structs import replace

from raftlog.segments.export import export
from raftlog.wire.records.v1 import records_pb2 as pb
from replay.kernels.arrays import NEVER
from replay.lag.result import LaoStall
from replay.report.events import GAP_MS, Extent, Extents, find_sessions, incidents_of, of_hold_ups
from replay.report.model import (
    CRITICAL,
    MAX_BUCKETS,
    NOTICE,
    PLANNED,
    WARNING,
    Axis,
    Event,
    ReportResult,
)
from replay.report.moments import Changes, Moments, Rise
from replay.report.page import extent_of
from replay.request import JobRequest
from replay.run import compute


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> ReportResult:
    directory = tmp_path_factory.mktemp("exported")
    export(two_hours(), directory)
    result: ReportResult = ask("report", directory, output=str(directory / "report.html"))
    return result


def second(at_ms: int | None) -> int:
    """Since the history's beginning."""
    assert at_ms is not None
    return (at_ms - BEGIN_MS) // 1000


def events(report: ReportResult, number: int) -> dict[str, Event]:
    return {event.kind: event for event in report.timeline.incidents[number - 1].events}


@pytest.mark.nightly
def test_each_incident_is_told_once_with_what_belongs_to_it(report: ReportResult) -> None:
    incidents = report.timeline.incidents
    assert [(each.number, each.severity) for each in incidents] == [
        (1, CRITICAL), (2, WARNING), (3, WARNING), (4, WARNING), (5, WARNING),
    ]  # fmt: skip
    died, *others = (events(report, number) for number in range(1, 6))
    moved = next(each for each in others if "epoch 2" in getattr(each.get("failover"), "text", ""))
    flapped = next(each for each in others if "flapping" in each)
    slow = next(each for each in others if list(each) == ["held_back"])
    assert moved["failover"].text == "controller 1 → 2, epoch 2"
    assert {"fenced", "leaderless", "short", "failover", "held_back"} <= set(died)
    assert died["fenced"].text == "broker 3 fenced: session timed out"
    assert died["leaderless"].text == "no leader for clicks-0"
    assert died["held_back"].text == "LAO held back by broker 3"
    assert died["short"].count == 5
    first = incidents[0]
    assert (first.leaderless, first.leaderless_ms // 1000, first.brokers) == (1, 238, 1)
    assert first.short == 5
    assert first.short_ms >= 5 * 238_000
    assert (second(died["fenced"].begins_ms), second(died["fenced"].ends_ms)) == (3612, 3850)
    assert flapped["flapping"].count == 1
    # Broker 6 has caught up at one blow: no record shows it after.
    assert slow["held_back"].text == "LAO held back, the log does not say by which broker"
    assert (
        second(slow["held_back"].begins_ms),
        second(slow["held_back"].ends_ms),
    ) == pytest.approx((6300, 6420), abs=2)


@pytest.mark.nightly
def test_an_incident_says_what_was_changed_shortly_before(report: ReportResult) -> None:
    before = report.timeline.incidents[0].before
    assert [event.text for event in before] == [
        "broker 3: num.replica.fetchers = 8, by User:deploy",
        "topic orders: retention.ms = 7200000, by User:bob",
    ]
    first = min(report.timeline.incidents, key=lambda each: each.begins_ms)
    assert first.before == []


def extents(
    leaderless: Sequence[tuple[int, int, int]] = (), short: Sequence[tuple[int, int, int]] = ()
) -> Extents:
    """``leaderless``, ``short``: begin, end and number of partitions of each spell."""

    def extent(spells: Sequence[tuple[int, int, int]]) -> Extent:
        steps = sorted(
            step for begin, end, count in spells for step in ((begin, count), (end, -count))
        )
        rows = [
            (begin, end, 0, count, 0, count * (end - begin), 0)
            for begin, end, count in sorted(spells)
        ]
        moments = Moments(*np.array(rows, np.int64).reshape(-1, 7).T)
        return Extent(Rise(Changes(*np.array(steps, np.int64).reshape(-1, 2).T)), moments)

    return Extents(extent(leaderless), extent(short))


def test_incident_of_many_partitions_ranks_above_a_longer_one_of_few() -> None:
    """A rack that fails for a minute; fifteen partitions that flap for an hour, before and after
    it; and a broker that is fenced while the rack's partitions are short, and takes none along.
    """
    hour = 3_600_000
    flaps = [
        Event("flapping", WARNING, at, at + hour, offset, 15, "15 flapped")
        for offset, at in ((1, hour), (40, 9 * hour))
    ]
    rack = Event(
        "fenced", WARNING, 5 * hour, 5 * hour + 60_000, 20, 4, "4 to 7 fenced", [4, 5, 6, 7]
    )
    one = Event("fenced", WARNING, 5 * hour + 180_000, 5 * hour + 900_000, 30, 1, "9 fenced", [9])
    short = [
        (hour, hour + 600_000, 15),
        (5 * hour, 5 * hour + 240_000, 1000),
        (5 * hour + 9000, 5 * hour + 240_000, 1300),
        (9 * hour, 10 * hour, 15),
    ]
    axis = Axis(0, 12 * hour, 60_000)
    found, total = find_sessions([*flaps, rack, one], axis, extents((), short))
    assert total == 4
    assert [(each.short, each.short_ms // 1000, each.brokers) for each in found] == [
        (2300, 1000 * 240 + 1300 * 231, 4),
        (15, 15 * 3600, 0),
        (15, 15 * 600, 0),
        (0, 0, 1),
    ]
    first, *_ = incidents_of(found, [*flaps, rack, one], lambda *_: [], [])
    assert (first.number, extent_of(first)) == (1, "2,300 partitions with an incomplete ISR")
    few = [
        Event("failover", WARNING, at, at + hour, at, 1, "") for at in range(0, 20 * 60_001, 60_001)
    ]
    kept, _ = find_sessions([*few, rack], axis, extents((), short))
    assert kept[0].short == 2300


def test_spell_that_lasts_counts_up_to_the_end_of_the_log() -> None:
    """Two partitions from 1 s on, one of them until 4 s; a third one from 5 s on."""
    numbers = [(1000, NEVER, 0, 2, 0, 3000, 1), (5000, NEVER, 9, 1, 2, 0, 1)]
    moments = Moments(*np.array(numbers, np.int64).T)
    assert moments.partition_ms(10_000) == 3000 + 9000 + 5000
    assert moments.within(1001, 5000).partition_ms(10_000) == 5000


def test_brokers_rank_incidents_without_partitions() -> None:
    events = [
        Event("fenced", WARNING, 0, 900_000, 1, 1, "", [1]),
        Event("fenced", WARNING, 1_000_000, 1_000_001, 2, 2, "", [2, 3]),
    ]
    found, _ = find_sessions(events, Axis(0, 9_000_000, 1000), extents())
    assert [each.brokers for each in found] == [2, 1]


def test_events_belong_together_up_to_a_minute_apart() -> None:
    events = [Event("fenced", WARNING, at, at + 1, at, 1, "") for at in (0, GAP_MS, 2 * GAP_MS + 1)]
    found, total = find_sessions(events, Axis(0, 9 * GAP_MS, 1000), extents())
    assert total == 2
    assert [(each.begins_ms, each.last_begins_ms) for each in found] == [
        (0, GAP_MS),
        (2 * GAP_MS + 1, 2 * GAP_MS + 1),
    ]


def test_leaderless_partition_ranks_above_many_short_isrs() -> None:
    events = [
        Event("leaderless", CRITICAL, 0, 1, 1, 1, ""),
        Event("offence", CRITICAL, 1_000_000, 9_000_000, 2, 1, ""),
    ]
    found, _ = find_sessions(
        events, Axis(0, 9_000_000, 1000), extents([(0, 1, 1)], [(1_000_000, 9_000_000, 500)])
    )
    assert [(each.leaderless, each.short) for each in found] == [(1, 0), (0, 500)]
    assert found[0].gravity > found[1].gravity


def test_hold_up_of_ten_seconds_is_a_warning() -> None:
    up = LaoStall([4], "BEHIND", None, None, 0, 9_999, 9_999, 9_999, 7, 1, 30, 40)
    long = replace(up, waited_ms=10_000)
    assert [each.severity for each in of_hold_ups([up, long])] == [NOTICE, WARNING]
    assert [each.broker_ids for each in of_hold_ups([up])] == [[4]]


def test_cluster_without_a_broker_has_no_incident(tmp_path: Path) -> None:
    """Its controllers change, and write what nobody can apply."""
    log = LogHistory(3, brokers=0)
    for leader_id in (1, 2, 1):
        log.elect(leader_id)
        log.append(pb.ConfigRecord(resource_type=4, name="num.io.threads", value="8"))
        log.timestamp_ms += 120_000
    export(log, tmp_path)
    request = JobRequest(job="report", export=str(tmp_path), output=str(tmp_path / "page.html"))
    result: ReportResult = compute(request)
    assert (result.timeline.failovers, result.timeline.incidents) == (3, [])
    assert result.lao.hold_ups == []
    assert "No incident." in (tmp_path / "page.html").read_text()


def test_report_lists_only_earlier_changes_as_before() -> None:
    begins_ms, ten_minutes_ms = 1_000_000, 600_000
    fenced = Event("fenced", WARNING, begins_ms, begins_ms + 30_000, 10, 1, "")
    changes = [begins_ms - ten_minutes_ms - 1, begins_ms - ten_minutes_ms, begins_ms, begins_ms + 1]
    changed = [
        Event("config", PLANNED, at_ms, at_ms, offset, 1, "")
        for offset, at_ms in enumerate(changes)
    ]
    sessions, _ = find_sessions([fenced], Axis(0, 2_000_000, 5_000), extents())
    (incident,) = incidents_of(sessions, [fenced], lambda *_: [], changed)
    assert [event.begins_ms for event in incident.before] == [begins_ms - ten_minutes_ms, begins_ms]


@pytest.mark.nightly
def test_lanes_tell_the_lives_of_brokers(report: ReportResult) -> None:
    lanes = {lane.broker_id: lane for lane in report.timeline.brokers}
    assert (sorted(lanes), report.timeline.brokers_total) == (list(range(1, BROKERS + 1)), BROKERS)
    lives = {
        number: [span.state for span in lane.spans if span.state != "holding"]
        for number, lane in lanes.items()
    }
    assert lives[1] == ["starting", "serving"]
    assert lives[2] == ["starting", "serving", "leaving", "stopped", "starting", "serving"]
    assert lives[3] == ["starting", "serving", "fenced", "starting", "serving"]
    assert (lanes[3].fencings, lanes[2].fencings, lanes[1].fencings) == (1, 0, 0)
    (fenced,) = [span for span in lanes[3].spans if span.state == "fenced"]
    assert fenced.reason == "session timed out"
    assert sorted(number for number, lane in lanes.items() if lane.held_ms > 10_000) == [3]


@pytest.mark.nightly
def test_reigns_of_controllers_follow_one_another(report: ReportResult) -> None:
    reigns = report.timeline.controllers
    assert [(reign.leader_id, reign.first_epoch) for reign in reigns] == [(1, 1), (2, 2), (3, 3)]
    assert [before.ends_ms for before in reigns[:-1]] == [after.begins_ms for after in reigns[1:]]
    assert report.timeline.failovers == 2


@pytest.mark.nightly
def test_curves_show_the_worst_of_each_step(report: ReportResult) -> None:
    timeline = report.timeline
    assert len(timeline.levels) == timeline.axis.buckets <= MAX_BUCKETS
    assert max(level.short for level in timeline.levels) == 5
    without = [second(level.at_ms) for level in timeline.levels if level.leaderless]
    assert (min(without), max(without)) == pytest.approx(
        (3612, 3850), abs=timeline.axis.bucket_ms / 1000
    )
    assert (timeline.levels[-1].short, timeline.levels[-1].leaderless) == (0, 0)
    assert sum(each.records for each in timeline.growth) == report.header.records


@pytest.mark.nightly
def test_every_job_is_on_the_page(report: ReportResult) -> None:
    assert report.audit.passed
    long = [held for held in report.lao.hold_ups if held.waited_ms > 10_000]
    assert {tuple(held.broker_ids) for held in long} == {(), (3,)}
    assert [
        (each.previous_leader_id, each.leader_id) for each in report.availability.failovers
    ] == [(2, 3), (1, 2)]
    assert report.churn.partitions[0].topic_name == "payments"
    slowest = max(report.timeline.waits, key=lambda wait: wait.max_ms or 0)
    assert 120_000 <= (slowest.max_ms or 0) < 121_000
    assert second(slowest.at_ms) == pytest.approx(6300, abs=report.timeline.axis.bucket_ms / 1000)


@pytest.mark.nightly
def test_the_page_is_where_it_was_asked_for(report: ReportResult) -> None:
    page = Path(report.output).read_text()
    assert page.startswith("<!doctype html>")
    assert "No leader for clicks-0" in page
