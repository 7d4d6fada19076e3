"""Availability figures of a story with known outages."""

from collections import Counter
from collections.abc import Iterable
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import structlog
from asking import ask, ask_shared, written
from figures_reference import Key, Reference
from log_history import LogHistory
from test_timelines import Eventful

from raftlog.segments.export import export
from raftlog.segments.manifest import RAW, read_manifest
from raftlog.segments.raw import read_batches
from raftlog.wire.records.v1 import records_pb2 as pb
from replay.engine import reading
from replay.jobs import availability
from replay.jobs.availability import AvailabilityResult
from replay.outages.service import Fencing
from replay.text import console
from simulation.agreement.run_and_export import live
from simulation.cli import silence

HOUR_MS = 3_600_000


class OutageStory(LogHistory):
    """A log in which time passes only on request. ``start_ms``: start of the fifty seconds; an hour
    ends after 27 of them.
    """

    def __init__(self) -> None:
        super().__init__(71)
        self.rng.randrange = lambda *_: 0  # type: ignore[method-assign]
        self.timestamp_ms += HOUR_MS - self.timestamp_ms % HOUR_MS - 27_000
        self.start_ms = self.timestamp_ms
        self._begin()
        self._all_fall()
        self._return()

    def at(self, second: float) -> None:
        self.timestamp_ms = self.start_ms + round(1000 * second)

    def _begin(self) -> None:
        """Topic a: two partitions on 1, 2, 3, led by 1 and 2, min ISR 2. Topic b: one on 1."""
        self.append(pb.ConfigRecord(resource_type=4, name="min.insync.replicas", value="3"))
        self.create_topic("a", 2)
        self.alter_config("a", "min.insync.replicas", "2")
        for value, principal in (("1", "User:alice"), ("2", "User:bob"), ("1", "User:alice")):
            self.alter_config("a", "retention.ms", value, principal)
        self.create_topic("b", 0, [[1]])

    def _all_fall(self) -> None:
        """3 at 10 s, 2 at 20 s (both of a under min ISR), 1 at 25 s: no leader until 28 s."""
        self.at(10)
        self.set_fenced(3, fenced=True)
        self.at(20)
        self.set_fenced(2, fenced=True)
        self.at(25)
        self.set_fenced(1, fenced=True)

    def _return(self) -> None:
        self.at(28)
        self.set_fenced(1, fenced=False)
        self.at(31)
        self.set_fenced(2, fenced=False)
        self.alter_isr("a", 0, [1, 2])
        self.at(35)
        self.alter_config("a", "min.insync.replicas", "1")
        self.at(36)
        self.alter_isr("a", 0, [1])
        self.at(37)
        self.alter_isr("a", 0, [1, 2])
        self.at(40)
        self.elect(2, heard_ms=2_000)
        self.at(45)
        self.append(self.leaving(2, fenced=True))
        self.at(47)
        self.set_fenced(2, fenced=False)
        self.at(50)
        self.progress()


STORY = OutageStory()


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> AvailabilityResult:
    directory = written(STORY, tmp_path_factory.mktemp("availability"))
    answer: AvailabilityResult = ask("availability", directory, since_ms=STORY.start_ms, limit=20)
    return answer


def seconds(offset_ms: int | None) -> float | None:
    return None if offset_ms is None else (offset_ms - STORY.start_ms) / 1000


def away(each: Fencing) -> tuple[int, float | None, float | None]:
    return each.broker_id, seconds(each.begins_ms), seconds(each.ends_ms)


def test_availability_sums_the_outages_of_each_partition(result: AvailabilityResult) -> None:
    of = attrgetter("topic_name", "partition_id", "leaderless_ms", "outages", "short_ms", "shrinks")
    # Broker 3, from 10 s on, never returns to an ISR.
    of_a = (3_000, 1, 40_000, 1)
    expected = [("a", 0, *of_a), ("a", 1, *of_a), ("b", 0, 3_000, 1, 0, 0)]
    assert [of(each) for each in result.partitions] == expected


def test_availability_lists_fencings(result: AvailabilityResult) -> None:
    why = attrgetter("reason", "cause", "planned")
    silent = ("session timed out", "SESSION_TIMED_OUT", False)
    assert [(*away(each), *why(each)) for each in result.fencings] == [
        (2, 45, 47, "controlled shutdown", "CONTROLLED_SHUTDOWN", True),
        (1, 25, 28, *silent),
        (2, 20, 31, *silent),
        (3, 10, None, *silent),
    ]


def test_availability_describes_each_failover(result: AvailabilityResult) -> None:
    (each,) = result.failovers
    assert (each.epoch, each.previous_leader_id, each.leader_id) == (2, 1, 2)
    assert (seconds(each.begins_ms), each.silent_ms) == (40, 3_000)
    # Silence is not an absence: those that elected it say how long there was none.
    assert (each.absent_least_ms, each.absent_most_ms) == (2_000, 2_000)


def test_availability_counts_lost_service_time(result: AvailabilityResult) -> None:
    assert [(each.total_ms, each.lost_ms) for each in result.objectives] == [
        (150_000, 9_000), (150_000, 80_000), (150_000, 54_000), (50_000, 2_000)
    ]  # fmt: skip
    assert result.objectives[-1].available_percent == 96.0


