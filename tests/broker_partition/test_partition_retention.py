"""Retention at leaders and followers."""

from typing import Any

import pytest
from replica_kit import (
    KEY,
    ME,
    TOPIC,
    TOPIC_ID,
    Stand,
    chunk,
    first_image,
    of_kind,
    partition,
    positions,
    recovered,
    results,
)
from test_follower import Follower

from broker.partition import events as ev
from broker.partition.leader import Retention, start_to_keep
from raftlog import batch
from raftlog.errors import ErrorCode
from raftlog.node.storage.partition_api import RUNS_MAX, LogRuns, RecoveredPartition, Run
from raftlog.wire.data.v1 import data_pb2 as pb

NOW_MS = 100_000
RUNS = (Run(10, 1_000, 100), Run(20, 50_000, 100), Run(30, 99_000, 100))
TOPIC_TYPE, BROKER_TYPE = 2, 4


def kept_from(high_watermark: int = 30, last_base: int = 29, ms: int = -1, size: int = -1) -> int:
    runs = LogRuns(RUNS, last_base)
    return start_to_keep(runs, 0, high_watermark, NOW_MS, Retention(ms, size))


@pytest.mark.parametrize(
    ("asked", "start"),
    [
        ({}, 0),
        ({"ms": 99_000}, 0),
        ({"ms": 98_999}, 10),
        ({"ms": 50_000}, 10),
        ({"ms": 49_999}, 20),
        ({"ms": 1_000}, 20),
        ({"ms": 999}, 29),
        ({"ms": 0}, 29),
        ({"ms": 0, "last_base": -1}, 20),
        ({"ms": 0, "high_watermark": 29}, 20),
        ({"ms": 0, "high_watermark": 20}, 10),
        ({"ms": 0, "high_watermark": 21}, 20),
        ({"ms": 0, "high_watermark": -1}, 0),
        ({"size": 201}, 0),
        ({"size": 200}, 10),
        ({"size": 101}, 10),
        ({"size": 0}, 20),
        ({"size": 200, "ms": 49_999}, 20),
    ],
)
def test_retention_keeps_runs_within_its_limits(asked: dict[str, Any], start: int) -> None:
    assert kept_from(**asked) == start


def test_batches_with_a_future_timestamp_expire_with_those_after_them() -> None:
    """[a broker's clock was ahead once: its records, and all after them, stayed for years]"""
    runs = LogRuns((Run(10, 10**15, 100), Run(20, 50_000, 100), Run(30, 10**15, 100)), 29)
    for ms, start in ((50_000, 0), (49_999, 20), (0, 20)):
        assert start_to_keep(runs, 0, 30, NOW_MS, Retention(ms, -1)) == start


def test_long_log_is_kept_as_few_runs_of_similar_size() -> None:
    runs = LogRuns()
    for base in range(10_000):
        runs.append(base, base + 1, base, 10)
    assert RUNS_MAX // 4 < len(runs.runs) <= RUNS_MAX
    assert sum(run.size for run in runs.runs) == runs.size == 100_000
    assert max(run.size for run in runs.runs) < 100_000 // (RUNS_MAX // 8)
    ends = [run.end_offset for run in runs.runs]
    assert (ends, ends[-1]) == (sorted(set(ends)), 10_000)
    assert all(run.last_timestamp_ms == run.end_offset - 1 for run in runs.runs)
    assert runs.drop_before(ends[3]) == sum(run.size for run in runs.runs[:0]) + 10 * ends[3]
    assert runs.runs[0].end_offset == ends[4]


def test_retention_ignores_the_rest_of_a_truncated_run() -> None:
    runs = LogRuns(RUNS, 29)
    runs.truncate(15)
    assert (runs.runs, runs.size) == ((RUNS[0], Run(15, 50_000, 0)), 100)
    assert runs.last_base == -1
    runs.truncate(10)
    assert runs.runs == RUNS[:1]
    runs.clear()
    assert runs == LogRuns()


