"""The leader of a partition: appends, the high watermark, acknowledgements."""

import gc
import sys
from typing import Any

import pytest
from replica_kit import (
    EPOCHS,
    KEY,
    TOPIC,
    Stand,
    data,
    first_image,
    of_kind,
    partition,
    recovered,
    results,
)

from broker.partition import events as ev
from raftlog import batch
from raftlog.clock import STAND_STILL_MAX_MS
from raftlog.errors import ErrorCode
from raftlog.wire.data.v1 import data_pb2 as pb


def in_step(stand: Stand, offset: int = 0) -> Stand:
    """Both followers fetch: the high watermark is known."""
    stand.followers_fetch(offset, last_epoch=-1 if offset == 0 else 1)
    return stand


@pytest.fixture
def stand() -> Stand:
    return in_step(Stand())


def test_records_of_a_produce_are_one_batch_of_the_leader_epoch(stand: Stand) -> None:
    stand.produce("a", "b")
    stand.produce("c")
    first, second = of_kind(stand.got, ev.Append)
    assert (first.base_offset, first.end_offset) == (0, 2)
    assert (second.base_offset, second.end_offset) == (2, 3)
    scan = batch.scan(first.chunk + second.chunk, expect_offset=0)
    assert (scan.end_offset, scan.epochs) == (3, ((5, 0),))
    (header, _) = batch.headers(first.chunk + second.chunk)
    (record, _) = batch.records(first.chunk, header)
    assert (record.type, pb.DataRecord.FromString(record.body).value) == (1, b"a")


def test_timestamps_repeat_after_a_small_clock_setback_and_follow_a_large_one(stand: Stand) -> None:
    stand.produce("a")
    late = pb.ProducePartition(topic_id=KEY[0], current_leader_epoch=-1, records=[b""])
    request = pb.ProduceRequest(acks=0, partitions=[late])
    for time_ms in (1_000_000 - STAND_STILL_MAX_MS, 5, 6):
        stand.do(ev.ProduceReceived(request, time_ms, "late"))
    times = [
        header.timestamp_ms
        for a in of_kind(stand.got, ev.Append)
        for header in batch.headers(a.chunk)
    ]
    assert times == [1_000_000, 1_000_000, 5, 6]


def test_acks_all_waits_until_every_isr_member_has_flushed(stand: Stand) -> None:
    number = stand.produce("a", "b")
    stand.fetch(2, 2)
    assert stand.produced(number) is None
    assert stand.high_watermark == 0
    stand.fetch(3, 2)
    result = stand.outcome(number)
    assert (result.error_code, result.base_offset) == (0, 0)
    assert stand.high_watermark == 2


def test_leader_counts_itself_at_its_flushed_end() -> None:
    stand = in_step(Stand(hold_flushes=True))
    everywhere, here = stand.produce("a"), stand.produce("b", acks=1)
    stand.followers_fetch(2)
    assert stand.produced(everywhere) is stand.produced(here) is None
    assert stand.high_watermark == 0
    stand.flush()
    assert stand.produced(everywhere) is not None
    assert stand.produced(here) is not None
    assert stand.high_watermark == 2


def test_flush_acknowledges_only_records_written_before_it() -> None:
    stand = Stand(hold_flushes=True)
    first = stand.produce("a", acks=1)
    token = stand.flushes[-1]
    second = stand.produce("b", acks=1)
    stand.do(ev.Flushed(token))
    assert stand.produced(first) is not None
    assert stand.produced(second) is None


def test_acks_0_is_answered_at_once() -> None:
    stand = Stand(hold_flushes=True)
    result = stand.outcome(stand.produce("a", acks=0))
    assert (result.error_code, result.base_offset) == (0, 0)


def test_new_leader_knows_no_high_watermark_until_all_isr_members_have_fetched() -> None:
    stand = Stand(recovered(10))
    stand.fetch(2, 10, last_epoch=1)
    assert stand.high_watermark == -1
    answer = stand.answer_of(stand.consume(0))
    (result,) = answer.response.partitions
    assert result.error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    assert result.error_message.endswith("a member of the ISR has not fetched")
    listed = stand.core.list_offsets(
        pb.ListOffsetsRequest(
            partitions=[
                pb.ListOffsetsPartition(topic_id=KEY[0], timestamp=-1, current_leader_epoch=-1)
            ]
        ),
        stand.now,
    )
    assert listed.partitions[0].error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    stand.fetch(3, 4, last_epoch=1)
    assert stand.high_watermark == 4


