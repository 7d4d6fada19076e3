"""A numbered write is executed once, whichever attempt arrives; refused items raise."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from client_world import Server, World, create, not_controller, refuses, silent, simulate
from google.protobuf.descriptor import FieldDescriptor
from scenarios import failure, scenario

from raftlog.client.requests import RefusedItemsError, check_items
from raftlog.client.session import ATTEMPT_S
from raftlog.errors import ErrorCode
from raftlog.metadata.entities import WINDOW
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb

GENERATION = 3


def token(offset: int) -> common_pb2.WriteResult:
    return common_pb2.WriteResult(
        token=common_pb2.MetadataToken(generation=GENERATION, epoch=1, offset=offset)
    )


class Controller:
    """Opens clients, answers writes by a script of attempts (the last one repeats)."""

    def __init__(self, *script: Callable[[Any], Any]) -> None:
        self.script = list(script) or [executed]
        self.opened = 0
        self.writes: list[pb.ControllerRequest] = []
        self.closed: list[int] = []
        self.closed_of: set[int] = set()

    def __call__(self, request: pb.ControllerRequest) -> pb.ControllerResponse | None:
        if request.HasField("open_client"):
            self.opened += 1
            client_id = 1000 * self.opened
            return pb.ControllerResponse(
                open_client=pb.OpenClientResponse(client_id=client_id), write=token(client_id)
            )
        if request.HasField("close_client"):
            self.closed.append(request.close_client.client_id)
            self.closed_of.add(request.close_client.generation)
            return pb.ControllerResponse(close_client=pb.CloseClientResponse(), write=token(5))
        self.writes.append(request)
        return (self.script.pop(0) if len(self.script) > 1 else self.script[0])(request)

    @property
    def numbers(self) -> list[tuple[int, int]]:
        return [(request.client.client_id, request.client.sequence) for request in self.writes]


def executed(request: pb.ControllerRequest) -> pb.ControllerResponse:
    response = committed(request)
    response.write.reached = request.acks
    return response


def committed(request: pb.ControllerRequest) -> pb.ControllerResponse:
    """The write was made, but is not as visible as requested."""
    return pb.ControllerResponse(create_topics=pb.CreateTopicsResponse(), write=token(40))


def duplicate(request: pb.ControllerRequest) -> pb.ControllerResponse:
    response = pb.ControllerResponse(write=token(33))
    response.write.duplicate = True
    return response


def wrote_nothing(request: pb.ControllerRequest) -> pb.ControllerResponse:
    return pb.ControllerResponse(create_topics=pb.CreateTopicsResponse())


INVALID = refuses(ErrorCode.INVALID_TOPIC_EXCEPTION, field="topics[0].name")
UNKNOWN_CLIENT = refuses(ErrorCode.UNKNOWN_PRODUCER_ID, field="client.client_id")
LOST_LEADERSHIP = not_controller(unknown=True)


def run_against(test: Any, *script: Callable[[Any], Any]) -> None:
    async def in_world(world: World) -> None:
        controller = Controller(*script)
        await world.controller("a", controller)
        client = world.controller_client("a")
        await test(client.session("me"), controller, world)
        client.close()

    simulate(in_world)


def against(*script: Callable[[Any], Any]) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Run a test with a session at a controller of this script."""
    return scenario(run_against, *script)


def at_once(*script: Callable[[Any], Any]) -> Callable[[Any], None]:
    """As ``against``, for a part of a test: run it here."""
    return lambda test: run_against(test, *script)


@against()
async def test_client_is_opened_once(session: Any, controller: Controller, world: World) -> None:
    assert session.client_id == 0
    await asyncio.gather(*(session.write(create(), principal="alice") for _ in range(50)))
    await session.write(create(), acks=common_pb2.ACKS_VISIBLE)
    assert (controller.opened, session.client_id) == (1, 1000)
    assert controller.numbers == [(1000, number) for number in range(1, 52)]
    first, last = controller.writes[0].client, controller.writes[-1].client
    assert (first.all_below_done, first.generation, first.principal) == (1, GENERATION, "alice")
    assert last.all_below_done == 51
    assert controller.writes[-1].acks == common_pb2.ACKS_VISIBLE
    await session.close()
    await session.close()
    assert controller.closed == [1000]
    # Elsewhere the id may be another client's.
    assert controller.closed_of == {GENERATION}


