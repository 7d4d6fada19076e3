"""Differences between two points, and the state of some entities."""

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from asking import ask, ask_shared
from log_history import LogHistory
from rich.console import Console

from raftlog.metadata.words import field_changes, raw, words
from raftlog.segments.export import export
from replay.errors import ReplayError
from replay.jobs import diff, state


@dataclass
class Day:
    """A short history, and its export. ``noon``: the offset (inclusive) of the first point."""

    log: LogHistory
    directory: Path
    noon: int
    noon_ms: int
    changed: int


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Day:
    """Until noon orders, old and mails; then old is deleted, new created, mails recreated."""
    log = LogHistory(61)
    for name in ("orders", "old", "mails"):
        log.create_topic(name, 1)
    log.alter_config("orders", "retention.ms", "1", "User:alice")
    log.alter_config("orders", "cleanup.policy", "delete")
    log.alter_config("mails", "retention.ms", "7")
    noon, noon_ms = log.end_offset - 1, log.timestamp_ms
    log.delete_topic("old")
    log.create_topic("new", 1)
    log.delete_topic("mails")
    log.create_topic("mails", 1)
    log.alter_config("mails", "retention.ms", "7")
    log.alter_config("orders", "retention.ms", "2", "User:bob")
    changed = log.alter_config("orders", "retention.ms", "3", "User:carol")
    # There and back again is not a difference.
    log.alter_config("orders", "cleanup.policy", "compact")
    log.alter_config("orders", "cleanup.policy", "delete")
    log.alter_config("orders", "brief", "1")
    log.alter_config("orders", "brief", None)
    log.alter_isr("orders", 0, [1, 2])
    log.set_fenced(3, fenced=True)
    log.progress()
    directory = tmp_path_factory.mktemp("day")
    export(log, directory)
    return Day(log, directory, noon, noon_ms, changed)


def found(result: diff.DiffResult) -> dict[tuple[str, str], str]:
    return {(one.kind, one.key): one.change for one in result.differences}


def fields(one: diff.Difference) -> dict[str, tuple[Any, Any]]:
    return {
        each.field: (json.loads(bytes(each.before)), json.loads(bytes(each.after)))
        for each in one.fields
    }


def test_diff_lists_created_changed_and_deleted_entities(day: Day) -> None:
    result = ask("diff", day.directory, from_offset=day.noon)
    assert found(result) == {
        ("topic", "old"): "deleted", ("partition", "old-0"): "deleted",
        ("topic", "new"): "created", ("partition", "new-0"): "created",
        ("topic", "mails"): "changed", ("partition", "mails-0"): "changed",
        ("partition", "orders-0"): "changed", ("broker", "3"): "changed",
        ("config", "topic:orders:retention.ms"): "changed",
    }  # fmt: skip
    assert (result.begin.offset, result.end.offset) == (day.noon, day.log.end_offset - 1)
    assert result.counts["partition"] == {"changed": 2, "created": 1, "deleted": 1}
    assert result.total == 9
    assert result.left_out == {"applied": 2, "progress": 1}
    by_key = {one.key: one for one in result.differences}
    config = by_key["topic:orders:retention.ms"]
    assert fields(config) == {"value": ("1", "3")}
    assert config.changes == 2
    assert config.last_offset == day.changed
    assert config.last_principal == "User:carol"
    assert fields(by_key["3"]) == {
        "fenced": (False, True),
        "reason": ("caught up", "session timed out"),
        "cause": (2, 4),
    }
    isr = fields(by_key["orders-0"])
    assert isr["isr"] == ([1, 2, 3], [1, 2])
    assert set(isr) == {"isr", "partition_epoch"}
    # Another topic of the same name, which broker 3 was fenced out of.
    assert set(fields(by_key["mails-0"])) == {"topic_id", "isr", "partition_epoch"}
    console = Console(width=300, record=True, file=io.StringIO())
    diff.render(result, console)
    shown = console.export_text()
    assert f"From offset {day.noon}, " in shown
    assert "isr: [1,2,3] → [1,2]" in shown
    assert "9 entities differ: broker: 1 changed; config: 1 changed; partition:" in shown
    assert "2 applied, 1 progress" in shown


