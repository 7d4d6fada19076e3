"""What came and went, and what grew."""

from __future__ import annotations

import random
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from asking import ask
from outage_story import OutageStory

from raftlog.metadata.entities import entity_bytes
from raftlog.metadata.records import RecordType
from raftlog.metadata.snapshot import header_of, pieces
from raftlog.segments.export import export
from replay.churn.configs import config_churn
from replay.churn.growth import in_snapshot, trend
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
    assert before.entities < after.entities


def test_a_snapshot_has_the_size_that_is_said(result: ChurnResult) -> None:
    image = STORY.draft.snapshot()
    content = b"".join(pieces(image, header_of(image, cluster_id=STORY.cluster_id, generations=())))
    # Each kind of entity begins a batch of its own, and these are few entities.
    batches = 8
    assert 0 <= len(content) - result.snapshot_bytes < 100 * batches
    ahead = [each.days for each in result.forecasts]
    assert ahead == [7, 30, 90, 365]
    assert result.forecasts[0].log_bytes < result.forecasts[-1].log_bytes


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
    (found,), _ = config_churn(TableRows(table, 10), 0, 1000)
    assert (found.config_name, found.changes, found.reversals) == ("k", 5, 2)
    assert (found.last_offset, found.last_value) == (7, "1")


def _configs(seed: int, count: int) -> pa.Table:
    """Writes and deletions of all lengths at which MessagePack, or a field, takes a byte more."""
    draw = random.Random(seed)
    rows = []
    for at in range(count):
        length = draw.choice([0, 1, 31, 32, 100, 127, 128, 200, 255, 256, 16_300, 16_400, 65_536])
        value = None if draw.random() < 0.3 else draw.choice("aé") * length
        kind = draw.choice([2, 4, 16, 32])
        name = draw.choice(["", "o", "orders" * 6, "ö" * 120])
        key = draw.choice(["retention.ms", "k" * 300])
        rows.append((int(RecordType.CONFIG), at, 700 * at, kind, name, key, value, "User:alice"))
    names = (
        "type", "offset", "timestamp_ms", "resource_type", "resource_name", "config_name",
        "config_value", "principal",
    )  # fmt: skip
    return pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


class _Slices(TableRows):
    """The same rows, some at a time."""

    def run(self, work: Pass[Found]) -> list[Found]:
        part = work.begin()
        whole = self.table(work.columns, work.types or ())
        for at in range(0, whole.num_rows, 17):
            part.take(whole.slice(at, 17))
        return [part.end()]


@pytest.mark.parametrize("rows", [TableRows, _Slices])
def test_configs_are_as_large_by_columns_as_their_entities(rows: type[TableRows]) -> None:
    table, period_ms = _configs(5, 400), 60_000
    _, (grown,) = config_churn(rows(table, 400), 0, period_ms)
    there: dict[tuple[int, str, str], int] = {}
    expected: dict[int, tuple[int, int]] = {}
    for row in table.to_pylist():
        key = row["resource_type"], row["resource_name"], row["config_name"]
        there.pop(key, None)
        if row["config_value"] is not None:
            there[key] = in_snapshot(len(entity_bytes((*key, row["config_value"]))))
        period = row["timestamp_ms"] - row["timestamp_ms"] % period_ms
        expected[period] = len(there), sum(there.values())
    entities = size = 0
    for period, (more, bytes_more) in sorted(grown.items()):
        entities, size = entities + more, size + bytes_more
        assert (entities, size) == expected[period]
    assert grown.keys() == expected.keys()


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
    found, _ = config_churn(rows(pa.table(columns), 300), since_ms, 1000)
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
