"""Execution of effects on disk, links and timers; nothing is sent after a disk error."""

import asyncio
from typing import Any
from unittest.mock import Mock, patch

import pytest
from plane_world import KEY, Peer, PlaneWorld, chunk, on_plane
from scenarios import scenario
from structlog.testing import capture_logs

from broker.partition import events as ev
from broker.replication.data_plane import NOTES_MAX
from broker.replication.links import FollowerSessions, LeaderLink
from raftlog.errors import ApiError, ErrorCode, StorageError
from raftlog.transport.api import Conversation, LinkClosedError
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2
from raftlog.wire.data.v1 import data_pb2 as pb


def produce_when_flushed(world: PlaneWorld) -> None:
    waiting: list[tuple[int, Any]] = []
    ends = [0]

    def received(event: ev.ProduceReceived) -> list[ev.Effect]:
        base = ends[0]
        ends[0] += 1
        waiting.append((base, event.reply_to))
        data = chunk(base, b"x")
        return [ev.Append(KEY, data, base, base + 1), ev.Flush(base)]

    def flushed(event: ev.Flushed) -> list[ev.Effect]:
        done = [one for one in waiting if one[0] <= event.token]
        waiting[:] = [one for one in waiting if one[0] > event.token]
        return [
            ev.AnswerProduce(
                reply_to,
                pb.ProduceResponse(partitions=[pb.ProducePartitionResult(base_offset=base)]),
            )
            for base, reply_to in done
        ]

    world.script.on = {ev.ProduceReceived: received, ev.Flushed: flushed}


@scenario(on_plane)
async def test_response_is_sent_only_after_the_flush(world: PlaneWorld) -> None:
    produce_when_flushed(world)
    answers = world.ask(produce=pb.ProduceRequest())
    assert world.store.read(KEY, 0, until=1, max_bytes=1) == chunk(0, b"x")
    assert (answers, world.durable()) == ([], 0)
    await world.until(lambda: answers)
    assert world.durable() == 1
    assert answers[0]["produce"].partitions[0].base_offset == 0
    assert world.script.of(ev.ProduceReceived)[0].timestamp_ms == 1234


@scenario(on_plane)
async def test_writes_of_one_turn_share_a_flush_and_keep_their_order(world: PlaneWorld) -> None:
    produce_when_flushed(world)
    flushes: list[bool] = []
    flush = world.store.flush

    def counted(done: Any, *, inline: bool) -> None:
        flushes.append(inline)
        flush(done, inline=inline)

    world.store.flush = counted  # type: ignore[method-assign]
    answers = [world.ask(produce=pb.ProduceRequest()) for _ in range(20)]
    await world.until(lambda: all(answers))
    assert flushes == [False]
    assert [one[0]["produce"].partitions[0].base_offset for one in answers] == list(range(20))
    assert [event.token for event in world.script.of(ev.Flushed)] == [19]
    (last,) = [world.ask(produce=pb.ProduceRequest())]
    await world.until(lambda: last)
    assert flushes == [False, False], "never on the event loop, which must not hang with the disk"
    assert (world.plane.figures.messages_in, sum(world.plane.figures.flush.counts)) == (21, 2)


@scenario(on_plane)
async def test_events_during_a_step_are_processed_after_it(world: PlaneWorld) -> None:
    order: list[str] = []

    def nested(event: ev.ProduceReceived) -> list[ev.Effect]:
        order.append("begun")
        world.plane.step(ev.Tick())
        order.append("effects")
        return [ev.Note("one"), ev.AnswerProduce(event.reply_to, pb.ProduceResponse())]

    def ticked(event: ev.Tick) -> list[ev.Effect]:
        order.append("tick")
        return []

    world.script.on = {ev.ProduceReceived: nested, ev.Tick: ticked}
    answers = world.ask(produce=pb.ProduceRequest())
    assert order == ["begun", "effects", "tick"]
    assert answers