def test_high_watermark_does_not_decrease(stand: Stand) -> None:
    stand.produce("a", "b")
    stand.followers_fetch(2)
    stand.broker(2, epoch=EPOCHS[2] + 500)
    stand.fetch(2, 0, epoch=EPOCHS[2] + 500, session="another life")
    assert stand.high_watermark == 2
    stand.produce("c")
    stand.fetch(3, 3)
    assert stand.high_watermark == 2


def test_too_small_isr_before_the_append_changes_nothing(stand: Stand) -> None:
    stand.config(2, TOPIC, min_insync_replicas="2")
    stand.change(isr=(1,))
    result = stand.outcome(stand.produce("a"))
    assert (result.error_code, result.base_offset) == (ErrorCode.NOT_ENOUGH_REPLICAS, -1)
    assert not result.outcome_unknown
    assert not of_kind(stand.got, ev.Append)
    assert stand.outcome(stand.produce("a", acks=1)).error_code == 0


def test_too_small_isr_after_the_append_leaves_the_outcome_unknown(stand: Stand) -> None:
    stand.config(2, TOPIC, min_insync_replicas="2")
    number = stand.produce("a")
    stand.change(isr=(1,))
    result = stand.outcome(number)
    assert result.error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert result.outcome_unknown


@pytest.mark.parametrize(("resource", "name"), [(4, ""), (2, TOPIC)])
def test_min_insync_replicas_of_the_topic_takes_precedence(resource: int, name: str) -> None:
    stand = in_step(Stand(image=first_image(partition(isr=(1, 2)))))
    assert stand.core.counters()["UnderMinIsrPartitionCount"] == 0
    stand.config(resource, name, min_insync_replicas="3")
    assert stand.core.counters()["UnderMinIsrPartitionCount"] == 1
    if resource == 4:
        stand.config(2, TOPIC, min_insync_replicas="2")
        assert stand.core.counters()["UnderMinIsrPartitionCount"] == 0
        assert stand.core.counters()["AtMinIsrPartitionCount"] == 1


def test_min_insync_replicas_is_capped_at_the_number_of_replicas() -> None:
    stand = Stand(image=first_image(partition(replicas=(1,), isr=(1,))))
    stand.config(4, "", min_insync_replicas="3")
    assert stand.outcome(stand.produce("a")).error_code == 0


def test_replicas_being_added_do_not_count_towards_min_insync_replicas() -> None:
    moving = partition(replicas=(2, 1), isr=(1,), adding_replicas=(2,), removing_replicas=(1,))
    stand = Stand(image=first_image(moving))
    stand.config(4, "", min_insync_replicas="2")
    assert stand.outcome(stand.produce("a")).error_code == 0
    stand.change(replicas=(2, 1), adding_replicas=(), removing_replicas=())
    assert stand.outcome(stand.produce("b")).error_code == ErrorCode.NOT_ENOUGH_REPLICAS


def test_produce_that_times_out_has_an_unknown_outcome(stand: Stand) -> None:
    number = stand.produce("a", timeout_ms=1000)
    stand.after(0.9)
    assert stand.produced(number) is None
    stand.after(0.1)
    result = stand.outcome(number)
    assert result.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert result.outcome_unknown
    assert result.base_offset == 0
    stand.followers_fetch(1)
    assert stand.high_watermark == 1


def test_produce_that_loses_its_leader_has_an_unknown_outcome(stand: Stand) -> None:
    number, weak = stand.produce("a"), stand.produce("b", acks=1)
    assert stand.produced(weak) is not None
    stand.change(leader=2, leader_epoch=6, isr=(2, 3))
    result = stand.outcome(number)
    assert (result.error_code, result.outcome_unknown) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, True)
    assert (result.current_leader.leader_id, result.current_leader.leader_epoch) == (2, 6)
    refused = stand.outcome(stand.produce("c"))
    assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not refused.outcome_unknown
    assert refused.current_leader.leader_id == 2


@pytest.mark.parametrize(
    ("epoch", "code"),
    [(4, ErrorCode.FENCED_LEADER_EPOCH), (6, ErrorCode.UNKNOWN_LEADER_EPOCH), (5, 0), (-1, 0)],
)
def test_client_with_another_leader_epoch_is_refused(stand: Stand, epoch: int, code: int) -> None:
    assert stand.outcome(stand.produce("a", acks=0, epoch=epoch)).error_code == code
    assert stand.answer_of(stand.consume(0, epoch=epoch)).response.partitions[0].error_code == code


