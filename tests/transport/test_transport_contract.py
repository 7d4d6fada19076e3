"""Every promise of a transport, for the real and the simulated one."""

import asyncio
from collections.abc import Callable, Sequence
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
    connected,
    echo,
    request,
    run_real,
    run_simulated,
    until,
)

from raftlog.bounds import ITEMS_A_SLICE
from raftlog.errors import ApiError, ConfigError, ErrorCode
from raftlog.transport.api import Conversation, Link, LinkClosedError, Probe
from raftlog.wire.controller.v1 import controller_pb2
from raftlog.wire.quorum.v1 import quorum_pb2

Runner = Callable[..., None]


@pytest.fixture(params=[run_real, run_simulated], ids=["grpc", "simulated"])
def run(request: pytest.FixtureRequest) -> Runner:
    return request.param


@scenario("run")
async def test_messages_arrive_once_and_in_order(world: World) -> None:
    server, client = await connected(world, echo)
    for i in range(1, 2001):
        client.links[0].send(request(i))
        if i % 7 == 0:
            await asyncio.sleep(0)
    await until(lambda: len(client.ids) == 2000)
    assert server.ids == client.ids == list(range(1, 2001))
    assert len(server.links) == 1


@scenario("run")
async def test_messages_of_one_turn_share_an_envelope(world: World) -> None:
    server, client = await connected(world, echo)
    # As many as are handed over between two looks at the clock.
    count = ITEMS_A_SLICE["CONTROLLER"]
    for i in range(count):
        client.links[0].send(request(i + 1))
    await until(lambda: len(client.ids) == count)
    assert len(server.envelopes) == 1
    assert len(client.envelopes) == 1


@scenario("run")
async def test_messages_that_wait_for_a_busy_stream_are_joined(world: World) -> None:
    server, client = await connected(world)
    for i in range(5000):
        client.links[0].send(request(i + 1))
        if i % 10 == 9:
            await asyncio.sleep(0)
    await until(lambda: len(server.ids) == 5000)
    # Never more envelopes than turns in which something was sent.
    assert len(server.envelopes) <= 500


@scenario("run")
async def test_replication_and_observer_envelopes_have_one_message(world: World) -> None:
    server, client = Recorder(), Recorder()
    listener = await world.server.listen(world.bind, {Conversation.REPLICATION: server.accept})
    world.client.dial(listener.address, Conversation.REPLICATION, client)
    await until(lambda: client.links)
    for i in range(5):
        client.links[0].send(quorum_pb2.FetchRequest(correlation_id=i))
    await until(lambda: len(server.ids) == 5)
    assert [len(envelope) for envelope in server.envelopes] == [1] * 5
    server.links[0].send(quorum_pb2.FetchResponse(records=b"x" * 5_000_000))
    await until(lambda: client.envelopes)
    assert client.envelopes[0][0].records == b"x" * 5_000_000


@scenario("run")
async def test_server_may_send_first(world: World) -> None:
    client, server = Recorder(), Recorder()

    def accept(link: Link) -> Recorder:
        link.send(controller_pb2.ControllerResponse(correlation_id=1))
        return server

    listener = await world.server.listen(world.bind, {Conversation.CONTROLLER: accept})
    world.client.dial(listener.address, Conversation.CONTROLLER, client)
    await until(lambda: client.ids)
    assert client.events == ["opened", "received"]


@scenario("run")
async def test_dial_never_calls_back_before_it_returns(world: World) -> None:
    server, client = Recorder(), Recorder()
    listener = await world.server.listen(world.bind, {Conversation.CONTROLLER: server.accept})
    dialer = world.client.dial(listener.address, Conversation.CONTROLLER, client)
    assert client.events == []
    assert dialer.link is None
    await until(lambda: client.links)
    assert dialer.link is client.links[0]


