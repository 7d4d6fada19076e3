"""A hostile gRPC client on the real transport loses its link, and costs others nothing."""

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from scenarios import scenario
from structlog.testing import capture_logs
from transport_worlds import (
    LIMITS,
    Recorder,
    World,
    connect,
    echo,
    request,
    run_real,
    still_open,
    until,
)

from raftlog.bounds import ITEMS_A_SLICE, RETRY_AFTER_MS
from raftlog.errors import ErrorCode
from raftlog.transport.api import Acceptor, Conversation, Link
from raftlog.transport.bounds import LOGGED_A_PERIOD, Complaint
from raftlog.transport.grpc_link import FEW_BYTES, THROTTLED_RESTS
from raftlog.transport.statuses import ERROR_METADATA_KEY, PUSHBACK_KEY, RICH_STATUS_KEY
from raftlog.transport.turns import Turns
from raftlog.transport.unary import Caller, unary_handler
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2

import grpc  # isort: skip
import grpc.aio  # isort: skip

CONTROLLER = controller_pb2.DESCRIPTOR.services_by_name["Controller"]
OWN = [("grpc.use_local_subchannel_pool", 1)]


def says_when_to_come_back(error: grpc.aio.AioRpcError) -> common_pb2.Error:
    """Assert that the refusal is typed, in our form and in gRPC's, with a throttle time."""
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    metadata = dict(error.trailing_metadata() or ())
    told = common_pb2.Error.FromString(metadata[ERROR_METADATA_KEY])
    assert told.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert told.throttle_time_ms == RETRY_AFTER_MS
    assert not told.outcome_unknown
    status = common_pb2.RichStatus.FromString(metadata[RICH_STATUS_KEY])
    assert status.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    _, retry = status.details
    assert retry.type_url == "type.googleapis.com/google.rpc.RetryInfo"
    assert (
        common_pb2.RetryInfo.FromString(retry.value).retry_delay.ToMilliseconds() == RETRY_AFTER_MS
    )
    assert metadata[PUSHBACK_KEY] == str(RETRY_AFTER_MS)
    return told


def work(cost_s: float) -> None:
    """Take the time of the CPU: a turn does not count what others have had of it."""
    begun = time.thread_time()
    while time.thread_time() - begun < cost_s:
        pass


def broker_requests(count: int) -> bytes:
    requests = [broker_pb2.BrokerRequest()] * count
    return broker_pb2.BrokerRequests(requests=requests).SerializeToString()


def costly_calls(cost_s: float, callers: list[str]) -> Any:
    """Return a handler of unary calls, which takes this long for each and keeps its address."""

    async def costly(item: Any, caller: Caller) -> Any:
        callers.append(caller.address)
        work(cost_s)
        return controller_pb2.ControllerResponse(
            describe_brokers=controller_pb2.DescribeBrokersResponse()
        )

    return unary_handler(CONTROLLER, controller_pb2.ControllerRequest, costly)


async def end_of(stream: Any) -> grpc.aio.AioRpcError:
    try:
        while await stream.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("the stream ended well")


def complaints(world: World) -> dict[Complaint, int]:
    return dict(world.server.bounds.complaints.counts)  # type: ignore[attr-defined]


async def most_in_a_turn(done: Callable[[], int], during: asyncio.Future[Any]) -> int:
    """Return the most work done before the loop returned to other tasks: counted, not timed."""
    most, last = 0, done()
    while not during.done():
        await asyncio.sleep(0)
        now = done()
        most, last = max(most, now - last), now
    return most


@scenario(run_real)
async def test_message_with_very_many_items_is_refused_before_it_is_parsed(world: World) -> None:
    server, client = Recorder(echo), Recorder()
    listener, _ = await connect(world, server, client)
    empty = b"\x0a\x00" * (1 << 19)
    hidden = b"\x10\x01" + b"\x1a\x00" * (1 << 19)
    for envelope in (empty, hidden):
        async with grpc.aio.insecure_channel(listener.address) as channel:
            stream = channel.stream_stream(Conversation.CONTROLLER.value)()
            await stream.write(envelope)
            told = says_when_to_come_back(await end_of(stream))
            assert "items" in told.error_message
    assert complaints(world) == {Complaint.TOO_MANY_ITEMS: 2}
    assert server.envelopes == []
    client.links[0].send(request(1))
    await until(lambda: client.ids == [1])


