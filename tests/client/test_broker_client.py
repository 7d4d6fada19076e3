"""A client of brokers: monotonic reads, and writes that are sent once."""

import asyncio
from collections.abc import Callable

import pytest
from client_world import World, create, leader, refuses, silent, simulate
from scenarios import failure, scenario

from raftlog.errors import ApiError, ErrorCode
from raftlog.wire.broker.v1 import broker_pb2 as pb
from raftlog.wire.common.v1 import common_pb2


def at(offset: int, *, generation: int = 0) -> Callable[[pb.BrokerRequest], pb.BrokerResponse]:
    """Answer reads from an image at ``offset``, or at that of the token; writes as the leader does."""

    def answer(request: pb.BrokerRequest) -> pb.BrokerResponse:
        if request.HasField("write"):
            return pb.BrokerResponse(write=leader(request.write))
        wanted = request.read.at_least.offset if request.read.HasField("at_least") else -1
        token = common_pb2.MetadataToken(generation=generation, epoch=1, offset=max(offset, wanted))
        return pb.BrokerResponse(token=token, metadata=pb.MetadataResponse(cluster_id="c"))

    return answer


@scenario(simulate)
async def test_reads_carry_the_newest_token_and_are_monotonic_over_brokers(world: World) -> None:
    """[Broker A has been told 100, B only 80: round-robin goes backwards.]"""
    client, a, b = await world.at_brokers(a=at(100), b=at(80))
    first = await client.read(pb.MetadataRequest())
    assert not a.asked[0].read.HasField("at_least")
    world.network.crash("a")
    second = await client.read(pb.MetadataRequest())
    assert b.asked[0].read.at_least.offset == 100
    assert second.token.offset >= first.token.offset


@scenario(simulate)
async def test_write_advances_the_token_so_that_it_is_read_back(world: World) -> None:
    client, a = await world.at_brokers(a=at(7))
    await client.read(pb.MetadataRequest())
    response = await client.write(
        create(), acks=common_pb2.ACKS_ACKNOWLEDGED, timeout_s=3, principal="me"
    )
    assert response.write.token.offset == 40
    assert client.token.offset == 40
    write = a.asked[1].write
    assert (write.acks, write.timeout_ms) == (common_pb2.ACKS_ACKNOWLEDGED, 3000)
    assert write.client.principal == "me"
    await client.read(pb.MetadataRequest(), mode=pb.LATEST, timeout_s=2)
    read = a.asked[2].read
    assert (read.at_least.offset, read.mode, read.timeout_ms) == (40, pb.LATEST, 2000)


@scenario(simulate)
async def test_tokens_only_grow_and_one_of_another_generation_is_refused(world: World) -> None:
    client = world.broker_client("a")
    for offset, expected in [(5, 5), (3, 5), (6, 6)]:
        client.see(common_pb2.MetadataToken(generation=7, epoch=1, offset=offset))
        assert client.token.offset == expected
    for generation in (6, 8):
        with pytest.raises(ApiError) as error:
            client.see(common_pb2.MetadataToken(generation=generation, epoch=1, offset=9))
        assert error.value.code is ErrorCode.INCONSISTENT_GENERATION
        assert (client.token.generation, client.token.offset) == (7, 6)
    client.forget()
    client.see(common_pb2.MetadataToken(generation=6, epoch=1, offset=2))
    assert (client.token.generation, client.token.offset) == (6, 2)


@scenario(simulate)
async def test_lost_read_is_retried_at_another_broker_and_a_write_is_not(world: World) -> None:
    client, a, b = await world.at_brokers(a=silent, b=at(5))
    read = asyncio.ensure_future(client.read(pb.MetadataRequest()))
    await asyncio.sleep(0.1)
    a.hang_up()
    assert (await read).token.offset == 5
    assert (len(a.asked), len(b.asked)) == (1, 1)

    b.answer = silent
    write = asyncio.ensure_future(client.write(create()))
    await asyncio.sleep(0.1)
    b.hang_up()
    error = await failure(write)
    assert (error.code, error.outcome_unknown) == (ErrorCode.NETWORK_EXCEPTION, True)
    await asyncio.sleep(3)
    assert (len(a.asked), len(b.asked)) == (1, 2)


@scenario(simulate)
async def test_fenced_broker_is_left_for_another_or_reported(world: World) -> None:
    client, _, b = await world.at_brokers(a=refuses(ErrorCode.BROKER_FENCED), b=at(5))
    assert (await client.read(pb.MetadataRequest())).token.offset == 5
    await client.write(create())
    assert len(b.asked) == 2
    client.close()

    alone = world.broker_client("a")
    begun = world.loop.time()
    assert (await failure(alone.read(pb.MetadataRequest()))).code is ErrorCode.BROKER_FENCED
    assert world.loop.time() - begun < 0.1
    refused = await failure(alone.write(create()))
    assert (refused.code, refused.leader_id) == (ErrorCode.BROKER_FENCED, -1)


@scenario(simulate)
async def test_error_of_a_forwarded_write_is_raised(world: World) -> None:
    refusal = refuses(ErrorCode.TOPIC_ALREADY_EXISTS, field="topics[0].name")
    await world.broker("a", lambda request: pb.BrokerResponse(write=refusal(request.write)))
    client = world.broker_client("a")
    error = await failure(client.write(create()))
    assert (error.code, error.field) == (ErrorCode.TOPIC_ALREADY_EXISTS, "topics[0].name")
    assert client.token is None
