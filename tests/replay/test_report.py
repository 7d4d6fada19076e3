"""The report's aggregates: two hours with known incidents, and histories too large to draw."""

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
from replay.kernels.arrays import NEVER, typed
from replay.kernels.facts import RARE_COLUMNS, Facts
from replay.kernels.intervals import Names, Spells
from replay.lag.hold_ups import HoldUp
from replay.outages.partitions import Condition, Troubled
from replay.outages.service import Controller, Stretch
from replay.report.incidents import GAP_MS, find_sessions, incident_of, of_hold_ups
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
from replay.report.page import extent_of
from replay.report.timeline import choose_axis, lanes_of
from replay.request import JobRequest
from replay.run import compute


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> ReportResult:
    directory = tmp_path_factory.mktemp("exported")
    export(two_hours(), directory)
    result: ReportResult = ask("report", directory, output=str(directory / "report.html"))
    return result


def second(at_ms: int | None) -> int:
    assert at_ms is not None
    return (at_ms - BEGIN_MS) // 1000


def events(report: ReportResult, number: int) -> dict[str, Event]:
    return {event.kind: event for event in report.timeline.incidents[number - 1].events}


@pytest.mark.nightly
def test_each_incident_is_listed_once_with_its_events(report: ReportResult) -> None:
    incidents = report.timeline.incidents
    assert [(each.number, each.severity) for each in incidents] == [
        (1, CRITICAL), (2, WARNING), (3, WARNING), (4, WARNING),
    ]  # fmt: skip
    died, *others = (events(report, number) for number in range(1, 5))
    moved = next(each for each in others if "epoch 2" in getattr(each.get("failover"), "text", ""))
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
    # Broker 6 has caught up at one blow: no record shows it behind.
    assert slow["held_back"].text == "LAO held back by an unknown broker"
    assert (
        second(slow["held_back"].begins_ms),
        second(slow["held_back"].ends_ms),
    ) == pytest.approx((6300, 6420), abs=2)


@pytest.mark.nightly
def test_incident_lists_changes_shortly_before_it(report: ReportResult) -> None:
    before = report.timeline.incidents[0].before
    assert [event.text for event in before] == [
        "broker 3: num.replica.fetchers = 8, by User:deploy",
        "topic orders: retention.ms = 7200000, by User:bob",
    ]
    first = min(report.timeline.incidents, key=lambda each: each.begins_ms)
    assert first.before == []


Runs = Sequence[tuple[int, int, int]]
"""Begin, end and number of partitions of each spell."""
NAMES = Names(Facts(typed(*RARE_COLUMNS).empty_table(), 0))


def troubles(leaderless: Runs = (), short: Runs = ()) -> Troubled:
    found = Troubled(Stretch(0, 1 << 60))
    for condition, runs in ((found.leaderless, leaderless), (found.short, short)):
        add(condition, runs)
    return found


def add(condition: Condition, runs: Runs) -> None:
    for begin, end, count in runs:
        key, zeros = np.arange(count), np.zeros(count, np.int64)
        condition.add(Spells(key, zeros, zeros + begin, zeros + end, zeros + end))