@pytest.mark.parametrize("count", [1, 16_384])
@scenario(run_real)
async def test_envelope_with_items_up_to_the_limit_is_accepted(world: World, *, count: int) -> None:
    server = Recorder()
    listener = await world.server.listen(world.bind, {Conversation.CONTROLLER: server.accept})
    async with grpc.aio.insecure_channel(listener.address) as channel:
        stream = channel.stream_stream(Conversation.CONTROLLER.value)()
        await stream.write(b"\x0a\x00" * count)
        await until(lambda: sum(map(len, server.envelopes)) == count)


@scenario(run_real)
async def test_costly_requests_of_one_link_leave_the_loop_to_others(world: World) -> None:
    """[566 requests of 5 ms each in 4 KB blocked everybody for 3 s.]"""
    cost_s, count = 0.004, 150

    worked = 0

    def costly(link: Link, messages: Sequence[Any]) -> None:
        nonlocal worked
        for _ in messages:
            worked += 1
            work(cost_s)

    server, quick = Recorder(costly), Recorder(echo)
    acceptors: dict[Conversation, Acceptor] = {
        Conversation.BROKER: server.accept,
        Conversation.CONTROLLER: quick.accept,
    }
    listener = await world.server.listen(world.bind, acceptors)
    client = Recorder()
    world.client.dial(listener.address, Conversation.CONTROLLER, client)
    await until(lambda: client.links)
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    most = asyncio.ensure_future(most_in_a_turn(lambda: worked, done))
    envelope = broker_requests(count)
    async with (
        grpc.aio.insecure_channel(listener.address) as one,
        grpc.aio.insecure_channel(listener.address) as two,
    ):
        streams = [
            channel.stream_stream(Conversation.BROKER.value)()
            for channel in (one, two)
            for _ in range(4)
        ]
        for stream in streams:
            await stream.write(envelope)
        await until(lambda: len(server.envelopes) > 20)
        before = worked
        client.links[0].send(request(1))
        await until(lambda: client.ids == [1])
        meanwhile = worked - before
        assert sum(map(len, server.envelopes)) < count * 8, "the attack goes on meanwhile"
        # All of them are worked on: the first does not have to be over for the next to begin.
        await until(lambda: sum(map(len, server.envelopes)) > count)
        seen = len({id(link) for link in server.links})
        done.set_result(None)
    assert seen == 8
    # A turn is 5 ms and a message more.
    assert meanwhile < count * 2
    assert await most <= 2


@scenario(run_real)
async def test_peer_that_ignores_throttling_is_read_a_tenth_of_the_time(world: World) -> None:
    """[One client's refused listings, without end, took all the time of the loop.]"""
    cost_s, handed = 0.0005, list[float]()

    def refuse(link: Link, messages: Sequence[Any]) -> None:
        begun = time.perf_counter()
        while time.perf_counter() - begun < cost_s * len(messages):
            pass
        handed.extend((begun, time.perf_counter()))
        link.throttled("no room")

    server = Recorder(refuse)
    listener = await world.server.listen(world.bind, {Conversation.CONTROLLER: server.accept})
    envelope = b"\x0a\x00" * (3 * ITEMS_A_SLICE["CONTROLLER"])
    async with grpc.aio.insecure_channel(listener.address) as channel:
        stream = channel.stream_stream(Conversation.CONTROLLER.value)()
        for data in (envelope, b"\x0a\x00", b"\x0a\x00", envelope):
            await stream.write(data)
        await until(lambda: len(server.envelopes) == 8)
    took = [end - begin for begin, end in batched(handed, 2)]
    rests = [begin - end for end, begin in batched(handed[1:-1], 2)]
    assert all(
        rest >= THROTTLED_RESTS * before * 0.98 for before, rest in zip(took, rests, strict=False)
    )
    assert complaints(world) == {Complaint.THROTTLED: 8}


def batched(values: Sequence[float], size: int) -> list[tuple[float, ...]]:
    return [tuple(values[at : at + size]) for at in range(0, len(values), size)]


@scenario(run_real)
async def test_garbage_ends_its_link_and_not_the_turn_that_it_waited_for(world: World) -> None:
    """[messages queued behind it waited until another message was sent]"""
    count = 10

    def costly(link: Link, messages: Sequence[Any]) -> None:
        for _ in messages:
            work(0.02)

    server = Recorder(costly)
    listener = await world.server.listen(world.bind, {Conversation.BROKER: server.accept})
    good = broker_requests(count)
    async with AsyncExitStack() as stack:
        streams = []
        for envelope in (good, b"\x0a\x05abc", good):
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(listener.address))
            streams.append(channel.stream_stream(Conversation.BROKER.value)())
            done = len(server.envelopes)
            await streams[-1].write(envelope)
            await until(lambda done=done: len(server.envelopes) > done)  # type: ignore[misc]
        await until(lambda: sum(map(len, server.envelopes)) == count * 2)
        await end_of(streams[1])
    assert complaints(world) == {Complaint.MALFORMED: 1}


