"""Strangers flood the active controller of a working quorum: it goes on leading, and everybody else
is served meanwhile.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from cluster_kit import PATIENCE_S, cluster_of, controllers_of, setting
from probe_kit import probing

from raftlog.bounds import OBSERVER_ANSWER_MAX_BYTES
from raftlog.local.cluster import LocalCluster, Node
from raftlog.transport.api import Conversation
from raftlog.wire.controller.v1 import controller_pb2 as pb

import grpc  # isort: skip
import grpc.aio  # isort: skip

FOR_S = 3.0
WRITERS = 4
VALUE_BYTES, VALUES = 2_000, 2_000


flooded = cluster_of(controllers=3, brokers=1)


@pytest.fixture(scope="module")
def cluster(flooded: LocalCluster) -> LocalCluster:
    asyncio.run(_fill(flooded))
    return flooded


async def _fill(cluster: LocalCluster) -> None:
    """A log of some megabytes."""
    async with controllers_of(cluster) as client:
        for first in range(0, VALUES, 200):
            request = pb.IncrementalAlterConfigsRequest()
            for number in range(first, first + 200):
                request.resources.extend(setting(f"filled-{number}", "x" * VALUE_BYTES).resources)
            await client.call(request, timeout_s=PATIENCE_S)


Attack = Callable[[Node, float], Awaitable[None]]


def channels_to(node: Node, count: int) -> list[Any]:
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
    return [grpc.aio.insecure_channel(node.endpoint, options=options) for _ in range(count)]


async def _ask(stream: Any, message: bytes, until: float, *, again: bool) -> None:
    """Send, and read what comes until then."""
    try:
        async with asyncio.timeout_at(until):
            await stream.write(message)
            while (answer := await stream.read()) is not grpc.aio.EOF:
                assert len(answer) < 2 * OBSERVER_ANSWER_MAX_BYTES or not again
                if again:
                    await stream.write(message)
    except (TimeoutError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
        stream.cancel()


async def _flood(
    node: Node, until: float, streams: int, links: int, conversation: Conversation, message: bytes
) -> None:
    channels = channels_to(node, links)
    opened = [
        channels[number % links].stream_stream(conversation.value)() for number in range(streams)
    ]
    await asyncio.gather(
        *(
            _ask(stream, message, until, again=conversation is Conversation.OBSERVER)
            for stream in opened
        )
    )
    await asyncio.gather(*(channel.close() for channel in channels))


async def whole_log(leader: Node, until: float) -> None:
    """Streams that all ask for the whole log, again and again."""
    request = pb.MetadataFetchRequest(
        replica_id=-1, fetch_offset=0, max_bytes=2**31 - 1, generation=0
    )
    await _flood(leader, until, 400, 8, Conversation.OBSERVER, request.SerializeToString())


async def listings(leader: Node, until: float) -> None:
    """160,000 on ten links, whose time is up together."""
    one = pb.ControllerRequest(describe_brokers=pb.DescribeBrokersRequest(), timeout_ms=1_000)
    message = pb.ControllerRequests(requests=[one] * 16_000).SerializeToString()
    await _flood(leader, until, 10, 10, Conversation.CONTROLLER, message)


async def empty_items(leader: Node, until: float) -> None:
    """20 links of 16,000."""
    await _flood(leader, until, 20, 20, Conversation.CONTROLLER, b"\x0a\x00" * 16_000)


async def _write(client: Any, until: float, written: list[float]) -> None:
    loop = asyncio.get_running_loop()
    number = 0
    while loop.time() < until:
        number += 1
        begun = loop.time()
        await client.call(setting(f"beside-{number % 10}", str(number)), timeout_s=PATIENCE_S)
        written.append(loop.time() - begun)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "attack", [whole_log, listings, empty_items], ids=lambda attack: attack.__name__
)
async def test_leader_goes_on_leading_and_others_are_served(
    cluster: LocalCluster, attack: Attack
) -> None:
    leader = await asyncio.to_thread(cluster.wait_leader, PATIENCE_S)
    epoch = (await asyncio.to_thread(cluster.quorum)).leader.leader_epoch
    (broker,) = cluster.brokers
    written: list[float] = []
    async with probing(leader, broker) as probed:
        until = asyncio.get_running_loop().time() + FOR_S
        async with controllers_of(cluster) as client:
            await asyncio.gather(
                attack(leader, until), *(_write(client, until, written) for _ in range(WRITERS))
            )
    after = (await asyncio.to_thread(cluster.quorum)).leader
    assert after is not None
    assert (after.node_id, after.leader_epoch) == (leader.node_id, epoch)
    print(
        attack.__name__,
        probed.took[:4],
        f"{len(written)} written, the longest {max(written):.2f} s",
    )
    # The first call of the probe makes its connections, after those that the strangers are making.
    probed.check(but=1)
