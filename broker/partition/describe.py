"""A broker's descriptions of its replicas: their state, the ISRs of the partitions that it leads
(KIP-24: the leader knows them first), and the partitions that it leads according to the metadata
but cannot serve.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from broker.partition.host import NO_EPOCH, Host, Replica
from broker.partition.leader import UNKNOWN_HIGH_WATERMARK, Leader
from raftlog.errors import ApiError, ErrorCode
from raftlog.node.storage.partition_api import PartitionKey
from raftlog.wire.data.v1 import data_pb2 as pb
from raftlog.wire.records.v1 import records_pb2

PAGE_PARTITIONS = 1000
"""Maximum number of partitions examined for one answer."""


@dataclass(frozen=True, slots=True)
class ReplicaDescription:
    """One replica on this broker.

    Everything except the bounds of its log is -1 unless this broker leads the partition.
    """

    log_start_offset: int
    log_end_offset: int
    """Log end offset, unflushed records included."""
    leader_epoch: int
    high_watermark: int
    """-1 on a leader if it is unknown, as not all of the ISR has fetched yet."""
    min_isr: int
    """Number of replicas that must be in sync for a produce with acks=all."""
    offline_reason: str
    """Why this broker must not lead although the image says that it does; "" if it may."""


def describe_replica(replica: Replica) -> ReplicaDescription:
    """Return the :class:`ReplicaDescription` of a replica."""
    log, leader, offline = replica.log, replica.role, replica.offline
    if not isinstance(leader, Leader):
        return ReplicaDescription(log.start, log.end, NO_EPOCH, -1, -1, offline)
    return ReplicaDescription(
        log.start, log.end, leader.epoch, leader.high_watermark, leader.min_isr, offline
    )


def led_page(
    keys: Iterable[PartitionKey],
    describe: Callable[[Sequence[PartitionKey]], pb.BrokerMetadataResponse],
    request: pb.BrokerMetadataRequest,
) -> pb.BrokerMetadataResponse:
    """Return the requested partitions, or a page of those among ``keys`` that are led here.

    A broker that leads very many partitions answers in bounded time, page by page. Raises ApiError
    INVALID_REQUEST, which names the field.
    """
    if len(request.partitions) > PAGE_PARTITIONS:
        message = (
            f"{len(request.partitions)} partitions given; at most {PAGE_PARTITIONS} are allowed"
        )
        raise ApiError(ErrorCode.INVALID_REQUEST, message, field="partitions")
    if request.partitions:
        return describe([(key.topic_id, key.partition_index) for key in request.partitions])
    limit = request.response_partition_limit or PAGE_PARTITIONS
    if not 0 < limit <= PAGE_PARTITIONS:
        message = f"response_partition_limit is {limit}; it must be in 1 .. {PAGE_PARTITIONS}"
        raise ApiError(ErrorCode.INVALID_REQUEST, message, field="response_partition_limit")
    keys = sorted(keys)
    begin = 0
    if request.HasField("cursor"):
        begin = bisect_right(keys, (request.cursor.topic_id, request.cursor.partition_index))
    page = keys[begin : begin + limit]
    response = describe(page)
    led = [one for one in response.partitions if not one.error_code]
    del response.partitions[:]
    response.partitions.extend(led)
    if begin + limit < len(keys):
        last = pb.PartitionKey(topic_id=page[-1][0], partition_index=page[-1][1])
        response.next_cursor.CopyFrom(last)
    return response


def describe_led(host: Host, keys: Sequence[PartitionKey]) -> pb.BrokerMetadataResponse:
    """Return the partitions, each with its ISR and the epochs for which the ISR is valid."""
    return pb.BrokerMetadataResponse(
        broker_id=host.broker_id,
        broker_epoch=host.broker_epoch,
        partitions=[_describe(host, key) for key in keys],
    )


def _describe(host: Host, key: PartitionKey) -> pb.LedPartition:
    topic = host.image.topics.get(key[0])
    described = pb.LedPartition(
        topic_id=key[0],
        partition_index=key[1],
        topic_name=topic.name if topic is not None else "",
        high_watermark=-1,
        log_end_offset=-1,
        leader_epoch=-1,
        partition_epoch=-1,
    )
    replica = host.replicas.get(key)
    leader = replica.role if replica is not None else None
    if not isinstance(leader, Leader):
        described.error_code, described.error_message = host.not_here(key)
        return described
    state = leader.isr.state
    described.leader_epoch, described.partition_epoch = leader.epoch, state.partition_epoch
    described.high_watermark, described.log_end_offset = (
        leader.high_watermark,
        leader.replica.log.end,
    )
    described.log_size_bytes = leader.replica.runs.size
    described.isr.extend(_state(host, leader, member) for member in state.committed)
    if state.proposal is not None:
        described.proposed_isr.extend(
            records_pb2.BrokerState(broker_id=member, broker_epoch=epoch)
            for member, epoch in state.proposal.members
        )
    described.followers.extend(_followers(leader, host.now))
    return described


def _state(host: Host, leader: Leader, member: int) -> records_pb2.BrokerState:
    if member == host.broker_id:
        return records_pb2.BrokerState(broker_id=member, broker_epoch=host.broker_epoch)
    follower = leader.isr.followers.get(member)
    return records_pb2.BrokerState(
        broker_id=member, broker_epoch=NO_EPOCH if follower is None else follower.broker_epoch
    )


def _followers(leader: Leader, now: float) -> list[pb.FollowerState]:
    end = leader.replica.log.end
    described = []
    for follower in leader.isr.followers.values():
        age_ms = -1
        if follower.end_offset >= end:
            age_ms = 0
        elif follower.caught_up_at is not None:
            age_ms = max(0, int((now - follower.caught_up_at) * 1000))
        described.append(
            pb.FollowerState(
                replica_id=follower.replica_id,
                replica_epoch=follower.broker_epoch,
                log_end_offset=follower.end_offset,
                last_caught_up_age_ms=age_ms,
                bytes_behind=leader.replica.runs.bytes_from(follower.end_offset),
            )
        )
    return described


LOG_AHEAD = "log_ahead_of_metadata"
"""The log has records of the leader epoch, or of later ones: the partition is not led.

