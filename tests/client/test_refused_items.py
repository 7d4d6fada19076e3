"""A refused item of a write raises, whichever client sent it; the results stay within reach."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from client_world import World, simulate
from google.protobuf.descriptor import FieldDescriptor

from raftlog.client.requests import RefusedItemsError, check_items
from raftlog.errors import ErrorCode
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb

WRITTEN = common_pb2.WriteResult(token=common_pb2.MetadataToken(epoch=1, offset=40))
EXISTS = common_pb2.Error(error_code=36, error_message="topic 'a' exists", field="topics[0].name")
BAD_NAME = common_pb2.Error(
    error_code=17, error_message="'?' is no topic name", field="topics[2].name"
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


def test_one_refused_item_is_raised_as_its_error() -> None:
    async def check(write: Any) -> None:
        with pytest.raises(RefusedItemsError) as raised:
            await write(BODY)
        error = raised.value
        assert (error.code, error.message, error.field) == (
            36,
            "topic 'a' exists",
            "topics[0].name",
        )
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
        assert "no topic name" in error.message
        assert not error.response.create_topics.topics[1].HasField("error")

    by_all_clients(created(EXISTS, None, BAD_NAME), check)


def test_results_are_returned_on_demand() -> None:
    async def check(write: Any) -> None:
        response = await write(BODY, raise_refused=False)
        assert [one.error.error_code for one in response.create_topics.topics] == [36, 0]

    by_all_clients(created(EXISTS, None), check)


def test_what_is_as_wanted_already_is_no_refusal() -> None:
    part = pb.ElectedPartition(error=common_pb2.Error(error_code=ErrorCode.ELECTION_NOT_NEEDED))
    elected = pb.ElectLeadersResponse(topics=[pb.ElectedTopic(name="t", partitions=[part])])
    assert check_items(pb.ControllerResponse(elect_leaders=elected)).HasField("elect_leaders")


def _error_paths(descriptor: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Where a response says of one of its items that it was refused."""
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
def test_every_response_with_items_is_looked_through(body: str, path: tuple[str, ...]) -> None:
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


def test_every_kind_of_item_was_found() -> None:
    assert len(ITEMS) >= 9