@pytest.mark.parametrize(
    "lost", [silent, LOST_LEADERSHIP, refuses(ErrorCode.REQUEST_TIMED_OUT, unknown=True)]
)
def test_unknown_outcome_is_retried_under_the_same_number(lost: Callable[[Any], Any]) -> None:
    @at_once(executed, lost, lost, duplicate)
    async def test(session: Any, controller: Controller, world: World) -> None:
        await session.write(create())
        response = await session.write(create(), timeout_s=20)
        assert response.write.duplicate
        assert response.write.token.offset == 33
        assert response.WhichOneof("body") is None
        assert controller.numbers == [(1000, 1)] + [(1000, 2)] * 3
        assert {request.client.all_below_done for request in controller.writes[1:]} == {2}


def seen(request: pb.ControllerRequest) -> pb.ControllerResponse:
    """Answer a later attempt of a write that every broker shows by now."""
    response = duplicate(request)
    response.write.reached = common_pb2.ACKS_VISIBLE
    return response


@against(silent, seen)
async def test_visible_write_is_continued_at_another_controller_if_one_is_silent(
    session: Any, controller: Controller, world: World
) -> None:
    begun = world.loop.time()
    response = await session.write(create(), acks=common_pb2.ACKS_VISIBLE, timeout_s=60)
    assert response.write.reached == common_pb2.ACKS_VISIBLE
    assert world.loop.time() - begun < 2 * ATTEMPT_S
    assert controller.numbers == [(1000, 1)] * 2


@against(committed, silent, not_controller(), seen)
async def test_visible_write_is_retried_until_visible_and_keeps_its_first_response(
    session: Any, controller: Controller, world: World
) -> None:
    response = await session.write(create(), acks=common_pb2.ACKS_VISIBLE, timeout_s=60)
    assert response.write.reached == common_pb2.ACKS_VISIBLE
    assert response.WhichOneof("body") == "create_topics"
    assert not response.write.duplicate
    assert controller.numbers == [(1000, 1)] * 4


@pytest.mark.parametrize("later", [silent, INVALID, LOST_LEADERSHIP])
def test_later_error_is_never_the_outcome_of_a_committed_write(later: Callable[[Any], Any]) -> None:
    @at_once(committed, later)
    async def test(session: Any, controller: Controller, world: World) -> None:
        begun = world.loop.time()
        response = await session.write(create(), acks=common_pb2.ACKS_VISIBLE, timeout_s=5)
        assert (response.write.token.offset, response.write.reached) == (40, 0)
        assert response.WhichOneof("body") == "create_topics"
        assert world.loop.time() - begun <= 5.5


@scenario(simulate)
async def test_write_is_retried_after_a_lost_connection(world: World) -> None:
    server: Server

    def hang_up(request: Any) -> None:
        server.hang_up()

    controller = Controller(hang_up, executed)
    server = await world.controller("a", controller)
    assert (await world.controller_client("a").session().write(create())).write.token.offset == 40
    assert controller.numbers == [(1000, 1)] * 2


@against(INVALID, executed)
async def test_refused_first_attempt_is_definite(
    session: Any, controller: Controller, world: World
) -> None:
    error = await failure(session.write(create()))
    assert (error.code, error.field) == (ErrorCode.INVALID_TOPIC_EXCEPTION, "topics[0].name")
    assert not error.outcome_unknown
    await session.write(create())
    assert controller.numbers == [(1000, 1), (1000, 2)]
    assert controller.writes[1].client.all_below_done == 2


@against(silent, INVALID, executed)
async def test_definite_error_of_a_retried_write_leaves_its_outcome_unknown(
    session: Any, controller: Controller, world: World
) -> None:
    """[Attempt 1 is delayed on its way; attempt 2 is answered INVALID; the state changes; attempt 1
    arrives and is executed.]
    """
    error = await failure(session.write(create()))
    assert (error.code, error.field) == (ErrorCode.INVALID_TOPIC_EXCEPTION, "topics[0].name")
    assert error.outcome_unknown
    assert controller.numbers == [(1000, 1)] * 2
    await session.write(create())
    assert controller.writes[-1].client.all_below_done == 2  # this closes the number


def test_retried_write_that_wrote_nothing_has_an_unknown_outcome() -> None:
    @at_once(silent, wrote_nothing)
    async def test(session: Any, controller: Controller, world: World) -> None:
        assert (await failure(session.write(create()))).outcome_unknown

    @at_once(wrote_nothing)
    async def once(session: Any, controller: Controller, world: World) -> None:
        assert not (await session.write(create())).HasField("write")


