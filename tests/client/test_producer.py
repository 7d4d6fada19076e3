"""A producer writes each record once and in order, or says that it does not know."""

import asyncio

import pytest
from data_world import TOPIC, DataWorld, simulate_data
from scenarios import failure, scenario

from raftlog.client.producer import Producer
from raftlog.errors import ApiError, ErrorCode


@scenario(simulate_data)
async def test_records_of_one_turn_share_a_batch_and_each_gets_its_offset(world: DataWorld) -> None:
    producer = world.producer()
    first = await producer.send(TOPIC, b"0", partition=0)
    rest = await asyncio.gather(
        *(producer.send(TOPIC, b"%d" % n, partition=0) for n in range(1, 10))
    )
    assert [first.offset, *(one.offset for one in rest)] == list(range(10))
    assert world.logs[0].values() == [b"%d" % n for n in range(10)]
    assert len(world.requests(1, "produce")) == 2
    assert producer.buffered_bytes == 0


@scenario(simulate_data, leaders=(2, 3, 2))
async def test_request_goes_to_each_partition_leader_with_its_epoch(world: DataWorld) -> None:
    world.logs[1].epoch = 7
    producer = world.producer()
    await asyncio.gather(*(producer.send(TOPIC, b"x", partition=index) for index in range(3)))
    for broker_id, index, epoch in ((2, 0, 1), (3, 1, 7), (2, 2, 1)):
        asked = [
            one for request in world.requests(broker_id, "produce") for one in request.partitions
        ]
        assert [one.current_leader_epoch for one in asked if one.partition_index == index] == [
            epoch
        ]
    # Both partitions of one leader share a request.
    assert len(world.requests(2, "produce")) == 1
    assert world.requests(1, "produce") == []


@scenario(simulate_data, leaders=(1, 2, 3))
async def test_key_maps_to_one_partition_and_keyless_records_rotate(world: DataWorld) -> None:
    producer = world.producer()
    assert len({(await producer.send(TOPIC, b"x", key=b"k")).partition for _ in range(8)}) == 1
    others = {(await producer.send(TOPIC, b"x", key=b"k%d" % n)).partition for n in range(40)}
    assert others == {0, 1, 2}
    assert {(await producer.send(TOPIC, b"x")).partition for _ in range(40)} == {0, 1, 2}


@pytest.mark.parametrize("names_leaders", [True, False])
@scenario(simulate_data)
async def test_moved_leader_is_found_and_the_record_written_once_in_order(
    world: DataWorld, *, names_leaders: bool
) -> None:
    world.names_leaders = names_leaders
    producer = world.producer()
    await producer.send(TOPIC, b"0")
    world.elect(0, 2)
    futures = [producer.post(TOPIC, b"1")]
    await asyncio.sleep(0)
    futures += [producer.post(TOPIC, b"2"), producer.post(TOPIC, b"3")]
    await asyncio.gather(*futures)
    assert world.logs[0].values() == [b"0", b"1", b"2", b"3"]


@scenario(simulate_data)
async def test_leader_named_by_a_refusal_is_asked_though_metadata_lags(world: DataWorld) -> None:
    producer = world.producer()
    await producer.send(TOPIC, b"0")
    world.elect(0, 2, told=False)
    await producer.send(TOPIC, b"1")
    # Metadata that are read later, and are older, do not undo it.
    await asyncio.sleep(2)
    await producer.send(TOPIC, b"2")
    assert (len(world.requests(1, "produce")), len(world.requests(2, "produce"))) == (2, 2)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    ],
)
@scenario(simulate_data)
async def test_producer_retries_unexecuted_requests(world: DataWorld, *, code: ErrorCode) -> None:
    producer = world.producer()
    world.brokers[1].refuse = [(code, False), (code, False)]
    assert (await producer.send(TOPIC, b"x")).offset == 0
    assert world.logs[0].values() == [b"x"]


@scenario(simulate_data)
async def test_fenced_broker_is_retried_until_the_deadline(world: DataWorld) -> None:
    producer = world.producer(2)
    await producer.send(TOPIC, b"0")
    world.brokers[1].fenced = True
    sending = asyncio.ensure_future(producer.send(TOPIC, b"1"))
    await asyncio.sleep(2)
    assert not sending.done()
    world.elect(0, 3)
    assert (await sending).offset == 1