# --- the leader ----------------------------------------------------------------------------------


def leading(*values: str, **options: Any) -> Stand:
    """Alone in its ISR, with a committed batch of each value."""
    stand = Stand(image=first_image(partition(isr=(ME,)), **options))
    for value in values:
        stand.produce(value)
    return stand


def due(stand: Stand, now_ms: int = 1_000_000) -> list[ev.Effect]:
    return stand.do(ev.RetentionDue((KEY,), now_ms))


def starts(effects: list[ev.Effect]) -> list[int]:
    return [effect.start_offset for effect in of_kind(effects, ev.AdvanceStart)]


def test_leader_drops_old_records_and_reports_its_log_start() -> None:
    stand = leading("a", "b", "c")
    stand.config(TOPIC_TYPE, TOPIC, retention_ms="5000")
    assert starts(due(stand, 1_005_000)) == []
    (dropped,) = of_kind(due(stand, 1_005_001), ev.AdvanceStart)
    assert (dropped.key, dropped.start_offset) == (KEY, 2)
    assert dropped.dropped_bytes == 2 * len(chunk(0, 5, "a"))
    asked = pb.ListOffsetsPartition(
        topic_id=TOPIC_ID, partition_index=0, current_leader_epoch=-1, timestamp=-2
    )
    request = pb.ListOffsetsRequest(partitions=[asked])
    assert stand.core.list_offsets(request, stand.now).partitions[0].offset == 2
    below, first = (stand.answer_of(stand.consume(offset)) for offset in (1, 2))
    assert below.response.partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert "offset 1 is not in 2 .. 3" in below.response.partitions[0].error_message
    assert first.response.partitions[0].log_start_offset == 2
    assert [read.offset for read in first.reads] == [2]
    assert starts(due(stand, 9_000_000)) == [], "the newest batch stays"


def test_restarted_leader_continues_with_the_timestamps_of_its_log() -> None:
    runs = LogRuns([Run(3, 1_000_005, 100)], 2)
    found = RecoveredPartition(KEY, 0, 3, ((1, 0),), runs)
    stand = Stand(found, image=first_image(partition(isr=(ME,))))
    stand.produce("d")
    (appended,) = of_kind(stand.got, ev.Append)
    assert next(batch.headers(appended.chunk)).timestamp_ms == 1_000_005


def test_cluster_wide_retention_is_a_broker_config() -> None:
    stand = leading("a", "b")
    stand.config(BROKER_TYPE, "", log_retention_ms="1")
    assert starts(due(stand, 1_000_002)) == [1]


@pytest.mark.parametrize(
    ("policy", "start"), [("delete", 2), ("compact, delete", 2), ("compact", 0)]
)
def test_records_of_a_compact_only_topic_are_kept(policy: str, start: int) -> None:
    stand = leading("a", "b", "c")
    stand.config(TOPIC_TYPE, TOPIC, retention_ms="1", cleanup_policy=policy)
    assert starts(due(stand, 9_000_000)) == ([start] if start else [])


def test_fenced_broker_and_follower_drop_nothing() -> None:
    stand = leading("a", "b", "c")
    stand.config(TOPIC_TYPE, TOPIC, retention_ms="1")
    stand.do(ev.BrokerStatusChanged(101, float("-inf")))
    assert starts(due(stand, 9_000_000)) == []
    follower = Follower(recovered(3), image=first_image(partition(leader=2)))
    follower.config(TOPIC_TYPE, TOPIC, retention_ms="1")
    assert starts(due(follower, 9_000_000)) == []


def test_retention_keeps_uncommitted_records() -> None:
    stand = Stand()
    for value in "abc":
        stand.produce(value, acks=1)
    stand.config(TOPIC_TYPE, TOPIC, retention_ms="1")
    assert starts(due(stand, 9_000_000)) == [], "no high watermark yet"
    stand.followers_fetch(2)
    assert stand.high_watermark == 2
    assert starts(due(stand, 9_000_000)) == [1]