@against(not_controller(), refuses(ErrorCode.THROTTLING_QUOTA_EXCEEDED), not_controller(), INVALID)
async def test_refused_attempt_has_ended_and_does_not_count(
    session: Any, controller: Controller, world: World
) -> None:
    error = await failure(session.write(create()))
    assert error.code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert not error.outcome_unknown
    assert controller.numbers == [(1000, 1)] * 4


@against(executed, UNKNOWN_CLIENT, executed)
async def test_unknown_client_is_opened_again_if_the_write_was_sent_once(
    session: Any, controller: Controller, world: World
) -> None:
    await session.write(create())
    assert (await session.write(create())).write.token.offset == 40
    assert controller.numbers == [(1000, 1), (1000, 2), (2000, 1)]
    assert session.client_id == 2000


@against(silent, UNKNOWN_CLIENT, executed)
async def test_unknown_client_on_a_retry_is_an_unknown_outcome(
    session: Any, controller: Controller, world: World
) -> None:
    error = await failure(session.write(create()))
    assert error.code == ErrorCode.UNKNOWN_PRODUCER_ID
    assert error.outcome_unknown
    assert controller.numbers == [(1000, 1)] * 2
    await session.write(create())
    assert controller.numbers[-1] == (2000, 1)


OTHER_GENERATION = refuses(ErrorCode.INCONSISTENT_GENERATION, field="client.generation")


@against(executed, OTHER_GENERATION, OTHER_GENERATION, executed, silent, OTHER_GENERATION)
async def test_log_of_another_generation_is_written_by_a_new_client_on_request(
    session: Any, controller: Controller, world: World
) -> None:
    await session.write(create())
    for _ in range(2):
        # Who writes is told that what it has written before may be gone; nothing is written.
        error = await failure(session.write(create()))
        assert error.code == ErrorCode.INCONSISTENT_GENERATION
        assert not error.outcome_unknown
    session.forget()
    await session.write(create())
    assert controller.numbers == [(1000, 1), (1000, 2), (1000, 3), (2000, 1)]
    # One that was under way may have been executed in the log that is over.
    error = await failure(session.write(create()))
    assert error.code == ErrorCode.INCONSISTENT_GENERATION
    assert error.outcome_unknown


@against(silent)
async def test_new_client_id_is_used(session: Any, controller: Controller, world: World) -> None:
    writes = [asyncio.ensure_future(session.write(create())) for _ in range(WINDOW + 3)]
    await asyncio.sleep(ATTEMPT_S / 2)
    assert len(controller.writes) == WINDOW
    controller.script = [executed]
    session.forget()
    assert len(await asyncio.gather(*writes)) == WINDOW + 3
    assert [who for who, _ in controller.numbers if who == 2000] == [2000] * 3


def test_deadline_error_says_whether_an_attempt_may_be_on_its_way() -> None:
    @at_once(silent)
    async def unanswered(session: Any, controller: Controller, world: World) -> None:
        begun = world.loop.time()
        assert (await failure(session.write(create(), timeout_s=3 * ATTEMPT_S))).outcome_unknown
        assert 1 < len(controller.writes) <= 4
        assert world.loop.time() - begun <= 3 * ATTEMPT_S + 1

    @at_once(not_controller())
    async def refused(session: Any, controller: Controller, world: World) -> None:
        error = await failure(session.write(create(), timeout_s=3))
        assert error.code == ErrorCode.NOT_CONTROLLER
        assert not error.outcome_unknown
        assert "earlier attempt" not in error.message

    @at_once(silent, not_controller())
    async def refused_after_one_that_is_on_its_way(
        session: Any, controller: Controller, world: World
    ) -> None:
        error = await failure(session.write(create(), timeout_s=2 * ATTEMPT_S))
        assert error.outcome_unknown
        assert error.message.endswith("an earlier attempt may have been executed, or may still be")


@scenario(simulate)
async def test_cluster_without_client_support_is_reported(world: World) -> None:
    await world.controller("a", refuses(ErrorCode.UNSUPPORTED_VERSION))
    error = await failure(world.controller_client("a").session().write(create()))
    assert (error.code, error.outcome_unknown) == (ErrorCode.UNSUPPORTED_VERSION, False)
    assert error.message == "opening a client: no"