@scenario("run")
async def test_closed_link_is_reported_once_at_both_ends_and_replaced(world: World) -> None:
    server, client = Recorder(), Recorder()
    _, dialer = await connect(world, server, client)
    first = client.links[0]
    first.close("enough")
    first.close("again")
    assert client.reasons == []  # Later, not from within close.
    with pytest.raises(LinkClosedError, match="enough"):
        first.send(request())
    await until(lambda: len(client.links) == 2 and len(server.links) == 2 and server.reasons)
    assert (client.events, client.reasons) == (["opened", "closed", "opened"], ["enough"])
    assert dialer.link is client.links[1] is not first
    assert server.events == ["closed"]
    with pytest.raises(LinkClosedError):
        server.links[0].send(controller_pb2.ControllerResponse())


@scenario("run")
async def test_link_closed_by_the_server_is_detected_and_redialed(world: World) -> None:
    server, client = await connected(world)
    await until(lambda: server.links)
    server.links[0].close("not you")
    await until(lambda: len(client.links) == 2)
    assert client.events == ["opened", "closed", "opened"]
    assert server.reasons == ["not you"]


@scenario("run")
async def test_failing_handler_is_logged_and_its_link_closed(world: World) -> None:
    def fail(link: Link, messages: Sequence[Any]) -> None:
        raise ZeroDivisionError("a bug")

    server, client = await connected(world, fail)
    with capture_logs() as logs:
        client.links[0].send(request(1))
        await until(lambda: client.reasons and server.reasons)
    assert "ZeroDivisionError" in server.reasons[0]
    failures = [entry for entry in logs if entry["event"] == "a link handler failed"]
    assert (len(failures), failures[0]["log_level"]) == (1, "error")


@scenario("run")
async def test_handler_that_fails_when_its_link_has_closed_is_logged(world: World) -> None:
    def fail(link: Link, reason: str) -> None:
        raise ZeroDivisionError("a bug")

    server, client = Recorder(), Recorder()
    server.closed = fail  # type: ignore[method-assign]
    await connect(world, server, client)
    with capture_logs() as logs:
        client.links[0].close("the test ends it")
        await until(lambda: "a link handler failed" in [entry["event"] for entry in logs])


def test_failing_acceptor_costs_one_stream(run: Runner) -> None:
    async def scenario(world: World) -> None:
        server, client = Recorder(), Recorder()
        attempts = 0

        def accept(link: Link) -> Recorder:
            nonlocal attempts
            attempts += 1
            if attempts == 1:
                raise ZeroDivisionError("a bug")
            return server.accept(link)

        with capture_logs() as logs:
            listener = await world.server.listen(world.bind, {Conversation.CONTROLLER: accept})
            dialer = world.client.dial(listener.address, Conversation.CONTROLLER, client)
            await until(lambda: server.links and dialer.link is not None)
        assert [entry["log_level"] for entry in logs if entry["event"] == "an acceptor failed"] == [
            "error"
        ]

    run(scenario)


@scenario("run", replace(LIMITS, max_queued_messages=10))
async def test_link_with_a_full_queue_is_closed_with_a_reason(world: World) -> None:
    _, client = await connected(world)
    for i in range(10):
        client.links[0].send(request(i))
    with pytest.raises(LinkClosedError, match="does not keep up"):
        client.links[0].send(request(10))
    await until(lambda: client.reasons)
    assert "does not keep up" in client.reasons[0]


@scenario("run")
async def test_changes_of_a_sent_message_at_either_end_are_not_seen_at_the_other(
    world: World,
) -> None:
    server, client = await connected(world)
    ids: list[int] = []

    def clear(link: Link, messages: Sequence[Any]) -> None:
        for one in messages:
            ids.append(one.correlation_id)
            one.Clear()

    server.on_received = clear
    message = request(1)
    for i in (1, 2):
        message.correlation_id = i
        client.links[0].send(message)
    message.correlation_id = 3
    await until(lambda: len(ids) == 2)
    assert (ids, message.correlation_id) == ([1, 2], 3)


