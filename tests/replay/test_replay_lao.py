"""Which broker delayed LAO and for how long, in histories with known answers."""

from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from asking import ask, written
from log_history import LogHistory
from rich.console import Console

from raftlog.metadata.sketch import bucket_of
from raftlog.wire.records.v1 import records_pb2 as pb
from replay.jobs import lao
from replay.jobs.availability import BROKER_TIME, PARTITION_TIME, WALL_CLOCK
from replay.jobs.lao import LaoResult
from replay.lag import hold_ups as causes
from replay.report.model import ReportResult

HOUR = 3_600_000


class Story(LogHistory):
    """A log in which time passes only on request, and LAO is waited for by writes."""

    def __init__(self, brokers: int = 3) -> None:
        super().__init__(61, brokers=brokers)
        self.rng.randrange = lambda *_: 0  # type: ignore[method-assign]
        if brokers:
            self.create_topic("orders", 1)

    def wait(self, ms: int) -> None:
        self.timestamp_ms += ms

    def write(self) -> int:
        return self.alter_config("orders", "k", "1")

    def reach(self, lao: int, **applied: int) -> int:
        """Append a progress record that names only changes: ``b1=17``: broker 1 had applied 17."""
        return self.report(lao, {int(name[1:]): offset for name, offset in applied.items()})

    def measured(self, took_us: int, count: int) -> int:
        """Append the controller's measurements of this many records, with equal durations."""
        took = pb.DurationSketch(count=count, sum_us=took_us * count, max_us=took_us)
        took.buckets.append(bucket_of(took_us))
        took.bucket_counts.append(count)
        return self.report(self.end_offset - 1, {}, acknowledged=took)

    def level(self) -> int:
        """All brokers have applied everything."""
        last = self.end_offset - 1
        return self.reach(last, **{f"b{b}": last for b in self.active()})


def lag(log: LogHistory, directory: Path) -> LaoResult:
    result: LaoResult = ask("lao", written(log, directory))
    return result


def printed(result: LaoResult, width: int = 200) -> str:
    lao.render(result, Console(file=(out := StringIO()), width=width))
    return out.getvalue()


class Told(NamedTuple):
    """One long story of several parts, with the expected results of each."""

    result: LaoResult
    known: dict[str, Any]


def dies(log: Story, known: dict[str, Any]) -> None:
    """Kill -9 of broker 2: its session expires 9 s later, and until then no progress is recorded."""
    before = log.level()
    log.wait(60_000)  # an idle minute is not a stall
    written = log.write()
    log.wait(3_000)
    log.write()
    log.wait(6_000)
    log.set_fenced(2, fenced=True)
    log.wait(10)
    last = log.end_offset - 1
    known["dies"] = (before, last - written + 1, log.reach(last, b1=last, b3=last))
    log.set_fenced(2, fenced=False)
    log.level()


def is_slow(log: Story, known: dict[str, Any]) -> None:
    """Broker 3 applies one record a sample, 5 s late: one hold-up. Then it catches up."""
    first, second, third = log.write(), log.write(), log.write()
    log.wait(5_000)
    one = log.reach(first, b1=third, b2=third, b3=first)
    log.wait(1_000)
    two = log.reach(second, b3=second)
    log.wait(1_000)
    known["slow"] = (one, two, log.level())
    log.wait(1_000)
    log.write()
    log.wait(20)
    log.level()


def fails_over(log: Story, known: dict[str, Any]) -> None:
    """A new controller, and then a pause without a trace."""
    log.write()
    log.wait(4_000)
    log.elect(2)
    log.wait(100)
    failed_over = log.level()
    log.write()
    log.wait(3_000)
    known["failover"] = (failed_over, log.level())


def leaves_in_order(log: Story, known: dict[str, Any]) -> None:
    """Broker 3 shuts down while 2 is dead, whose successor registers within its session."""
    log.write()
    log.wait(5_000)
    log.append(log.leaving(3, fenced=True))
    log.wait(4_000)
    log.register(2)
    last = log.end_offset - 1
    known["leaves"] = log.reach(last, b1=last)
    log.set_fenced(2, fenced=False)
    log.set_fenced(3, fenced=False)
    log.level()


