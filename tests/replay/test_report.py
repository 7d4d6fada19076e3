"""The report's aggregates: two hours with known incidents, and histories too large to draw."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from asking import ask, written
from log_history import LogHistory
from msgspec.structs import replace

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

BEGIN_MS = 1_700_000_100_000


class Incidents(LogHistory):
    """An hour of three brokers, with a progress record every ten seconds and known incidents."""

    def __init__(self) -> None:
        super().__init__(61)
        self.timestamp_ms = BEGIN_MS
        self.held: dict[int, int] = {}
        """Brokers that apply nothing beyond an offset."""
        self.create_topic("orders", 0, [[1, 2, 3], [3, 1, 2], [1, 2]])
        self.create_topic("clicks", 0, [[3]])
        self._restart()
        self._broker_dies_while_the_controller_moves()
        self._flapping_and_slow()
        self.at(3600)

    def at(self, second: float) -> None:
        """Advance to that time, with a progress record at once and every ten seconds."""
        until = BEGIN_MS + round(second * 1000)
        self.timestamp_ms += 300
        self.progress()
        while self.timestamp_ms + 10_000 < until:
            self.timestamp_ms += 10_000 - self.timestamp_ms % 10_000
            self.append(pb.NoOpRecord())
            self.progress()
        self.wait(second)

    def wait(self, second: float) -> None:
        """Advance to that time without a record."""
        self.timestamp_ms = max(self.timestamp_ms, BEGIN_MS + round(second * 1000))

    def progress(self) -> None:
        last = self.end_offset
        applied = {one: min(last - 1, self.held.get(one, last)) for one in self.active()}
        self.report(min(applied.values()), applied)

    def _restart(self) -> None:
        """Broker 2 stops in order at 300 s, and is back at 345 s."""
        self.at(300)
        self.append(self.leaving(2), *self.removals(2))
        self.append(self.leaving(2, fenced=True))
        self.at(340)
        self.register(2)
        self.wait(345)
        self.set_fenced(2, fenced=False)
        for index in range(3):
            self.alter_isr("orders", index, [[1, 2, 3], [3, 1, 2], [1, 2]][index])

    def _broker_dies_while_the_controller_moves(self) -> None:
        """Broker 3 is silent from 1200 s on, fenced at 1212 s and back at 1450 s."""
        self.at(1080)
        fetchers = pb.ConfigRecord(resource_type=4, resource_name="3", name="num.replica.fetchers")
        fetchers.value = "8"
        self.append(fetchers, principal="User:deploy")
        self.at(1200)
        self.held[3] = self.end_offset - 1
        self.alter_config("orders", "retention.ms", "7200000", "User:bob")
        self.wait(1212)
        self.set_fenced(3, fenced=True)
        self.at(1260)
        self.append(pb.NoOpRecord())
        self.wait(1270)
        self.elect(3)
        del self.held[3]
        self.at(1410)
        self.register(3)
        self.wait(1450)
        self.set_fenced(3, fenced=False)
        for index in range(2):
            self.alter_isr("orders", index, [1, 2, 3])

    def _flapping_and_slow(self) -> None:
        """From 2000 s on, and 2 delays LAO from 2700 s on for two minutes, and catches up at once."""
        for turn in range(9):
            for second, isr in ((0, [1]), (20, [1, 2])):
                self.at(2000 + turn * 40 + second)
                self.alter_isr("orders", 2, isr)
        self.at(2700)
        self.held[2] = self.end_offset - 1
        self.alter_config("orders", "retention.ms", "60000", "User:bob")
        self.at(2820)
        del self.held[2]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> ReportResult:
    directory = written(Incidents(), tmp_path_factory.mktemp("exported"))
    result: ReportResult = ask("report", directory, output=str(directory / "report.html"))
    return result


def second(at_ms: int | None) -> int:
    assert at_ms is not None
    return (at_ms - BEGIN_MS) // 1000


def test_incidents_are_listed_with_their_events(report: ReportResult) -> None:
    died = report.timeline.incidents[0]
    events = {event.kind: event for event in died.events}
    assert died.severity == CRITICAL
    assert events["failover"].text == "controller 1 → 3, epoch 2"
    assert events["fenced"].text == "broker 3 fenced: session timed out"
    assert events["leaderless"].text == "no leader for clicks-0"
    assert events["held_back"].text == "LAO held back by broker 3"
    assert events["short"].count == died.short == 2
    assert (died.leaderless, died.brokers) == (1, 1)
    assert died.leaderless_ms == pytest.approx(238_000, abs=50)
    assert died.short_ms >= 2 * 237_950
    fenced = events["fenced"]
    assert (second(fenced.begins_ms), second(fenced.ends_ms)) == (1212, 1450)
    assert [event.text for event in died.before] == [
        "broker 3: num.replica.fetchers = 8, by User:deploy",
        "topic orders: retention.ms = 7200000, by User:bob",
    ]
    # Broker 2 has caught up at one blow: no record shows it behind.
    later = [event for each in report.timeline.incidents for event in each.events]
    later = [event for event in later if second(event.begins_ms) > 1500]
    (slow,) = (event for event in later if event.kind == "held_back")
    assert slow.text == "LAO held back by an unknown broker"
    assert (second(slow.begins_ms), second(slow.ends_ms)) == pytest.approx((2700, 2820), abs=2)


def test_lanes_and_curves_show_the_incidents(report: ReportResult) -> None:
    timeline = report.timeline
    controllers, *lanes = timeline.lanes
    assert [span.text for span in controllers.spans] == ["1 · epoch 1", "3 · epoch 2"]
    assert controllers.spans[0].ends_ms == controllers.spans[1].begins_ms
    assert [lane.name for lane in lanes] == ["broker 1", "broker 2", "broker 3"]
    assert [[span.state for span in lane.spans if span.state != "holding"] for lane in lanes] == [
        ["starting", "serving"],
        ["starting", "serving", "leaving", "stopped", "starting", "serving"],
        ["starting", "serving", "fenced", "starting", "serving"],
    ]
    held = [lane.name for lane in lanes if any(span.state == "holding" for span in lane.spans)]
    assert held == ["broker 3"]
    assert len(timeline.levels) == timeline.axis.buckets <= MAX_BUCKETS
    step_s = timeline.axis.bucket_ms / 1000
    without = [second(level.at_ms) for level in timeline.levels if level.leaderless]
    assert (min(without), max(without)) == pytest.approx((1212, 1450), abs=step_s)
    assert (timeline.levels[-1].short, timeline.levels[-1].leaderless) == (0, 0)
    slowest = max(timeline.waits, key=lambda wait: wait.max_ms or 0)
    assert second(slowest.at_ms) == pytest.approx(2700, abs=step_s)


def test_every_job_is_on_the_page(report: ReportResult) -> None:
    assert report.audit.passed
    assert {tuple(held.broker_ids) for held in report.lao.hold_ups} >= {(), (3,)}
    (failover,) = report.availability.failovers
    assert (failover.previous_leader_id, failover.leader_id) == (1, 3)
    lost = {(each.topic_name, each.partition_id): each for each in report.availability.partitions}
    assert lost["clicks", 0].leaderless_ms == pytest.approx(238_000, abs=50)
    assert lost["orders", 2].shrinks >= 9
    page = Path(report.output).read_text()
    assert page.startswith("<!doctype html>")
    assert "No leader for clicks-0" in page


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
    failed = [4, 5, 6, 7]
    rack = Event("fenced", WARNING, 5 * hour, 5 * hour + 60_000, 20, 4, "4 to 7 fenced", failed)
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
        Event("failover", WARNING, at, at + hour, at, 1, "") for at in range(0, 1_200_020, 60_001)
    ]
    kept, _ = find_sessions([*few, rack], axis, troubles((), short))
    assert kept[0].short == 2300


def test_open_outage_counts_up_to_the_end_of_the_log() -> None:
    """Two partitions from 1 s on, one of them until 4 s; a third one from 5 s on."""
    found = troubles((), [(1000, 4000, 1), (1000, NEVER, 1), (5000, NEVER, 1)]).short
    assert found.extent(0, 9000, 10_000) == (2, 3000 + 9000 + 5000)
    assert found.extent(1001, 5000, 10_000) == (0, 5000)


AXIS = Axis(0, 9_000_000, 1000)


def test_brokers_rank_incidents_without_partitions() -> None:
    long = Event("fenced", WARNING, 0, 900_000, 1, 1, "", [1])
    many = Event("fenced", WARNING, 1_000_000, 1_000_001, 2, 2, "", [2, 3])
    found, _ = find_sessions([long, many], AXIS, troubles())
    assert [each.brokers for each in found] == [2, 1]


def test_events_up_to_a_minute_apart_belong_together() -> None:
    events = [Event("fenced", WARNING, at, at + 1, at, 1, "") for at in (0, GAP_MS, 2 * GAP_MS + 1)]
    found, total = find_sessions(events, Axis(0, 9 * GAP_MS, 1000), troubles())
    assert total == 2
    spans = [(each.begins_ms, each.last_begins_ms) for each in found]
    assert spans == [(0, GAP_MS), (2 * GAP_MS + 1, 2 * GAP_MS + 1)]


def test_leaderless_partition_ranks_above_many_short_isrs() -> None:
    one = Event("leaderless", CRITICAL, 0, 1, 1, 1, "")
    many = Event("offence", CRITICAL, 1_000_000, 9_000_000, 2, 1, "")
    sizes = troubles([(0, 1, 1)], [(1_000_000, 9_000_000, 500)])
    found, _ = find_sessions([one, many], AXIS, sizes)
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
    page = tmp_path / "page.html"
    result: ReportResult = ask("report", written(log, tmp_path), output=str(page))
    assert (result.availability.failovers_total, result.timeline.incidents) == (3, [])
    assert result.lao.hold_ups == []
    assert "No incident." in page.read_text()


def test_report_lists_only_earlier_changes_as_before() -> None:
    begins_ms, ten_minutes_ms = 1_000_000, 600_000
    fenced = Event("fenced", WARNING, begins_ms, begins_ms + 30_000, 10, 1, "")
    changes = [begins_ms - ten_minutes_ms - 1, begins_ms - ten_minutes_ms, begins_ms, begins_ms + 1]
    changed = [Event("config", PLANNED, at, at, number, 1, "") for number, at in enumerate(changes)]
    sessions, _ = find_sessions([fenced], Axis(0, 2_000_000, 5_000), troubles())
    incident = incident_of(1, sessions[0], [fenced], changed, troubles(), NAMES)
    assert [event.begins_ms for event in incident.before] == [begins_ms - ten_minutes_ms, begins_ms]


def test_crowded_lane_is_merged_in_a_few_steps() -> None:
    def reign(number: int) -> Controller:
        ends_ms = 10 * number + 10
        return Controller(number, 1, number, None, 10 * number, ends_ms, None, ends_ms, None, None, None)  # fmt: skip

    (lane,), _ = lanes_of(map(reign, range(3000)), [], [], choose_axis(0, 10 * 3000))
    assert sum(span.count for span in lane.spans) == 3000
    assert sum(span.total_ms for span in lane.spans) == 30_000
    assert len(lane.spans) <= MAX_BUCKETS // 4 + 1