@scenario("run", replace(LIMITS, max_message_bytes=4096))
async def test_message_above_the_envelope_limit_is_not_sent(world: World) -> None:
    server, client = await connected(world)
    large = controller_pb2.ControllerRequest(
        correlation_id=1, delete_topics=controller_pb2.DeleteTopicsRequest(names=["x" * 5000])
    )
    with pytest.raises(ApiError) as caught:
        client.links[0].send(large)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    client.links[0].send(request(2))
    await until(lambda: server.ids == [2])


@scenario("run")
async def test_message_of_the_other_direction_is_refused(world: World) -> None:
    server, client = await connected(world)
    with pytest.raises(TypeError, match="carries ControllerRequest, not ControllerResponse"):
        client.links[0].send(controller_pb2.ControllerResponse())
    client.links[0].send(request(1))
    await until(lambda: server.ids == [1])


@scenario("run")
async def test_refused_address_opens_once_a_server_listens(world: World) -> None:
    server, client = Recorder(), Recorder()
    listener = await world.server.listen(world.bind, {})
    await listener.close()
    dialer = world.client.dial(listener.address, Conversation.CONTROLLER, client)
    await asyncio.sleep(0.1)
    assert client.events == []
    assert dialer.link is None
    await world.server.listen(listener.address, {Conversation.CONTROLLER: server.accept})
    await until(lambda: client.links)


@scenario("run")
async def test_unserved_conversation_never_opens(world: World) -> None:
    client = Recorder()
    listener = await world.server.listen(world.bind, {Conversation.CONTROLLER: Recorder().accept})
    with capture_logs() as logs:
        world.client.dial(listener.address, Conversation.BROKER, client)
        await until(lambda: logs)
    assert "UNIMPLEMENTED" in logs[0]["reason"]
    assert client.events == []


@scenario("run")
async def test_probe_distinguishes_a_listener_from_a_refusal(world: World) -> None:
    listener = await world.server.listen(world.bind, {})
    assert await world.client.probe(listener.address, 10) is Probe.ACCEPTED
    assert await world.client.probe(world.nowhere, 10) is Probe.REFUSED
    await listener.close()
    assert await world.client.probe(listener.address, 10) is Probe.REFUSED


@scenario("run")
async def test_port_in_use_is_refused(world: World) -> None:
    listener = await world.server.listen(world.bind, {})
    with pytest.raises(ConfigError, match="port in use"):
        await world.server.listen(listener.address, {})


@scenario("run")
async def test_closing_a_listener_closes_its_links_at_both_ends(world: World) -> None:
    server, client = Recorder(), Recorder()
    listener, dialer = await connect(world, server, client)
    await until(lambda: server.links)
    await listener.close()
    await listener.close()
    await until(lambda: client.reasons and server.reasons)
    assert dialer.link is None


@scenario("run")
async def test_closed_dialer_reports_its_link_and_stays_closed(world: World) -> None:
    server, client = Recorder(), Recorder()
    _, dialer = await connect(world, server, client)
    dialer.close()
    dialer.close()
    await until(lambda: client.reasons and server.reasons)
    await asyncio.sleep(0.1)
    assert client.events == ["opened", "closed"]
    assert len(server.links) == 1


@scenario("run")
async def test_dialer_closed_while_connecting_reports_nothing(world: World) -> None:
    server, client = Recorder(), Recorder()
    listener = await world.server.listen(world.bind, {Conversation.CONTROLLER: server.accept})
    for turns in range(6):
        dialer = world.client.dial(listener.address, Conversation.CONTROLLER, client)
        for _ in range(turns):
            await asyncio.sleep(0)
        dialer.close()
    await until(lambda: len(server.reasons) == len(server.links))
    assert client.events.count("opened") == client.events.count("closed")


@scenario("run")
async def test_transport_can_be_closed_twice_and_ends_everything(world: World) -> None:
    server, client = await connected(world)
    await world.client.close()
    await world.client.close()
    await until(lambda: server.reasons == server.reasons[:1] != [])
    assert client.events == ["opened", "closed"]
