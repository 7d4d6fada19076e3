import json
from pathlib import Path
from typing import Any

import pytest
from asking import ask, opened
from log_history import LogHistory
from rich.console import Console

from raftlog.metadata.acls import AclOperation, AclPermission, AclResourceType, PatternType
from raftlog.metadata.words import words
from raftlog.segments.export import export
from replay.engine.passes import ExportLog
from replay.engine.pool import Pool
from replay.errors import ReplayError
from replay.jobs import history, state
from replay.kernels.passes import facts_of
from replay.report.incidents import changes_on_purpose


def small(seed: int = 51) -> LogHistory:
    log = LogHistory(seed)
    log.create_topic("orders", 2)
    return log


# --- audit --------------------------------------------------------------------------------------


def test_clean_history_passes(tmp_path: Path) -> None:
    log = LogHistory(52, with_entries=False).run(1200)
    export(log, tmp_path)
    result = ask("audit", tmp_path)
    assert (result.passed, result.findings) == (True, [])
    assert result.checked == log.end_offset


def test_findings_are_limited_and_counted(tmp_path: Path) -> None:
    log = small()
    for _ in range(5):
        log.alter_isr("orders", 0, [1, 2], {2: 77_777})
    export(log, tmp_path)
    result = ask("audit", tmp_path, limit=2, rules=("stale_broker_epoch", "lao_went_back"))
    assert (len(result.findings), result.total) == (2, 5)
    assert [(rule.id, rule.findings) for rule in result.rules] == [
        ("STALE_BROKER_EPOCH", 5),
        ("LAO_WENT_BACK", 0),
    ]


# --- history ------------------------------------------------------------------------------------


def values(result: history.HistoryResult) -> list[tuple[int, str, Any, Any]]:
    return [
        (
            change.offset,
            change.principal,
            json.loads(bytes(change.before)),
            json.loads(bytes(change.after)),
        )
        for change in result.changes
    ]


def test_history_of_a_config_key_is_listed(tmp_path: Path) -> None:
    log = small()
    first = log.alter_config("orders", "retention.ms", "1", "User:bob")
    log.alter_config("orders", "cleanup.policy", "compact")
    second = log.alter_config("orders", "retention.ms", "2", "User:carol")
    third = log.alter_config("orders", "retention.ms", None)
    export(log, tmp_path)
    result = ask("history", tmp_path, key=("config", "topic:orders:retention.ms"))
    assert values(result) == [
        (first, "User:bob", None, "1"), (second, "User:carol", "1", "2"), (third, "User:alice", "2", None),
    ]  # fmt: skip
    assert {change.client_id for change in result.changes} == {7}
    assert [change.timestamp_ms for change in result.changes] == sorted(
        c.timestamp_ms for c in result.changes
    )
    everything = ask("history", tmp_path, key=("config", "topic:orders"))
    assert len(everything.changes) == 4


def test_history_of_a_recreated_topic_is_listed(tmp_path: Path) -> None:
    log = small()
    log.create_topic("other", 1)
    changed = log.alter_isr("orders", 0, [1, 2])
    log.delete_topic("orders")
    again = log.create_topic("orders", 1)
    export(log, tmp_path)
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


def test_history_of_a_broker_is_listed(tmp_path: Path) -> None:
    log = small()
    epoch = log.draft.brokers[2].epoch
    log.set_fenced(2, fenced=True)
    log.register(2)
    export(log, tmp_path)
    result = ask("history", tmp_path, key=("broker", "2"), limit=3)
    assert (len(result.changes), result.total) == (3, 4)
    _, _, before, after = values(result)[2]
    assert (before["epoch"], before["fenced"], after["fenced"]) == (epoch, False, True)
    change = result.changes[2]
    assert (
        words(change.before, change.after, change.fields)
        == "fenced: false → true\nreason: caught up → session timed out\ncause: 2 → 4"
    )


def test_history_of_access_control_entries_names_principals(tmp_path: Path) -> None:
    """Who granted and revoked what."""
    log = LogHistory(53)
    read, topic = AclOperation.READ, AclResourceType.TOPIC
    of_alice = log.add_entry("User:alice", read, topic, "orders", by="User:admin")
    log.add_entry("User:*", AclOperation.ALTER, AclResourceType.CLUSTER, "kafka-cluster")
    log.add_entry("User:bob", AclOperation.ALL, topic, "*", host="10.0.0.1")
    denied: dict[str, Any] = {"pattern": PatternType.PREFIXED, "permission": AclPermission.DENY}
    log.add_entry("User:eve", AclOperation.CREATE, AclResourceType.CLIENT_SESSION, "s-", **denied)
    log.remove_entry(of_alice, by="User:root")
    export(log, tmp_path)
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
    console = Console(record=True, width=200)
    history.render(result, console)
    assert "deleted: allow User:alice read on topic orders" in console.export_text()
    one = ask("history", tmp_path, key=("acl", of_alice.hex()))
    assert [each.type_name for each in one.changes] == [
        "ACCESS_CONTROL_ENTRY", "REMOVE_ACCESS_CONTROL_ENTRY"
    ]  # fmt: skip
    left = ask("state", tmp_path, key=("acl", ""))
    state.render(left, console)
    shown = console.export_text()
    assert "deny User:eve create on every client session s-…" in shown
    assert "orders" not in shown


def test_report_describes_entries_as_history_does(tmp_path: Path) -> None:
    log = LogHistory(54)
    operation, type_ = AclOperation.ALTER_CONFIGS, AclResourceType.EXPORT_CURSOR
    id_ = log.add_entry("User:alice", operation, type_, "e", host="10.0.0.1", by="User:admin")
    log.remove_entry(id_, by="User:root")
    export(log, tmp_path)
    exported = opened(tmp_path)
    with Pool(0) as one:
        log_ = ExportLog(exported, one)
        facts, times = facts_of(log_), [(0, log.timestamp_ms)]
        told = changes_on_purpose(log_, facts, times)
        # Another system's log names nobody.
        unnamed = changes_on_purpose(log_, facts, times, "kafka")
    entry = "allow User:alice alter configs on export cursor e from host 10.0.0.1"
    assert [row.text for row in told][-2:] == [
        f"{entry}, by User:admin", f"removed: {entry}, by User:root"
    ]  # fmt: skip
    assert unnamed[0].text == "metadata.version = 2"


@pytest.mark.parametrize(
    ("key", "says"),
    [
        (("acl", "User:bob"), "not the id of an entry"),
        (("broker", "two"), "not a broker id"),
        (("config", "orders"), "not TYPE:NAME"),
        (("config", "queue:orders"), "not TYPE:NAME"),
        (("user", "bob"), "unknown kind 'user'"),
    ],
)
def test_invalid_key_is_refused(tmp_path: Path, key: tuple[str, str], says: str) -> None:
    export(small(), tmp_path)
    with pytest.raises(ReplayError, match=says):
        ask("history", tmp_path, key=key)


def test_key_that_never_existed_is_reported(tmp_path: Path) -> None:
    export(small(), tmp_path)
    assert ask("history", tmp_path, key=("topic", "nobody")).total == 0
