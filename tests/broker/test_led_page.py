"""Pages of the ISRs that a broker is asked for: all of them, each once, whatever their size; bad
requests change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from broker.replication.led_page import PAGE_PARTITIONS, led_page
from raftlog.errors import ApiError, ErrorCode
from raftlog.wire.data.v1 import data_pb2 as pb

Key = tuple[bytes, int]


def key(number: int) -> Key:
    return b"t%015d" % (number // 7), number % 7


class Replicas:
    """Leads every third of its replicas; keeps what it was asked."""

    def __init__(self, count: int) -> None:
        self.all = [key(number) for number in reversed(range(count))]
        self.led = {key(number) for number in range(0, count, 3)}
        self.asked: list[int] = []

    def keys(self) -> Iterable[Key]:
        return iter(self.all)

    def describe_led(
        self, request: pb.BrokerMetadataRequest, now: float
    ) -> pb.BrokerMetadataResponse:
        assert request.partitions, "all at once has no bound"
        self.asked.append(len(request.partitions))
        return pb.BrokerMetadataResponse(
            broker_id=4,
            broker_epoch=70,
            partitions=[self._describe(one) for one in request.partitions],
        )

    def _describe(self, one: pb.PartitionKey) -> pb.LedPartition:
        leads = (one.topic_id, one.partition_index) in self.led
        error = ErrorCode.NONE if leads else ErrorCode.NOT_LEADER_OR_FOLLOWER
        return pb.LedPartition(
            topic_id=one.topic_id, partition_index=one.partition_index, error_code=error
        )


def _led_page(
    replicas: Any, request: pb.BrokerMetadataRequest, now: float
) -> pb.BrokerMetadataResponse:
    return led_page(replicas, request, now)


def all_pages(replicas: Replicas, limit: int = 0) -> list[pb.BrokerMetadataResponse]:
    request = pb.BrokerMetadataRequest(response_partition_limit=limit)
    pages = [_led_page(replicas, request, 1.0)]
    while pages[-1].HasField("next_cursor"):
        request = pb.BrokerMetadataRequest(
            response_partition_limit=limit, cursor=pages[-1].next_cursor
        )
        pages.append(_led_page(replicas, request, 1.0))
        assert len(pages) < 10_000
    return pages


def keys_of(pages: Sequence[pb.BrokerMetadataResponse]) -> list[Key]:
    return [(one.topic_id, one.partition_index) for page in pages for one in page.partitions]


@pytest.mark.parametrize(
    ("count", "limit"), [(0, 0), (1, 1), (50, 1), (50, 7), (50, 50), (50, 49), (2500, 0)]
)
def test_the_pages_hold_what_is_led_each_once_in_order(count: int, limit: int) -> None:
    replicas = Replicas(count)
    pages = all_pages(replicas, limit)
    assert keys_of(pages) == sorted(replicas.led)
    assert all((page.broker_id, page.broker_epoch) == (4, 70) for page in pages)
    assert max(replicas.asked) <= (limit or PAGE_PARTITIONS)
    assert len(pages) == max(1, -(-count // (limit or PAGE_PARTITIONS)))


def test_a_replica_that_goes_between_two_pages_does_not_hide_the_next_ones() -> None:
    replicas = Replicas(60)
    first = _led_page(replicas, pb.BrokerMetadataRequest(response_partition_limit=10), 1.0)
    gone = (first.next_cursor.topic_id, first.next_cursor.partition_index)
    replicas.all.remove(gone)
    rest = _led_page(replicas, pb.BrokerMetadataRequest(cursor=first.next_cursor), 1.0)
    assert keys_of([first, rest]) == sorted(replicas.led)


def test_what_is_asked_for_by_name_is_answered_one_by_one() -> None:
    replicas = Replicas(9)
    asked = [
        pb.PartitionKey(topic_id=key(number)[0], partition_index=key(number)[1])
        for number in (3, 4)
    ]
    answer = _led_page(replicas, pb.BrokerMetadataRequest(partitions=asked), 1.0)
    assert [one.error_code for one in answer.partitions] == [
        ErrorCode.NONE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ]
    assert not answer.HasField("next_cursor")


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (
            pb.BrokerMetadataRequest(partitions=[pb.PartitionKey()] * (PAGE_PARTITIONS + 1)),
            "partitions",
        ),
        (pb.BrokerMetadataRequest(response_partition_limit=-1), "response_partition_limit"),
        (
            pb.BrokerMetadataRequest(response_partition_limit=PAGE_PARTITIONS + 1),
            "response_partition_limit",
        ),
    ],
)
def test_a_bad_request_names_the_field(request_: pb.BrokerMetadataRequest, field: str) -> None:
    replicas = Replicas(9)
    with pytest.raises(ApiError) as caught:
        _led_page(replicas, request_, 1.0)
    assert (caught.value.code, caught.value.field) == (ErrorCode.INVALID_REQUEST, field)
    assert replicas.asked == []