@scenario(on_plane)
async def test_broker_status_is_reported_first_and_after_each_change(world: PlaneWorld) -> None:
    world.plane.step(ev.Tick())
    assert world.script.events == [world.broker_status, ev.Tick()]
    world.plane.step(ev.Tick())
    assert len(world.script.events) == 3
    world.broker_status = ev.BrokerStatusChanged(-1, float("-inf"), "fenced")
    world.ask(list_offsets=pb.ListOffsetsRequest())
    assert world.script.events[-1] == world.broker_status


@scenario(on_plane)
async def test_step_logs_a_few_lines_of_a_kind_and_counts_the_others(world: PlaneWorld) -> None:
    leads = [ev.Note("leads", {"index": index}) for index in range(NOTES_MAX + 5)]
    world.script.on = {ev.Tick: lambda _: [*leads, ev.Note("truncated", {"to": 3})]}
    for _ in range(2):  # Each step has its own count.
        with capture_logs() as lines:
            world.plane.step(ev.Tick())
        told = [line for line in lines if line["event"] == "leads"]
        assert [line.get("index") for line in told] == [*range(NOTES_MAX), None]
        assert told[-1]["further"] == 5
        assert [line.get("to") for line in lines if line["event"] == "truncated"] == [3]


@scenario(on_plane)
async def test_partition_timers_share_one_timer_that_is_never_late(world: PlaneWorld) -> None:
    world.script.deadline = 5.0
    world.plane.step(ev.Tick())
    world.script.deadline = 2.0
    world.plane.step(ev.Tick())

    def no_more(_: object) -> list[Any]:
        world.script.deadline = float("inf")
        return []

    world.script.on = {ev.Tick: no_more}
    begun = len(world.script.events)
    await asyncio.sleep(1.99)
    assert len(world.script.events) == begun
    await asyncio.sleep(0.02)
    assert world.script.events[begun:] == [ev.Tick()]
    await asyncio.sleep(10)
    assert len(world.script.events) == begun + 1


CHUNKS = [chunk(n, b"%d" % n) for n in range(4)]
SIZE = len(CHUNKS[0])
WRITES: list[ev.Effect] = [ev.Append(KEY, data, n, n + 1) for n, data in enumerate(CHUNKS)]


@scenario(on_plane)
async def test_reads_fill_responses_up_to_the_requested_size(world: PlaneWorld) -> None:
    def received(event: ev.FetchReceived) -> list[ev.Effect]:
        reads = (
            ev.Read(0, KEY, 0, 3, 2 * SIZE),
            ev.Read(1, KEY, 3, 4, 100),
            ev.Read(2, KEY, 0, 4, 100),
        )
        results = [pb.FetchPartitionResult(partition_index=n) for n in range(3)]
        response = pb.FetchResponse(partitions=results)
        return [*WRITES, ev.AnswerFetch(event.reply_to, response, reads, 3 * SIZE)]

    world.script.on = {ev.FetchReceived: received}
    (answer,) = world.ask(fetch=pb.FetchRequest())
    got = [one.records for one in answer["fetch"].partitions]
    assert got == [CHUNKS[0] + CHUNKS[1], CHUNKS[3], b""]
    assert world.plane.figures.bytes_out == 3 * SIZE