@scenario(simulate_data)
async def test_unknown_outcome_is_reported_and_not_retried(world: DataWorld) -> None:
    producer = world.producer()
    world.brokers[1].refuse = [(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, True)]
    error = await failure(producer.send(TOPIC, b"x"))
    assert (error.code, error.outcome_unknown) == (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, True)
    assert world.logs[0].values() == [b"x"]
    # The next one is another record.
    assert (await producer.send(TOPIC, b"y")).offset == 1


@scenario(simulate_data)
async def test_lost_link_makes_the_outcome_unknown(world: DataWorld) -> None:
    producer = world.producer()
    await producer.send(TOPIC, b"0")
    world.brokers[1].mute = True
    sending = asyncio.ensure_future(producer.send(TOPIC, b"1"))
    await asyncio.sleep(0.5)
    world.brokers[1].links[-1].close("test")
    assert (await failure(sending)).outcome_unknown
    assert world.logs[0].values() == [b"0", b"1"]


@scenario(simulate_data)
async def test_retry_unknown_writes_at_least_once(world: DataWorld) -> None:
    producer = world.producer(retry_unknown=True)
    world.brokers[1].refuse = [(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, True)]
    assert (await producer.send(TOPIC, b"x")).offset == 1
    assert world.logs[0].values() == [b"x", b"x"]
    # A definite refusal at the deadline says nothing about the attempt before.
    world.brokers[1].refuse = [(ErrorCode.NOT_LEADER_OR_FOLLOWER, True)] + [
        (ErrorCode.NOT_ENOUGH_REPLICAS, False)
    ] * 1000
    error = await failure(producer.send(TOPIC, b"y"))
    assert (error.code, error.outcome_unknown) == (ErrorCode.NOT_ENOUGH_REPLICAS, True)


@scenario(simulate_data)
async def test_unsent_record_fails_definitely_at_its_deadline(world: DataWorld) -> None:
    producer = world.producer(delivery_timeout_ms=3000)
    await producer.send(TOPIC, b"0")
    world.elect(0, -1)
    begun = world.loop.time()
    assert not (await failure(producer.send(TOPIC, b"1"))).outcome_unknown
    assert 3.0 <= world.loop.time() - begun < 3.2
    assert world.logs[0].values() == [b"0"]
    assert producer.buffered_bytes == 0


@scenario(simulate_data)
async def test_unreachable_metadata_times_out_and_names_the_servers(world: DataWorld) -> None:
    for broker in world.brokers.values():
        broker.deaf = True
    error = await failure(world.producer(delivery_timeout_ms=1000).send(TOPIC, b"x"))
    assert (error.code, error.outcome_unknown) == (ErrorCode.REQUEST_TIMED_OUT, False)
    assert "b1:1" in error.message


@scenario(simulate_data)
async def test_new_topic_is_waited_for_and_a_missing_one_is_an_error(world: DataWorld) -> None:
    producer = world.producer(delivery_timeout_ms=3000)
    error = await failure(producer.send("nothing", b"x"))
    assert (error.code, error.outcome_unknown) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, False)
    assert "there is no topic nothing" in error.message
    error = await failure(producer.send(TOPIC, b"x", partition=3))
    assert error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    error = await failure(producer.send(TOPIC, b"x", partition=3))
    assert error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@scenario(simulate_data)
async def test_records_of_a_deleted_topic_do_not_go_to_its_namesake(world: DataWorld) -> None:
    producer = world.producer()
    await producer.send(TOPIC, b"0")
    world.topic_id = bytes(15) + b"\x02"
    begun = world.loop.time()
    error = await failure(producer.send(TOPIC, b"1"))
    assert (error.code, error.outcome_unknown) == (ErrorCode.UNKNOWN_TOPIC_ID, False)
    assert world.loop.time() - begun < 5
    assert (await producer.send(TOPIC, b"2")).offset == 1
    assert world.logs[0].values() == [b"0", b"2"]


@scenario(simulate_data)
async def test_producer_buffer_is_bounded(world: DataWorld) -> None:
    producer = world.producer(buffer_bytes=1000)
    world.brokers[1].deaf = True
    posted = [producer.post(TOPIC, bytes(100), partition=0) for _ in range(8)]
    with pytest.raises(ApiError) as error:
        producer.post(TOPIC, bytes(100), partition=0)
    assert error.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    with pytest.raises(ApiError) as error:
        producer.post(TOPIC, bytes(5 << 20), partition=0)
    assert error.value.code is ErrorCode.MESSAGE_TOO_LARGE
    world.brokers[1].deaf = False
    await asyncio.gather(*posted)
    await producer.send(TOPIC, bytes(100), partition=0)