def test_garbage_is_charged_to_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """[A hundred links with a large envelope each, whose last bytes are garbage, took a turn each.]"""
    spent: list[float] = []

    def remember(_: Turns, seconds: float) -> None:
        spent.append(seconds)

    monkeypatch.setattr(Turns, "spent", remember)

    async def scenario(world: World) -> None:
        server = Recorder()
        listener = await world.server.listen(world.bind, {Conversation.BROKER: server.accept})
        async with grpc.aio.insecure_channel(listener.address) as channel:
            stream = channel.stream_stream(Conversation.BROKER.value)()
            await stream.write(b"\x0a\x00" * FEW_BYTES + b"\x0a\x05abc")
            await end_of(stream)
        assert complaints(world) == {Complaint.MALFORMED: 1}
        assert not server.envelopes
        assert len(spent) == 1
        assert spent[0] > 0

    run_real(scenario)


@scenario(run_real, replace(LIMITS, max_streams_per_connection=200))
async def test_unary_calls_start_one_per_turn(world: World) -> None:
    callers = list[str]()
    handlers = [costly_calls(0.004, callers)]
    listener = await world.server.listen(world.bind, {}, extra_handlers=handlers)
    async with grpc.aio.insecure_channel(listener.address) as channel:
        method = channel.unary_unary("/raftlog.wire.controller.v1.Controller/DescribeBrokers")
        calls = asyncio.gather(*(method(b"") for _ in range(150)))
        assert await most_in_a_turn(lambda: len(callers), calls) <= 2
        await calls
    (peer,) = set(callers)
    assert peer.startswith("127.0.0.1:"), "the caller is named by its address"