@scenario(on_plane)
async def test_response_is_bounded_whatever_is_requested(
    world: PlaneWorld, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.replication.data_plane.FETCH_MAX_BYTES", 2 * SIZE)

    def received(event: ev.FetchReceived) -> list[ev.Effect]:
        response = pb.FetchResponse(partitions=[pb.FetchPartitionResult()])
        return [
            *WRITES,
            ev.AnswerFetch(event.reply_to, response, (ev.Read(0, KEY, 0, 4, 1 << 30),), 1 << 30),
        ]

    world.script.on = {ev.FetchReceived: received}
    (answer,) = world.ask(fetch=pb.FetchRequest())
    assert answer["fetch"].partitions[0].records == CHUNKS[0] + CHUNKS[1]


@scenario(on_plane)
async def test_unexpectedly_large_batches_respect_the_message_limit(world: PlaneWorld) -> None:
    def received(event: ev.ReplicaFetchReceived) -> list[ev.Effect]:
        results = [pb.ReplicaFetchPartitionResult(partition_index=n) for n in range(3)]
        reads = tuple(ev.Read(n, KEY, n, n + 1, 1) for n in range(3))
        response = pb.ReplicaFetchResponse(correlation_id=4, partitions=results)
        return [*WRITES, ev.AnswerReplicaFetch(event.session, response, reads, SIZE + 1)]

    world.script.on = {ev.ReplicaFetchReceived: received}
    follower = Peer()
    world.network.transport_for("b2").dial("b1:1", Conversation.REPLICA_FETCH, follower)
    await world.until(lambda: follower.links)
    follower.links[0].send(pb.ReplicaFetchRequest(correlation_id=4))
    await world.until(lambda: follower.heard)
    told = [(one.records, one.error_code) for one in follower.heard[0].partitions]
    assert told == [(CHUNKS[0], 0), (CHUNKS[1], 0), (b"", ErrorCode.THROTTLING_QUOTA_EXCEEDED)]
    assert world.plane.figures.replication_bytes_out == 2 * SIZE


@scenario(on_plane)
async def test_follower_is_answered_on_its_link_by_session(world: PlaneWorld) -> None:
    parked: list[Any] = []

    def received(event: ev.ReplicaFetchReceived) -> list[ev.Effect]:
        parked.append(event.session)
        if event.request.max_wait_ms:
            return []
        response = pb.ReplicaFetchResponse(
            correlation_id=event.request.correlation_id,
            partitions=[pb.ReplicaFetchPartitionResult()],
        )
        return [
            ev.Append(KEY, chunk(0, b"x"), 0, 1),
            ev.AnswerReplicaFetch(event.session, response, (ev.Read(0, KEY, 0, 1, 10),), 10),
        ]

    world.script.on = {ev.ReplicaFetchReceived: received}
    follower = Peer()
    dialer = world.network.transport_for("b2").dial("b1:1", Conversation.REPLICA_FETCH, follower)
    await world.until(lambda: follower.links)
    follower.links[0].send(pb.ReplicaFetchRequest(correlation_id=4))
    await world.until(lambda: follower.heard)
    assert follower.heard[0].correlation_id == 4
    assert follower.heard[0].partitions[0].records == chunk(0, b"x")
    follower.links[0].close("test")
    await world.until(lambda: len(follower.links) == 2)
    await world.until(lambda: world.script.of(ev.SessionClosed))
    follower.links[1].send(pb.ReplicaFetchRequest(correlation_id=5, max_wait_ms=500))
    await world.until(lambda: len(parked) == 2)
    assert world.script.of(ev.SessionClosed) == [ev.SessionClosed(parked[0])]
    assert parked[0] != parked[1]
    # An answer for a session that is over goes nowhere.
    world.script.on[ev.Tick] = lambda _: [
        ev.AnswerReplicaFetch(parked[0], pb.ReplicaFetchResponse(correlation_id=9)),
        ev.AnswerReplicaFetch(parked[1], pb.ReplicaFetchResponse(correlation_id=5)),
    ]
    world.plane.step(ev.Tick())
    await world.until(lambda: len(follower.heard) == 2)
    assert follower.heard[1].correlation_id == 5
    dialer.close()


@pytest.mark.parametrize(
    ("error", "ends"),
    [(LinkClosedError("closed"), False), (ApiError(ErrorCode.MESSAGE_TOO_LARGE, "large"), True)],
    ids=["closed", "too large"],
)
def test_unreachable_follower_does_not_abort_a_step(error: Exception, ends: bool) -> None:
    sessions = FollowerSessions(lambda event: None)
    broken, sound = Mock(send=Mock(side_effect=error)), Mock()
    for link in (broken, sound):
        sessions.accept(link)
    for session in (1, 2):
        sessions.answer(session, pb.ReplicaFetchResponse())
    assert sound.send.called
    assert broken.close.called is ends


def test_fetch_on_a_link_that_has_just_closed_expects_no_response() -> None:
    link = Mock(send=Mock(side_effect=LinkClosedError("closed")))
    to_leader = LeaderLink(Mock(dial=lambda *_: Mock(link=link)), 2, "b2:1", lambda event: None)
    to_leader.send(pb.ReplicaFetchRequest(correlation_id=7), 1.0)
    to_leader.check(2.0)
    assert not link.close.called


@scenario(on_plane)
async def test_link_to_a_leader_is_kept_while_it_is_needed(world: PlaneWorld) -> None:
    leader, other = Peer(lambda request: pb.ReplicaFetchResponse()), Peer()
    transport = world.network.transport_for("b2")
    await transport.listen("b2:1", {Conversation.REPLICA_FETCH: leader.accept})
    await transport.listen("b2:2", {Conversation.REPLICA_FETCH: other.accept})
    effects: list[ev.Effect] = [ev.WantLink(2, "b2:1")]
    world.script.on = {ev.Tick: lambda _: effects}
    world.plane.step(ev.Tick())
    await world.until(lambda: world.script.of(ev.LinkOpened))
    effects[:] = [ev.SendReplicaFetch(2, pb.ReplicaFetchRequest(correlation_id=1, max_wait_ms=10))]
    world.plane.step(ev.Tick())
    await world.until(lambda: world.script.of(ev.ReplicaFetchAnswered))
    leader.links[0].close("test")
    await world.until(lambda: world.script.of(ev.LinkLost))
    await world.until(lambda: len(world.script.of(ev.LinkOpened)) == 2)
    # Another endpoint: no LinkLost, a new session.
    effects[:] = [ev.WantLink(2, "b2:1"), ev.WantLink(2, "b2:2")]
    world.plane.step(ev.Tick())
    await world.until(lambda: other.links)
    await world.until(lambda: len(world.script.of(ev.LinkOpened)) == 3 and len(leader.lost) == 2)
    effects[:] = [ev.DropLink(2)]
    world.plane.step(ev.Tick())
    await world.until(lambda: other.lost)
    await asyncio.sleep(5)
    assert (len(leader.links), len(other.links)) == (2, 1)
    assert len(world.script.of(ev.LinkLost)) == 1


@scenario(on_plane, replica_socket_timeout_ms=2000)
async def test_link_to_a_leader_that_does_not_answer_is_closed(world: PlaneWorld) -> None:
    leader = Peer()
    await world.network.transport_for("b2").listen(
        "b2:1", {Conversation.REPLICA_FETCH: leader.accept}
    )
    fetch = ev.SendReplicaFetch(2, pb.ReplicaFetchRequest(correlation_id=1, max_wait_ms=500))
    world.script.on = {
        ev.Tick: lambda _: [ev.WantLink(2, "b2:1")],
        ev.LinkOpened: lambda _: [fetch],
    }
    world.plane.step(ev.Tick())
    await world.until(lambda: leader.heard)
    begun = world.loop.time()
    await world.until(lambda: world.script.of(ev.LinkLost))
    assert 2.5 <= world.loop.time() - begun < 4
    await world.until(lambda: len(world.script.of(ev.LinkOpened)) == 2)


@pytest.mark.parametrize(
    ("response", "event"),
    [
        (
            controller_pb2.ControllerResponse(
                alter_partition=controller_pb2.AlterPartitionResponse()
            ),
            ev.AlterPartitionAnswered(controller_pb2.AlterPartitionResponse()),
        ),
        (
            controller_pb2.ControllerResponse(
                error=common_pb2.Error(error_code=ErrorCode.STALE_BROKER_EPOCH)
            ),
            ev.AlterPartitionFailed(ErrorCode.STALE_BROKER_EPOCH, False),
        ),
        (
            controller_pb2.ControllerResponse(
                error=common_pb2.Error(error_code=ErrorCode.NOT_CONTROLLER, outcome_unknown=True)
            ),
            ev.AlterPartitionFailed(ErrorCode.NOT_CONTROLLER, True),
        ),
        (None, ev.AlterPartitionFailed(ErrorCode.REQUEST_TIMED_OUT, True)),
    ],
)
@scenario(on_plane, alter_partition_timeout_ms=2000)
async def test_isr_change_is_sent_to_the_controller_and_its_outcome_processed(
    world: PlaneWorld, *, response: controller_pb2.ControllerResponse | None, event: ev.Event
) -> None:
    if response is not None:
        world.controller.answer = lambda _: response
    request = controller_pb2.AlterPartitionRequest(broker_id=1, broker_epoch=5)
    world.script.on = {ev.Tick: lambda _: [ev.SendAlterPartition(request)]}
    world.plane.step(ev.Tick())
    await world.until(lambda: world.script.events[-1] == event)
    assert world.controller.heard[0].cluster_id == "c"
    assert (world.controller.heard[0].alter_partition, len(world.controller.heard)) == (request, 1)


@pytest.mark.parametrize("operation", ["append", "flush", "read"])
@scenario(on_plane)
async def test_disk_error_stops_acknowledgements(world: PlaneWorld, *, operation: str) -> None:
    produce_when_flushed(world)
    follower = Peer()
    dialer = world.network.transport_for("b2").dial("b1:1", Conversation.REPLICA_FETCH, follower)
    before = world.ask(produce=pb.ProduceRequest())
    await world.until(lambda: before and follower.links)
    waiting = world.ask(produce=pb.ProduceRequest())

    def broken(*_: Any, **__: Any) -> Any:
        raise StorageError("the disk is broken")

    if operation == "flush":
        world.store.flush = lambda done, *, inline: done(StorageError("the disk is broken"))  # type: ignore[method-assign]
    else:
        setattr(world.store, operation, broken)
    world.script.on[ev.FetchReceived] = lambda event: [
        ev.AnswerFetch(event.reply_to, pb.FetchResponse(partitions=[pb.FetchPartitionResult()]),
                       (ev.Read(0, KEY, 0, 1, 9),), 9)
    ]  # fmt: skip
    fetched = world.ask(fetch=pb.FetchRequest())
    if operation == "append":
        assert fetched
        world.ask(produce=pb.ProduceRequest())
    await world.until(lambda: world.failures)
    steps = len(world.script.events)
    with pytest.raises(ApiError) as error:
        world.ask(produce=pb.ProduceRequest())
    assert error.value.code is ErrorCode.BROKER_NOT_AVAILABLE
    await world.until(lambda: follower.lost)
    await asyncio.sleep(5)
    assert waiting == []
    assert (len(world.script.events), len(world.failures)) == (steps, 1)
    dialer.close()


@scenario(on_plane)
async def test_background_store_failure_stops_an_idle_broker(world: PlaneWorld) -> None:
    def failed() -> int:
        raise StorageError("a compaction failed")

    world.store.free_bytes = failed  # type: ignore[method-assign]
    await asyncio.sleep(1.1)
    assert [str(error) for error in world.failures] == ["a compaction failed"]


@scenario(on_plane)
async def test_exception_in_a_step_stops_the_broker(world: PlaneWorld) -> None:
    def wrong(event: ev.Tick) -> list[ev.Effect]:
        raise KeyError("a mistake")

    world.script.on = {ev.Tick: wrong}
    with pytest.raises(KeyError):
        world.plane.step(ev.Tick())
    assert "a mistake" in str(world.failures[0])


@scenario(on_plane, free_space_reserve_bytes=1000)
async def test_produce_is_refused_below_the_space_reserve_unlike_reads(world: PlaneWorld) -> None:
    produce_when_flushed(world)
    free = [2000]
    world.store.free_bytes = lambda: free[0]  # type: ignore[method-assign]
    world.script.on[ev.FetchReceived] = lambda event: [
        ev.AnswerFetch(event.reply_to, pb.FetchResponse())
    ]
    space: list[bool] = []

    def changed(event: ev.SpaceChanged) -> list[ev.Effect]:
        space.append(event.low)
        return []

    world.script.on[ev.SpaceChanged] = changed
    answers = world.ask(produce=pb.ProduceRequest())
    await world.until(lambda: answers)
    free[0] = 999
    await asyncio.sleep(1.1)
    with pytest.raises(ApiError) as error:
        world.ask(produce=pb.ProduceRequest())
    assert (error.value.code, error.value.outcome_unknown) == (ErrorCode.KAFKA_STORAGE_ERROR, False)
    assert world.ask(fetch=pb.FetchRequest())
    assert space == [True]
    assert len(world.disk_hangs) == 1, "the controller is told at once"
    free[0] = 1100
    await asyncio.sleep(1.1)
    with pytest.raises(ApiError):
        world.ask(produce=pb.ProduceRequest())
    free[0] = 1300
    await asyncio.sleep(1.1)
    assert (space, len(world.disk_hangs)) == ([True, False], 2)
    answers = world.ask(produce=pb.ProduceRequest())
    await world.until(lambda: answers)


@scenario(on_plane)
async def test_data_plane_serves_nothing_before_recovery_and_when_closed(world: PlaneWorld) -> None:
    world.plane.close()
    for plane in (world.unrecovered(), world.plane):
        with pytest.raises(ApiError) as error:
            plane.request(broker_pb2.BrokerRequest(fetch=pb.FetchRequest()), lambda **_: None)
        assert error.value.code is ErrorCode.BROKER_NOT_AVAILABLE
        with pytest.raises(ApiError):
            plane.describe_led(pb.BrokerMetadataRequest())


@scenario(on_plane)
async def test_hanging_disk_is_reported_until_it_responds(world: PlaneWorld) -> None:
    produce_when_flushed(world)
    world.disk.hang()
    answers = world.ask(produce=pb.ProduceRequest())
    await asyncio.sleep(4.5)
    assert (world.plane.disk_hangs_ms, world.disk_hangs) == (0, []), "not for long enough"
    with capture_logs() as logs:
        await world.until(lambda: world.disk_hangs)
        assert 5_000 <= world.disk_hangs[0] <= 6_100
        await asyncio.sleep(10)
        assert len(world.disk_hangs) == world.plane.hangs == 1, "told once"
        assert world.plane.disk_hangs_ms >= 15_000, "and asked for again with each heartbeat"
        world.disk.resume()
        await world.until(lambda: answers and len(world.disk_hangs) == 2)
    assert world.disk_hangs[1] == world.plane.disk_hangs_ms == 0
    assert [line["event"] for line in logs if "disk" in line["event"]] == [
        "the disk of the partitions hangs",
        "the disk of the partitions responds again",
    ]


@scenario(on_plane)
async def test_hang_is_counted_once_though_its_flush_ends_later(world: PlaneWorld) -> None:
    produce_when_flushed(world)
    world.disk.hang()
    answers = world.ask(produce=pb.ProduceRequest())
    await world.until(lambda: world.disk_hangs)
    with patch.object(type(world.store), "busy_s", 0.0):
        await world.until(lambda: len(world.disk_hangs) == 2)
        world.disk.resume()
        await world.until(lambda: answers)
    assert world.plane.hangs == 1


@scenario(on_plane)
async def test_hang_missed_by_polls_is_counted_when_its_flush_completes(world: PlaneWorld) -> None:
    produce_when_flushed(world)
    with patch.object(type(world.store), "busy_s", 0.0):
        world.disk.hang()
        answers = world.ask(produce=pb.ProduceRequest())
        await asyncio.sleep(6)
        world.disk.resume()
        await world.until(lambda: answers)
    assert (world.plane.hangs, world.disk_hangs) == (1, [])


@scenario(on_plane)
async def test_idle_disk_is_not_reported_as_hanging(world: PlaneWorld) -> None:
    produce_when_flushed(world)
    world.disk.hang()
    await asyncio.sleep(60)
    assert (world.plane.disk_hangs_ms, world.disk_hangs) == (0, [])
