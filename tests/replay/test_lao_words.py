"""The text of LAO's figures."""

from pathlib import Path

import pytest
from asking import ask
from log_history import LogHistory
from test_replay_lao import Story, all_took

from raftlog.segments.export import export
from raftlog.wire.records.v1 import records_pb2 as pb
from replay.jobs import lao
from replay.jobs.availability import BROKER_TIME, PARTITION_TIME, WALL_CLOCK
from replay.jobs.lao import LaoResult
from replay.lag import hold_ups as causes
from replay.report.model import ReportResult
from replay.text import console


class Measuring(Story):
    """Its controllers measure how long records take."""

    def __init__(self) -> None:
        LogHistory.__init__(self, 61)
        self.rng.randrange = lambda *_: 0  # type: ignore[method-assign]
        self.create_topic("orders", 1)

    def measured(self, took_us: int, count: int) -> int:
        last = self.end_offset - 1
        return self.append(
            pb.ProgressRecord(
                lowest_acknowledged_offset=last,
                high_watermark=last + 1,
                acknowledged=all_took(took_us, count),
            )
        )


def told(log: LogHistory, directory: Path) -> LaoResult:
    export(log, directory)
    result: LaoResult = ask("lao", directory)
    return result


def test_stall_ends_when_the_controller_measured_its_end(tmp_path: Path) -> None:
    log = Measuring()
    log.measured(4_000, 20)
    log.wait(1_000)
    began_ms = log.timestamp_ms
    log.write()
    log.wait(3_700)
    # The record of it comes late.
    log.measured(2_900_500, 2)
    (up,) = told(log, tmp_path).hold_ups
    assert (up.began_ms, up.waited_ms, up.held_ms) == (began_ms, 2_901, 2_901)
    assert up.ended_ms == began_ms + 2_901


@pytest.mark.parametrize("measured", [1, 0])
def test_incomplete_lao_measurement_is_not_believed(tmp_path: Path, measured: int) -> None:
    log = Measuring()
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
    (up,) = told(log, tmp_path).hold_ups
    assert up.waited_ms == 3_700


def test_outage_of_a_site_is_one_stall(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    result = told(log, tmp_path)
    (up,) = result.hold_ups
    assert (up.broker_ids, up.cause, up.held_ms) == ([2, 3], causes.FENCED, 9_010)
    assert {each.broker_id: each.held_ms for each in result.brokers} == {2: 9_010, 3: 9_010}
    lao.render(result, console(80))
    printed = capsys.readouterr().out
    assert "│ 2, 3 " in printed
    assert f"offsets {up.first_offset}–{up.last_offset}" in printed
    assert "p99 9.01 s (both up to 0.2 % too high from 1 s on)" in " ".join(printed.split())
    assert max(map(len, printed.splitlines())) <= 80
    page = tmp_path / "page.html"
    found: ReportResult = ask("report", tmp_path, output=str(page))
    texts = [event.text for each in found.timeline.incidents for event in each.events]
    assert "brokers 2, 3 fenced: session timed out" in texts
    assert "LAO held back by brokers 2, 3" in texts
    assert {each.counted_in for each in found.availability.objectives} == {
        PARTITION_TIME, BROKER_TIME, WALL_CLOCK
    }  # fmt: skip
    # A deleted topic keeps its name.
    assert {each.topic_name for each in found.availability.partitions} <= {"orders"}
