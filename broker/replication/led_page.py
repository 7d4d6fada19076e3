"""Pages of the ISRs that a broker is asked for (KIP-24): a broker that leads very many partitions
answers in bounded time, many times. Pure.
"""

from __future__ import annotations

from bisect import bisect_right

from broker.partition.manager import Partitions
from raftlog.errors import ApiError, ErrorCode
from raftlog.wire.data.v1 import data_pb2 as pb

PAGE_PARTITIONS = 1000
"""Largest number of partitions looked at for one answer."""
_NOBODYS = (bytes(16), 0)


def led_page(
    replicas: Partitions, request: pb.BrokerMetadataRequest, now: float
) -> pb.BrokerMetadataResponse:
    """Return the answer to one request. Raises ApiError INVALID_REQUEST naming the field."""
    if len(request.partitions) > PAGE_PARTITIONS:
        message = f"{len(request.partitions)} partitions are more than {PAGE_PARTITIONS}"
        raise ApiError(ErrorCode.INVALID_REQUEST, message, field="partitions")
    if request.partitions:
        return replicas.describe_led(request, now)
    limit = request.response_partition_limit or PAGE_PARTITIONS
    if not 0 < limit <= PAGE_PARTITIONS:
        message = f"{limit} is not between 1 and {PAGE_PARTITIONS}"
        raise ApiError(ErrorCode.INVALID_REQUEST, message, field="response_partition_limit")
    keys = sorted(replicas.keys())
    begin = 0
    if request.HasField("cursor"):
        begin = bisect_right(keys, (request.cursor.topic_id, request.cursor.partition_index))
    page = keys[begin : begin + limit]
    # No keys would mean all of them; with the key of a partition that does not exist, the answer
    # still names its sender.
    asked = pb.BrokerMetadataRequest(partitions=[_wire(key) for key in page or [_NOBODYS]])
    response = replicas.describe_led(asked, now)
    led = [one for one in response.partitions if not one.error_code]
    del response.partitions[:]
    response.partitions.extend(led)
    if begin + limit < len(keys):
        response.next_cursor.CopyFrom(_wire(page[-1]))
    return response


def _wire(key: tuple[bytes, int]) -> pb.PartitionKey:
    return pb.PartitionKey(topic_id=key[0], partition_index=key[1])
