"""The time without a controller in a Kafka cluster, by the regular NoOp records."""

import sys
from pathlib import Path

import pytest
from asking import ask
from kafka_log import KafkaLog, imported, kafka
from spark_runs import Replay

sys.path.insert(0, str(Path(__file__).parents[1] / "segments"))
from log_history import LogHistory

from raftlog.segments.export import export
from raftlog.wire.records.v1 import records_pb2 as pb
from replay.engine import reading
from replay.jobs.availability import AvailabilityResult
from replay.outages.service import Absence, Controller, absence
from replay.report.model import ReportResult
from replay.request import JobRequest
from replay.run import compute

KEPT = Path(__file__).parents[1] / "kafka_import"


def availability(exported: Path) -> AvailabilityResult:
    found = ask("availability", exported)
    assert isinstance(found, AvailabilityResult)
    return found


def absences(result: AvailabilityResult) -> list[tuple[int, int, int | None]]:
    return [
        (each.silent_ms, each.absent_least_ms, each.absent_most_ms) for each in result.failovers
    ][::-1]


def idle(log: KafkaLog, times: int, every_ms: int = 490) -> None:
    """NoOp records, each interval 10 ms longer than ``every_ms``."""
    for _ in range(times):
        log.waited_ms += every_ms
        log.append(kafka.metadata("NoOpRecord"))


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of three real controllers; the active one was killed, and then the next one stopped."""
    directory = tmp_path_factory.mktemp("real")
    kafka.unpack(KEPT / "kafka-4.4.0.tar.gz", directory / "kafka")
    imported(directory / "kafka", directory / "exported")
    return directory / "exported"


@pytest.mark.parametrize(
    ("last_ms", "due_ms", "age_ms", "by_all", "expected"),
    [
        (1000, 1500, None, None, Absence(500, 1000)),
        # Due before its last record, or only after the new one's first.
        (1000, 900, None, None, Absence(1000, 1000)),
        (1000, 2100, None, None, Absence(0, 1000)),
        # Voters that heard nothing for longer than nobody wrote.
        (1000, None, 400, True, Absence(400, 400)),
        (1000, None, 5000, True, Absence(1000, 1000)),
        (1000, None, 5000, False, Absence(0, 1000)),
    ],
)
def test_absence_is_never_longer_than_the_silence(
    last_ms: int, due_ms: int | None, age_ms: int | None, by_all: bool | None, expected: Absence
) -> None:
    old = Controller(1, 1, 0, 9, 0, last_ms, due_ms, 2000, None, None, None)
    new = Controller(2, 2, 9, None, 2000, 3000, None, None, 1, age_ms, by_all)
    assert absence(old, new) == expected


def test_silence_for_longer_than_the_interval_is_absence(tmp_path: Path) -> None:
    """The next NoOp was due 500 ms after the last one, whatever was written in between."""
    log = KafkaLog()
    idle(log, 4)
    log.waited_ms += 190
    log.append(kafka.config("retention.ms", "1", ""))
    log.waited_ms += 7_990
    log.elect(102)
    log.import_into(tmp_path)
    result = availability(tmp_path / "exported")
    assert absences(result) == [(8_000, 7_700, 8_000)]
    lost = result.objectives[-1]
    assert (lost.lost_ms, lost.unknown_ms) == (8_000, 0)


def test_longest_pause_of_an_active_controller_is_the_bound(tmp_path: Path) -> None:
    """Its own: the next controller's interval may differ."""
    log = KafkaLog()
    idle(log, 5)
    idle(log, 1, every_ms=1_790)
    idle(log, 1)
    log.waited_ms += 2_490
    log.elect(102)
    idle(log, 3, every_ms=90)
    log.waited_ms += 2_490
    log.elect(103)
    log.import_into(tmp_path)
    assert absences(availability(tmp_path / "exported")) == [
        (2_500, 700, 2_500), (2_500, 2_400, 2_500)
    ]  # fmt: skip


def test_controller_replaced_at_once_was_not_certainly_absent(tmp_path: Path) -> None:
    log = KafkaLog()
    idle(log, 5)
    log.waited_ms += 290
    log.elect(102)
    log.import_into(tmp_path)
    assert absences(availability(tmp_path / "exported")) == [(300, 0, 300)]


@pytest.mark.parametrize("times", [0, 2])
def test_absence_is_not_concluded_from_few_records(tmp_path: Path, times: int) -> None:
    """NoOps may be disabled, or the controller was active only briefly."""
    log = KafkaLog()
    idle(log, times)
    log.waited_ms += 9_990
    log.elect(102)
    log.import_into(tmp_path)
    result = availability(tmp_path / "exported")
    assert absences(result) == [(10_000, 0, None)]
    lost = result.objectives[-1]
    assert (lost.lost_ms, lost.unknown_ms) == (0, 10_000)


def test_raftlog_controllers_promise_no_such_records(tmp_path: Path) -> None:
    log = LogHistory()
    for _ in range(5):
        log.append(pb.NoOpRecord())
    log.timestamp_ms += 60_000
    log.elect(2)
    export(log, tmp_path)
    assert [least for _, least, _ in absences(availability(tmp_path))] == [0]
    assert [most for _, _, most in absences(availability(tmp_path))] == [None]


def test_killed_real_controller_is_absent_for_the_expected_time(real: Path) -> None:
    """It wrote a NoOp every 476 to 524 ms."""
    assert absences(availability(real)) == [(2_162, 1_638, 2_162), (157, 52, 157)]


def test_restarted_kafka_controller_is_absent_in_between(tmp_path: Path) -> None:
    """The only one, after 38 s; it had written a NoOp at least every 1,064 ms."""
    kafka.unpack(KEPT / "kafka-4.3.1.tar.gz", tmp_path / "kafka")
    imported(tmp_path / "kafka", tmp_path / "exported")
    assert absences(availability(tmp_path / "exported")) == [(39_497, 38_433, 39_497)]


@pytest.mark.parametrize("slice_rows", [7, pytest.param(1, marks=pytest.mark.nightly)])
def test_absence_does_not_depend_on_slices(
    real: Path, monkeypatch: pytest.MonkeyPatch, slice_rows: int
) -> None:
    whole = availability(real)
    monkeypatch.setattr(reading, "SLICE_ROWS", slice_rows)
    assert availability(real) == whole


def test_spark_finds_the_same_absences(replay: Replay, real: Path) -> None:
    assert replay("availability", real, limit=100) == availability(real)


def test_report_shows_both_bounds(real: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    request = JobRequest(job="report", export=str(real), output=str(page))
    found = compute(request)
    assert isinstance(found, ReportResult)
    assert absences(found.availability) == [(2_162, 1_638, 2_162), (157, 52, 157)]
    assert "1.64 s to 2.16 s" in page.read_text()
    told = [event for incident in found.timeline.incidents for event in incident.events]
    failover = next(event for event in told if "102 → 103" in event.text)
    assert failover.ends_ms is not None
    assert failover.ends_ms - failover.begins_ms == 2_162
