"""A client of controllers finds the leader, and never executes a write twice."""

import asyncio
from typing import Any

import pytest
from client_world import Answer, World, create, leader, not_controller, refuses, silent, simulate
from data_world import TOPIC, DataWorld, simulate_data
from scenarios import failure, scenario
from test_session import Controller, executed

from raftlog.client.requests import THROTTLE_MAX_S, controller_request, pause_after
from raftlog.errors import ApiError, ConfigError, ErrorCode
from raftlog.transport.api import Conversation
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb


@scenario(simulate)
async def test_client_follows_a_hint_and_stays_with_the_leader(world: World) -> None:
    client, a, b = await world.at_controllers(a=not_controller("b"), b=leader, known="a")
    for _ in range(5):
        response = await client.call(
            create(), acks=common_pb2.ACKS_VISIBLE, principal="me", timeout_s=5
        )
        assert response.write.token.offset == 40
    assert (len(a.asked), len(b.asked)) == (1, 5)
    assert client.target == "b:1"
    assert client.connected
    assert (b.asked[-1].acks, b.asked[-1].client.principal) == (common_pb2.ACKS_VISIBLE, "me")
    assert b.asked[-1].timeout_ms == 5000
    assert b.asked[0].timeout_ms <= 5000


@scenario(simulate)
async def test_circular_hints_cost_a_bounded_backoff_until_a_leader_exists(world: World) -> None:
    answers: dict[str, Any] = {
        "a": not_controller("b"),
        "b": not_controller("c"),
        "c": not_controller("a"),
    }
    client, a, b, c = await world.at_controllers(**answers)
    begun = world.loop.time()
    world.loop.call_later(3.0, lambda: setattr(c, "answer", leader))
    await client.call(create(), timeout_s=10)
    assert 3.0 <= world.loop.time() - begun < 3.2
    assert len(a.asked) + len(b.asked) + len(c.asked) < 150


@scenario(simulate)
async def test_returning_leadership_is_followed_at_once(world: World) -> None:
    """A successful response ends the search: every controller may be named again."""
    client, a, b = await world.at_controllers(a=not_controller("b"), b=leader)
    await client.call(create())
    for at, other, name in ((a, b, "a"), (b, a, "b"), (a, b, "a")):
        at.answer, other.answer = leader, not_controller(name)
        begun = world.loop.time()
        await client.call(create())
        assert world.loop.time() - begun < 0.01


def other_cluster(request: Any) -> Any:
    error = common_pb2.Error(
        error_code=ErrorCode.INCONSISTENT_CLUSTER_ID, error_message="this is cluster x"
    )
    return controller_pb2.ControllerResponse(error=error)


@scenario(simulate)
async def test_call_moves_to_another_controller_when_one_belongs_to_another_cluster(
    world: World,
) -> None:
    client, foreign, *_ = await world.at_controllers(a=other_cluster, b=leader)
    begun = world.loop.time()
    await client.call(create())
    assert world.loop.time() - begun < 0.5
    assert len(foreign.asked) == 1


@scenario(simulate)
async def test_call_ends_at_once_when_all_controllers_are_of_another_cluster(world: World) -> None:
    for host in ("a", "b"):
        await world.controller(host, other_cluster)
    client = world.controller_client("a", "b")
    begun = world.loop.time()
    with pytest.raises(ApiError, match="this is cluster x"):
        await client.call(create(), timeout_s=10)
    assert world.loop.time() - begun < 0.5


@scenario(simulate)
async def test_call_times_out_with_one_foreign_and_one_dead_controller(world: World) -> None:
    await world.controller("a", other_cluster)
    world.network.transport_for("dead")
    client = world.controller_client("a", "dead")
    with pytest.raises(ApiError, match=r"a:1 .belongs to another cluster") as caught:
        await client.call(create(), timeout_s=2)
    assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT


@scenario(simulate)
async def test_dead_controller_is_skipped(world: World) -> None:
    world.network.transport_for("dead")
    await world.controller("b", leader)
    client = world.controller_client("dead", "b")
    begun = world.loop.time()
    await client.call(create())
    assert world.loop.time() - begun < 0.5


