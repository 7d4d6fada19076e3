"""What one read or one request for records may name: it is served in one go, while everybody else
waits.
"""

from __future__ import annotations

from typing import Any

import pytest

from raftlog.bounds import DATA_REQUEST_MAX_PARTITIONS
from raftlog.errors import ApiError, ErrorCode
from raftlog.limits import check
from raftlog.wire.broker.v1 import broker_pb2 as broker
from raftlog.wire.data.v1 import data_pb2 as data

CASES = [
    (lambda n: broker.MetadataRequest(topics=["t"] * n), 20_000, "topics"),
    (
        lambda n: broker.DescribeConfigsRequest(resources=[broker.DescribeConfigsResource()] * n),
        1_000,
        "resources",
    ),
    (
        lambda n: data.ProduceRequest(partitions=[data.ProducePartition()] * n),
        DATA_REQUEST_MAX_PARTITIONS,
        "partitions",
    ),
    (
        lambda n: data.FetchRequest(partitions=[data.FetchPartition()] * n),
        DATA_REQUEST_MAX_PARTITIONS,
        "partitions",
    ),
    (
        lambda n: data.ListOffsetsRequest(partitions=[data.ListOffsetsPartition()] * n),
        DATA_REQUEST_MAX_PARTITIONS,
        "partitions",
    ),
]


@pytest.mark.parametrize(("request_of", "limit", "field"), CASES)
def test_a_request_names_no_more_than_is_served_in_one_go(
    request_of: Any, limit: int, field: str
) -> None:
    check(request_of(limit))
    with pytest.raises(ApiError) as caught:
        check(request_of(limit + 1))
    assert (caught.value.code, caught.value.field) == (ErrorCode.INVALID_REQUEST, field)
