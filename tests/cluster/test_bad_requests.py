"""Bad requests against a running cluster: a typed error that names the field, nothing written,
every process alive.

Also what a node shows of itself meanwhile: metrics and readiness.
"""

import asyncio
import json
import os
import random
import socket
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from cluster_kit import (
    PATIENCE_S,
    controllers_of,
    describe,
    running,
    says,
    setting,
    succeed,
    until_true,
)
from prometheus_client.parser import text_string_to_metric_families
from reference_pages.metrics import of_a_broker, of_a_controller

from raftlog.client.broker_client import BrokerClient
from raftlog.client.controller_client import ControllerClient
from raftlog.errors import ApiError, ErrorCode
from raftlog.local.cluster import LocalCluster
from raftlog.transport.api import WATCHES, Conversation, TransportLimits
from raftlog.transport.grpc_transport import GrpcTransport
from raftlog.transport.unary import ERROR_METADATA_KEY
from raftlog.wire.broker.v1 import broker_pb2, broker_pb2_grpc
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb
from raftlog.wire.controller.v1 import controller_pb2_grpc
from raftlog.wire.records.v1 import records_pb2

import grpc  # isort: skip
import grpc.aio  # isort: skip

# A machine that is slow altogether must not fence brokers or elect leaders here: every record must
# be a test's own.
SETTINGS = {
    "broker.session.timeout.ms": 60_000,
    "broker.fencing.timeout.ms": 90_000,
    "controller.quorum.fetch.timeout.ms": 20_000,
    "socket.request.max.bytes": 16 << 20,
}
TRANSPORT_BYTES = 16 << 20
REQUEST_BYTES = 4 << 20
NOBODYS_DOING = {"PROGRESS", "LEADER_CHANGE"}

_E = ErrorCode


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    made = LocalCluster(
        tmp_path_factory.mktemp("requests") / "c", controllers=3, brokers=2, settings=SETTINGS
    )
    with running(made):
        succeed("topics create taken -p 2 -r 2 --acks visible", brokers=made)
        (*_, last) = records_from(made, 0)
        yield made
        # All these requests have written nothing.
        assert records_from(made, last["offset"] + 1) == []


@pytest.fixture(autouse=True)
def nobody_died(cluster: LocalCluster) -> Iterator[None]:
    """Every process is the one it was."""
    processes = {node.name: cluster.pid(node.name) for node in cluster.nodes}
    assert all(processes.values())
    yield
    assert {node.name: cluster.pid(node.name) for node in cluster.nodes} == processes


def records_from(cluster: LocalCluster, offset: int) -> list[Any]:
    """The committed log from an offset, without what nobody asked for."""
    dumped = succeed("log dump --json --from", offset, controllers=cluster)
    records = [json.loads(line) for line in dumped.out.splitlines()]
    return [record for record in records if record["type"] not in NOBODYS_DOING]


def topic(name: str, partitions: int = 1, replicas: int = 1) -> pb.CreateTopicsRequest:
    one = pb.CreatableTopic(name=name, num_partitions=partitions, replication_factor=replicas)
    return pb.CreateTopicsRequest(topics=[one])


TOO_LARGE = "incremental_alter_configs"
REFUSED = [
    pytest.param(topic("taken"), _E.TOPIC_ALREADY_EXISTS, "topics[0].name", id="exists"),
    pytest.param(
        setting("k", "v" * (REQUEST_BYTES + 1)),
        _E.MESSAGE_TOO_LARGE,
        TOO_LARGE,
        id="above the request's limit",
    ),
    pytest.param(
        setting("k", "v" * (TRANSPORT_BYTES + 1)),
        _E.MESSAGE_TOO_LARGE,
        TOO_LARGE,
        id="above the transport's limit",
    ),
]


def error_in(response: Any) -> common_pb2.Error:
    """The error of the one item of a response."""
    body = getattr(response, response.WhichOneof("body"))
    (item,) = body.topics if hasattr(body, "topics") else body.results
    return item.error