@scenario(simulate)
async def test_after_a_failed_leader_only_the_next_controller_is_asked_at_once(
    world: World,
) -> None:
    client, a, b, c = await world.at_controllers(a=leader, b=silent, c=leader)
    await client.call(create())
    a.hang_up()
    await asyncio.sleep(0.005)
    begun = world.loop.time()
    call = asyncio.ensure_future(client.call(create()))
    while not b.asked:
        await asyncio.sleep(0.0005)
    assert world.loop.time() - begun < 0.01
    b.hang_up()
    await failure(call)
    begun = world.loop.time()
    await client.call(create())
    assert world.loop.time() - begun >= 0.01, "the second has answered nothing"
    assert (len(a.asked), len(c.asked)) == (1, 1)


@scenario(simulate)
async def test_unknown_outcome_is_reported_and_never_retried(world: World) -> None:
    a = await world.controller("a", silent)
    b = await world.controller("b", leader)
    call = asyncio.ensure_future(world.controller_client("a", "b").call(create()))
    await asyncio.sleep(0.1)
    a.hang_up()
    error = await failure(call)
    assert (error.code, error.outcome_unknown) == (ErrorCode.NETWORK_EXCEPTION, True)
    await asyncio.sleep(5)
    assert (len(a.asked), len(b.asked)) == (1, 0)


@scenario(simulate)
async def test_lost_leadership_during_a_write_makes_its_outcome_unknown(world: World) -> None:
    a = await world.controller("a", not_controller("b", unknown=True))
    b = await world.controller("b", leader)
    client = world.controller_client("a")
    error = await failure(client.call(create()))
    assert (error.code, error.outcome_unknown) == (ErrorCode.NOT_CONTROLLER, True)
    assert len(b.asked) == 0
    await client.call(create())
    assert (len(a.asked), len(b.asked)) == (1, 1), "but the hint was taken"


@scenario(simulate)
async def test_timed_out_call_has_an_unknown_outcome_and_the_next_uses_another_node(
    world: World,
) -> None:
    client, a, b = await world.at_controllers(a=silent, b=leader)
    begun = world.loop.time()
    error = await failure(client.call(create(), timeout_s=2))
    assert (error.code, error.outcome_unknown) == (ErrorCode.REQUEST_TIMED_OUT, True)
    assert world.loop.time() - begun == pytest.approx(2.5, abs=0.1)
    await client.call(create(), timeout_s=2)
    assert (len(a.asked), len(b.asked)) == (1, 1)


@scenario(simulate)
async def test_silent_connection_is_not_used_again(world: World) -> None:
    """[A dead connection to the leader that nothing closes: each call on it times out.]"""
    client, a = await world.at_controllers(a=leader)
    await client.call(create())
    assert world.network.mute("client", "a", Conversation.CONTROLLER) == 1
    error = await failure(client.call(create(), timeout_s=1))
    assert (error.code, error.outcome_unknown) == (ErrorCode.REQUEST_TIMED_OUT, True)
    await client.call(create(), timeout_s=1)
    assert len(a.links) == 2
    await asyncio.sleep(1)
    assert all(route.ended for route in client._retired)


@scenario(simulate)
async def test_successor_of_a_silent_leader_is_found_soon_after_its_election(
    world: World,
) -> None:
    """[The others still named the silent leader; the client waited for it again.]"""
    behind = not_controller("a")
    client, a, b, _ = await world.at_controllers(a=leader, b=behind, c=behind)
    await client.call(create())
    a.answer = silent
    await failure(client.call(create(), timeout_s=0.05))
    begun = world.loop.time()
    world.loop.call_later(0.3, lambda: setattr(b, "answer", leader))
    await client.call(create(), timeout_s=2)
    assert 0.3 <= world.loop.time() - begun < 0.5
    assert len(a.asked) == 2


@scenario(simulate)
async def test_outcome_of_a_call_at_a_server_that_is_left_is_unknown_at_once(
    world: World,
) -> None:
    client, a, b = await world.at_controllers(a=silent, b=leader)
    call = asyncio.ensure_future(client.call(create(), timeout_s=10))
    await asyncio.sleep(1)
    client.leave(b.address, "it is silent")
    assert not call.done()
    client.leave(a.address, "it is silent")
    error = await failure(call)
    assert (error.code, error.outcome_unknown) == (ErrorCode.NETWORK_EXCEPTION, True)
    await client.call(create(), timeout_s=1)
    assert (len(a.asked), len(b.asked)) == (1, 1)


