"""Queries to brokers for the partitions that they lead: all brokers, all pages, each failure."""

from typing import Any

from client_world import World, refuses, silent, simulate
from scenarios import failure, scenario

from raftlog.client.leaders import REQUEST_PARTITIONS_MAX, LeaderAnswer, ask_leader, ask_leaders
from raftlog.errors import ErrorCode
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.data.v1 import data_pb2 as data_pb

T = b"t" * 16


def led(index: int, error: int = 0) -> data_pb.LedPartition:
    return data_pb.LedPartition(topic_id=T, partition_index=index, error_code=error)


def leads(broker_id: int, *indexes: int, page: int = 1000) -> Any:
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
    asked = {2: (await world.broker("two", leads(2))).address, 1: one.address}
    answers = await ask_leaders(world.transport, asked, timeout_s=5.0, cluster_id="c")
    assert list(answers) == [1, 2]
    assert indexes(answers[1]) == list(range(25))
    assert (answers[1].broker_epoch, answers[1].failure) == (10, "")
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
    assert answers[3].failure == f"{other.address} is broker 9"
    assert all("REQUEST_TIMED_OUT" in answers[number].failure for number in (4, 5))
    caught = await failure(ask_leader(world.transport, mute.address, timeout_s=1.0))
    assert caught.code is ErrorCode.REQUEST_TIMED_OUT