@scenario(simulate_data)
async def test_batch_too_large_for_the_leader_is_split_down_to_records(world: DataWorld) -> None:
    producer = world.producer()
    world.brokers[1].refuse = [(ErrorCode.MESSAGE_TOO_LARGE, False)] * 2
    results = await asyncio.gather(
        *(producer.send(TOPIC, b"%d" % n, partition=0) for n in range(8))
    )
    assert [one.offset for one in results] == list(range(8))
    assert len(world.requests(1, "produce")) == 6
    world.brokers[1].refuse = [(ErrorCode.MESSAGE_TOO_LARGE, False)]
    world.brokers[1].message = "2 MiB (of 1) (field records)"
    error = await failure(producer.send(TOPIC, b"x", partition=0))
    assert error.code is ErrorCode.MESSAGE_TOO_LARGE
    assert (error.message, error.field) == ("2 MiB (of 1)", "records")


@scenario(simulate_data, leaders=(2,))
async def test_producer_survives_the_loss_of_all_bootstrap_brokers(world: DataWorld) -> None:
    producer = world.producer(1)
    await producer.send(TOPIC, b"0")
    world.names_leaders = False
    world.network.crash("b1")
    world.brokers[1].fenced = True
    world.elect(0, 3)
    assert (await producer.send(TOPIC, b"1")).offset == 1


@scenario(simulate_data)
async def test_records_for_a_dead_broker_go_to_the_next_leader(world: DataWorld) -> None:
    producer = world.producer(2)
    await producer.send(TOPIC, b"0")
    world.network.crash("b1")
    await asyncio.sleep(0.5)
    # The link is down, metadata do not know yet: it waits for a connection.
    sending = asyncio.ensure_future(producer.send(TOPIC, b"1"))
    await asyncio.sleep(3)
    assert not sending.done()
    world.brokers[1].fenced = True
    world.elect(0, 3)
    begun = world.loop.time()
    assert (await sending).offset == 1
    assert world.loop.time() - begun < 1


@scenario(simulate_data)
async def test_cancelled_record_frees_its_buffer_and_close_reports_it(world: DataWorld) -> None:
    producer = world.producer()
    await producer.send(TOPIC, b"0", partition=0)
    world.brokers[1].mute = True
    flying = producer.post(TOPIC, b"1", partition=0)
    await asyncio.sleep(0)
    cancelled, kept = (
        producer.post(TOPIC, b"2", partition=0),
        producer.post(TOPIC, b"3", partition=0),
    )
    cancelled.cancel()
    await asyncio.sleep(1)
    world.brokers[1].mute = False
    world.brokers[1].links[-1].close("test")
    assert (await failure(flying)).outcome_unknown
    assert (await kept).offset == 2
    assert world.logs[0].values() == [b"0", b"1", b"3"]
    assert producer.buffered_bytes == 0
    world.brokers[1].mute = True
    flying = producer.post(TOPIC, b"4", partition=0)
    await asyncio.sleep(0.5)
    waiting = producer.post(TOPIC, b"5", partition=0)
    producer.close()
    assert (await failure(flying)).outcome_unknown
    assert not (await failure(waiting)).outcome_unknown
    assert producer.buffered_bytes == 0


@scenario(simulate_data)
async def test_acks_are_checked_and_sent(world: DataWorld) -> None:
    with pytest.raises(ApiError) as error:
        world.producer(acks=2)
    assert error.value.code is ErrorCode.INVALID_REQUIRED_ACKS
    for acks in (-1, 0, 1):
        producer: Producer = world.producer(acks=acks, request_timeout_ms=700)
        await producer.send(TOPIC, b"x")
        producer.close()
    assert [(one.acks, one.timeout_ms) for one in world.requests(1, "produce")] == [
        (-1, 700),
        (0, 700),
        (1, 700),
    ]


@pytest.mark.parametrize("bound", ["PRODUCE_MAX_RECORDS", "DATA_REQUEST_MAX_PARTITIONS"])
def test_request_respects_the_brokers_limit(monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(f"raftlog.client.producer.{bound}", 2)

    async def test(world: DataWorld) -> None:
        producer = world.producer()
        await asyncio.gather(*[producer.send(TOPIC, b"v", partition=index) for index in range(5)])
        sizes = [len(one.partitions) for one in world.requests(1, "produce")]
        assert sum(sizes) == 5
        assert max(sizes) <= 2
        producer.close()

    simulate_data(test, leaders=(1,) * 5)