Lasts until the leader epoch is raised.
"""
FENCED = "fenced"
"""This broker considers itself fenced, although its image does not show it fenced yet."""
NO_HIGH_WATERMARK = "high_watermark_unknown"
"""The partition is led, but an ISR member has not fetched in this leader epoch, or a new leader has
too few replicas in sync. Consumers get no records, and acks=all waits.
"""
LOW_SPACE = "low_on_space"
"""Free space is below the reserve: produce requests are refused."""
REASONS = (LOG_AHEAD, FENCED, NO_HIGH_WATERMARK, LOW_SPACE)


class Unserved(NamedTuple):
    """Partitions that are led but not served.

    ``counts``: by reason. ``example``: one partition that is not led, and why, for operators.
    """

    counts: dict[str, int]
    example: str


def unserved(host: Host, *, low_space: bool) -> Unserved:
    """Return how many partitions this broker leads without serving them, by reason, and an example.

    ``low_space``: all produce requests are refused.
    """
    led = host.gauges["LeaderCount"]
    counts = {
        LOG_AHEAD: len(host.not_led),
        FENCED: 0 if host.serves else led,
        NO_HIGH_WATERMARK: host.gauges[UNKNOWN_HIGH_WATERMARK] if host.serves else 0,
        LOW_SPACE: led if low_space else 0,
    }
    example = ""
    if host.not_led:
        key, why = next(iter(host.not_led.items()))
        topic = host.image.topics.get(key[0])
        example = f"{key[0].hex() if topic is None else topic.name}:{key[1]}: {why}"
    return Unserved(counts, example)