@scenario(run_real)
async def test_message_too_large_for_its_conversation_is_refused(world: World) -> None:
    acceptors: dict[Conversation, Acceptor] = {
        Conversation.OBSERVER: Recorder().accept,
        Conversation.BROKER: Recorder().accept,
    }
    listener = await world.server.listen(world.bind, acceptors)
    options = [("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(listener.address, options=options) as channel:
        stream = channel.stream_stream(Conversation.OBSERVER.value)()
        await stream.write(bytes(100_000))
        says_when_to_come_back(await end_of(stream))
        stream = channel.stream_stream(Conversation.BROKER.value)()
        await stream.write(bytes(33 << 20))
        assert (await end_of(stream)).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert complaints(world) == {Complaint.TOO_LARGE: 1}


@scenario(run_real)
async def test_compressed_messages_are_refused(world: World) -> None:
    """[256 KB of gzip held 256 MB of zeros, and cost a second.]"""
    server = Recorder(echo)
    listener = await world.server.listen(world.bind, {Conversation.CONTROLLER: server.accept})
    for compression in (grpc.Compression.Gzip, grpc.Compression.Deflate):
        async with grpc.aio.insecure_channel(listener.address, compression=compression) as channel:
            call = channel.unary_unary(Conversation.CONTROLLER.value)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(b"\x0a\x00" * 1000)
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
            assert "disabled" in (refused.value.details() or "")
    assert server.envelopes == []


@scenario(run_real, replace(LIMITS, max_streams=10))
async def test_streams_are_bounded_and_shared_among_connections(world: World) -> None:
    server = Recorder(echo)
    listener = await world.server.listen(world.bind, {Conversation.CONTROLLER: server.accept})
    async with grpc.aio.insecure_channel(listener.address) as greedy:
        method = greedy.stream_stream(Conversation.CONTROLLER.value)
        streams = [method() for _ in range(20)]
        await until(
            lambda: len(server.links) == 5 and complaints(world) == {Complaint.TOO_MANY_STREAMS: 15}
        )
        await until(lambda: sum(stream.done() for stream in streams) == 15)
        refused = [stream for stream in streams if stream.done()]
        says_when_to_come_back(await end_of(refused[0]))
        async with grpc.aio.insecure_channel(listener.address, options=OWN) as newcomer:
            stream = newcomer.stream_stream(Conversation.CONTROLLER.value)()
            await stream.write(
                controller_pb2.ControllerRequests(requests=[request(7)]).SerializeToString()
            )
            answer = controller_pb2.ControllerResponses.FromString(await stream.read())
            assert [item.correlation_id for item in answer.responses] == [7]
        for stream in streams:
            stream.cancel()
        await until(lambda: not world.server.bounds.streams["CONTROLLER"].total)  # type: ignore[attr-defined]


@scenario(run_real, replace(LIMITS, max_connections_per_address=2))
async def test_connections_of_one_address_are_bounded_and_freed(world: World) -> None:
    server = Recorder(echo)
    listener = await world.server.listen(world.bind, {Conversation.CONTROLLER: server.accept})
    async with AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(
                grpc.aio.insecure_channel(listener.address, options=OWN)
            )
            for _ in range(3)
        ]
        # Several streams of one connection are one connection.
        streams = [one.stream_stream(Conversation.CONTROLLER.value)() for one in channels[:2]]
        streams.append(channels[0].stream_stream(Conversation.CONTROLLER.value)())
        await until(lambda: len(server.links) == 3)
        third = channels[2].stream_stream(Conversation.CONTROLLER.value)
        says_when_to_come_back(await end_of(third()))
        reflection = channels[2].unary_unary("/grpc.health.v1.Health/Check")
        assert await reflection(b"")
        assert complaints(world) == {Complaint.TOO_MANY_CONNECTIONS: 1}
        streams[1].cancel()
        connections = world.server.bounds.connections  # type: ignore[attr-defined]
        await until(lambda: connections.of("address", "127.0.0.1") == 1)
        late = third()
        await until(lambda: len(server.links) == 4)
        late.cancel()


@scenario(run_real, replace(LIMITS, max_streams_per_connection=200))
async def test_calls_of_one_connection_do_not_wait_for_those_of_another(world: World) -> None:
    order = list[str]()
    handlers = [costly_calls(0.004, order)]
    listener = await world.server.listen(world.bind, {}, extra_handlers=handlers)
    name = "/raftlog.wire.controller.v1.Controller/DescribeBrokers"
    async with (
        grpc.aio.insecure_channel(listener.address, options=OWN) as greedy,
        grpc.aio.insecure_channel(listener.address, options=OWN) as other,
    ):
        await other.channel_ready()
        calls = asyncio.gather(*(greedy.unary_unary(name)(b"") for _ in range(100)))
        await until(lambda: order)
        waited = []
        while not calls.done():
            begun_at = len(order)
            await other.unary_unary(name)(b"")
            waited.append(
                max(index for index, peer in enumerate(order) if peer != order[0]) - begun_at
            )
        # Whatever has begun meanwhile, and one of the other connection. How soon a call arrives
        # is the machine's affair: the soonest one shows whether it waits behind all of the
        # other connection.
        assert min(waited) < 25
        await calls


@scenario(run_real, replace(LIMITS, max_connections=10, handshake_timeout_ms=1000))
async def test_connections_are_bounded_and_silent_ones_are_closed(world: World) -> None:
    server, client = Recorder(echo), Recorder()
    listener, _ = await connect(world, server, client)
    host, _, port = listener.address.rpartition(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(30)]
    try:
        await until(lambda: len(still_open(silent)) == 9)
        client.links[0].send(request(1))
        await until(lambda: client.ids == [1])
        await until(lambda: not still_open(silent))
        late = Recorder()
        world.client.dial(listener.address, Conversation.CONTROLLER, late)
        await until(lambda: late.links)
    finally:
        for one in silent:
            one.close()


def test_slowest_reader_is_disconnected_and_the_others_are_not() -> None:
    """[Three clients that never read: a broker grew from 127 to 420 MiB.]"""
    size, total = 1 << 20, 24 << 20

    def flood(link: Link, messages: Sequence[Any]) -> None:
        for message in messages:
            link.send(
                controller_pb2.ControllerResponse(
                    correlation_id=message.correlation_id,
                    leader_endpoint="x" * size if message.cluster_id else "",
                )
            )

    async def scenario(world: World) -> None:
        server, client = Recorder(flood), Recorder()
        listener, _ = await connect(world, server, client)
        budget = world.server.bounds.send_budget  # type: ignore[attr-defined]
        channels = [grpc.aio.insecure_channel(listener.address) for _ in range(4)]
        wanted = controller_pb2.ControllerRequest(cluster_id="much")
        envelope = controller_pb2.ControllerRequests(requests=[wanted] * 20).SerializeToString()
        streams = [channel.stream_stream(Conversation.CONTROLLER.value)() for channel in channels]
        for number, stream in enumerate(streams):
            await stream.write(envelope)
            await until(lambda number=number: len(server.envelopes) == 2 * number + 1)  # type: ignore[misc]
            assert budget.total_bytes <= total
            client.links[0].send(request(number + 1))
            await until(lambda number=number: client.ids == list(range(1, number + 2)))  # type: ignore[misc]
        # How much gRPC itself has taken of each is not known; of eighty megabytes it is never half.
        assert 2 <= complaints(world)[Complaint.SLOW_READER] < 4
        links: list[Any] = server.links[1:]
        cut = [number for number, link in enumerate(links) if link.close_reason is not None]
        assert len(cut) == complaints(world)[Complaint.SLOW_READER]
        error = await end_of(streams[cut[0]])
        assert "read nothing for the longest" in says_when_to_come_back(error).error_message
        assert client.reasons == []
        for channel in channels:
            await channel.close()
        await until(lambda: budget.total_bytes == 0)

    run_real(scenario, replace(LIMITS, max_queued_total_bytes=total))


@scenario(run_real, replace(LIMITS, max_waiting_total_bytes=200000))
async def test_waiting_input_is_bounded(world: World) -> None:
    def costly(link: Link, messages: Sequence[Any]) -> None:
        time.sleep(0.01)

    server = Recorder(costly)
    listener = await world.server.listen(world.bind, {Conversation.BROKER: server.accept})
    envelope = broker_requests(100)
    async with grpc.aio.insecure_channel(listener.address) as channel:
        streams = [channel.stream_stream(Conversation.BROKER.value)() for _ in range(20)]
        for stream in streams:
            await stream.write(envelope)
        await until(lambda: complaints(world).get(Complaint.TOO_MUCH_WAITING))
        await until(lambda: any(stream.done() for stream in streams))
        refused = [stream for stream in streams if stream.done()]
        says_when_to_come_back(await end_of(refused[0]))
        assert world.server.bounds.waiting.total <= 200_000  # type: ignore[attr-defined]


def test_malformed_messages_are_counted_and_logged_occasionally_without_a_traceback() -> None:
    async def scenario(world: World) -> None:
        handler = unary_handler(CONTROLLER, controller_pb2.ControllerRequest, never)
        listener = await world.server.listen(
            world.bind, {Conversation.CONTROLLER: Recorder(echo).accept}, extra_handlers=[handler]
        )
        with capture_logs() as logs:
            async with grpc.aio.insecure_channel(listener.address) as channel:
                for number in range(40):
                    if number % 2:
                        stream = channel.stream_stream(Conversation.CONTROLLER.value)()
                        await stream.write(b"\x0a\xff\xff\xff\xff")
                        await end_of(stream)
                    else:
                        call = channel.unary_unary(
                            "/raftlog.wire.controller.v1.Controller/CreateTopics"
                        )
                        with pytest.raises(grpc.aio.AioRpcError):
                            await call(b"\xff" * 9)
                health = channel.unary_unary("/grpc.health.v1.Health/Check")
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await health(b"\xff" * 9)
                assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            world.server.bounds.complaints.close()  # type: ignore[attr-defined]
        assert complaints(world) == {Complaint.MALFORMED: 41}
        assert [entry["event"] for entry in logs] == ["malformed message"] * LOGGED_A_PERIOD + [
            "further complaints about peers were not logged"
        ]
        assert all(entry["log_level"] == "warning" and "exc_info" not in entry for entry in logs)
        assert all(entry["peer"].startswith("127.0.0.1:") for entry in logs[:-1])
        assert logs[-1]["malformed"] == 41 - LOGGED_A_PERIOD

    async def never(item: Any, caller: Caller) -> Any:
        raise AssertionError

    run_real(scenario)


@scenario(run_real)
async def test_garbage_for_health_and_reflection_leaves_no_traceback(
    world: World, *, caplog: pytest.LogCaptureFixture
) -> None:
    listener = await world.server.listen(world.bind, {})
    async with grpc.aio.insecure_channel(listener.address) as channel:
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"\xff" * 9)
        refused = await end_of(watch)
        assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
        info = channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        )()
        await info.write(b"\xff" * 9)
        assert await info.read() is not grpc.aio.EOF
        info.cancel()
    assert complaints(world) == {Complaint.MALFORMED: 2}
    assert [record for record in caplog.records if record.exc_info] == []
