"""Availability figures of a story with known outages."""

from pathlib import Path

import pytest
from asking import ask
from outage_story import OutageStory

from raftlog.segments.export import export
from raftlog.wire.records.v1 import records_pb2 as pb
from replay.jobs import availability
from replay.jobs.availability import AvailabilityResult
from replay.text import console

STORY = OutageStory()


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> AvailabilityResult:
    directory = tmp_path_factory.mktemp("availability")
    export(STORY, directory)
    answer: AvailabilityResult = ask("availability", directory, since_ms=STORY.start_ms, limit=20)
    return answer


def seconds(offset_ms: int | None) -> float | None:
    return None if offset_ms is None else (offset_ms - STORY.start_ms) / 1000


def test_availability_sums_the_outages_of_each_partition(result: AvailabilityResult) -> None:
    lost = {
        (each.topic_name, each.partition_id): (
            each.leaderless_ms,
            each.outages,
            each.short_ms,
            each.shrinks,
        )
        for each in result.partitions
    }
    assert lost == {
        # Broker 3, from 10 s on, never returns to an ISR.
        ("a", 0): (3_000, 1, 40_000, 1),
        ("a", 1): (3_000, 1, 40_000, 1),
        ("b", 0): (3_000, 1, 0, 0),
    }
    assert [(each.topic_name, each.partition_id) for each in result.partitions] == [
        ("a", 0),
        ("a", 1),
        ("b", 0),
    ]


def test_availability_lists_fencings(result: AvailabilityResult) -> None:
    assert [(each.broker_id, seconds(each.begins_ms), seconds(each.ends_ms), each.reason, each.planned) for each in result.fencings] == [
        (2, 45, 47, "controlled shutdown", True),
        (1, 25, 28, "session timed out", False),
        (2, 20, 31, "session timed out", False),
        (3, 10, None, "session timed out", False),
    ]  # fmt: skip


def test_availability_describes_each_failover(result: AvailabilityResult) -> None:
    (each,) = result.failovers
    assert each.epoch == 2
    assert each.previous_leader_id == 1
    assert each.leader_id == 2
    assert seconds(each.begins_ms) == 40
    assert each.silent_ms == 3_000
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
    brokers = result.objectives[2]
    assert (brokers.total_ms, brokers.lost_ms) == (55_000, 17_000)
