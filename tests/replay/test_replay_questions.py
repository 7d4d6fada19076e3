"""Audit, history and LAO."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Replay
from log_history import LogHistory

from raftlog import batch
from raftlog.segments.export import export
from raftlog.wire.records.v1 import records_pb2 as pb
from replay.differences import words
from replay.errors import ReplayError
from replay.jobs import history, lao


def small(seed: int = 51) -> LogHistory:
    log = LogHistory(seed)
    log.create_topic("orders", 2)
    return log


# --- audit ---------------------------------------------------------------------------------------------------------


def test_a_clean_history_passes(replay: Replay, tmp_path: Path) -> None:
    log = LogHistory(52, metadata_version=3).run(1200)
    export(log, tmp_path)
    result = replay("audit", tmp_path)
    assert (result.passed, result.findings) == (True, [])
    assert result.checked == log.end_offset


def test_findings_are_limited_and_counted(replay: Replay, tmp_path: Path) -> None:
    log = small()
    for _ in range(5):
        log.alter_isr("orders", 0, [1, 2], {2: 77_777})
    export(log, tmp_path)
    result = replay("audit", tmp_path, limit=2, rules=("stale_broker_epoch", "lao_went_back"))
    assert (len(result.findings), result.total) == (2, 5)
    assert [(rule.id, rule.findings) for rule in result.rules] == [("STALE_BROKER_EPOCH", 5), ("LAO_WENT_BACK", 0)]


# --- history -------------------------------------------------------------------------------------------------------


def values(result: history.HistoryResult) -> list[tuple[int, str, object, object]]:
    return [
        (change.offset, change.principal, json.loads(bytes(change.before)), json.loads(bytes(change.after)))
        for change in result.changes
    ]


def test_history_of_a_config_key(replay: Replay, tmp_path: Path) -> None:
    log = small()
    first = log.alter_config("orders", "retention.ms", "1", "User:bob")
    log.alter_config("orders", "cleanup.policy", "compact")
    second = log.alter_config("orders", "retention.ms", "2", "User:carol")
    third = log.alter_config("orders", "retention.ms", None)
    export(log, tmp_path)
    result = replay("history", tmp_path, key=("config", "topic:orders:retention.ms"))
    assert values(result) == [
        (first, "User:bob", None, "1"), (second, "User:carol", "1", "2"), (third, "User:alice", "2", None),
    ]  # fmt: skip
    assert {change.client_id for change in result.changes} == {7}
    assert [change.timestamp_ms for change in result.changes] == sorted(c.timestamp_ms for c in result.changes)
    everything = replay("history", tmp_path, key=("config", "topic:orders"))
    assert len(everything.changes) == 4


def test_history_of_a_topic_that_was_made_twice(replay: Replay, tmp_path: Path) -> None:
    log = small()
    log.create_topic("other", 1)
    changed = log.alter_isr("orders", 0, [1, 2])
    log.delete_topic("orders")
    again = log.create_topic("orders", 1)
    export(log, tmp_path)
    result = replay("history", tmp_path, key=("topic", "orders"))
    keys = [(change.type_name, change.key) for change in result.changes]
    assert keys == [
        ("TOPIC", "orders"), ("PARTITION", "orders-0"), ("PARTITION", "orders-1"), ("PARTITION_CHANGE", "orders-0"),
        ("REMOVE_TOPIC", "orders-0"), ("REMOVE_TOPIC", "orders-1"), ("REMOVE_TOPIC", "orders"),
        ("TOPIC", "orders"), ("PARTITION", "orders-0"),
    ]  # fmt: skip
    offset, _, before, after = values(result)[3]
    assert (offset, before["isr"], after["isr"]) == (changed, [1, 2, 3], [1, 2])
    assert values(result)[-1][3]["topic_id"] == again.hex()


def test_history_of_a_broker(replay: Replay, tmp_path: Path) -> None:
    log = small()
    epoch = log.draft.brokers[2].epoch
    log.set_fenced(2, fenced=True)
    log.register(2)
    export(log, tmp_path)
    result = replay("history", tmp_path, key=("broker", "2"), limit=3)
    assert (len(result.changes), result.total) == (3, 4)
    _, _, before, after = values(result)[2]
    assert (before["epoch"], before["fenced"], after["fenced"]) == (epoch, False, True)
    change = result.changes[2]
    assert (
        words(change.before, change.after, change.fields)
        == "fenced: false → true\nreason: caught up → session timed out"
    )


@pytest.mark.parametrize(
    ("key", "says"),
    [
        (("broker", "two"), "not a broker id"),
        (("config", "orders"), "not TYPE:NAME"),
        (("config", "queue:orders"), "not TYPE:NAME"),
        (("user", "bob"), "there is no kind 'user'"),
    ],
)
def test_a_key_of_no_known_form(replay: Replay, tmp_path: Path, key: tuple[str, str], says: str) -> None:
    export(small(), tmp_path)
    with pytest.raises(ReplayError, match=says):
        replay("history", tmp_path, key=key)


def test_a_key_that_never_was(replay: Replay, tmp_path: Path) -> None:
    export(small(), tmp_path)
    assert replay("history", tmp_path, key=("topic", "nobody")).total == 0


# --- LAO -----------------------------------------------------------------------------------------------------------


def progress(log: LogHistory, reached: int, applied: dict[int, int]) -> int:
    """A progress record naming only who changed, as the controller writes it."""
    return log.append(
        pb.ProgressRecord(
            lowest_acknowledged_offset=reached,
            high_watermark=log.end_offset,
            applied=[
                pb.AppliedOffset(broker_id=b, broker_epoch=log.draft.brokers[b].epoch, applied_offset=offset)
                for b, offset in applied.items()
            ],
        )
    )


def test_lag_and_who_held_it_back(replay: Replay, tmp_path: Path) -> None:
    log = small()
    last = log.alter_config("orders", "k", "1")
    unknown = progress(log, -1, {})
    level = progress(log, unknown, dict.fromkeys((1, 2, 3), unknown))
    written = log.alter_config("orders", "k", "x")
    written_ms = log.timestamp_ms
    # Broker 2 has not moved and is not named again; it is what LAO waits for.
    held = progress(log, unknown, {1: written, 3: written})
    held_ms = log.timestamp_ms
    log.set_fenced(2, fenced=True)
    progress(log, log.end_offset - 1, dict.fromkeys((1, 3), log.end_offset - 1))
    export(log, tmp_path)
    result = replay("lao", tmp_path)

    assert [point.offset for point in result.timeline][:3] == [unknown, level, held]
    first, second, third, fourth = result.timeline
    assert (first.lowest_acknowledged_offset, first.lag_offsets, first.lag_ms) == (None, None, None)
    assert (second.lowest_acknowledged_offset, second.lag_offsets, second.lag_ms) == (last + 1, 0, 0)
    assert (third.lag_offsets, third.lag_ms) == (written - unknown, held_ms - times_of(log, unknown + 1))
    assert third.lag_ms >= held_ms - written_ms
    assert (fourth.lag_offsets, fourth.lag_ms) == (0, 0)
    assert (result.samples, result.unknown, result.max_lag_offsets) == (4, 1, third.lag_offsets)

    brokers = {broker.broker_id: broker for broker in result.brokers}
    assert {id_: broker.held_back for id_, broker in brokers.items()} == {1: 0, 2: 1, 3: 0}
    # Fenced before the last sample: it does not count there.
    assert {id_: broker.samples for id_, broker in brokers.items()} == {1: 3, 2: 2, 3: 3}
    assert (brokers[2].last_applied_offset, brokers[2].max_lag_offsets) == (unknown, third.lag_offsets)
    assert brokers[2].max_lag_ms == third.lag_ms


def times_of(log: LogHistory, offset: int) -> int:
    return next(batch.headers(log.batches[log.positions[offset]])).timestamp_ms


def test_a_new_incarnation_starts_without_reports(replay: Replay, tmp_path: Path) -> None:
    log = small()
    progress(log, log.end_offset - 1, dict.fromkeys((1, 2, 3), log.end_offset - 1))
    log.set_fenced(2, fenced=True)
    log.register(2)
    log.set_fenced(2, fenced=False)
    progress(log, log.end_offset - 1, dict.fromkeys((1, 3), log.end_offset - 1))
    export(log, tmp_path)
    samples = {broker.broker_id: broker.samples for broker in replay("lao", tmp_path).brokers}
    assert samples == {1: 2, 2: 1, 3: 2}


def test_the_last_samples_are_shown(replay: Replay, tmp_path: Path) -> None:
    log = LogHistory(57).run(400)
    export(log, tmp_path)
    result = replay("lao", tmp_path, limit=3)
    assert result.samples > 10
    offsets = [point.offset for point in result.timeline]
    assert len(offsets) == 3
    assert offsets == sorted(offsets)
    assert isinstance(result, lao.LaoResult)
