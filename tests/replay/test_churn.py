"""Tests of the churn job: created, deleted and grown entities."""

import random
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from asking import ask, written
from log_history import LogHistory
from outage_story import OutageStory

from raftlog.metadata.records import RecordType
from raftlog.metadata.snapshot import header_of, pieces
from raftlog.segments.export import export
from raftlog.segments.manifest import read_manifest
from replay.churn.configs import config_churn
from replay.churn.growth import trend
from replay.churn.result import ChurnResult
from replay.jobs import churn
from replay.kernels.passes import Pass, TableRows
from replay.text import console

Found = TypeVar("Found")
STORY = OutageStory()


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> ChurnResult:
    directory = tmp_path_factory.mktemp("churn")
    export(STORY, directory)
    answer: ChurnResult = ask("churn", directory)
    return answer


def test_churn_counts_isr_changes_of_brokers(result: ChurnResult) -> None:
    rows = [
        (
            each.broker_id,
            each.leaves,
            each.leaves_by_leader,
            each.joins,
            each.returns,
            each.max_out_ms,
        )
        for each in result.brokers
    ]
    # 2 was fenced out of two ISRs, and left one as it lagged; it came back into one at 31 s and at
    # 37 s.
    assert rows == [(2, 3, 1, 2, 2, 11_000), (3, 2, 0, 0, 0, None), (1, 0, 0, 0, 0, None)]
    led = {
        each.broker_id: (each.leaderships_lost, each.leaderships_gained) for each in result.brokers
    }
    assert led == {1: (3, 4), 2: (1, 0), 3: (0, 0)}


def test_churn_counts_isr_changes_of_partitions(result: ChurnResult) -> None:
    rows = [
        (each.topic_name, each.partition_id, each.leaves, each.returns, each.leader_moves)
        for each in result.partitions
    ]
    assert rows == [("a", 0, 3, 2, 2), ("a", 1, 2, 0, 3), ("b", 0, 0, 0, 2)]


def test_churn_counts_changes_and_reversals_of_configs(result: ChurnResult) -> None:
    rows = [
        (each.resource_name, each.config_name, each.changes, each.reversals, each.principals)
        for each in result.configs
    ]
    assert rows == [
        ("a", "retention.ms", 3, 1, 2), ("a", "min.insync.replicas", 2, 0, 1), ("", "min.insync.replicas", 1, 0, 1),
    ]  # fmt: skip
    last = result.configs[0]
    assert (last.last_value, last.last_principal) == ("1", "User:alice")


def test_churn_counts_records_by_type_and_period(result: ChurnResult) -> None:
    types = {each.type_name: each.records for each in result.types}
    assert sum(types.values()) == STORY.end_offset
    assert (types["LEADER_CHANGE"], types["TOPIC"], types["PARTITION"], types["CONFIG"]) == (
        2,
        2,
        3,
        6,
    )
    before, after = result.periods
    assert before.records + after.records == STORY.end_offset
    # Without a checkpoint the size is known at the end alone.
    assert (before.snapshot_bytes, after.snapshot_bytes) == (None, result.snapshot_bytes)


def test_churn_without_checkpoint_measures_the_snapshot_of_the_end(result: ChurnResult) -> None:
    image = STORY.draft.snapshot()
    header = header_of(image, cluster_id=STORY.cluster_id, generations=(STORY.generation,))
    assert result.snapshot_bytes == sum(map(len, pieces(image, header)))
    assert [each.days for each in result.forecasts] == [7, 30, 90, 365]
    assert {each.snapshot_bytes for each in result.forecasts} == {None}
    assert result.forecasts[0].log_bytes < result.forecasts[-1].log_bytes


def test_churn_takes_the_sizes_of_the_state_from_checkpoints(tmp_path: Path) -> None:
    directory = written(LogHistory(70).run(900), tmp_path, checkpoint_records=100)
    known = read_manifest(str(directory)).checkpoints
    result: ChurnResult = ask("churn", directory)
    assert len(known) > 2
    assert result.snapshot_bytes == known[-1].bytes
    for period in result.periods:
        by_then = [one.bytes for one in known if one.timestamp_ms < period.period_ms + 3_600_000]
        assert period.snapshot_bytes == (by_then[-1] if by_then else None)
    assert all(each.snapshot_bytes for each in result.forecasts)
    earlier: ChurnResult = ask("churn", directory, at_offset=known[1].offset)
    assert earlier.snapshot_bytes == known[1].bytes