def test_diff_is_limited_to_times_kinds_and_topics(day: Day) -> None:
    times = {"from_time_ms": day.noon_ms, "at_time_ms": day.log.timestamp_ms}
    kind = ask("diff", day.directory, key=("config", ""), **times)
    assert found(kind) == {("config", "topic:orders:retention.ms"): "changed"}
    topic = ask("diff", day.directory, key=("topic", "mails"), limit=1, **times)
    assert (len(topic.differences), topic.total) == (1, 2)


def test_diff_covers_the_beginning_and_is_empty_for_equal_points(day: Day) -> None:
    result = ask("diff", day.directory, key=("topic", ""), at_offset=day.noon)
    assert result.begin is None
    assert found(result) == {("topic", name): "created" for name in ("mails", "old", "orders")}
    nothing = ask("diff", day.directory, from_offset=day.noon, at_offset=day.noon)
    assert (nothing.total, nothing.differences, nothing.left_out) == (0, [], {})


def test_points_in_the_wrong_order_are_refused(day: Day) -> None:
    with pytest.raises(ReplayError, match="is after the end of the diff"):
        ask("diff", day.directory, from_offset=day.noon + 1, at_offset=day.noon)
    with pytest.raises(ReplayError, match="there is no offset -1: logs begin at offset 0"):
        ask("diff", day.directory, from_offset=-1)


def test_diff_equals_the_difference_of_two_states(tmp_path: Path) -> None:
    log = LogHistory(67).run(700)
    export(log, tmp_path)
    offsets = sorted(log.hashes)
    at = offsets[len(offsets) // 3]

    def entities(**point: int) -> dict[tuple[str, str], bytes]:
        rows = ask("state", tmp_path, limit=10_000, **point).rows
        return {(row.kind, row.key): bytes(row.value) for row in rows}

    before, after = entities(at_offset=at), entities()
    expected = {
        entity: "created"
        if entity not in before
        else "deleted"
        if entity not in after
        else "changed"
        for entity in before.keys() | after.keys()
        if before.get(entity) != after.get(entity) and entity[0] not in diff.SAMPLES
    }
    assert len(expected) > 100
    result = ask_shared(3, "diff", tmp_path, from_offset=at, limit=10_000)
    assert found(result) == expected
    # A state counts a topic's partitions, too.
    values = [one for one in result.differences if one.kind != "topic"]
    assert all(bytes(one.after) == after.get((one.kind, one.key), b"null") for one in values)


def test_state_is_limited_to_an_entity_or_a_kind(day: Day) -> None:
    topic = ask("state", day.directory, key=("topic", "mails"))
    assert [(row.kind, row.key) for row in topic.rows] == [
        ("partition", "mails-0"),
        ("topic", "mails"),
    ]
    assert (topic.entities, topic.state_hash) == ({"partition": 1, "topic": 1}, "")
    kind = ask("state", day.directory, key=("config", ""), at_offset=day.noon)
    assert [row.key for row in kind.rows] == [
        "topic:mails:retention.ms", "topic:orders:cleanup.policy", "topic:orders:retention.ms",
    ]  # fmt: skip
    gone = ask("state", day.directory, key=("topic", "old"))
    assert gone.rows == []
    console = Console(width=200, record=True, file=io.StringIO())
    state.render(gone, console)
    state.render(topic, console)
    shown = console.export_text()
    assert "topic old did not exist at that point" in shown
    assert "leader_epoch: 0" in shown


def test_history_by_field_covers_entities_without_a_group(day: Day) -> None:
    result = ask("history", day.directory, key=("partition", "orders-0"))
    assert [one.type_name for one in result.changes] == ["PARTITION", "PARTITION_CHANGE"]
    assert [one.field for one in result.changes[1].fields] == ["isr", "partition_epoch"]
    assert result.changes[1].principal == "User:broker-1"
    (again,) = ask(
        "history", day.directory, key=("partition", "mails-0"), at_offset=day.changed
    ).changes[2:]
    assert again.type_name == "PARTITION", "of the second topic of that name"


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (None, '{"a_b":1,"c":"","d":[2]}', "created: a b 1, d [2]"),
        ('"1"', None, "deleted: 1"),
        ('"1"', '"2"', "1 → 2"),
        (
            '{"a":1,"b":[1],"gone":3}',
            '{"a":1,"b":[1,2],"c":"x"}',
            "b: [1] → [1,2]\nc: null → x\ngone: 3 → null",
        ),
    ],
)
def test_field_changes_are_told_in_words(before: str | None, after: str | None, says: str) -> None:
    assert words(raw(before), raw(after), field_changes(before, after)) == says