@scenario(simulate)
async def test_connection_with_other_responses_is_kept(world: World) -> None:
    a = await world.controller(
        "a",
        lambda request: None if request.create_topics.topics[0].name == "slow" else leader(request),
    )
    client = world.controller_client("a")
    call = asyncio.ensure_future(client.call(create("slow"), timeout_s=1))
    await asyncio.sleep(0.5)
    await client.call(create())
    assert (await failure(call)).code is ErrorCode.REQUEST_TIMED_OUT
    await client.call(create())
    assert len(a.links) == 1


@scenario(simulate)
async def test_call_fails_definitely_when_no_controller_is_reachable(world: World) -> None:
    client = world.controller_client("x", "y")
    begun = world.loop.time()
    error = await failure(client.call(create(), timeout_s=2))
    assert (error.code, error.outcome_unknown) == (ErrorCode.REQUEST_TIMED_OUT, False)
    assert "none of x:1 and y:1 (does not answer) could" in str(error)
    assert world.loop.time() - begun == pytest.approx(2.0, abs=0.01)


@scenario(simulate)
async def test_unreachable_leader_is_reported_at_the_deadline(world: World) -> None:
    """[it was out of descriptors, and the error was that another node is not a controller]"""
    a = await world.controller("a", not_controller("gone"))
    error = await failure(world.controller_client("a", "gone").call(create(), timeout_s=3))
    assert (error.code, error.outcome_unknown) == (ErrorCode.REQUEST_TIMED_OUT, False)
    assert error.message.startswith("not me; gone:1 (")
    assert error.message.endswith("could not be reached in time; the request was not executed")
    assert a.asked


@scenario(simulate)
async def test_call_names_the_missing_leader_at_its_deadline(world: World) -> None:
    client, a, b = await world.at_controllers(a=not_controller(), b=not_controller())
    begun = world.loop.time()
    error = await failure(client.call(create(), timeout_s=3))
    assert (error.code, error.outcome_unknown) == (ErrorCode.NOT_CONTROLLER, False)
    assert world.loop.time() - begun == pytest.approx(3.0, abs=0.6)
    timeouts = [request.timeout_ms for server in (a, b) for request in server.asked]
    assert min(timeouts) < 2500, "what is left, not what there was"


@scenario(simulate)
async def test_error_of_the_request_is_not_retried(world: World) -> None:
    a = await world.controller("a", refuses(ErrorCode.INVALID_CONFIG, field="topics[0].name"))
    error = await failure(world.controller_client("a", "b").call(create()))
    assert (error.code, error.field) == (ErrorCode.INVALID_CONFIG, "topics[0].name")
    assert not error.outcome_unknown
    assert len(a.asked) == 1


@scenario(simulate)
async def test_calls_in_flight_move_together_and_keep_their_order(world: World) -> None:
    client, a, b = await world.at_controllers(a=leader, b=leader)
    await client.call(create())
    a.answer = not_controller("b")
    futures = [client.send(controller_request(create(str(n)))) for n in range(64)]
    responses = await asyncio.gather(*futures)
    assert all(response.write.token.offset == 40 for response in responses)
    assert len(a.asked) == 65
    assert [request.create_topics.topics[0].name for request in b.asked] == [
        str(n) for n in range(64)
    ]


@scenario(simulate)
async def test_hot_path_creates_no_task(world: World) -> None:
    client, *_ = await world.at_controllers(a=leader)
    await client.call(create())
    made = world.loop.tasks_made
    await asyncio.gather(*(client.send(controller_request(create())) for _ in range(500)))
    assert world.loop.tasks_made == made


@scenario(simulate)
async def test_calls_wait_for_a_leader_to_return(world: World) -> None:
    client, *_ = await world.at_controllers(a=leader)
    await client.call(create())
    world.network.crash("a")
    await asyncio.sleep(1)
    call = asyncio.ensure_future(client.call(create(), timeout_s=10))
    await asyncio.sleep(2)
    assert not call.done()
    back = await world.controller("a", leader)
    await call
    assert len(back.asked) == 1