async def refusal(call: Awaitable[Any]) -> tuple[ErrorCode, str, bool]:
    """(code, field, whether the outcome is unknown) of a call that fails, as a whole or in its one
    item.
    """
    try:
        error = error_in(await call)
    except ApiError as failed:
        return failed.code, failed.field, failed.outcome_unknown
    return ErrorCode(error.error_code), error.field, error.outcome_unknown


@pytest.mark.parametrize(("request_", "code", "field"), REFUSED)
async def test_refused_with_the_field(
    cluster: LocalCluster, request_: Any, code: ErrorCode, field: str
) -> None:
    """The controller refuses a bad request with its field, directly and through a broker."""
    transport = GrpcTransport(TransportLimits(max_message_bytes=TRANSPORT_BYTES))
    brokers = BrokerClient(
        transport, [node.endpoint for node in cluster.brokers], rng=random.Random(0)
    )
    controllers = ControllerClient(
        transport, [node.endpoint for node in cluster.controllers], rng=random.Random(0)
    )
    try:
        assert await refusal(brokers.write(request_, timeout_s=PATIENCE_S)) == (code, field, False)
        assert await refusal(controllers.call(request_, timeout_s=PATIENCE_S)) == (
            code,
            field,
            False,
        )
    finally:
        brokers.close()
        controllers.close()
        await transport.close()


async def active_stub(cluster: LocalCluster, channel_to: Callable[[str], Any]) -> Any:
    leader = await asyncio.to_thread(cluster.wait_leader, PATIENCE_S)
    return controller_pb2_grpc.ControllerStub(channel_to(leader.endpoint))


@pytest.fixture
async def channel_to() -> Any:
    """Plain channels, as a foreign client has them; they send what they are told to send."""
    channels: list[Any] = []

    def make(address: str) -> Any:
        channels.append(
            grpc.aio.insecure_channel(address, options=[("grpc.max_send_message_length", -1)])
        )
        return channels[-1]

    yield make
    for channel in channels:
        await channel.close()


def wire_error(error: grpc.aio.AioRpcError) -> common_pb2.Error:
    """The typed error that comes with a status."""
    values = [value for key, value in error.trailing_metadata() or () if key == ERROR_METADATA_KEY]
    return common_pb2.Error.FromString(values[0])


def stale_requests(cluster: LocalCluster) -> list[Any]:
    """Return requests of a broker's previous registration, of an unknown broker, and of a broker
    that is not the leader it claims to be.
    """
    (first, _) = describe(cluster)["brokers"]
    broker_id, epoch = first["id"], first["epoch"]
    states = [records_pb2.BrokerState(broker_id=broker_id, broker_epoch=epoch)]
    partition = pb.AlterPartitionData(new_isr_with_epochs=states)
    topics = [pb.AlterPartitionTopic(topic_id=b"\x01" * 16, partitions=[partition])]
    return [
        pb.BrokerHeartbeatRequest(
            broker_id=broker_id, broker_epoch=epoch - 1, current_metadata_offset=epoch + 1
        ),
        pb.BrokerHeartbeatRequest(broker_id=broker_id, broker_epoch=epoch - 1, want_shut_down=True),
        pb.BrokerHeartbeatRequest(broker_id=99, broker_epoch=epoch),
        pb.AlterPartitionRequest(broker_id=broker_id, broker_epoch=epoch - 1, topics=topics),
        pb.AlterPartitionRequest(broker_id=99, broker_epoch=epoch, topics=topics),
    ]


async def test_stale_broker_epoch_is_refused_by_unary_call(
    cluster: LocalCluster, channel_to: Any
) -> None:
    stub = await active_stub(cluster, channel_to)
    for request in await asyncio.to_thread(stale_requests, cluster):
        method = getattr(stub, type(request).__name__.removesuffix("Request"))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await method(request, timeout=PATIENCE_S)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        error = wire_error(refused.value)
        assert (error.error_code, error.field, error.outcome_unknown) == (
            _E.STALE_BROKER_EPOCH,
            "broker_epoch",
            False,
        )


