from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from google.protobuf.message_factory import GetMessageClass
from scenarios import scenario
from structlog.testing import capture_logs
from transport_worlds import Recorder, World, echo, run_real

from raftlog.errors import ApiError, ErrorCode
from raftlog.transport.api import Conversation
from raftlog.transport.bounds import Complaint
from raftlog.transport.statuses import (
    LEADER_ENDPOINT_METADATA_KEY,
    RICH_STATUS_KEY,
    error_from_wire,
    error_to_wire,
)
from raftlog.transport.unary import (
    ERROR_METADATA_KEY,
    LEADER_METADATA_KEY,
    STATUS,
    Caller,
    UnaryLink,
    unary_handler,
)
from raftlog.wire.broker.v1 import broker_pb2, broker_pb2_grpc
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2, controller_pb2_grpc
from raftlog.wire.quorum.v1 import quorum_pb2, quorum_pb2_grpc

import grpc  # isort: skip
import grpc.aio  # isort: skip

CONTROLLER = controller_pb2.DESCRIPTOR.services_by_name["Controller"]
BROKER = broker_pb2.DESCRIPTOR.services_by_name["Broker"]
QUORUM = quorum_pb2.DESCRIPTOR.services_by_name["Quorum"]


def controller_test(
    answer: Callable[[Any, Caller], Awaitable[Any]], test: Callable[[Any], Awaitable[None]]
) -> None:
    async def scenario(world: World) -> None:
        handler = unary_handler(CONTROLLER, controller_pb2.ControllerRequest, answer)
        listener = await world.server.listen(
            world.bind, {Conversation.CONTROLLER: Recorder(echo).accept}, extra_handlers=[handler]
        )
        async with grpc.aio.insecure_channel(listener.address) as channel:
            await test(controller_pb2_grpc.ControllerStub(channel))

    run_real(scenario)


def creation(stub: Any) -> Any:
    return stub.CreateTopics(controller_pb2.CreateTopicsRequest())


async def refused(call: Any) -> tuple[Any, common_pb2.Error, dict[str, Any]]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    metadata = dict(caught.value.trailing_metadata())
    return caught.value.code(), common_pb2.Error.FromString(metadata[ERROR_METADATA_KEY]), metadata


def test_each_method_uses_its_own_body() -> None:
    asked: list[str] = []

    async def answer(item: Any, _: Caller) -> controller_pb2.ControllerResponse:
        body = item.WhichOneof("body")
        asked.append(body)
        response = controller_pb2.ControllerResponse()
        getattr(response, body).SetInParent()
        for topic in item.create_topics.topics:
            response.create_topics.topics.add(name=topic.name)
        return response

    async def test(stub: Any) -> None:
        topics = [controller_pb2.CreatableTopic(name="orders")]
        created = await stub.CreateTopics(controller_pb2.CreateTopicsRequest(topics=topics))
        assert [topic.name for topic in created.topics] == ["orders"]
        bodies = controller_pb2.ControllerRequest.DESCRIPTOR.fields_by_name
        for method in (one for one in CONTROLLER.methods if not one.client_streaming):
            answered = await getattr(stub, method.name)(GetMessageClass(method.input_type)())
            assert isinstance(answered, GetMessageClass(method.output_type))
            assert bodies[asked[-1]].message_type is method.input_type
        # The stream of the same service is served beside them.
        stream = stub.Converse()
        item = controller_pb2.ControllerRequest(correlation_id=3)
        await stream.write(controller_pb2.ControllerRequests(requests=[item]))
        assert (await stream.read()).responses[0].correlation_id == 3
        stream.cancel()

    controller_test(answer, test)


@scenario(run_real)
async def test_refused_unary_call_is_counted(world: World) -> None:
    async def answer(item: Any, caller: Caller) -> controller_pb2.ControllerResponse:
        UnaryLink(caller).forbidden("no")
        return controller_pb2.ControllerResponse()

    handler = unary_handler(CONTROLLER, controller_pb2.ControllerRequest, answer)
    listener = await world.server.listen(world.bind, {}, extra_handlers=[handler])
    async with grpc.aio.insecure_channel(listener.address) as channel:
        stub = controller_pb2_grpc.ControllerStub(channel)
        await stub.DescribeBrokers(controller_pb2.DescribeBrokersRequest())
    complaints = world.server.bounds.complaints  # type: ignore[attr-defined]
    assert complaints.counts == {Complaint.FORBIDDEN: 1}


def test_clients_deadline_becomes_the_requests_timeout() -> None:
    timeouts: list[int] = []

    async def answer(item: Any, _: Caller) -> controller_pb2.ControllerResponse:
        timeouts.append(item.timeout_ms)
        return controller_pb2.ControllerResponse()

    async def test(stub: Any) -> None:
        await stub.DescribeBrokers(controller_pb2.DescribeBrokersRequest(), timeout=50)
        await stub.DescribeBrokers(controller_pb2.DescribeBrokersRequest())
        # gRPC rounds a deadline up, by a percent at most.
        assert 20_000 < timeouts[0] <= 50_500
        assert timeouts[1] == 0

    controller_test(answer, test)