def takes_hours(log: Story, known: dict[str, Any]) -> None:
    log.timestamp_ms += HOUR - log.timestamp_ms % HOUR
    known["hour"] = log.timestamp_ms
    log.write()
    log.wait(40)
    log.level()
    log.wait(HOUR)
    for _ in range(99):
        log.write()
    log.wait(10)
    log.write()
    log.wait(1_500)
    log.level()
    log.wait(2 * HOUR)


def has_not_ended(log: Story, known: dict[str, Any]) -> None:
    """The export is made during the hold-up: broker 1 is at LAO."""
    written = log.write()
    log.wait(1_500)
    log.write()
    log.reach(written, b1=written, b2=written + 1, b3=written + 1)
    log.wait(7_000)
    log.write()


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    log, known, directory = Story(), dict[str, Any](), tmp_path_factory.mktemp("told")
    for chapter in (dies, is_slow, fails_over, leaves_in_order, takes_hours, has_not_ended):
        chapter(log, known)
    return Told(lag(log, directory), known | {"directory": directory})


def test_each_hold_up_is_attributed_to_its_broker(told: Told) -> None:
    _, _, died = told.known["dies"]
    _, two, level = told.known["slow"]
    failed_over, traceless = told.known["failover"]
    ups = sorted(told.result.hold_ups, key=lambda up: up.began_ms)
    assert [(up.broker_ids, up.cause, up.held_ms, up.last_offset) for up in ups] == [
        ([2], causes.FENCED, 9_010, died),
        ([3], causes.BEHIND, 6_000, two),
        # It ends with everybody level: nobody can say who it was.
        ([], causes.UNKNOWN, 1_000, level),
        ([], causes.FAILOVER, 4_100, failed_over),
        ([], causes.UNKNOWN, 3_000, traceless),
        ([2], causes.FENCED, 9_000, told.known["leaves"]),
        ([1], causes.BEHIND, 7_000, None),
    ]
    reasons = [(up.reason, up.broker_cause) for up in ups if up.cause == causes.FENCED]
    assert reasons == [
        ("session timed out", "SESSION_TIMED_OUT"),
        ("registered anew", "REGISTERED"),
    ]
    before, records, _ = told.known["dies"]
    assert (ups[0].first_offset, ups[0].records, ups[0].waited_ms) == (before, records, 9_010)
    assert told.result.hold_ups[0].held_ms == told.result.max_ms == 9_010
    assert told.result.held_ms == sum(up.held_ms for up in ups)


def test_brokers_are_summarized_by_their_hold_ups(told: Told) -> None:
    brokers = {broker.broker_id: broker for broker in told.result.brokers}
    held = {id_: (each.hold_ups, each.held_ms, each.longest_ms) for id_, each in brokers.items()}
    assert held == {1: (1, 7_000, 7_000), 2: (2, 18_010, 9_010), 3: (1, 6_000, 6_000)}
    assert [broker.broker_id for broker in told.result.brokers] == [2, 1, 3]


def test_lao_report_is_limited_and_printed(told: Told) -> None:
    later = ask("lao", told.known["directory"], since_ms=told.known["hour"] + 2 * HOUR, limit=2)
    assert [up.broker_ids for up in later.hold_ups] == [[1]]
    assert (later.samples, later.records, later.waiting, later.max_ms) == (1, 3, 2, 1_500)
    assert [broker.broker_id for broker in later.brokers] == [1]
    said = printed(told.result)
    assert "7 s so far" in said
    assert "left service: session timed out" in said
    assert "LAO was held back 7 times" in said


def test_unknown_lao_is_not_zero(tmp_path: Path) -> None:
    log = Story()
    log.wait(60_000)
    log.write()
    log.reach(-1)
    result = lag(log, tmp_path)
    assert (result.samples, result.unknown, result.brokers) == (1, 1, [])
    # All that was written waits still, since the beginning; there was nobody it could be laid to.
    (up,) = result.hold_ups
    assert (up.broker_ids, up.cause, up.last_offset) == ([], causes.UNKNOWN, None)
    assert "LAO unknown in 1" in printed(result)