async def test_another_cluster_is_refused(cluster: LocalCluster, channel_to: Any) -> None:
    stub = await active_stub(cluster, channel_to)
    listeners = [records_pb2.Listener(name="PLAINTEXT", host="h", port=1)]
    registration = pb.RegisterBrokerRequest(
        broker_id=9, cluster_id="x", incarnation_id="i", listeners=listeners
    )
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.RegisterBroker(registration, timeout=PATIENCE_S)
    error = wire_error(refused.value)
    assert (error.error_code, error.field) == (_E.INCONSISTENT_CLUSTER_ID, "cluster_id")
    says(error.error_message, cluster.cluster_id, "'x'")
    # The same on the streams of controllers and of brokers, for requests of any kind.
    write = pb.ControllerRequest(cluster_id="x", create_topics=topic("t"))
    stream = stub.Converse(timeout=PATIENCE_S)
    await stream.write(pb.ControllerRequests(requests=[write]))
    (response,) = (await stream.read()).responses
    assert (response.error.error_code, response.error.field) == (
        _E.INCONSISTENT_CLUSTER_ID,
        "cluster_id",
    )
    stream.cancel()
    broker = broker_pb2_grpc.BrokerStub(channel_to(cluster.brokers[0].endpoint))
    stream = broker.Converse(timeout=PATIENCE_S)
    reads = broker_pb2.BrokerRequest(
        correlation_id=1, cluster_id="x", metadata=broker_pb2.MetadataRequest()
    )
    writes = broker_pb2.BrokerRequest(correlation_id=2, write=write)
    await stream.write(broker_pb2.BrokerRequests(requests=[reads, writes]))
    refused_codes: dict[int, int] = {}
    while len(refused_codes) < 2:
        for one in (await stream.read()).responses:
            refused_codes[one.correlation_id] = (
                one.error if one.HasField("error") else one.write.error
            ).error_code
    assert set(refused_codes.values()) == {_E.INCONSISTENT_CLUSTER_ID}
    stream.cancel()


async def test_a_request_without_a_body_is_refused(cluster: LocalCluster, channel_to: Any) -> None:
    stub = await active_stub(cluster, channel_to)
    stream = stub.Converse(timeout=PATIENCE_S)
    await stream.write(pb.ControllerRequests(requests=[pb.ControllerRequest(correlation_id=7)]))
    (response,) = (await stream.read()).responses
    assert (response.correlation_id, response.error.error_code) == (7, _E.INVALID_REQUEST)
    stream.cancel()


async def still_answers(cluster: LocalCluster) -> None:
    """Every node answers a newcomer, and the active controller decides."""

    async def all_answer() -> bool:
        quorum = await asyncio.to_thread(cluster.quorum, PATIENCE_S)
        ready = [await asyncio.to_thread(cluster.ready, node.name, 5.0) for node in cluster.nodes]
        return len(quorum.descriptions) == 3 and all(one for one, _ in ready)

    await until_true(all_answer, "all nodes are ready")
    async with controllers_of(cluster) as client:
        dry_run = setting("k", "v")
        dry_run.validate_only = True
        await client.call(dry_run, timeout_s=PATIENCE_S)


async def code_of(stream: Any) -> Any:
    """Return the status with which a server ends a malformed stream."""
    try:
        while await stream.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code()
    return await stream.code()


async def test_malformed_messages_end_their_stream_alone(
    cluster: LocalCluster, channel_to: Any
) -> None:
    rng = random.Random(5)
    for conversation in Conversation:
        at_brokers = conversation in (Conversation.BROKER, *WATCHES, Conversation.REPLICA_FETCH)
        nodes = cluster.brokers if at_brokers else cluster.controllers
        for node in nodes:
            channel = channel_to(node.endpoint)
            for garbage in (b"\xff" * 64, rng.randbytes(4096)):
                stream = channel.stream_stream(conversation.value)(timeout=PATIENCE_S)
                await stream.write(garbage)
                assert await code_of(stream) is grpc.StatusCode.UNAVAILABLE
                says(await stream.details(), "malformed message")
    await still_answers(cluster)


