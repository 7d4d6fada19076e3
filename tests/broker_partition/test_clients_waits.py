"""Waiting requests of clients, and counts of partitions that the leader cannot serve."""

from typing import Any

import pytest
from replica_kit import (
    EPOCHS,
    KEY,
    ME,
    TOPIC_ID,
    Stand,
    data,
    first_image,
    of_kind,
    partition,
    recovered,
)

from broker.partition import client_requests
from broker.partition import events as ev
from broker.partition.describe import FENCED, LOG_AHEAD, LOW_SPACE, NO_HIGH_WATERMARK, REASONS
from raftlog.errors import ErrorCode
from raftlog.wire.data.v1 import data_pb2 as pb

GREEDY, OTHER = ev.Client("10.0.0.1:1", "one link"), ev.Client("10.0.0.2:1", "another")
LONG_MS = 2**31 - 1


def in_step(**settings: Any) -> Stand:
    stand = Stand(**settings)
    stand.followers_fetch(0, last_epoch=-1)
    return stand


def test_timeout_is_capped() -> None:
    stand = in_step(request_timeout_max_ms=5_000)
    fetch, produce = stand.consume(0, wait_ms=LONG_MS), stand.produce("a", timeout_ms=LONG_MS)
    stand.after(4.9)
    assert (stand.consumed(fetch), stand.produced(produce)) == (None, None)
    stand.after(0.2)
    assert stand.answer_of(fetch).response.partitions[0].error_code == 0
    assert stand.outcome(produce).error_code == ErrorCode.REQUEST_TIMED_OUT


@pytest.mark.parametrize("kind", ["produce", "fetch"])
def test_waiting_requests_of_one_client_are_bounded_and_end_with_it(kind: str) -> None:
    stand = in_step(max_pending_produces=10, max_parked_fetches=10)

    def refused(client: ev.Client) -> bool:
        if kind == "fetch":
            return bool(stand.consumed(stand.consume(0, wait_ms=LONG_MS, client=client)))
        answer = stand.produced(stand.produce("a", timeout_ms=LONG_MS, client=client))
        assert answer is None or answer.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        return answer is not None

    def answers() -> int:
        return len(of_kind(stand.got, ev.AnswerFetch) + of_kind(stand.got, ev.AnswerProduce))

    assert [refused(GREEDY) for _ in range(6)] == [False] * 5 + [True]
    assert refused(ev.Client(GREEDY.peer, "a second link of the same connection"))
    assert not refused(OTHER)
    stand.do(ev.ClientClosed(GREEDY))
    assert [refused(GREEDY) for _ in range(6)] == [False] * 4 + [True] * 2, "OTHER still waits"
    for gone in (GREEDY, OTHER):
        stand.do(ev.ClientClosed(gone))
    # Nobody is answered who is gone, neither now nor when it would have been time.
    before = answers()
    stand.after(400.0)
    assert answers() == before
    assert [refused(OTHER) for _ in range(6)] == [False] * 5 + [True]


def test_request_with_too_many_records_is_refused_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_requests, "PRODUCE_MAX_RECORDS", 5)
    stand = in_step()
    one = pb.ProducePartition(
        topic_id=KEY[0], partition_index=KEY[1], current_leader_epoch=-1, records=data("a", "b")
    )
    for times, code in ((3, ErrorCode.MESSAGE_TOO_LARGE), (2, ErrorCode.NONE)):
        request = pb.ProduceRequest(acks=1, timeout_ms=1_000, partitions=[one] * times)
        effects = [
            *stand.do(ev.ProduceReceived(request, 1_000_000, f"{times}", GREEDY)),
            *stand.after(0.1),
        ]
        (answer,) = of_kind(effects, ev.AnswerProduce)
        assert {result.error_code for result in answer.response.partitions} == {code}


# --- What the metadata says is led here and cannot be used is counted, by reason, and counted n---


OTHER_TOPIC = (TOPIC_ID, 1)


def counts(stand: Stand, *, low_space: bool = False) -> dict[str, int]:
    found = stand.core.unserved(stand.now, low_space=low_space).counts
    assert set(found) == set(REASONS)
    return {reason: count for reason, count in found.items() if count}


def alone(**fields: Any) -> Stand:
    return Stand(image=first_image(partition(isr=(ME,), **fields)))


def test_partition_with_its_log_ahead_of_the_metadata_is_unserved_until_its_epoch_rises() -> None:
    stand = Stand(
        recovered(3, (5, 0)),
        image=first_image(partition(isr=(ME,)), partition(OTHER_TOPIC, isr=(ME,))),
    )
    assert counts(stand) == {LOG_AHEAD: 1}
    example = stand.core.unserved(stand.now, low_space=False).example
    assert example == "t:0: the log has records of leader epoch 5, but the metadata is at 5"
    assert stand.core.counters()["OfflineReplicaCount"] == 1
    for refused in (stand.described(), stand.outcome(stand.produce("a"))):
        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert refused.error_message == example[5:]
    stand.change(leader_epoch=6)
    assert counts(stand) == {}
    assert stand.core.counters()["OfflineReplicaCount"] == 0
    assert stand.outcome(stand.produce("a")).error_code == 0


def test_unserved_partition_is_not_counted_when_another_leads_or_the_topic_is_deleted() -> None:
    stand = Stand(recovered(3, (5, 0)))
    assert counts(stand) == {LOG_AHEAD: 1}
    stand.change(leader=2, leader_epoch=6)
    assert counts(stand) == {}
    stand = Stand(recovered(3, (5, 0)))
    stand.remove_topic()
    assert counts(stand) == {}


def test_partition_has_no_high_watermark_until_each_isr_member_has_fetched() -> None:
    stand = Stand()
    assert counts(stand) == {NO_HIGH_WATERMARK: 1}
    stand.fetch(2, 0)
    assert counts(stand) == {NO_HIGH_WATERMARK: 1}
    stand.fetch(3, 0)
    assert counts(stand) == {}
    stand.change(leader=2, leader_epoch=6)
    stand.change(leader=ME, leader_epoch=7)
    assert counts(stand) == {NO_HIGH_WATERMARK: 1}, "in each leader epoch anew"
    stand.change(leader=-1, leader_epoch=8)
    assert counts(stand) == {}


def test_broker_that_considers_itself_fenced_serves_no_partition_that_it_leads() -> None:
    stand = alone()
    stand.do(ev.BrokerStatusChanged(EPOCHS[ME], stand.now + 1))
    stand.after(2)
    assert counts(stand) == {FENCED: 1}
    stand.do(ev.BrokerStatusChanged(EPOCHS[ME], stand.now + 10))
    assert counts(stand) == {}


def test_led_partition_on_a_nearly_full_disk_is_counted_as_low_on_space() -> None:
    assert counts(alone(), low_space=True) == {LOW_SPACE: 1}