def test_follower_whose_records_were_deleted_receives_the_log_start() -> None:
    stand = leading("a", "b", "c")
    stand.config(TOPIC_TYPE, TOPIC, retention_ms="1")
    due(stand, 9_000_000)
    for offset, last_epoch in ((0, -1), (1, 5), (7, -1)):
        (result,) = results(stand.fetch(2, offset, last_epoch))
        assert result.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (result.log_start_offset, result.current_leader.leader_id) == (2, ME)
    (answer,) = of_kind(stand.fetch(2, 2, -1), ev.AnswerReplicaFetch)
    assert [(read.offset, read.until) for read in answer.reads] == [(2, 3)]
    assert answer.response.partitions[0].log_start_offset == 2


def test_follower_waiting_for_its_turn_receives_the_log_start() -> None:
    """Its records did not fit into the previous response, and are deleted by the next one."""
    keys = (KEY, (TOPIC_ID, 1))
    both = [partition(key, isr=(ME,)) for key in keys]
    stand = Stand(image=first_image(*both), replica_fetch_response_max_bytes=1)
    for key in keys:
        for value in "abc":
            stand.produce(value, key=key)
    (first,) = results(stand.fetch_of(2, positions(*keys)))
    assert first.partition_index == 0
    stand.config(TOPIC_TYPE, TOPIC, retention_ms="1")
    stand.do(ev.RetentionDue(keys, 9_000_000))
    answers = of_kind(stand.fetch_of(2, []), ev.AnswerReplicaFetch)
    (result,) = [one for answer in answers for one in answer.response.partitions]
    assert (result.partition_index, result.error_code) == (1, ErrorCode.OFFSET_OUT_OF_RANGE)
    assert result.log_start_offset == 2
    assert not any(answer.reads for answer in answers)


def test_caught_up_follower_receives_the_log_start_without_records() -> None:
    """Without writes its disk would never be freed, and it would lead from deleted records."""
    stand = leading("a", "b", "c")
    stand.config(TOPIC_TYPE, TOPIC, retention_ms="1")

    def told() -> list[pb.ReplicaFetchPartitionResult]:
        return results(stand.fetch_of(2, [], wait_ms=10_000) + stand.after(1.0))

    (first,) = results(stand.fetch(2, 3, wait_ms=10_000) + stand.after(1.0))
    assert first.log_start_offset == 0
    assert told() == []
    due(stand, 9_000_000)
    (moved,) = results(stand.after(1.0))
    assert (moved.log_start_offset, moved.high_watermark) == (2, 3)
    assert told() == []


@pytest.mark.parametrize("again", [False, True])
def test_log_of_an_epoch_below_the_log_start_has_no_common_prefix(again: bool) -> None:
    """The other one led epoch 3 and has [0, 9) of it. This one has [0, 2) of epoch 3 and [2, 5) of
    epoch 5, and drops what is below 3: that they part at 2 nobody knows any more, and cut at 3 the
    other one would keep a record at 2 that was never committed.
    """
    stand = Stand(recovered(2, (3, 0)), image=first_image(partition(isr=(ME,))))
    for value in "abc":
        stand.produce(value)
    stand.config(TOPIC_TYPE, TOPIC, retention_bytes=str(2 * len(chunk(0, 5, "a"))))
    assert starts(due(stand)) == [3]
    if again:
        found = RecoveredPartition(KEY, 3, 5, ((5, 3),))
        stand = Stand(found, image=first_image(partition(isr=(ME,), leader_epoch=6)))
    for offset in (9, 4, 3):
        (result,) = results(stand.fetch(2, offset, 3))
        where = result.diverging_epoch
        assert (where.epoch, where.end_offset) == (0, 0), offset
    other = Follower(recovered(9, (3, 0)), image=first_image(partition(leader=2)))
    (cut,) = of_kind(
        other.answer({"diverging_epoch": pb.EpochEndOffset(epoch=0, end_offset=0)}), ev.Truncate
    )
    assert cut.end_offset == 0
    assert other.positions() == [(0, -1, 5)]