@scenario(simulate)
async def test_writes_in_flight_are_bounded_from_the_oldest_number(world: World) -> None:
    held: list[pb.ControllerRequest] = []
    server = await world.controller("a", Controller(held.append))
    session = world.controller_client("a").session()
    writes = [
        asyncio.ensure_future(session.write(create(), acks=common_pb2.ACKS_VISIBLE, timeout_s=30))
        for _ in range(WINDOW + 20)
    ]
    late = asyncio.ensure_future(session.write(create(), acks=common_pb2.ACKS_VISIBLE, timeout_s=2))
    await asyncio.sleep(1)
    assert [request.client.sequence for request in held] == list(range(1, WINDOW + 1))

    def release(request: pb.ControllerRequest) -> None:
        response = executed(request)
        response.correlation_id = request.correlation_id
        server.links[0].send(response)

    for request in held[1:11]:
        release(request)
    await asyncio.sleep(0.1)
    assert len(held) == WINDOW
    release(held[0])
    await asyncio.sleep(0.1)
    assert [request.client.sequence for request in held[WINDOW:]] == list(
        range(WINDOW + 1, WINDOW + 12)
    )
    assert held[-1].client.all_below_done == 12
    error = await failure(late)
    assert (error.code, error.outcome_unknown) == (ErrorCode.REQUEST_TIMED_OUT, False)
    for request in held[11:]:
        release(request)
    await asyncio.sleep(0.1)
    for request in held[WINDOW + 11 :]:
        release(request)
    await asyncio.gather(*writes)
    assert len(held) == WINDOW + 20


@against(silent, executed)
async def test_write_cancelled_by_its_caller_makes_room(
    session: Any, controller: Controller, world: World
) -> None:
    write = asyncio.ensure_future(session.write(create()))
    await asyncio.sleep(0.5)
    write.cancel()
    await asyncio.sleep(0)
    await session.write(create())
    assert controller.writes[-1].client.all_below_done == 2


@scenario(simulate)
async def test_write_cancelled_in_the_moment_it_is_sent_is_cancelled(world: World) -> None:
    await world.controller("a", Controller(silent))
    session = world.controller_client("a").session()
    holding = [asyncio.ensure_future(session.write(create(), timeout_s=60)) for _ in range(WINDOW)]
    await asyncio.sleep(1)
    for turns in range(8):
        waits = asyncio.ensure_future(session.write(create(), timeout_s=60))
        await asyncio.sleep(0.1)
        holding.pop(0).cancel()
        # In one of these turns the news has just been given, and not been read yet.
        for _ in range(turns):
            await asyncio.sleep(0)
        waits.cancel()
        await asyncio.sleep(0.1)
        assert waits.cancelled()
        holding.append(asyncio.ensure_future(session.write(create(), timeout_s=60)))
        await asyncio.sleep(0.1)
    for write in holding:
        write.cancel()


@scenario(simulate)
async def test_forwarded_writes_carry_the_clients_identity(world: World) -> None:
    controller = Controller(executed, silent, duplicate)

    def forward(request: broker_pb2.BrokerRequest) -> broker_pb2.BrokerResponse | None:
        response = controller(request.write)
        return None if response is None else broker_pb2.BrokerResponse(write=response)

    await world.broker("a", refuses(ErrorCode.BROKER_FENCED))
    await world.broker("b", forward)
    client = world.broker_client("a", "b")
    session = client.session()
    await session.write(create())
    assert client.token is not None
    assert (client.token.generation, client.token.offset) == (GENERATION, 1000)
    assert (await session.write(create())).write.duplicate
    assert controller.numbers == [(1000, 1), (1000, 2), (1000, 2)]


@pytest.mark.parametrize("unknown", [False, True])
def test_close_ends_a_write_between_two_attempts(unknown: bool) -> None:
    refusal = refuses(ErrorCode.THROTTLING_QUOTA_EXCEEDED, unknown=unknown)

    @at_once(refusal)
    async def test(session: Any, controller: Controller, world: World) -> None:
        writing = asyncio.ensure_future(failure(session.write(create(), timeout_s=60)))
        await asyncio.sleep(2.0)
        await session.close()
        error = await asyncio.wait_for(writing, 1.0)
        assert (error.code, error.outcome_unknown) == (ErrorCode.THROTTLING_QUOTA_EXCEEDED, unknown)


WRITTEN = common_pb2.WriteResult(token=common_pb2.MetadataToken(epoch=1, offset=40))
EXISTS = common_pb2.Error(
    error_code=36, error_message="topic 'a' already exists", field="topics[0].name"
)
BAD_NAME = common_pb2.Error(
    error_code=17, error_message="'?' is not a valid topic name", field="topics[2].name"
)
BODY = pb.CreateTopicsRequest(topics=[pb.CreatableTopic(name=name) for name in ("a", "b", "?")])