def test_lao_hold_up_has_the_cause_no_broker_when_none_is_in_service(tmp_path: Path) -> None:
    """From before the first broker on, and never with more than one."""
    log = Story(brokers=0)
    log.brokers = 1

    def start() -> None:
        log.register(1)
        log.set_fenced(1, fenced=False)

    log.wait(5_000)
    start()
    # The wait for the first broker of a cluster is nobody's fault.
    log.level()
    log.create_topic("orders", 1)
    log.level()
    # Written while nobody was there.
    log.append(log.leaving(1, fenced=True))
    log.write()
    log.wait(4_000)
    start()
    back = log.level()
    # It was there, and died: that says more.
    log.write()
    log.wait(9_000)
    log.set_fenced(1, fenced=True)
    log.wait(1_000)
    log.set_fenced(1, fenced=False)
    died = log.level()
    # Nobody was away.
    log.write()
    log.wait(3_000)
    paused = log.level()
    log.append(log.leaving(1, fenced=True))
    log.write()
    log.wait(6_000)
    log.write()
    result = lag(log, tmp_path)
    ups = sorted(result.hold_ups, key=lambda up: up.began_ms)
    assert [(up.broker_ids, up.cause, up.last_offset) for up in ups] == [
        ([], causes.NO_BROKER, back),
        ([1], causes.FENCED, died),
        ([], causes.UNKNOWN, paused),
        ([], causes.NO_BROKER, None),
    ]
    assert [up.held_ms for up in ups] == [4_000, 10_000, 3_000, 6_000]
    assert "no broker was in service" in printed(result)


def test_lao_measurements_of_controllers_are_merged(tmp_path: Path) -> None:
    log = Story()
    for took_us, count in ((4_000, 90), (7_000, 9), (2_000_000, 1)):
        log.measured(took_us, count)
    result = lag(log, tmp_path)
    found = result.acknowledged
    assert (found.records, found.max_us) == (100, 2_000_000)
    assert 4_000 <= found.p50_us <= 4_000 * 1.19
    assert 7_000 <= found.p99_us <= 7_000 * 1.19
    assert result.told is None
    words = "Measured by the controllers for 100 records, from commit to applied by all: p50"
    assert words in printed(result)


def test_stall_ends_when_the_controller_measured_its_end(tmp_path: Path) -> None:
    log = Story()
    log.measured(4_000, 20)
    log.wait(1_000)
    began_ms = log.timestamp_ms
    log.write()
    log.wait(3_700)
    # The record of it comes late.
    log.measured(2_900_500, 2)
    (up,) = lag(log, tmp_path).hold_ups
    assert (up.began_ms, up.waited_ms, up.held_ms) == (began_ms, 2_901, 2_901)
    assert up.ended_ms == began_ms + 2_901


@pytest.mark.parametrize("measured", [1, 0])
def test_incomplete_lao_measurement_is_not_believed(tmp_path: Path, measured: int) -> None:
    log = Story()
    log.measured(4_000, 20)
    log.wait(1_000)
    if not measured:
        # A new controller has not seen what its predecessor wrote.
        log.write()
        log.elect(2)
    log.write()
    log.write()
    log.wait(3_700)
    log.measured(10_000, 1 if measured else 9)
    (up,) = lag(log, tmp_path).hold_ups
    assert up.waited_ms == 3_700


def test_outage_of_a_site_is_one_stall(tmp_path: Path) -> None:
    log = Story()
    log.level()
    log.wait(1_000)
    log.write()
    log.wait(9_000)
    log.set_fenced(2, fenced=True)
    log.set_fenced(3, fenced=True)
    log.wait(10)
    last = log.end_offset - 1
    log.reach(last, b1=last)
    log.delete_topic("orders")
    result = lag(log, tmp_path)
    (up,) = result.hold_ups
    assert (up.broker_ids, up.cause, up.held_ms) == ([2, 3], causes.FENCED, 9_010)
    assert {each.broker_id: each.held_ms for each in result.brokers} == {2: 9_010, 3: 9_010}
    said = printed(result, width=80)
    assert "│ 2, 3 " in said
    assert f"offsets {up.first_offset}–{up.last_offset}" in said
    assert "p99 9.01 s (both up to 0.2 % too high from 1 s on)" in " ".join(said.split())
    assert max(map(len, said.splitlines())) <= 80
    found: ReportResult = ask("report", tmp_path, output=str(tmp_path / "page.html"))
    texts = [event.text for each in found.timeline.incidents for event in each.events]
    assert "brokers 2, 3 fenced: session timed out" in texts
    assert "LAO held back by brokers 2, 3" in texts
    counted = {each.counted_in for each in found.availability.objectives}
    assert counted == {PARTITION_TIME, BROKER_TIME, WALL_CLOCK}
    # A deleted topic keeps its name.
    assert {each.topic_name for each in found.availability.partitions} <= {"orders"}