# --- the follower --------------------------------------------------------------------------------


def following(*values: str) -> Follower:
    stand = Follower()
    for offset, value in enumerate(values):
        stand.answer({"records": chunk(offset, 5, value), "high_watermark": offset + 1})
    return stand


@pytest.mark.parametrize(("told", "start"), [(0, []), (1, [1]), (2, [2]), (3, []), (99, [])])
def test_follower_drops_what_its_leader_dropped_except_its_end(told: int, start: list[int]) -> None:
    stand = following("a", "b", "c")
    effects = stand.answer({"high_watermark": 3, "log_start_offset": told})
    assert starts(effects) == (start or ([2] if told > 2 else []))


def test_log_start_within_a_batch_of_a_follower_is_rounded_down() -> None:
    stand = Follower()
    stand.answer({"records": chunk(0, 5, "a", "b"), "high_watermark": 2})
    stand.answer({"records": chunk(2, 5, "c", "d"), "high_watermark": 4})
    assert starts(stand.answer({"high_watermark": 4, "log_start_offset": 1})) == []
    assert starts(stand.answer({"high_watermark": 4, "log_start_offset": 3})) == [2]


OUT_OF_RANGE = int(ErrorCode.OFFSET_OUT_OF_RANGE)


def test_follower_without_any_of_the_log_begins_at_its_leaders_start() -> None:
    stand = following("a", "b")
    stand.hold_flushes = True
    effects = stand.answer({"error_code": OUT_OF_RANGE, "log_start_offset": 7})
    assert [effect.start_offset for effect in of_kind(effects, ev.Reset)] == [7]
    fetches = len(stand.fetches)
    stand.after(1.0)
    assert len(stand.fetches) == fetches, "it acknowledges nothing before that is durable"
    stand.flush()
    assert stand.positions() == [(7, -1, 5)]
    stand.hold_flushes = False
    stand.answer({"records": chunk(7, 5, "h"), "high_watermark": 8, "log_start_offset": 7})
    assert stand.positions() == [(8, 5, 5)]
    assert starts(stand.answer({"high_watermark": 8, "log_start_offset": 8})) == []


def test_follower_with_records_at_the_log_start_drops_none_of_them() -> None:
    """They are compared epoch by epoch, as usual."""
    for told in (0, 1, 2, -1):
        stand = following("a", "b")
        assert not of_kind(
            stand.answer({"error_code": OUT_OF_RANGE, "log_start_offset": told}), ev.Reset
        )
        stand.after(0.5)
        assert stand.positions() == [(2, 5, 5)]


def test_empty_replica_moves_back_to_the_start_of_another_leader() -> None:
    stand = following("a")
    stand.answer({"error_code": OUT_OF_RANGE, "log_start_offset": 7})
    stand.answer({"error_code": OUT_OF_RANGE, "log_start_offset": 4})
    assert stand.positions() == [(4, -1, 5)]
    stand.answer({"records": chunk(4, 5, "e"), "high_watermark": 5, "log_start_offset": 4})
    assert stand.positions() == [(5, 5, 5)]


def test_emptied_log_forgets_its_runs() -> None:
    """Otherwise a new leader would count its former records for retention."""
    stand = following("a", "b", "c")
    stand.answer({"error_code": OUT_OF_RANGE, "log_start_offset": 7})
    stand.answer({"records": chunk(7, 5, "h"), "high_watermark": 8, "log_start_offset": 7})
    stand.answer({"records": chunk(8, 5, "i"), "high_watermark": 9, "log_start_offset": 7})
    stand.change(leader=ME, leader_epoch=6, isr=(ME,))
    stand.config(TOPIC_TYPE, TOPIC, retention_bytes=str(len(chunk(7, 5, "h"))))
    assert starts(due(stand)) == [8]