def test_availability_report_is_printed_in_words(
    result: AvailabilityResult, capsys: pytest.CaptureFixture[str]
) -> None:
    availability.render(result, console(160))
    said = capsys.readouterr().out
    assert "94 %" in said
    assert "40 s so far" in said
    assert "1 failover; 4 cases of a broker being out of service" in said


def test_flapping_broker_is_counted_by_kind_of_departure(tmp_path: Path) -> None:
    """A restart without a fencing, a removal while fenced, a removal while in service."""
    log = OutageStory()
    log.at(60)
    log.register(1)
    log.at(62)
    log.set_fenced(1, fenced=False)
    log.at(70)
    for broker_id in (3, 2):
        log.append(log.unregistered(broker_id))
    log.at(80)
    log.append(pb.NoOpRecord())
    result = ask("availability", written(log, tmp_path), since_ms=log.start_ms + 55_000)
    found = [(*away(each), each.reason, each.unregistered) for each in result.fencings]
    assert found == [(1, 60, 62, "registered anew", False), (3, 10, 70, "session timed out", True)]
    brokers = result.objectives[2]
    assert (brokers.total_ms, brokers.lost_ms) == (55_000, 17_000)


SEEDS = (0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (2, 5, 7)))


class Asker:
    """Runs jobs on an export, shared among this many workers."""

    def __init__(self, directory: Path, buckets: int) -> None:
        self.directory, self.buckets = directory, buckets

    def __call__(self, job: str, **options: Any) -> Any:
        return ask_shared(self.buckets, job, self.directory, limit=10_000, **options)


@pytest.fixture(scope="module", params=SEEDS)
def known(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Reference]:
    log, directory = Eventful(request.param), tmp_path_factory.mktemp("reference")
    for end in range(50, 300, 50):
        log.run(end)
        log.progress()
    export(log, directory)
    return directory, Reference(log.batches)


@pytest.fixture(params=[(1, 131_072), (3, 13)], ids=["whole", "in pieces"])
def asker(
    request: pytest.FixtureRequest, known: tuple[Path, Reference], monkeypatch: pytest.MonkeyPatch
) -> Asker:
    buckets, rows = request.param
    monkeypatch.setattr(reading, "SLICE_ROWS", rows)
    return Asker(known[0], buckets)


def by_key(rows: Iterable[Any], name: str) -> dict[Key, int]:
    found = {(row.topic_id, row.partition_id): getattr(row, name) for row in rows}
    return {key: value for key, value in found.items() if value}


def some(counted: Counter[Any]) -> dict[Any, int]:
    return {key: value for key, value in counted.items() if value}


def test_availability_equals_the_reference(asker: Asker, known: tuple[Path, Reference]) -> None:
    _, reference = known
    found = asker("availability")
    led, synced, *_ = found.objectives
    assert (led.total_ms, synced.total_ms) == (reference.life_ms,) * 2
    assert led.lost_ms == reference.leaderless_ms.total()
    assert synced.lost_ms == reference.short_ms.total()
    assert by_key(found.partitions, "leaderless_ms") == some(reference.leaderless_ms)
    assert by_key(found.partitions, "short_ms") == some(reference.short_ms)
    assert by_key(found.partitions, "outages") == some(reference.outages)


def test_lao_equals_the_reference(asker: Asker, known: tuple[Path, Reference]) -> None:
    _, reference = known
    found, waited = asker("lao"), sorted(reference.waited_ms)
    assert found.waiting == reference.waiting == found.records - len(waited)
    assert found.max_ms == waited[-1]
    for share, value in ((50, found.p50_ms), (99, found.p99_ms)):
        exact = waited[-(-len(waited) * share // 100) - 1]
        assert exact <= value <= exact * 1.002


def test_report_curves_equal_the_reference(
    asker: Asker, known: tuple[Path, Reference], tmp_path: Path
) -> None:
    _, reference = known
    found = asker("report", output=str(tmp_path / "report.html")).timeline
    axis, level, at = found.axis, (0, 0), iter(sorted(reference.levels.items()))
    next_ = next(at, None)
    for each in found.levels:
        highest = level
        while next_ is not None and next_[0] < each.at_ms + axis.bucket_ms:
            level = next_[1]
            highest = max(highest[0], level[0]), max(highest[1], level[1])
            next_ = next(at, None)
        assert (each.leaderless, each.short) == highest
    assert sum(each.records for each in found.waits) == len(reference.waited_ms) + reference.waiting


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [0, 2, 7])
def test_figures_of_simulated_lives_equal_the_reference(seed: int, tmp_path: Path) -> None:
    silence()
    run = live(seed, tmp_path / "life")
    structlog.reset_defaults()
    assert not run.failure
    raw = [each for each in read_manifest(str(run.directory)).segments if each.kind == RAW]
    batches = [chunk for segment in raw for chunk in read_batches(run.directory / segment.file)]
    known = run.directory, Reference(batches)
    asker = Asker(run.directory, 3)
    test_availability_equals_the_reference(asker, known)
    test_lao_equals_the_reference(asker, known)