async def test_malformed_unary_request_is_the_callers_mistake(
    cluster: LocalCluster, channel_to: Any
) -> None:
    methods = {
        "/raftlog.wire.controller.v1.Controller/CreateTopics": cluster.controllers,
        "/raftlog.wire.quorum.v1.Quorum/DescribeQuorum": cluster.controllers,
        "/raftlog.wire.broker.v1.Broker/Metadata": cluster.brokers,
    }
    for method, nodes in methods.items():
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await channel_to(nodes[0].endpoint).unary_unary(method)(
                b"\xff" * 64, timeout=PATIENCE_S
            )
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert wire_error(refused.value).error_code == _E.INVALID_REQUEST
    for node in (cluster.controllers[0], cluster.brokers[0]):
        assert "Traceback" not in cluster.log_path(node.name).read_text()


async def test_message_above_the_transports_limit_ends_its_call_alone(
    cluster: LocalCluster, channel_to: Any
) -> None:
    """The client of this test does not check the size before it sends, unlike ours."""
    huge = setting("k", "v" * (TRANSPORT_BYTES + 1))
    stub = await active_stub(cluster, channel_to)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.IncrementalAlterConfigs(huge, timeout=PATIENCE_S)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    for node, conversation in (
        (cluster.controllers[0], Conversation.CONTROLLER),
        (cluster.controllers[0], Conversation.REPLICATION),
        (cluster.brokers[0], Conversation.BROKER),
    ):
        stream = channel_to(node.endpoint).stream_stream(conversation.value)(timeout=PATIENCE_S)
        await stream.write(huge.SerializeToString())
        assert await code_of(stream) is grpc.StatusCode.RESOURCE_EXHAUSTED
    await still_answers(cluster)


async def test_random_bytes_on_every_port_do_no_harm(cluster: LocalCluster) -> None:
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    held: list[socket.socket] = []
    try:
        for node in cluster.nodes:
            for port in (node.port, node.http_port):
                for start in (b"", preface, b"\x16\x03\x01\x02\x00", b"GET / HTTP/1.1\r\n"):
                    with socket.create_connection(
                        ("127.0.0.1", port), timeout=PATIENCE_S
                    ) as connection:
                        connection.sendall(start + os.urandom(10_000))
                # One that says nothing, and stays.
                held.append(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S))
        await still_answers(cluster)
    finally:
        for connection in held:
            connection.close()


# --- what a node shows of itself ----------------------------------------------------------------


def test_metrics_are_what_prometheus_reads(cluster: LocalCluster) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    shown: dict[str, dict[str, Any]] = {}
    for node in cluster.nodes:
        with opener.open(f"{node.http}/metrics", timeout=PATIENCE_S) as response:
            assert response.headers["Content-Type"].startswith("text/plain")
            families = {
                family.name: family
                for family in text_string_to_metric_families(response.read().decode())
            }
        shown[node.name] = families
    active = [
        name
        for name, families in shown.items()
        if name.startswith("controller")
        and families["kafka_controller_active_controllers"].samples[0].value == 1
    ]
    assert len(active) == 1
    leader = shown[active[0]]
    assert leader["kafka_controller_global_topics"].samples[0].value == 1
    assert leader["kafka_controller_fenced_brokers"].samples[0].value == 0
    lao = leader["raftlog_lowest_acknowledged_offset"].samples[0].value
    assert 0 < lao < leader["raft_metrics_high_watermark"].samples[0].value
    assert leader["raftlog_lowest_known_lao"].samples[0].value <= lao
    every = {
        name
        for families in shown.values()
        for name in families
        if not name.startswith(("process_", "python_"))
    }
    assert every - metrics_of_reference() == set()


def metrics_of_reference() -> set[str]:
    """The metrics that the reference lists, which are collected from stand-ins of nodes."""
    families = (*of_a_controller(), *of_a_broker())
    return {family.name + "_info" * (family.type == "info") for family in families}


def test_readiness_says_as_what(cluster: LocalCluster) -> None:
    reasons = {node.name: cluster.ready(node.name, PATIENCE_S) for node in cluster.nodes}
    assert all(ready for ready, _ in reasons.values())
    told = sorted(
        reason.split(" ")[0]
        for name, (_, reason) in reasons.items()
        if name.startswith("controller")
    )
    assert told == ["active", "following", "following"]
    assert all(
        reason.startswith("serving up to")
        for name, (_, reason) in reasons.items()
        if name.startswith("broker")
    )
