"""Calls to brokers in turn: shared out, monotone, and past those that cannot answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from client_world import World, create, leader, refuses, silent, simulate
from scenarios import scenario

from raftlog.errors import ApiError, ErrorCode
from raftlog.wire.broker.v1 import broker_pb2 as pb
from raftlog.wire.common.v1 import common_pb2


def at(offset: int) -> Callable[[pb.BrokerRequest], pb.BrokerResponse]:
    def answer(request: pb.BrokerRequest) -> pb.BrokerResponse:
        if request.HasField("write"):
            return pb.BrokerResponse(write=leader(request.write))
        wanted = request.read.at_least.offset if request.read.HasField("at_least") else -1
        token = common_pb2.MetadataToken(epoch=1, offset=max(offset, wanted))
        return pb.BrokerResponse(token=token, metadata=pb.MetadataResponse(cluster_id="c"))

    return answer


@scenario(simulate)
async def test_reads_go_round_and_are_monotone_by_the_token(world: World) -> None:
    """[Broker A has been told 100, B only 80: round-robin goes backwards.]"""
    servers = [
        await world.broker(name, at(offset)) for name, offset in (("a", 100), ("b", 80), ("c", 90))
    ]
    client = world.broker_client("a", "b", "c", round_robin=True)
    seen = -1
    for _ in range(30):
        response = await client.read(pb.MetadataRequest())
        assert response.token.offset >= seen
        seen = response.token.offset
    counts = [len(server.asked) for server in servers]
    assert min(counts) >= 9, counts
    await client.write(create())
    client.close()


@scenario(simulate)
async def test_who_is_gone_costs_no_call_and_comes_back(world: World) -> None:
    a, b = await world.broker("a", at(1)), await world.broker("b", at(1))
    client = world.broker_client("a", "b", round_robin=True)
    for _ in range(4):
        await client.read(pb.MetadataRequest())
    world.network.crash("a")
    before = len(a.asked)
    for _ in range(20):
        await client.read(pb.MetadataRequest(), timeout_s=2)
    assert len(a.asked) == before
    await a.start()
    await asyncio.sleep(5)
    for _ in range(10):
        await client.read(pb.MetadataRequest())
    assert len(a.asked) >= before + 4
    assert len(b.asked) > 20
    client.close()


@pytest.mark.parametrize("code", [ErrorCode.BROKER_FENCED, ErrorCode.NO_READ_LEASE])
@scenario(simulate)
async def test_a_refusal_is_taken_elsewhere_and_said_if_all_refuse(
    world: World, *, code: ErrorCode
) -> None:
    bad = await world.broker("a", refuses(code))
    await world.broker("b", at(5))
    client = world.broker_client("a", "b", round_robin=True)
    for _ in range(10):
        assert (await client.read(pb.MetadataRequest())).token.offset == 5
    assert len(bad.asked) <= 2, "passed over for a while"
    alone = world.broker_client("a", round_robin=True)
    with pytest.raises(ApiError) as error:
        await alone.read(pb.MetadataRequest())
    assert error.value.code is code
    client.close()
    alone.close()


@scenario(simulate)
async def test_one_that_is_silent_costs_one_read_and_not_each_second_one(world: World) -> None:
    await world.broker("a", silent)
    await world.broker("b", at(5))
    client = world.broker_client("a", "b", round_robin=True)
    failures = 0
    for _ in range(10):
        try:
            await client.read(pb.MetadataRequest(), timeout_s=0.2)
        except ApiError:
            failures += 1
    assert failures <= 1
    client.close()


@scenario(simulate)
async def test_a_write_of_unknown_outcome_is_said_and_never_sent_again(world: World) -> None:
    a, b = await world.broker("a", silent), await world.broker("b", silent)
    client = world.broker_client("a", "b", round_robin=True)
    write = asyncio.ensure_future(client.write(create(), timeout_s=5))
    await asyncio.sleep(0.5)
    for server in (a, b):
        server.hang_up()
    with pytest.raises(ApiError) as error:
        await write
    assert (error.value.code, error.value.outcome_unknown) == (ErrorCode.NETWORK_EXCEPTION, True)
    assert len(a.asked) + len(b.asked) == 1
    client.close()


@scenario(simulate)
async def test_nobody_there_is_said_within_the_timeout_as_not_executed(world: World) -> None:
    client = world.broker_client("x", "y", round_robin=True)
    begun = world.loop.time()
    with pytest.raises(ApiError) as error:
        await client.write(create(), timeout_s=1.5)
    assert not error.value.outcome_unknown
    assert world.loop.time() - begun == pytest.approx(1.5, abs=0.05)
    client.close()
    with pytest.raises(ApiError):
        await client.read(pb.MetadataRequest())
    assert client._routes == {}, "a closed client connects to nobody"


@scenario(simulate)
async def test_a_write_that_was_refused_once_and_then_sent_elsewhere_is_of_unknown_outcome(
    world: World,
) -> None:
    fenced, other = (
        await world.broker("a", refuses(ErrorCode.BROKER_FENCED)),
        await world.broker("b", silent),
    )
    client = world.broker_client("a", "b", round_robin=True)
    await asyncio.sleep(0.1)
    for _ in range(2):
        with pytest.raises(ApiError) as error:
            await client.write(create(), timeout_s=0.5)
        assert error.value.outcome_unknown
    assert len(fenced.asked) >= 1
    assert len(other.asked) == 2
    client.close()