def test_a_line_through_points() -> None:
    day = 86_400_000
    line = trend([(0, 10.0), (day, 20.0), (2 * day, 30.0)])
    assert line is not None
    assert (line.now, round(line.per_day, 6), line.after(7)) == (30.0, 10.0, 100)
    down = trend([(0, 10.0), (day, 5.0)])
    assert down is not None
    assert down.after(30) == 5
    assert trend([(0, 1.0)]) is None


def test_churn_report_is_printed_in_words(
    result: ChurnResult, capsys: pytest.CaptureFixture[str]
) -> None:
    churn.render(result, console(160))
    said = capsys.readouterr().out
    assert "topic:a:retention.ms" in said
    assert "in 365 days" in said
    assert "3 partitions whose ISR or leader changed; 3 config keys that changed" in said


def test_a_write_of_the_value_that_is_there_is_no_change() -> None:
    values = ["1", "1", None, None, "1", "2", "2", "1"]
    rows = [
        (int(RecordType.CONFIG), at, at, 2, "a", "k", value, "User:alice")
        for at, value in enumerate(values)
    ]
    # Deleted where it never was.
    rows.append((int(RecordType.CONFIG), 9, 9, 2, "a", "never", None, "User:bob"))
    names = (
        "type", "offset", "timestamp_ms", "resource_type", "resource_name", "config_name",
        "config_value", "principal",
    )  # fmt: skip
    table = pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
    (found,) = config_churn(TableRows(table, 10), 0)
    assert (found.config_name, found.changes, found.reversals) == ("k", 5, 2)
    assert (found.last_offset, found.last_value) == (7, "1")


class _Slices(TableRows):
    """The same rows, some at a time."""

    def run(self, work: Pass[Found]) -> list[Found]:
        part = work.begin()
        whole = self.table(work.columns, work.types or ())
        for at in range(0, whole.num_rows, 17):
            part.take(whole.slice(at, 17))
        return [part.end()]


@pytest.mark.parametrize("rows", [TableRows, _Slices])
@pytest.mark.parametrize("seed", range(12))
def test_changes_are_told_as_one_row_after_the_other_tells_them(
    seed: int, rows: type[TableRows]
) -> None:
    draw, since_ms = random.Random(seed), 90 * (seed % 2)
    columns: dict[str, list[Any]] = {
        "type": [int(RecordType.CONFIG)] * 300,
        "offset": list(range(300)),
        "timestamp_ms": [at + draw.randrange(20) for at in range(300)],
        "resource_type": [2] * 300,
        "resource_name": ["a"] * 300,
        "config_name": draw.choices("kkkkmmmn", k=300),
        "config_value": draw.choices(["1", "2", "3", None], [4, 4, 1, 2], k=300),
        "principal": draw.choices(["User:alice", "User:bob", ""], k=300),
    }
    found = config_churn(rows(pa.table(columns), 300), since_ms)
    values: dict[str, list[str | None]] = {}
    counts: dict[str, list[Any]] = {}
    names = ("offset", "timestamp_ms", "config_name", "config_value", "principal")
    for offset, at_ms, key, value, by in zip(*(columns[name] for name in names), strict=True):
        before = values.setdefault(key, [])
        if value == (before[-1] if before else None):
            continue
        count = counts.setdefault(key, [0, 0, set(), ()])
        if at_ms >= since_ms:
            count[0] += 1
            count[1] += len(before) > 1 and value == before[-2]
            count[2].add(by)
        count[3] = offset, at_ms, by, value
        before.append(value)
    told = {each.config_name: each for each in found}
    assert told.keys() == {key for key, each in counts.items() if each[0]}
    for key, one in told.items():
        changes, reversals, by, last = counts[key]
        assert (one.changes, one.reversals, one.principals) == (changes, reversals, len(by))
        assert (one.last_offset, one.last_ms, one.last_principal, one.last_value) == last
        assert reversals
