"""Asking brokers for the ISRs of the partitions that they lead (KIP-24's BrokerMetadata): who leads
knows them first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from raftlog.client.broker_client import checked_answer
from raftlog.client.leaders import known_code
from raftlog.errors import ApiError, ErrorCode
from raftlog.transport.api import Conversation, Transport
from raftlog.transport.rpc_client import RpcClient
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.data.v1 import data_pb2 as pb

REQUEST_PARTITIONS_MAX = 1000
"""More partitions are asked for in several requests."""
PartitionKey = tuple[bytes, int]
"""(topic id, partition index)."""


@dataclass(frozen=True, slots=True)
class LeaderAnswer:
    """What one broker said. ``failure``: why it said nothing, or not all; then ``led`` is empty."""

    broker_id: int
    broker_epoch: int = -1
    led: tuple[pb.LedPartition, ...] = ()
    """In the order of topic id and index; only those that it leads."""
    refused: Mapping[PartitionKey, str] = field(default_factory=dict)
    """Of those that were asked for by name: why it does not lead them."""
    failure: str = ""


async def ask_leaders(
    transport: Transport,
    endpoints: Mapping[int, str],
    *,
    timeout_s: float,
    keys: Sequence[PartitionKey] = (),
    cluster_id: str = "",
) -> dict[int, LeaderAnswer]:
    """Ask brokers, by id, all at once, for what they lead of ``keys``, or for all that they lead.

    Never raises for what a broker does.
    """
    asked = [
        _ask(transport, id_, endpoints[id_], timeout_s, keys, cluster_id)
        for id_ in sorted(endpoints)
    ]
    return {answer.broker_id: answer for answer in await asyncio.gather(*asked)}


async def ask_leader(
    transport: Transport,
    endpoint: str,
    *,
    timeout_s: float,
    keys: Sequence[PartitionKey] = (),
    cluster_id: str = "",
) -> list[pb.BrokerMetadataResponse]:
    """All pages of one broker's answer, at least one; of ``keys`` that it does not lead with their
    errors. Raises ApiError.
    """
    caller = RpcClient(transport, endpoint, Conversation.BROKER)
    try:
        async with asyncio.timeout(timeout_s):
            if keys:
                asked = [
                    keys[at : at + REQUEST_PARTITIONS_MAX]
                    for at in range(0, len(keys), REQUEST_PARTITIONS_MAX)
                ]
                requests = (
                    pb.BrokerMetadataRequest(partitions=[_wire(key) for key in some])
                    for some in asked
                )
                return [await _page(caller, request, timeout_s, cluster_id) for request in requests]
            pages = [await _page(caller, pb.BrokerMetadataRequest(), timeout_s, cluster_id)]
            while pages[-1].HasField("next_cursor"):
                request = pb.BrokerMetadataRequest(cursor=pages[-1].next_cursor)
                pages.append(await _page(caller, request, timeout_s, cluster_id))
            return pages
    except TimeoutError:
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT, f"{endpoint} did not answer in time") from None
    finally:
        caller.close()


async def _ask(
    transport: Transport,
    broker_id: int,
    endpoint: str,
    timeout_s: float,
    keys: Sequence[PartitionKey],
    cluster_id: str,
) -> LeaderAnswer:
    try:
        pages = await ask_leader(
            transport, endpoint, timeout_s=timeout_s, keys=keys, cluster_id=cluster_id
        )
    except ApiError as error:
        return LeaderAnswer(broker_id, failure=str(error))
    if pages[0].broker_id != broker_id:
        return LeaderAnswer(broker_id, failure=f"broker {pages[0].broker_id} answers at {endpoint}")
    led = {
        (one.topic_id, one.partition_index): one
        for page in pages
        for one in page.partitions
        if not one.error_code
    }
    refused = {
        (
            one.topic_id,
            one.partition_index,
        ): f"{known_code(one.error_code).name}: {one.error_message}".rstrip(": ")
        for page in pages
        for one in page.partitions
        if one.error_code
    }
    return LeaderAnswer(
        broker_id, pages[-1].broker_epoch, tuple(led[key] for key in sorted(led)), refused
    )


async def _page(
    caller: RpcClient, request: pb.BrokerMetadataRequest, timeout_s: float, cluster_id: str
) -> pb.BrokerMetadataResponse:
    asked = broker_pb2.BrokerRequest(cluster_id=cluster_id, broker_metadata=request)
    return checked_answer(await caller.call(asked, timeout_s)).broker_metadata


def _wire(key: PartitionKey) -> pb.PartitionKey:
    return pb.PartitionKey(topic_id=key[0], partition_index=key[1])
