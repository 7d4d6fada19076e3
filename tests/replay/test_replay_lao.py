"""Which broker delayed LAO and for how long, in histories with known answers."""

from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from asking import ask
from log_history import LogHistory
from rich.console import Console

from raftlog.metadata.sketch import bucket_of
from raftlog.segments.export import export
from raftlog.wire.records.v1 import records_pb2 as pb
from replay.jobs import lao
from replay.jobs.lao import LaoResult
from replay.lag import hold_ups as causes
from replay.text import console

HOUR = 3_600_000


class Story(LogHistory):
    """A log in which time passes only on request, and LAO is waited for by writes."""

    def __init__(self) -> None:
        super().__init__(61)
        self.rng.randrange = lambda *_: 0  # type: ignore[method-assign]
        self.create_topic("orders", 1)

    def wait(self, ms: int) -> None:
        self.timestamp_ms += ms

    def write(self) -> int:
        return self.alter_config("orders", "k", "1")

    def reach(self, lao: int, **applied: int) -> int:
        """Append a progress record that names only changes: ``b1=17``: broker 1 had applied 17."""
        named = {int(name[1:]): offset for name, offset in applied.items()}
        return self.append(
            pb.ProgressRecord(
                lowest_acknowledged_offset=lao,
                high_watermark=self.end_offset,
                applied=[
                    pb.AppliedOffset(
                        broker_id=b, broker_epoch=self.draft.brokers[b].epoch, applied_offset=offset
                    )
                    for b, offset in sorted(named.items())
                ],
            )
        )

    def level(self) -> int:
        """All brokers have applied everything."""
        last = self.end_offset - 1
        return self.reach(last, **{f"b{b}": last for b in self.active()})


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
    export(log, directory)
    return Told(ask("lao", directory), known | {"directory": directory})


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
    assert [up.reason for up in ups if up.cause == causes.FENCED] == [
        "session timed out",
        "registered anew",
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


def test_lao_report_is_limited_and_printed(told: Told, capsys: pytest.CaptureFixture[str]) -> None:
    later = ask("lao", told.known["directory"], since_ms=told.known["hour"] + 2 * HOUR, limit=2)
    assert [up.broker_ids for up in later.hold_ups] == [[1]]
    assert (later.samples, later.records, later.waiting, later.max_ms) == (1, 3, 2, 1_500)
    assert [broker.broker_id for broker in later.brokers] == [1]
    lao.render(told.result, console(200))
    said = capsys.readouterr().out
    assert "7 s so far" in said
    assert "left service: session timed out" in said
    assert "LAO was held back 7 times" in said


def test_unknown_lao_is_not_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = Story()
    log.wait(60_000)
    log.write()
    log.reach(-1)
    export(log, tmp_path)
    result = ask("lao", tmp_path)
    assert (result.samples, result.unknown, result.brokers) == (1, 1, [])
    # All that was written waits still, since the beginning; there was nobody it could be laid to.
    assert [(up.broker_ids, up.cause, up.last_offset) for up in result.hold_ups] == [
        ([], causes.UNKNOWN, None)
    ]
    lao.render(result, console(200))
    assert "LAO unknown in 1" in capsys.readouterr().out


class Alone(Story):
    """A cluster from before its first broker on, which never has more than one."""

    def __init__(self) -> None:
        LogHistory.__init__(self, 62, brokers=0)
        self.rng.randrange = lambda *_: 0  # type: ignore[method-assign]
        self.brokers = 1

    def start(self) -> None:
        self.register(1)
        self.set_fenced(1, fenced=False)


def test_lao_hold_up_has_the_cause_no_broker_when_none_is_in_service(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = Alone()
    log.wait(5_000)
    log.start()
    # The wait for the first broker of a cluster is nobody's fault.
    log.level()
    log.create_topic("orders", 1)
    log.level()
    # Written while nobody was there.
    log.append(log.leaving(1, fenced=True))
    log.write()
    log.wait(4_000)
    log.start()
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
    export(log, tmp_path)
    result = ask("lao", tmp_path)
    ups = sorted(result.hold_ups, key=lambda up: up.began_ms)
    assert [(up.broker_ids, up.cause, up.last_offset) for up in ups] == [
        ([], causes.NO_BROKER, back),
        ([1], causes.FENCED, died),
        ([], causes.UNKNOWN, paused),
        ([], causes.NO_BROKER, None),
    ]
    assert [up.held_ms for up in ups] == [4_000, 10_000, 3_000, 6_000]
    lao.render(result, console(200))
    assert "no broker was in service" in capsys.readouterr().out


def all_took(took_us: int, count: int) -> pb.DurationSketch:
    """Return a controller's measurements of this many records with equal durations."""
    return pb.DurationSketch(
        count=count,
        sum_us=took_us * count,
        max_us=took_us,
        buckets=[bucket_of(took_us)],
        bucket_counts=[count],
    )


def test_lao_measurements_of_controllers_are_merged(tmp_path: Path) -> None:
    log = LogHistory(7)
    for took_us, count in ((4_000, 90), (7_000, 9), (2_000_000, 1)):
        log.append(
            pb.ProgressRecord(
                lowest_acknowledged_offset=-1,
                high_watermark=log.end_offset,
                acknowledged=all_took(took_us, count),
            )
        )
    export(log, tmp_path)
    result = ask("lao", tmp_path)
    found = result.acknowledged
    assert (found.records, found.max_us) == (100, 2_000_000)
    assert 4_000 <= found.p50_us <= 4_000 * 1.19
    assert 7_000 <= found.p99_us <= 7_000 * 1.19
    assert result.told is None
    console = Console(file=(out := StringIO()), width=200)
    lao.render(result, console)
    words = "Measured by the controllers for 100 records, from commit to applied by all: p50"
    assert words in out.getvalue()