@scenario(simulate)
async def test_close_fails_waiting_calls_definitely_and_sent_ones_as_unknown(world: World) -> None:
    await world.controller("a", silent)
    client, lost = world.controller_client("a"), world.controller_client("nowhere")
    sent = client.send(controller_request(create()))
    waiting = lost.send(controller_request(create()))
    await asyncio.sleep(0.1)
    client.close()
    lost.close()
    client.close()
    assert (await failure(sent)).outcome_unknown
    assert not (await failure(waiting)).outcome_unknown
    assert not (await failure(client.send(controller_request(create())))).outcome_unknown


@scenario(simulate)
async def test_abandoned_call_does_not_affect_others(world: World) -> None:
    client, a, *_ = await world.at_controllers(a=not_controller("b"), b=leader, known="a")
    client.send(controller_request(create())).cancel()
    await client.call(create())
    assert len(a.asked) == 2


@scenario(simulate)
async def test_client_without_an_endpoint_is_refused(world: World) -> None:
    with pytest.raises(ConfigError):
        world.controller_client()


def test_body_of_another_protocol_is_refused_locally() -> None:
    with pytest.raises(TypeError, match="MetadataRequest"):
        controller_request(broker_pb2.MetadataRequest())


def stands_at(offset: int, reached: common_pb2.Acks, *, leadership_lost: bool) -> Answer:
    """Return the response to a committed write, or to a request to continue its wait."""

    def answer(request: controller_pb2.ControllerRequest) -> controller_pb2.ControllerResponse:
        response = controller_pb2.ControllerResponse(
            write=common_pb2.WriteResult(
                token=common_pb2.MetadataToken(generation=3, epoch=1, offset=offset),
                reached=reached,
                leadership_lost=leadership_lost,
                duplicate=request.HasField("written"),
            )
        )
        if not request.HasField("written"):
            response.create_topics.topics.add(name="t")
        return response

    return answer


LOST = stands_at(40, common_pb2.ACKS_COMMITTED, leadership_lost=True)
REACHED = stands_at(40, common_pb2.ACKS_VISIBLE, leadership_lost=False)


def first_then(first: Answer, then: Answer) -> Answer:
    """Answer the first request in one way and the others in another."""
    answers = iter([first])

    def answer(request: controller_pb2.ControllerRequest) -> controller_pb2.ControllerResponse:
        response: controller_pb2.ControllerResponse = next(answers, then)(request)
        return response

    return answer


@pytest.mark.parametrize(
    "at_next",
    [
        REACHED,
        first_then(refuses(ErrorCode.THROTTLING_QUOTA_EXCEEDED), REACHED),
        first_then(not_controller("b"), REACHED),
        first_then(LOST, REACHED),
    ],
    ids=["at once", "throttled", "before its claim", "lost again"],
)
@scenario(simulate)
async def test_committed_write_waits_at_the_next_leader(world: World, *, at_next: Answer) -> None:
    client, a, b = await world.at_controllers(a=first_then(LOST, not_controller("b")), b=at_next)
    response = await client.call(create(), acks=common_pb2.ACKS_VISIBLE, timeout_s=5)
    assert response.write.reached == common_pb2.ACKS_VISIBLE
    assert not response.write.duplicate
    assert [one.name for one in response.create_topics.topics] == ["t"]
    resumed = [*a.asked[1:], *b.asked]
    assert resumed
    assert {one.written.offset for one in resumed} == {40}
    assert {one.written.generation for one in resumed} == {3}
    assert b.asked[-1].acks == common_pb2.ACKS_VISIBLE
    assert b.asked[-1].timeout_ms <= 5000


@pytest.mark.parametrize(
    "at_next", [silent, refuses(ErrorCode.INCONSISTENT_GENERATION), not_controller()]
)
@scenario(simulate)
async def test_committed_write_succeeds_when_the_next_leader_cannot_continue_its_wait(
    world: World, *, at_next: Answer
) -> None:
    client, *_ = await world.at_controllers(a=first_then(LOST, not_controller("b")), b=at_next)
    response = await client.call(create(), acks=common_pb2.ACKS_VISIBLE, timeout_s=2)
    assert (response.write.token.offset, response.write.reached) == (40, common_pb2.ACKS_COMMITTED)


