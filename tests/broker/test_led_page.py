"""Pages of the ISRs that a broker is asked for: all of them, each once, whatever their size; bad
requests change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from broker.partition.describe import PAGE_PARTITIONS, led_page
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

    def describe(self, keys: Sequence[Key]) -> pb.BrokerMetadataResponse:
        self.asked.append(len(keys))
        return pb.BrokerMetadataResponse(
            broker_id=4,
            broker_epoch=70,
            partitions=[self._describe(key_) for key_ in keys],
        )

    def _describe(self, key_: Key) -> pb.LedPartition:
        error = ErrorCode.NONE if key_ in self.led else ErrorCode.NOT_LEADER_OR_FOLLOWER
        return pb.LedPartition(topic_id=key_[0], partition_index=key_[1], error_code=error)


def _led_page(replicas: Replicas, request: pb.BrokerMetadataRequest) -> pb.BrokerMetadataResponse:
    return led_page(replicas.keys(), replicas.describe, request)


def all_pages(replicas: Replicas, limit: int = 0) -> list[pb.BrokerMetadataResponse]:
    request = pb.BrokerMetadataRequest(response_partition_limit=limit)
    pages = [_led_page(replicas, request)]
    while pages[-1].HasField("next_cursor"):
        request = pb.BrokerMetadataRequest(
            response_partition_limit=limit, cursor=pages[-1].next_cursor
        )
        pages.append(_led_page(replicas, request))
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
    first = _led_page(replicas, pb.BrokerMetadataRequest(response_partition_limit=10))
    gone = (first.next_cursor.topic_id, first.next_cursor.partition_index)
    replicas.all.remove(gone)
    rest = _led_page(replicas, pb.BrokerMetadataRequest(cursor=first.next_cursor))
    assert keys_of([first, rest]) == sorted(replicas.led)


def test_what_is_asked_for_by_name_is_answered_one_by_one() -> None:
    replicas = Replicas(9)
    asked = [
        pb.PartitionKey(topic_id=key(number)[0], partition_index=key(number)[1])
        for number in (3, 4)
    ]
    answer = _led_page(replicas, pb.BrokerMetadataRequest(partitions=asked))
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
        _led_page(replicas, request_)
    assert (caught.value.code, caught.value.field) == (ErrorCode.INVALID_REQUEST, field)
    assert replicas.asked == []
