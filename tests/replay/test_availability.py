"""Tests of lost availability, in a story in which it is known to the millisecond."""

from pathlib import Path

import pytest
from asking import ask
from outage_story import HOUR_MS, OutageStory

from raftlog.segments.export import export
from raftlog.wire.records.v1 import records_pb2 as pb
from replay.jobs import availability
from replay.outages.result import AvailabilityResult
from replay.text import console

STORY = OutageStory()


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> AvailabilityResult:
    directory = tmp_path_factory.mktemp("availability")
    export(STORY, directory)
    answer: AvailabilityResult = ask(
        "availability", directory, since_ms=STORY.start_ms, target_percent=94.0, limit=20
    )
    return answer


def seconds(offset_ms: int | None) -> float | None:
    return None if offset_ms is None else (offset_ms - STORY.start_ms) / 1000


def test_availability_of_partitions_adds_up_outages(result: AvailabilityResult) -> None:
    lost = {
        (each.topic_name, each.partition_id): (
            each.leaderless_ms,
            each.under_min_isr_ms,
            each.unwritable_ms,
            each.outages,
        )
        for each in result.partitions
    }
    assert lost == {
        ("a", 0): (3_000, 11_000, 11_000, 1),  # in sync again at 31 s
        ("a", 1): (3_000, 15_000, 15_000, 1),  # until less is asked for, at 35 s
        ("b", 0): (3_000, 0, 3_000, 1),  # more than its one replica can't be asked for
    }
    assert [(each.topic_name, each.partition_id) for each in result.partitions] == [
        ("a", 1),
        ("a", 0),
        ("b", 0),
    ]


def test_availability_of_topics_adds_up_partitions(result: AvailabilityResult) -> None:
    a, b = result.topics
    assert (a.topic_name, a.partitions, a.life_ms, a.leaderless_ms, a.unwritable_ms) == (
        "a",
        2,
        100_000,
        6_000,
        26_000,
    )
    assert a.offline_ms == 3_000  # both at the same time
    assert (b.topic_name, b.partitions, b.life_ms, b.offline_ms) == ("b", 1, 50_000, 3_000)


def test_availability_lists_fencings_and_brokers(result: AvailabilityResult) -> None:
    assert [(each.broker_id, seconds(each.begins_ms), seconds(each.ends_ms), each.reason, each.planned) for each in result.fencings] == [
        (2, 45, 47, "controlled shutdown", True),
        (1, 25, 28, "session timed out", False),
        (2, 20, 31, "session timed out", False),
        (3, 10, None, "session timed out", False),
    ]  # fmt: skip
    brokers = [
        (each.broker_id, each.out_ms, each.planned_ms, each.fencings, each.longest_ms, each.out)
        for each in result.brokers
    ]
    assert brokers == [
        (3, 40_000, 0, 1, 40_000, True),
        (2, 13_000, 2_000, 2, 11_000, False),
        (1, 3_000, 0, 1, 3_000, False),
    ]


def test_availability_describes_each_failover(result: AvailabilityResult) -> None:
    (each,) = result.failovers
    assert (each.epoch, each.previous_leader_id, each.leader_id, seconds(each.begins_ms)) == (
        2,
        1,
        2,
        40,
    )
    assert (each.silent_ms, each.epochs_without_leader, each.lao_known_ms) == (3_000, 0, 10_000)
    # Silence is not an absence: those that elected it say how long there was none.
    assert (each.absent_least_ms, each.absent_most_ms) == (2_000, 2_000)


def test_availability_is_held_against_its_objectives(result: AvailabilityResult) -> None:
    leader, writable, brokers, controller = result.objectives
    assert (leader.total_ms, leader.lost_ms, leader.allowed_ms, leader.met) == (
        150_000,
        9_000,
        9_000,
        True,
    )
    assert (writable.lost_ms, brokers.total_ms, brokers.lost_ms) == (29_000, 150_000, 54_000)
    assert (
        controller.total_ms,
        controller.lost_ms,
        controller.available_percent,
        controller.met,
    ) == (
        50_000,
        2_000,
        96.0,
        True,
    )
    assert not result.passed


def test_availability_is_split_by_the_hour(result: AvailabilityResult) -> None:
    first, second = result.periods
    assert (first.life_ms, first.leaderless_ms, first.unwritable_ms) == (81_000, 6_000, 16_000)
    assert (second.period_ms - first.period_ms, first.period_ms % HOUR_MS) == (HOUR_MS, 0)
    assert (second.life_ms, second.leaderless_ms, second.unwritable_ms) == (69_000, 3_000, 13_000)


def test_availability_report_is_printed_in_words(
    result: AvailabilityResult, capsys: pytest.CaptureFixture[str]
) -> None:
    availability.render(result, console(160))
    said = capsys.readouterr().out
    assert "80.667 %" in said
    assert "40 s so far" in said
    assert "1 failover; 4 times a broker was out of service" in said
    assert "Target of 94 % missed: partitions open to acks=all, brokers in service" in said


def test_a_broker_that_comes_and_goes(tmp_path: Path) -> None:
    """A restart without a fencing, a removal while fenced, a removal while in service; and nothing
    is judged without a target.
    """
    log = OutageStory()
    log.at(60)
    log.register(1)
    log.at(62)
    log.set_fenced(1, fenced=False)
    log.at(70)
    for broker_id in (3, 2):
        epoch = log.draft.brokers[broker_id].epoch
        log.append(pb.UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=epoch))
    log.at(80)
    log.append(pb.NoOpRecord())
    export(log, tmp_path)
    result = ask("availability", tmp_path, since_ms=log.start_ms + 55_000)
    away = [
        (each.broker_id, each.reason, seconds(each.ends_ms), each.unregistered)
        for each in result.fencings
    ]
    assert away == [(1, "registered anew", 62, False), (3, "session timed out", 70, True)]
    life = {each.broker_id: (each.life_ms, each.out_ms, each.out) for each in result.brokers}
    assert life == {1: (25_000, 2_000, False), 2: (15_000, 0, False), 3: (15_000, 15_000, False)}
    assert result.passed
    assert {each.met for each in result.objectives} == {None}