@scenario(simulate)
async def test_wait_is_continued_again_when_the_connection_breaks(world: World) -> None:
    client, _, b = await world.at_controllers(a=first_then(LOST, not_controller("b")), b=silent)
    call = asyncio.ensure_future(client.call(create(), acks=common_pb2.ACKS_VISIBLE, timeout_s=5))
    while not b.asked:
        await asyncio.sleep(0.001)
    b.answer = REACHED
    b.hang_up()
    assert (await call).write.reached == common_pb2.ACKS_VISIBLE


@scenario(simulate)
async def test_write_with_acks_committed_completes_on_the_first_response(world: World) -> None:
    a = await world.controller("a", LOST)
    await world.controller_client("a").call(create(), timeout_s=5)
    assert len(a.asked) == 1


WAIT_MS = 3_000
"""Longer than any back-off of the clients' own."""


def throttled(request: Any) -> pb.ControllerResponse:
    error = common_pb2.Error(
        error_code=ErrorCode.THROTTLING_QUOTA_EXCEEDED, throttle_time_ms=WAIT_MS
    )
    return pb.ControllerResponse(error=error)


@scenario(simulate)
async def test_session_waits_for_the_throttle_time(world: World) -> None:
    controller = Controller(throttled, throttled, executed)
    client, *_ = await world.at_controllers(a=controller)
    begun = world.loop.time()
    await client.session().write(create(), timeout_s=20)
    assert len(controller.writes) == 3
    assert WAIT_MS / 500 <= world.loop.time() - begun < WAIT_MS / 500 + 0.5


@scenario(simulate)
async def test_retries_end_at_the_deadline_of_the_call(world: World) -> None:
    controller = Controller(throttled)
    client, *_ = await world.at_controllers(a=controller)
    begun = world.loop.time()
    refused = await failure(client.session().write(create(), timeout_s=2))
    assert refused.code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert not refused.outcome_unknown
    assert len(controller.writes) == 1
    assert world.loop.time() - begun < 2.0


@scenario(simulate_data)
async def test_producer_waits_for_the_throttle_time_up_to_its_deadline(world: DataWorld) -> None:
    producer = world.producer()
    await producer.send(TOPIC, b"0", partition=0)
    (broker,) = [one for one in world.brokers.values() if one.id == world.logs[0].leader]
    before = len(world.requests(broker.id, "produce"))
    broker.throttle["produce"] = [WAIT_MS]
    begun = asyncio.get_running_loop().time()
    await producer.send(TOPIC, b"1", partition=0)
    assert WAIT_MS / 1000 <= (asyncio.get_running_loop().time() - begun) < WAIT_MS / 1000 + 0.5
    assert len(world.requests(broker.id, "produce")) == before + 2
    broker.throttle["produce"] = [100 * WAIT_MS]
    begun = asyncio.get_running_loop().time()
    late = await failure(producer.send(TOPIC, b"2", partition=0))
    assert late.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert asyncio.get_running_loop().time() - begun < 31


@scenario(simulate_data)
async def test_consumer_and_metadata_calls_retry_after_the_throttle_time(world: DataWorld) -> None:
    for broker in world.brokers.values():
        broker.throttle = {"metadata": [WAIT_MS]}
    producer = world.producer()
    begun = asyncio.get_running_loop().time()
    await producer.send(TOPIC, b"0", partition=0)
    assert asyncio.get_running_loop().time() - begun >= WAIT_MS / 1000
    for broker in world.brokers.values():
        broker.throttle = {"fetch": [WAIT_MS]}
    consumer = world.consumer()
    consumer.assign(TOPIC, 0)
    begun = asyncio.get_running_loop().time()
    while not await consumer.poll(1.0):
        pass
    assert WAIT_MS / 1000 <= asyncio.get_running_loop().time() - begun < WAIT_MS / 1000 + 1.0


def test_throttle_time_is_capped() -> None:
    error = ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "", throttle_time_ms=2**31 - 1)
    assert pause_after(error, 0.1) == THROTTLE_MAX_S
    assert pause_after(ApiError(ErrorCode.NETWORK_EXCEPTION, ""), 0.1) == 0.1