@pytest.mark.parametrize("raised", [False, True], ids=["answered", "raised"])
def test_error_is_a_status_with_the_whole_error_attached(raised: bool) -> None:
    error = ApiError(
        ErrorCode.INVALID_PARTITIONS, "must be positive", field="topics[0].num_partitions"
    )

    async def answer(_: Any, __: Caller) -> controller_pb2.ControllerResponse:
        if raised:
            raise error
        return controller_pb2.ControllerResponse(error=error_to_wire(error))

    async def test(stub: Any) -> None:
        status, wire_error, metadata = await refused(creation(stub))
        assert status is grpc.StatusCode.INVALID_ARGUMENT
        assert wire_error == error_to_wire(error)
        assert LEADER_METADATA_KEY not in metadata

    controller_test(answer, test)


def test_not_controller_names_the_leader() -> None:
    async def answer(_: Any, __: Caller) -> controller_pb2.ControllerResponse:
        error = common_pb2.Error(error_code=ErrorCode.NOT_CONTROLLER, error_message="ask node 2")
        return controller_pb2.ControllerResponse(
            error=error, leader_id=2, leader_endpoint="10.0.0.2:9093"
        )

    async def test(stub: Any) -> None:
        status, error, metadata = await refused(creation(stub))
        assert status == grpc.StatusCode.FAILED_PRECONDITION
        assert error.error_code == ErrorCode.NOT_CONTROLLER
        assert metadata[LEADER_METADATA_KEY] == "2"
        assert metadata[LEADER_ENDPOINT_METADATA_KEY] == "10.0.0.2:9093"
        rich = common_pb2.RichStatus.FromString(metadata[RICH_STATUS_KEY])
        assert (rich.code, rich.message) == (status.value[0], "ask node 2")
        (detail,) = rich.details
        assert detail.type_url == "type.googleapis.com/google.rpc.ErrorInfo"
        info = common_pb2.ErrorInfo.FromString(detail.value)
        assert (info.reason, info.domain) == ("NOT_CONTROLLER", "raftlog")
        assert {entry.key: entry.value for entry in info.metadata} == {
            "outcome_unknown": "false",
            "leader_id": "2",
            "leader_endpoint": "10.0.0.2:9093",
        }

    controller_test(answer, test)


def test_unexpected_exception_is_logged_and_its_outcome_unknown() -> None:
    async def answer(_: Any, __: Caller) -> Any:
        raise ZeroDivisionError("secret")

    async def test(stub: Any) -> None:
        with capture_logs() as logs:
            status, error, _ = await refused(creation(stub))
        assert status is grpc.StatusCode.INTERNAL
        assert error.outcome_unknown
        assert "secret" not in error.error_message
        assert [entry["event"] for entry in logs] == ["a unary handler failed"]

    controller_test(answer, test)


@scenario(run_real)
async def test_explicit_handlers_serve_methods_without_a_body(world: World) -> None:
    async def describe(request: Any, _: Caller) -> quorum_pb2.DescribeQuorumResponse:
        if request.cluster_id == "other":
            raise ApiError(ErrorCode.INCONSISTENT_CLUSTER_ID, "not ours", field="cluster_id")
        return quorum_pb2.DescribeQuorumResponse(node_id=3)

    async def write(request: Any, _: Caller) -> controller_pb2.ControllerResponse:
        return controller_pb2.ControllerResponse(correlation_id=request.correlation_id)

    async def read(_: Any, __: Caller) -> broker_pb2.BrokerResponse:
        described = broker_pb2.DescribeClusterResponse(cluster_id="c1")
        return broker_pb2.BrokerResponse(describe_cluster=described)

    handlers = [
        unary_handler(
            QUORUM, explicit={"DescribeQuorum": describe, "FetchMissingRecords": describe}
        ),
        unary_handler(BROKER, broker_pb2.BrokerRequest, read, explicit={"Write": write}),
    ]
    listener = await world.server.listen(world.bind, {}, extra_handlers=handlers)
    async with grpc.aio.insecure_channel(listener.address) as channel:
        quorum, broker = quorum_pb2_grpc.QuorumStub(channel), broker_pb2_grpc.BrokerStub(channel)
        assert (await quorum.DescribeQuorum(quorum_pb2.DescribeQuorumRequest())).node_id == 3
        other = quorum_pb2.DescribeQuorumRequest(cluster_id="other")
        status, error, _ = await refused(quorum.DescribeQuorum(other))
        assert (status, error.field) == (grpc.StatusCode.FAILED_PRECONDITION, "cluster_id")
        written = await broker.Write(controller_pb2.ControllerRequest(correlation_id=9))
        assert written.correlation_id == 9
        described = await broker.DescribeCluster(broker_pb2.DescribeClusterRequest())
        assert described.cluster_id == "c1"


def test_unserved_method_is_a_programming_error() -> None:
    async def read(_: Any, __: Caller) -> Any:
        raise AssertionError

    with pytest.raises(ValueError, match=r"no function serves .*DescribeQuorum"):
        unary_handler(QUORUM)
    with pytest.raises(
        ValueError, match="no body field of BrokerRequest has the type DescribeQuorumRequest"
    ):
        unary_handler(QUORUM, broker_pb2.BrokerRequest, read)


def test_every_error_has_a_status_and_round_trips() -> None:
    for code in ErrorCode:
        if code is not ErrorCode.NONE:
            assert STATUS.get(code, grpc.StatusCode.INVALID_ARGUMENT) is not grpc.StatusCode.OK
        back = error_from_wire(
            error_to_wire(ApiError(code, "m", field="f", outcome_unknown=True)), leader_id=4
        )
        assert (back.code, back.message, back.field) == (code, "m", "f")
        assert (back.outcome_unknown, back.leader_id) == (True, 4)
    strange = error_from_wire(common_pb2.Error(error_code=4242, error_message="m"))
    assert strange.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "4242" in strange.message
