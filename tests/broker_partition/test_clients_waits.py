"""What waits for clients is shared among them, ends in time, and goes with their links."""

from __future__ import annotations

from typing import Any

import pytest
from replica_kit import KEY, Stand, data, of_kind

from broker.partition import client_requests
from broker.partition import events as ev
from raftlog.errors import ErrorCode
from raftlog.wire.data.v1 import data_pb2 as pb

GREEDY, OTHER = ev.Client("10.0.0.1:1", "one link"), ev.Client("10.0.0.2:1", "another")
LONG_MS = 2**31 - 1


def in_step(**settings: Any) -> Stand:
    stand = Stand(**settings)
    for follower in (2, 3):
        stand.fetch(follower, 0, last_epoch=-1)
    return stand


def produce(
    stand: Stand, client: ev.Client, name: str, timeout_ms: int = LONG_MS
) -> list[ev.Effect]:
    one = pb.ProducePartition(
        topic_id=KEY[0], partition_index=KEY[1], current_leader_epoch=-1, records=data("a")
    )
    request = pb.ProduceRequest(acks=-1, timeout_ms=timeout_ms, partitions=[one])
    return stand.do(ev.ProduceReceived(request, 1_000_000, name, client))


def consume(stand: Stand, client: ev.Client, name: str) -> list[ev.Effect]:
    one = pb.FetchPartition(
        topic_id=KEY[0], partition_index=KEY[1], current_leader_epoch=-1, fetch_offset=0
    )
    request = pb.FetchRequest(max_wait_ms=LONG_MS, min_bytes=1, partitions=[one])
    return stand.do(ev.FetchReceived(request, name, client))


def test_a_timeout_of_weeks_is_capped() -> None:
    stand = in_step(request_timeout_max_ms=5_000)
    assert of_kind(consume(stand, GREEDY, "fetch"), ev.AnswerFetch) == []
    assert of_kind(produce(stand, OTHER, "produce"), ev.AnswerProduce) == []
    assert of_kind(stand.after(4.9), ev.AnswerProduce) == []
    effects = stand.after(0.2)
    assert [effect.reply_to for effect in of_kind(effects, ev.AnswerFetch)] == ["fetch"]
    (answer,) = of_kind(effects, ev.AnswerProduce)
    assert answer.response.partitions[0].error_code == ErrorCode.REQUEST_TIMED_OUT


@pytest.mark.parametrize("kind", ["produce", "fetch"])
def test_one_client_leaves_places_for_others_and_takes_what_waits_along(kind: str) -> None:
    stand = in_step(max_pending_produces=10, max_parked_fetches=10)

    def refused(client: ev.Client) -> bool:
        if kind == "fetch":
            return bool(of_kind(consume(stand, client, "x"), ev.AnswerFetch))
        answers = of_kind(produce(stand, client, "x"), ev.AnswerProduce)
        codes = {answer.response.partitions[0].error_code for answer in answers}
        assert codes <= {ErrorCode.THROTTLING_QUOTA_EXCEEDED}
        return bool(codes)

    assert [refused(GREEDY) for _ in range(6)] == [False] * 5 + [True]
    assert refused(ev.Client(GREEDY.peer, "a second link of the same connection"))
    assert not refused(OTHER)
    stand.do(ev.ClientClosed(GREEDY))
    waiting = stand.core._fetches.waiting if kind == "fetch" else stand.core._produces.waiting
    assert waiting.count == 1
    assert not refused(GREEDY)
    stand.do(ev.ClientClosed(GREEDY))
    # Nobody is answered who is gone, neither now nor when it would have been time.
    before = len(stand.got)
    stand.do(ev.ClientClosed(OTHER))
    assert waiting.count == 0
    stand.after(400.0)
    assert (
        of_kind(stand.got[before:], ev.AnswerFetch) + of_kind(stand.got[before:], ev.AnswerProduce)
        == []
    )


def test_a_request_of_too_many_records_is_refused_whole(monkeypatch: pytest.MonkeyPatch) -> None:
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
