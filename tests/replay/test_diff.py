"""Differences between two points, the history of entities, and the state of some of them."""

import importlib
import io
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from asking import ask, ask_shared, opened, written
from log_history import LogHistory
from rich.console import Console

from raftlog.metadata.acls import AclOperation, AclPermission, AclResourceType, PatternType
from raftlog.metadata.words import field_changes, raw, words
from replay.engine.passes import ExportLog
from replay.engine.pool import Pool
from replay.jobs import diff, history
from replay.kernels.passes import facts_of
from replay.report.incidents import changes_on_purpose


class Day(NamedTuple):
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
    return Day(log, written(log, tmp_path_factory.mktemp("day")), noon, noon_ms, changed)


def shown(*results: Any) -> str:
    """Return what the jobs print."""
    console = Console(width=300, record=True, file=io.StringIO())
    for result in results:
        importlib.import_module(type(result).__module__).render(result, console)
    return console.export_text()


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
    by_key = {one.key: one for one in result.differences}
    config = by_key["topic:orders:retention.ms"]
    assert fields(config) == {"value": ("1", "3")}
    assert config.changes == 2
    assert config.last_offset == day.changed
    assert config.last_principal == "User:carol"
    reasons = ("caught up", "session timed out")
    assert fields(by_key["3"]) == {"fenced": (False, True), "reason": reasons, "cause": (2, 4)}
    isr = fields(by_key["orders-0"])
    assert isr["isr"] == ([1, 2, 3], [1, 2])
    assert set(isr) == {"isr", "partition_epoch"}
    # Another topic of the same name, which broker 3 was fenced out of.
    assert set(fields(by_key["mails-0"])) == {"topic_id", "isr", "partition_epoch"}
    text = shown(result)
    assert f"From offset {day.noon}, " in text
    assert "isr: [1,2,3] → [1,2]" in text
    assert "9 entities differ: broker: 1 changed; config: 1 changed; partition:" in text


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
    assert (nothing.total, nothing.differences) == (0, [])


def test_diff_equals_the_difference_of_two_states(tmp_path: Path) -> None:
    log = LogHistory(67).run(700)
    written(log, tmp_path)
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
        if before.get(entity) != after.get(entity)
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
    assert "topic old did not exist at that point" in shown(gone)
    assert "leader_epoch: 0" in shown(topic)


def test_history_by_field_covers_entities_without_a_group(day: Day) -> None:
    result = ask("history", day.directory, key=("partition", "orders-0"))
    assert [one.type_name for one in result.changes] == ["PARTITION", "PARTITION_CHANGE"]
    assert [one.field for one in result.changes[1].fields] == ["isr", "partition_epoch"]
    assert result.changes[1].principal == "User:broker-1"
    mails = ask("history", day.directory, key=("partition", "mails-0"), at_offset=day.changed)
    assert [one.type_name for one in mails.changes[2:]] == ["PARTITION"], "of the second topic"


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


def values(result: history.HistoryResult) -> list[tuple[int, str, Any, Any]]:
    return [
        (each.offset, each.principal, json.loads(bytes(each.before)), json.loads(bytes(each.after)))
        for each in result.changes
    ]


def test_history_of_a_config_key_is_listed(day: Day) -> None:
    result = ask("history", day.directory, key=("config", "topic:orders:retention.ms"))
    assert [each[1:] for each in values(result)] == [
        ("User:alice", None, "1"),
        ("User:bob", "1", "2"),
        ("User:carol", "2", "3"),
    ]
    assert values(result)[-1][0] == day.changed
    assert {change.client_id for change in result.changes} == {7}
    times = [change.timestamp_ms for change in result.changes]
    assert times == sorted(times)
    brief = ask("history", day.directory, key=("config", "topic:orders:brief"))
    assert [each[2:] for each in values(brief)] == [(None, "1"), ("1", None)]
    everything = ask("history", day.directory, key=("config", "topic:orders"))
    assert len(everything.changes) == 3 + 3 + 2
    assert ask("history", day.directory, key=("topic", "nobody")).total == 0