def test_incident_of_many_partitions_ranks_above_a_longer_one_of_few() -> None:
    """A rack that fails for a minute; fifteen partitions that flap for an hour, before and after
    it; and a broker that is fenced while the rack's partitions are short, without affecting any.
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
    found, total = find_sessions([*flaps, rack, one], axis, troubles((), short))
    assert total == 4
    assert [(each.short, each.short_ms // 1000, each.brokers) for each in found] == [
        (2300, 1000 * 240 + 1300 * 231, 4),
        (15, 15 * 3600, 0),
        (15, 15 * 600, 0),
        (0, 0, 1),
    ]
    first = incident_of(1, found[0], [*flaps, rack, one], [], troubles(), NAMES)
    assert (first.number, extent_of(first)) == (1, "2,300 partitions with an incomplete ISR")
    few = [
        Event("failover", WARNING, at, at + hour, at, 1, "") for at in range(0, 20 * 60_001, 60_001)
    ]
    kept, _ = find_sessions([*few, rack], axis, troubles((), short))
    assert kept[0].short == 2300


def test_open_outage_counts_up_to_the_end_of_the_log() -> None:
    """Two partitions from 1 s on, one of them until 4 s; a third one from 5 s on."""
    found = troubles((), [(1000, 4000, 1), (1000, NEVER, 1), (5000, NEVER, 1)]).short
    assert found.extent(0, 9000, 10_000) == (2, 3000 + 9000 + 5000)
    assert found.extent(1001, 5000, 10_000) == (0, 5000)


def test_brokers_rank_incidents_without_partitions() -> None:
    events = [
        Event("fenced", WARNING, 0, 900_000, 1, 1, "", [1]),
        Event("fenced", WARNING, 1_000_000, 1_000_001, 2, 2, "", [2, 3]),
    ]
    found, _ = find_sessions(events, Axis(0, 9_000_000, 1000), troubles())
    assert [each.brokers for each in found] == [2, 1]


def test_events_up_to_a_minute_apart_belong_together() -> None:
    events = [Event("fenced", WARNING, at, at + 1, at, 1, "") for at in (0, GAP_MS, 2 * GAP_MS + 1)]
    found, total = find_sessions(events, Axis(0, 9 * GAP_MS, 1000), troubles())
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
        events, Axis(0, 9_000_000, 1000), troubles([(0, 1, 1)], [(1_000_000, 9_000_000, 500)])
    )
    assert [(each.leaderless, each.short) for each in found] == [(1, 0), (0, 500)]
    assert found[0].gravity > found[1].gravity


def test_hold_up_of_ten_seconds_is_a_warning() -> None:
    up = HoldUp([4], "BEHIND", None, None, 0, 9_999, 9_999, 9_999, 7, 30, 40)
    long = replace(up, waited_ms=10_000)
    assert [each.severity for each in of_hold_ups([up, long])] == [NOTICE, WARNING]
    assert [each.broker_ids for each in of_hold_ups([up])] == [[4]]


def test_cluster_without_a_broker_has_no_incident(tmp_path: Path) -> None:
    """Its controllers change, and write records that no broker can apply."""
    log = LogHistory(3, brokers=0)
    for leader_id in (1, 2, 1):
        log.elect(leader_id)
        log.append(pb.ConfigRecord(resource_type=4, name="num.io.threads", value="8"))
        log.timestamp_ms += 120_000
    export(log, tmp_path)
    request = JobRequest(job="report", export=str(tmp_path), output=str(tmp_path / "page.html"))
    result: ReportResult = compute(request)
    assert (result.availability.failovers_total, result.timeline.incidents) == (3, [])
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
    sessions, _ = find_sessions([fenced], Axis(0, 2_000_000, 5_000), troubles())
    incident = incident_of(1, sessions[0], [fenced], changed, troubles(), NAMES)
    assert [event.begins_ms for event in incident.before] == [begins_ms - ten_minutes_ms, begins_ms]


@pytest.mark.nightly
def test_lanes_show_controller_epochs_and_broker_lives(report: ReportResult) -> None:
    controllers, *lanes = report.timeline.lanes
    assert [span.text for span in controllers.spans] == [f"{each} · epoch {each}" for each in (1, 2, 3)]  # fmt: skip
    ends = [span.ends_ms for span in controllers.spans[:-1]]
    assert ends == [span.begins_ms for span in controllers.spans[1:]]
    assert [lane.name for lane in lanes] == [f"broker {id_}" for id_ in range(1, BROKERS + 1)]
    assert report.timeline.brokers_total == BROKERS
    lives = [[span.state for span in lane.spans if span.state != "holding"] for lane in lanes]
    assert lives[:3] == [
        ["starting", "serving"],
        ["starting", "serving", "leaving", "stopped", "starting", "serving"],
        ["starting", "serving", "fenced", "starting", "serving"],
    ]
    (fenced,) = [span for span in lanes[2].spans if span.state == "fenced"]
    assert fenced.text == "session timed out"
    held = [lane.name for lane in lanes if any(s.state == "holding" for s in lane.spans)]
    assert held == ["broker 3"]


def test_crowded_lane_is_merged_in_a_few_steps() -> None:
    def reign(number: int) -> Controller:
        ends_ms = 10 * number + 10
        return Controller(number, 1, number, None, 10 * number, ends_ms, None, ends_ms, None, None, None)  # fmt: skip

    axis = choose_axis(0, 10 * 3000)
    (lane,), _ = lanes_of(map(reign, range(3000)), [], [], axis)
    assert sum(span.count for span in lane.spans) == 3000
    assert sum(span.total_ms for span in lane.spans) == 30_000
    assert len(lane.spans) <= MAX_BUCKETS // 4 + 1


@pytest.mark.nightly
def test_curves_show_the_worst_value_of_each_step(report: ReportResult) -> None:
    timeline = report.timeline
    assert len(timeline.levels) == timeline.axis.buckets <= MAX_BUCKETS
    assert max(level.short for level in timeline.levels) == 5
    without = [second(level.at_ms) for level in timeline.levels if level.leaderless]
    assert (min(without), max(without)) == pytest.approx(
        (3612, 3850), abs=timeline.axis.bucket_ms / 1000
    )
    assert (timeline.levels[-1].short, timeline.levels[-1].leaderless) == (0, 0)


@pytest.mark.nightly
def test_every_job_is_on_the_page(report: ReportResult) -> None:
    assert report.audit.passed
    long = [held for held in report.lao.hold_ups if held.waited_ms > 10_000]
    assert {tuple(held.broker_ids) for held in long} == {(), (3,)}
    assert [
        (each.previous_leader_id, each.leader_id) for each in report.availability.failovers
    ] == [(2, 3), (1, 2)]
    worst, *others = report.availability.partitions
    assert (worst.topic_name, worst.partition_id, worst.leaderless_ms // 1000) == ("clicks", 0, 238)
    flapped = next(
        each for each in others if (each.topic_name, each.partition_id) == ("payments", 1)
    )
    assert flapped.shrinks >= 9
    slowest = max(report.timeline.waits, key=lambda wait: wait.max_ms or 0)
    assert 120_000 <= (slowest.max_ms or 0) < 121_000
    assert second(slowest.at_ms) == pytest.approx(6300, abs=report.timeline.axis.bucket_ms / 1000)


@pytest.mark.nightly
def test_page_is_written_to_the_requested_path(report: ReportResult) -> None:
    page = Path(report.output).read_text()
    assert page.startswith("<!doctype html>")
    assert "No leader for clicks-0" in page
