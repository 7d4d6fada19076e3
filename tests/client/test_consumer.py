"""A consumer returns each committed record once and in order."""

import asyncio

import pytest
from data_world import TOPIC, DataWorld, Log, simulate_data
from scenarios import failure, scenario

from raftlog.client.consumer import EARLIEST, LATEST, Consumer
from raftlog.errors import ErrorCode
from raftlog.wire.data.v1 import data_pb2


def fill(world: DataWorld, index: int, *values: bytes) -> None:
    for value in values:
        world.logs[index].append(
            [data_pb2.DataRecord(key=b"k", value=value, timestamp_ms=5).SerializeToString()]
        )


async def values(consumer: Consumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        records = await consumer.poll(5.0)
        assert records, f"only {found}"
        found += [one.value for one in records if one.value is not None]
    return found


@scenario(simulate_data)
async def test_consumer_reads_from_the_beginning_and_follows(world: DataWorld) -> None:
    fill(world, 0, b"0", b"1", b"2")
    consumer = world.consumer()
    consumer.assign(TOPIC)
    assert await values(consumer, 3) == [b"0", b"1", b"2"]
    assert (consumer.position(TOPIC, 0), consumer.high_watermark(TOPIC, 0)) == (3, 3)
    fill(world, 0, b"3")
    assert await values(consumer, 1) == [b"3"]
    assert await consumer.poll(1.0) == []


@scenario(simulate_data)
async def test_consumer_loses_no_record_when_its_reads_are_cancelled(world: DataWorld) -> None:
    async def write() -> None:
        for number in range(100):
            fill(world, 0, b"%03d" % number)
            await asyncio.sleep(0.003)

    consumer = world.consumer()
    consumer.assign(TOPIC)
    writing, found, cancelled = asyncio.create_task(write()), list[bytes](), 0
    while len(found) < 100 and world.loop.time() < 5:
        reading = asyncio.create_task(consumer.poll(5.0))
        await asyncio.wait({reading}, timeout=0.002)
        cancelled += reading.cancel()
        await asyncio.wait({reading})
        if not reading.cancelled():
            found += [one.value or b"" for one in reading.result()]
    await writing
    assert found == [b"%03d" % number for number in range(100)]
    assert cancelled > 20


@scenario(simulate_data)
async def test_consumer_starts_at_an_offset_or_at_the_end(world: DataWorld) -> None:
    world.logs[0].append(
        [data_pb2.DataRecord(value=b"%d" % n).SerializeToString() for n in range(4)]
    )
    middle, end = world.consumer(), world.consumer()
    middle.assign(TOPIC, 0, 2)
    end.assign(TOPIC, 0, LATEST)
    # The batch begins below the offset: what is below is left out.
    record, last = await middle.poll(5.0)
    assert (record.offset, record.value, record.key) == (2, b"2", None)
    assert last.offset == 3
    assert await end.poll(1.0) == []
    fill(world, 0, b"4")
    assert await values(end, 1) == [b"4"]


@scenario(simulate_data)
async def test_records_written_after_the_end_is_located_are_read(world: DataWorld) -> None:
    fill(world, 0, b"before")
    consumer = world.consumer()
    consumer.assign(TOPIC, 0, LATEST)
    await consumer.locate(5.0)
    fill(world, 0, b"after")
    assert await values(consumer, 1) == [b"after"]
    consumer.close()
    # What cannot be located ends with its time, with an error, or with the consumer.
    for topic, partition, timeout_s in (("nothing", 0, 1.0), (TOPIC, 5, 50.0)):
        other, begun = world.consumer(), world.loop.time()
        other.assign(topic, partition, LATEST)
        await other.locate(timeout_s)
        assert world.loop.time() - begun <= 1.0
        other.close()
    closed, begun = world.consumer(), world.loop.time()
    closed.assign("nothing", 0, LATEST)
    world.loop.call_later(0.5, closed.close)
    await closed.locate(50.0)
    assert world.loop.time() - begun < 1.0


@pytest.mark.parametrize(
    ("made_anew", "code", "message"),
    [
        (False, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topic orders was deleted"),
        (
            True,
            ErrorCode.UNKNOWN_TOPIC_ID,
            "topic orders was deleted, and a new topic has taken its name",
        ),
    ],
)
@scenario(simulate_data)
async def test_deleted_topic_raises_an_error_at_each_poll(
    world: DataWorld, *, made_anew: bool, code: ErrorCode, message: str
) -> None:
    """[it waited forever for records that cannot arrive]"""
    fill(world, 0, b"0")
    consumer = world.consumer()
    consumer.assign(TOPIC)
    assert await values(consumer, 1) == [b"0"]
    world.topic_id = bytes(15) + b"\x02"
    world.topic = TOPIC if made_anew else ""
    for _ in range(2):
        error = await failure(consumer.poll(30.0))
        assert (error.code, error.message) == (code, message)


@scenario(simulate_data)
async def test_added_partitions_are_read_from_their_beginning(world: DataWorld) -> None:
    """[Consumers that had started before never read them.]"""
    whole, one, never = (
        world.consumer(metadata_max_age_ms=800),
        world.consumer(metadata_max_age_ms=800),
        world.consumer(),
    )
    whole.assign(TOPIC, offset=LATEST)
    one.assign(TOPIC, 0, LATEST)
    never.assign(TOPIC, offset=LATEST)
    for consumer in (whole, one, never):
        await consumer.locate(5.0)
    await asyncio.sleep(1.9)
    world.logs[1] = Log(2)
    fill(world, 1, b"added")
    begun = world.loop.time()
    assert [record.value for record in await whole.poll(1.0)] == [b"added"]
    assert world.loop.time() - begun > 0.1  # Not asked for all the time.
    fill(world, 0, b"0")
    fill(world, 1, b"1")
    assert sorted(await values(whole, 2)) == [b"0", b"1"]
    for other in (one, never):
        assert await values(other, 1) == [b"0"]
        assert await other.poll(1.0) == []
    for consumer in (whole, one, never):
        consumer.close()


@scenario(simulate_data, leaders=(2, 3, 2))
async def test_consumer_reads_all_partitions_each_from_its_leader(world: DataWorld) -> None:
    for index in range(3):
        fill(world, index, b"%d" % index)
    consumer = world.consumer()
    consumer.assign(TOPIC, offset=EARLIEST)
    assert sorted(await values(consumer, 3)) == [b"0", b"1", b"2"]
    assert len(world.requests(2, "fetch")[0].partitions) == 2
    assert world.requests(1, "fetch") == []


@scenario(simulate_data)
async def test_consumer_follows_a_moved_leader_without_gaps_or_duplicates(world: DataWorld) -> None:
    fill(world, 0, b"0")
    consumer = world.consumer()
    consumer.assign(TOPIC)
    assert await values(consumer, 1) == [b"0"]
    for number in range(1, 6):
        world.elect(0, number % 3 + 1)
        fill(world, 0, b"%d" % number)
        assert await values(consumer, 1) == [b"%d" % number]
    world.network.crash("b3")
    world.brokers[3].fenced = True
    world.elect(0, 1)
    fill(world, 0, b"6")
    assert await values(consumer, 1) == [b"6"]


@scenario(simulate_data)
async def test_missing_offset_raises_an_error_or_resets(world: DataWorld) -> None:
    fill(world, 0, b"0", b"1")
    strict, lenient = world.consumer(), world.consumer(offset_reset=EARLIEST)
    strict.assign(TOPIC, 0, 9)
    error = await failure(strict.poll(5.0))
    assert error.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert error.field == "offset"
    lenient.assign(TOPIC, 0, 9)
    assert await values(lenient, 2) == [b"0", b"1"]


@scenario(simulate_data)
async def test_corrupt_records_are_refused_and_fetched_again(world: DataWorld) -> None:
    fill(world, 0, b"0")
    good = world.logs[0].chunks[0]
    world.logs[0].chunks[0] = good[:-1] + bytes([good[-1] ^ 1])
    read = type(world.logs[0]).read
    world.logs[0].read = lambda offset: world.logs[0].chunks[0]  # type: ignore[method-assign]
    consumer = world.consumer()
    consumer.assign(TOPIC)
    assert (await failure(consumer.poll(5.0))).code is ErrorCode.CORRUPT_MESSAGE
    world.logs[0].chunks[0] = good
    world.logs[0].read = lambda offset: read(world.logs[0], offset)  # type: ignore[method-assign]
    assert await values(consumer, 1) == [b"0"]


@scenario(simulate_data)
async def test_consumer_buffer_is_bounded(world: DataWorld) -> None:
    fill(world, 0, *(bytes(400) for _ in range(5)))
    consumer = world.consumer(buffer_bytes=500)
    consumer.assign(TOPIC)
    await asyncio.sleep(3)
    assert (len(world.requests(1, "fetch")), len(await values(consumer, 5))) == (1, 5)


@scenario(simulate_data, leaders=(1, 1, 1))
async def test_consumer_fetches_partitions_in_turn(world: DataWorld) -> None:
    consumer = world.consumer()
    consumer.assign(TOPIC)
    fill(world, 0, b"0")
    assert await values(consumer, 1) == [b"0"]
    await asyncio.sleep(1)
    orders = [
        [one.partition_index for one in request.partitions]
        for request in world.requests(1, "fetch")
    ]
    assert (orders[0], orders[-1]) == ([0, 1, 2], [1, 2, 0])


@scenario(simulate_data)
async def test_consumer_returns_assigned_partitions_until_closed(world: DataWorld) -> None:
    consumer = world.consumer()
    consumer.assign("nothing")
    assert (await consumer.poll(1.0), consumer.unknown_topics) == ([], ["nothing"])
    consumer.assign(TOPIC, 5)
    error = await failure(consumer.poll(5.0))
    assert error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    polling = asyncio.ensure_future(consumer.poll(100.0))
    await asyncio.sleep(0.1)
    consumer.close()
    assert await polling == []
    error = await failure(consumer.poll(1.0))
    assert error.code is ErrorCode.NETWORK_EXCEPTION


def test_partitions_above_the_limit_are_fetched_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftlog.client.consumer.DATA_REQUEST_MAX_PARTITIONS", 2)

    async def test(world: DataWorld) -> None:
        for index in range(5):
            fill(world, index, b"%d" % index)
        consumer = world.consumer()
        consumer.assign(TOPIC)
        assert sorted(await values(consumer, 5)) == [b"0", b"1", b"2", b"3", b"4"]
        asked = [
            len(one.partitions)
            for body in ("list_offsets", "fetch")
            for one in world.requests(1, body)
        ]
        assert max(asked) == 2
        consumer.close()

    simulate_data(test, leaders=(1,) * 5)