def test_invalid_requests_are_refused(stand: Stand) -> None:
    def code_of(**fields: Any) -> int:
        one: dict[str, Any] = {"topic_id": KEY[0], "current_leader_epoch": -1, "records": [b""]}
        content: dict[str, Any] = {
            "acks": 0,
            "partitions": [pb.ProducePartition(**{**one, **fields.pop("one", {})})],
        }
        stand.do(
            ev.ProduceReceived(pb.ProduceRequest(**{**content, **fields}), 1, reply := object())
        )
        (answer,) = [e for e in of_kind(stand.got, ev.AnswerProduce) if e.reply_to is reply]
        return answer.response.partitions[0].error_code

    assert code_of(acks=2) == ErrorCode.INVALID_REQUIRED_ACKS
    assert code_of(timeout_ms=-1) == ErrorCode.INVALID_REQUEST
    assert code_of(one={"records": []}) == ErrorCode.INVALID_RECORD
    assert code_of(one={"records": [b"", b"\xff\xff"]}) == ErrorCode.INVALID_RECORD
    assert code_of(one={"partition_index": 9}) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert not of_kind(stand.got, ev.Append)
    assert code_of() == 0


def test_batch_above_max_message_bytes_is_refused_whole(stand: Stand) -> None:
    stand.config(2, TOPIC, max_message_bytes="200")
    assert stand.outcome(stand.produce("x" * 200)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert stand.described().log_end_offset == 0


def test_batch_is_never_too_large_for_a_message_whatever_the_topic_allows(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.partition.leader.BATCH_MAX_BYTES", 300)
    stand.config(2, TOPIC, max_message_bytes="2147483647")
    assert stand.outcome(stand.produce("x" * 300)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    stand.produce("x" * 100)
    assert stand.core.end_offset(KEY) == 1


def test_produce_of_several_partitions_is_answered_once_in_order() -> None:
    other = (KEY[0], 1)
    stand = Stand(image=first_image(partition(), partition(other, replicas=(1,), isr=(1,))))
    parts = [
        pb.ProducePartition(
            topic_id=key[0], partition_index=key[1], current_leader_epoch=-1, records=[b""]
        )
        for key in (other, (KEY[0], 7), KEY)
    ]
    stand.do(
        ev.ProduceReceived(pb.ProduceRequest(acks=-1, timeout_ms=9000, partitions=parts), 1, "all")
    )
    assert not of_kind(stand.got, ev.AnswerProduce)
    in_step(stand)
    stand.followers_fetch(1)
    (answer,) = of_kind(stand.got, ev.AnswerProduce)
    assert [(r.partition_index, r.error_code) for r in answer.response.partitions] == [
        (1, 0),
        (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (0, 0),
    ]


def test_number_of_waiting_produces_is_bounded() -> None:
    stand = Stand(max_pending_produces=2)
    numbers = [stand.produce("a") for _ in range(3)]
    result = stand.outcome(numbers[2])
    assert (result.error_code, result.base_offset) == (ErrorCode.THROTTLING_QUOTA_EXCEEDED, -1)
    assert stand.described().log_end_offset == 2


def test_waiting_produce_keeps_no_records_in_memory(stand: Stand) -> None:
    one = pb.ProducePartition(
        topic_id=KEY[0], partition_index=KEY[1], current_leader_epoch=-1, records=data("x")
    )
    request = pb.ProduceRequest(acks=-1, timeout_ms=30_000, partitions=[one])
    references = sys.getrefcount(request)
    stand.do(ev.ProduceReceived(request, 1, "it"))
    assert "it" not in [effect.reply_to for effect in of_kind(stand.got, ev.AnswerProduce)], (
        "it waits"
    )
    gc.collect()
    assert sys.getrefcount(request) == references


def test_timed_out_produces_do_not_accumulate(stand: Stand) -> None:
    for _ in range(50):
        stand.produce("a", timeout_ms=10)
        stand.after(0.02)
    leader: Any = stand.core._host.replicas[KEY].role
    assert len(leader._for_commit) == 1
    assert len(stand.core._host.deadlines) < 10


# --- consumers ----------------------------------------------------------------------------------


def test_consumers_see_only_records_below_the_high_watermark(stand: Stand) -> None:
    stand.produce("a", "b")
    stand.followers_fetch(2)
    stand.produce("c")
    answer = stand.answer_of(stand.consume(0))
    (read,) = answer.reads
    assert (read.index, read.offset, read.until) == (0, 0, 2)
    assert answer.response.partitions[0].high_watermark == 2


def test_consumer_at_the_end_waits_for_the_high_watermark_not_for_the_log(stand: Stand) -> None:
    number = stand.consume(0, wait_ms=5000)
    stand.produce("a")
    stand.fetch(2, 1)
    assert stand.consumed(number) is None
    stand.fetch(3, 1)
    assert [(read.offset, read.until) for read in stand.answer_of(number).reads] == [(0, 1)]


def test_consumer_ahead_of_the_high_watermark_waits_until_it_has_passed(stand: Stand) -> None:
    stand.produce("a")
    stand.produce("b")
    number = stand.consume(1, wait_ms=5000)
    stand.followers_fetch(1)
    assert stand.high_watermark == 1
    assert stand.consumed(number) is None
    stand.followers_fetch(2)
    assert stand.consumed(number) is not None


def test_waiting_consumer_is_answered_in_time_or_when_the_leader_changes(stand: Stand) -> None:
    number = stand.consume(0, wait_ms=5000)
    stand.after(5)
    answer = stand.answer_of(number)
    assert (answer.reads, answer.response.partitions[0].error_code) == ((), 0)
    number = stand.consume(0, wait_ms=5000)
    stand.change(leader=3, leader_epoch=6)
    answer = stand.answer_of(number)
    assert answer.response.partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert answer.response.partitions[0].current_leader.leader_id == 3


@pytest.mark.parametrize("offset", [-1, 2])
def test_offset_outside_of_the_log_is_refused(stand: Stand, offset: int) -> None:
    stand.produce("a")
    answer = stand.answer_of(stand.consume(offset, wait_ms=5000))
    assert answer.response.partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_list_offsets_answers_each_partition(stand: Stand) -> None:
    stand.produce("a")
    stand.followers_fetch(1)
    stand.produce("b")
    asked = [
        pb.ListOffsetsPartition(topic_id=KEY[0], timestamp=timestamp, current_leader_epoch=epoch)
        for timestamp, epoch in ((-1, -1), (-2, 5), (7, -1), (-1, 4))
    ]
    found = stand.core.list_offsets(pb.ListOffsetsRequest(partitions=asked), stand.now).partitions
    assert [(one.error_code, one.offset, one.leader_epoch) for one in found] == [
        (0, 1, 5),
        (0, 0, 5),
        (ErrorCode.INVALID_REQUEST, -1, 5),
        (ErrorCode.FENCED_LEADER_EPOCH, -1, -1),
    ]


def test_number_of_parked_consumers_is_bounded(stand: Stand) -> None:
    stand = in_step(Stand(max_parked_fetches=1))
    waits, full = stand.consume(0, wait_ms=5000), stand.consume(0, wait_ms=5000)
    assert stand.consumed(waits) is None
    assert stand.consumed(full) is not None


# --- what a leader sends to followers -----------------------------------------------------------


def test_followers_receive_records_before_the_leader_has_flushed_them() -> None:
    stand = in_step(Stand(hold_flushes=True))
    stand.got.clear()
    stand.produce("a")
    answers = of_kind(stand.got, ev.AnswerReplicaFetch)
    assert [answer.session for answer in answers] == ["link of 2", "link of 3"]
    assert [(read.offset, read.until) for answer in answers for read in answer.reads] == [
        (0, 1),
        (0, 1),
    ]
    kinds = [type(effect) for effect in stand.got]
    assert kinds.index(ev.Append) < kinds.index(ev.AnswerReplicaFetch) < kinds.index(ev.Flush)


def test_position_is_answered_with_data_only_once_until_it_is_named_again(stand: Stand) -> None:
    assert len(results(stand.do(ev.Tick()))) == 0
    stand.produce("a")
    stand.got.clear()
    stand.fetch_of(2, [])
    stand.produce("b")
    assert not [a for a in of_kind(stand.got, ev.AnswerReplicaFetch) if a.reads]
    (answer,) = [a for a in of_kind(stand.fetch(2, 1), ev.AnswerReplicaFetch) if a.reads]
    assert answer.reads[0].offset == 1


def test_high_watermark_alone_is_sent_after_a_short_delay(stand: Stand) -> None:
    stand.produce("a")
    stand.fetch(2, 1)
    effects = stand.fetch(3, 1)
    assert not results(effects)
    told = results(stand.after(0.03))
    assert [result.high_watermark for result in told] == [1, 1]
    assert not results(stand.after(0.4))