def created(*errors: common_pb2.Error | None) -> pb.ControllerResponse:
    topics = [pb.CreatableTopicResult(name="x", error=error) for error in errors]
    return pb.ControllerResponse(
        create_topics=pb.CreateTopicsResponse(topics=topics), write=WRITTEN
    )


def answering(response: pb.ControllerResponse) -> Any:
    def answer(request: pb.ControllerRequest) -> pb.ControllerResponse:
        if request.HasField("open_client"):
            return pb.ControllerResponse(
                open_client=pb.OpenClientResponse(client_id=9), write=WRITTEN
            )
        return response

    return answer


def by_all_clients(response: pb.ControllerResponse, check: Any) -> None:
    """Call ``check`` with the write of each client against servers that answer ``response``."""

    async def test(world: World) -> None:
        await world.controller("a", answering(response))
        await world.broker(
            "b", lambda request: broker_pb2.BrokerResponse(write=answering(response)(request.write))
        )
        controllers, brokers = world.controller_client("a"), world.broker_client("b")
        for write in (
            controllers.call,
            controllers.session().write,
            brokers.write,
            brokers.session().write,
        ):
            await check(write)
        controllers.close()
        brokers.close()

    simulate(test)


def test_refused_item_raises_its_error_in_all_clients() -> None:
    async def check(write: Any) -> None:
        with pytest.raises(RefusedItemsError) as raised:
            await write(BODY)
        error = raised.value
        assert (error.code, error.message) == (36, "topic 'a' already exists")
        assert error.field == "topics[0].name"
        assert not error.outcome_unknown
        assert [one.code for one in error.errors] == [ErrorCode.TOPIC_ALREADY_EXISTS]
        assert error.response.write.token.offset == 40

    by_all_clients(created(EXISTS, None), check)


def test_several_refused_items_are_raised_together() -> None:
    async def check(write: Any) -> None:
        with pytest.raises(RefusedItemsError) as raised:
            await write(BODY)
        error = raised.value
        assert [(one.code, one.field) for one in error.errors] == [
            (36, "topics[0].name"),
            (17, "topics[2].name"),
        ]
        assert "2 items" in error.message
        assert "exists" in error.message
        assert "not a valid topic name" in error.message
        assert not error.response.create_topics.topics[1].HasField("error")

    by_all_clients(created(EXISTS, None, BAD_NAME), check)


def test_results_are_returned_on_demand() -> None:
    async def check(write: Any) -> None:
        response = await write(BODY, raise_refused=False)
        assert [one.error.error_code for one in response.create_topics.topics] == [36, 0]

    by_all_clients(created(EXISTS, None), check)


def test_unnecessary_election_is_not_an_error() -> None:
    part = pb.ElectedPartition(error=common_pb2.Error(error_code=ErrorCode.ELECTION_NOT_NEEDED))
    elected = pb.ElectLeadersResponse(topics=[pb.ElectedTopic(name="t", partitions=[part])])
    assert check_items(pb.ControllerResponse(elect_leaders=elected)).HasField("elect_leaders")


def _error_paths(descriptor: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Return the paths of a response's fields that hold an item's error."""
    for field in descriptor.fields:
        if field.name in ("error", "error_code") and path:
            yield (*path, field.name)
        elif field.type == FieldDescriptor.TYPE_MESSAGE and field.is_repeated:
            yield from _error_paths(field.message_type, (*path, field.name))


BODIES = pb.ControllerResponse.DESCRIPTOR.oneofs_by_name["body"].fields
ITEMS = [(field.name, path) for field in BODIES for path in _error_paths(field.message_type)]


@pytest.mark.parametrize(
    ("body", "path"), ITEMS, ids=lambda value: value if isinstance(value, str) else ".".join(value)
)
def test_every_response_with_items_is_checked(body: str, path: tuple[str, ...]) -> None:
    response = pb.ControllerResponse()
    item = getattr(response, body)
    for name in path[:-1]:
        item = getattr(item, name).add()
    if path[-1] == "error":
        item.error.error_code = ErrorCode.INVALID_REQUEST
    else:
        item.error_code = ErrorCode.INVALID_REQUEST
    with pytest.raises(RefusedItemsError) as raised:
        check_items(response)
    assert raised.value.code is ErrorCode.INVALID_REQUEST


def test_every_kind_of_item_is_covered() -> None:
    assert len(ITEMS) >= 9
