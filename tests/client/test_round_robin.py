import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from client_world import World, create, leader, refuses, silent, simulate
from scenarios import failure, scenario

from raftlog.client.leaders import REQUEST_PARTITIONS_MAX, LeaderAnswer, ask_leader, ask_leaders
from raftlog.errors import ApiError, ErrorCode
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.broker.v1 import broker_pb2 as pb
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.data.v1 import data_pb2 as data_pb


def at(offset: int) -> Callable[[pb.BrokerRequest], pb.BrokerResponse]:
    def answer(request: pb.BrokerRequest) -> pb.BrokerResponse:
        if request.HasField("write"):
            return pb.BrokerResponse(write=leader(request.write))
        wanted = request.read.at_least.offset if request.read.HasField("at_least") else -1
        token = common_pb2.MetadataToken(epoch=1, offset=max(offset, wanted))
        return pb.BrokerResponse(token=token, metadata=pb.MetadataResponse(cluster_id="c"))

    return answer


@scenario(simulate)
async def test_reads_rotate_and_are_monotonic_by_the_token(world: World) -> None:
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


@scenario(simulate)
async def test_dead_broker_costs_no_call_and_is_used_again_once_back(world: World) -> None:
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


@pytest.mark.parametrize("code", [ErrorCode.BROKER_FENCED, ErrorCode.NO_READ_LEASE])
@scenario(simulate)
async def test_refused_call_is_tried_at_all_brokers(world: World, *, code: ErrorCode) -> None:
    bad = await world.broker("a", refuses(code))
    await world.broker("b", at(5))
    client = world.broker_client("a", "b", round_robin=True)
    for _ in range(10):
        assert (await client.read(pb.MetadataRequest())).token.offset == 5
    assert len(bad.asked) <= 2, "passed over for a while"
    alone = world.broker_client("a", round_robin=True)
    error = await failure(alone.read(pb.MetadataRequest()))
    assert error.code is code


@scenario(simulate)
async def test_silent_broker_costs_one_read_only(world: World) -> None:
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


@scenario(simulate)
async def test_write_of_unknown_outcome_is_reported_and_never_resent(world: World) -> None:
    a, b = await world.broker("a", silent), await world.broker("b", silent)
    client = world.broker_client("a", "b", round_robin=True)
    write = asyncio.ensure_future(client.write(create(), timeout_s=5))
    await asyncio.sleep(0.5)
    for server in (a, b):
        server.hang_up()
    error = await failure(write)
    assert (error.code, error.outcome_unknown) == (ErrorCode.NETWORK_EXCEPTION, True)
    assert len(a.asked) + len(b.asked) == 1


@scenario(simulate)
async def test_write_fails_as_not_executed_when_no_broker_is_reachable(world: World) -> None:
    client = world.broker_client("x", "y", round_robin=True)
    begun = world.loop.time()
    error = await failure(client.write(create(), timeout_s=1.5))
    assert not error.outcome_unknown
    assert world.loop.time() - begun == pytest.approx(1.5, abs=0.05)
    client.close()
    with pytest.raises(ApiError):
        await client.read(pb.MetadataRequest())
    assert client._routes == {}, "a closed client connects to nobody"


@scenario(simulate)
async def test_write_refused_once_and_sent_elsewhere_has_an_unknown_outcome(world: World) -> None:
    fenced, other = (
        await world.broker("a", refuses(ErrorCode.BROKER_FENCED)),
        await world.broker("b", silent),
    )
    client = world.broker_client("a", "b", round_robin=True)
    await asyncio.sleep(0.1)
    for _ in range(2):
        error = await failure(client.write(create(), timeout_s=0.5))
        assert error.outcome_unknown
    assert len(fenced.asked) >= 1
    assert len(other.asked) == 2


# --- Asking leaders for their ISRs ---------------------------------------------------------------


T = b"t" * 16


def led(index: int, error: int = 0) -> data_pb.LedPartition:
    return data_pb.LedPartition(topic_id=T, partition_index=index, error_code=error)