def test_history_of_a_recreated_topic_is_listed(tmp_path: Path) -> None:
    log = LogHistory(51)
    log.create_topic("orders", 2)
    log.create_topic("other", 1)
    changed = log.alter_isr("orders", 0, [1, 2])
    log.delete_topic("orders")
    again = log.create_topic("orders", 1)
    written(log, tmp_path)
    result = ask("history", tmp_path, key=("topic", "orders"))
    keys = [(change.type_name, change.key) for change in result.changes]
    assert keys == [
        ("TOPIC", "orders"), ("PARTITION", "orders-0"), ("PARTITION", "orders-1"), ("PARTITION_CHANGE", "orders-0"),
        ("REMOVE_TOPIC", "orders-0"), ("REMOVE_TOPIC", "orders-1"), ("REMOVE_TOPIC", "orders"),
        ("TOPIC", "orders"), ("PARTITION", "orders-0"),
    ]  # fmt: skip
    offset, _, before, after = values(result)[3]
    assert (offset, before["isr"], after["isr"]) == (changed, [1, 2, 3], [1, 2])
    assert values(result)[-1][3]["topic_id"] == again.hex()


def test_history_of_a_broker_is_listed(day: Day) -> None:
    epoch = day.log.draft.brokers[3].epoch
    result = ask("history", day.directory, key=("broker", "3"), limit=2)
    assert (len(result.changes), result.total) == (2, 3)
    change = ask("history", day.directory, key=("broker", "3")).changes[2]
    before, after = json.loads(bytes(change.before)), json.loads(bytes(change.after))
    assert (before["epoch"], before["fenced"], after["fenced"]) == (epoch, False, True)
    told = "fenced: false → true\nreason: caught up → session timed out\ncause: 2 → 4"
    assert words(change.before, change.after, change.fields) == told


def test_history_of_access_control_entries_names_principals(tmp_path: Path) -> None:
    """They show who granted and revoked each entry."""
    log = LogHistory(53)
    read, topic = AclOperation.READ, AclResourceType.TOPIC
    of_alice = log.add_entry("User:alice", read, topic, "orders", by="User:admin")
    log.add_entry("User:*", AclOperation.ALTER, AclResourceType.CLUSTER, "kafka-cluster")
    log.add_entry("User:bob", AclOperation.ALL, topic, "*", host="10.0.0.1")
    denied: dict[str, Any] = {"pattern": PatternType.PREFIXED, "permission": AclPermission.DENY}
    log.add_entry("User:eve", AclOperation.CREATE, AclResourceType.CLIENT_SESSION, "s-", **denied)
    log.remove_entry(of_alice, by="User:root")
    written(log, tmp_path)
    result = ask("history", tmp_path, key=("acl", ""))
    said = [
        (each.principal, words(each.before, each.after, each.fields, each.kind))
        for each in result.changes
    ]
    assert said == [
        ("User:admin", "created: allow User:alice read on topic orders"),
        ("", "created: allow User:* alter on the cluster"),
        ("", "created: allow User:bob all operations on every topic from host 10.0.0.1"),
        ("", "created: deny User:eve create on every client session s-…"),
        ("User:root", "deleted: allow User:alice read on topic orders"),
    ]  # fmt: skip
    assert "deleted: allow User:alice read on topic orders" in shown(result)
    one = ask("history", tmp_path, key=("acl", of_alice.hex()))
    names = [each.type_name for each in one.changes]
    assert names == ["ACCESS_CONTROL_ENTRY", "REMOVE_ACCESS_CONTROL_ENTRY"]
    left = ask("state", tmp_path, key=("acl", ""))
    assert "deny User:eve create on every client session s-…" in shown(left)
    assert "orders" not in shown(left)


def test_report_describes_entries_as_history_does(tmp_path: Path) -> None:
    log = LogHistory(54)
    operation, type_ = AclOperation.ALTER_CONFIGS, AclResourceType.EXPORT_CURSOR
    id_ = log.add_entry("User:alice", operation, type_, "e", host="10.0.0.1", by="User:admin")
    log.remove_entry(id_, by="User:root")
    with Pool(0) as one:
        log_ = ExportLog(opened(written(log, tmp_path)), one)
        facts, times = facts_of(log_), [(0, log.timestamp_ms)]
        told = changes_on_purpose(log_, facts, times)
        # Another system's log names nobody.
        unnamed = changes_on_purpose(log_, facts, times, "kafka")
    entry = "allow User:alice alter configs on export cursor e from host 10.0.0.1"
    texts = [row.text for row in told][-2:]
    assert texts == [f"{entry}, by User:admin", f"removed: {entry}, by User:root"]
    assert unnamed[0].text == "metadata.version = 2"
