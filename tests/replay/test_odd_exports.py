"""Logs without controllers or brokers, and timestamps outside the calendar."""

from pathlib import Path

import pytest
from asking import ask
from kafka_log import imported, kafka

from raftlog.clock import MAX_MS
from replay.errors import ReplayError
from replay.request import LOCAL_JOBS, JobRequest, parse_time_ms
from replay.run import run_job
from replay.text import format_moment, format_time

NOOP = kafka.metadata("NoOpRecord")


@pytest.mark.parametrize("job", LOCAL_JOBS)
@pytest.mark.parametrize(
    "log",
    [
        kafka.batch(0, [NOOP]),
        kafka.batch(0, [kafka.topic(), kafka.partition()]),
        kafka.batch(0, [kafka.leader_change()], timestamp_ms=MAX_MS),
    ],
    ids=["no-op", "no controller", "end of time"],
)
def test_every_job_answers_for_a_nearly_empty_log(
    tmp_path: Path, log: bytes, job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    imported(kafka.write_node(tmp_path / "node", log), tmp_path / "exported")
    asked = JobRequest(
        job=job,
        export=str(tmp_path / "exported"),
        engine="local",
        key=("topic", ""),
        from_offset=0,
        output=str(tmp_path / "report.html"),
    )
    assert run_job(asked, spark=False) in (0, 3)
    assert capsys.readouterr().err == ""


def test_log_without_a_leader_change_has_no_failover(tmp_path: Path) -> None:
    log = kafka.batch(0, [kafka.topic(), kafka.partition()])
    imported(kafka.write_node(tmp_path / "node", log), tmp_path / "exported")
    found = ask("availability", tmp_path / "exported")
    assert found.failovers == []


@pytest.mark.parametrize(
    ("at_ms", "shown"),
    [
        (-(1 << 63), "1970-01-01 00:00:00Z"),
        (-1, "1970-01-01 00:00:00Z"),
        (1_700_000_000_999, "2023-11-14 22:13:20Z"),
        (1 << 62, "9999-12-31 23:59:59Z"),
    ],
)
def test_every_timestamp_can_be_shown(at_ms: int, shown: str) -> None:
    assert format_time(at_ms) == shown
    assert format_moment(at_ms)[:19] == shown[:19]


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [("9" * 400, MAX_MS), ("-" + "9" * 400, -1), ("1700000000000", 1_700_000_000_000)],
)
def test_milliseconds_are_limited_to_what_a_log_can_hold(text: str, at_ms: int) -> None:
    assert parse_time_ms(text) == at_ms


@pytest.mark.parametrize("text", ["²", "--5", "9" * 5000, "10000-01-01"])
def test_invalid_timestamp_is_refused(text: str) -> None:
    with pytest.raises(ReplayError, match="is not a time: give milliseconds since 1970"):
        parse_time_ms(text)