def leads(broker_id: int, *indexes: int, page: int = 1000) -> Any:
    """Return a broker that leads these partitions of one topic."""

    def answer(request: broker_pb2.BrokerRequest) -> broker_pb2.BrokerResponse:
        asked = request.broker_metadata
        response = data_pb.BrokerMetadataResponse(broker_id=broker_id, broker_epoch=10 * broker_id)
        if asked.partitions:
            for one in asked.partitions:
                known = one.partition_index in indexes
                response.partitions.append(
                    led(one.partition_index, 0 if known else ErrorCode.NOT_LEADER_OR_FOLLOWER)
                )
        else:
            begin = asked.cursor.partition_index + 1 if asked.HasField("cursor") else 0
            rest = [one for one in indexes if one >= begin]
            response.partitions.extend(map(led, rest[:page]))
            if rest[page:]:
                response.next_cursor.CopyFrom(
                    data_pb.PartitionKey(topic_id=T, partition_index=rest[page - 1])
                )
        return broker_pb2.BrokerResponse(broker_metadata=response)

    return answer


def indexes(answer: LeaderAnswer) -> list[int]:
    return [one.partition_index for one in answer.led]


@scenario(simulate)
async def test_all_brokers_are_asked_and_all_pages_read(world: World) -> None:
    one = await world.broker("one", leads(1, *range(25), page=10))
    two = await world.broker("two", leads(2))
    asked = {2: two.address, 1: one.address}
    answers = await ask_leaders(world.transport, asked, timeout_s=5.0, cluster_id="c")
    assert list(answers) == [1, 2]
    assert indexes(answers[1]) == list(range(25))
    assert answers[1].broker_epoch == 10
    assert answers[1].failure == ""
    assert (indexes(answers[2]), answers[2].broker_epoch, answers[2].failure) == ([], 20, "")
    assert len(one.asked) == 3
    assert {request.cluster_id for request in one.asked} == {"c"}


@scenario(simulate)
async def test_keys_are_requested_in_bounded_requests_without_those_of_others(world: World) -> None:
    count = 2 * REQUEST_PARTITIONS_MAX + 1
    one = await world.broker("one", leads(1, *range(0, count, 2)))
    keys = [(T, index) for index in range(count)]
    answers = await ask_leaders(world.transport, {1: one.address}, timeout_s=5.0, keys=keys)
    assert indexes(answers[1]) == list(range(0, count, 2))
    assert [len(request.broker_metadata.partitions) for request in one.asked] == [1000, 1000, 1]
    pages = await ask_leader(world.transport, one.address, timeout_s=5.0, keys=keys[:2])
    assert [one.error_code for one in pages[0].partitions] == [0, ErrorCode.NOT_LEADER_OR_FOLLOWER]


@scenario(simulate)
async def test_failure_names_the_broker_that_failed(world: World) -> None:
    good = await world.broker("good", leads(1, 3))
    fenced = await world.broker("fenced", refuses(ErrorCode.BROKER_FENCED))
    other = await world.broker("other", leads(9, 3))
    mute = await world.broker("mute", silent)
    asked = {1: good.address, 2: fenced.address, 3: other.address, 4: mute.address, 5: "gone:1"}
    began = world.loop.time()
    answers = await ask_leaders(world.transport, asked, timeout_s=2.0)
    assert world.loop.time() - began < 2.5
    assert indexes(answers[1]) == [3]
    assert not any(answers[number].led for number in (2, 3, 4, 5))
    assert answers[2].failure.startswith("BROKER_FENCED")
    assert answers[3].failure == f"broker 9 answers at {other.address}"
    assert all("REQUEST_TIMED_OUT" in answers[number].failure for number in (4, 5))
    caught = await failure(ask_leader(world.transport, mute.address, timeout_s=1.0))
    assert caught.code is ErrorCode.REQUEST_TIMED_OUT
