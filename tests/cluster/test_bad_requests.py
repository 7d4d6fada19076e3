"""Invalid requests to a running cluster: typed errors, nothing written, no process dies."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from cluster_kit import PATIENCE_S, metrics_of, running, says, setting, succeed
from prometheus_client.parser import text_string_to_metric_families
from reference_pages.metrics import of_a_broker, of_a_controller

from raftlog.client.broker_client import BrokerClient
from raftlog.client.controller_client import ControllerClient
from raftlog.errors import ApiError, ErrorCode
from raftlog.local.cluster import LocalCluster
from raftlog.transport.api import TransportLimits
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
    """Assert that every process is still the same."""
    processes = {node.name: cluster.pid(node.name) for node in cluster.nodes}
    assert all(processes.values())
    yield
    assert {node.name: cluster.pid(node.name) for node in cluster.nodes} == processes


def records_from(cluster: LocalCluster, offset: int) -> list[Any]:
    """Return the committed records from an offset on, without the cluster's own."""
    dumped = succeed("log dump --json --from", offset, controllers=cluster)
    records = [json.loads(line) for line in dumped.out.splitlines()]
    return [record for record in records if record["type"] not in NOBODYS_DOING]


def topic(name: str, partitions: int = 1, replicas: int = 1) -> pb.CreateTopicsRequest:
    one = pb.CreatableTopic(name=name, num_partitions=partitions, replication_factor=replicas)
    return pb.CreateTopicsRequest(topics=[one])


REFUSED = [
    pytest.param(topic("taken"), _E.TOPIC_ALREADY_EXISTS, "topics[0].name", id="exists"),
    *(
        pytest.param(
            setting("k", "v" * (size + 1)),
            _E.MESSAGE_TOO_LARGE,
            "incremental_alter_configs",
            id=f"above the {what}'s limit",
        )
        for what, size in (("request", REQUEST_BYTES), ("transport", TRANSPORT_BYTES))
    ),
]


def error_in(response: Any) -> common_pb2.Error:
    """Return the error of the only item of a response."""
    body = getattr(response, response.WhichOneof("body"))
    (item,) = body.topics if hasattr(body, "topics") else body.results
    return item.error


async def refusal(call: Awaitable[Any]) -> tuple[ErrorCode, str, bool]:
    """Return (code, field, outcome unknown) of a call that fails as a whole or in its item."""
    try:
        error = error_in(await call)
    except ApiError as failed:
        return failed.code, failed.field, failed.outcome_unknown
    return ErrorCode(error.error_code), error.field, error.outcome_unknown


@pytest.mark.parametrize(("request_", "code", "field"), REFUSED)
async def test_invalid_request_is_refused_with_its_field(
    cluster: LocalCluster, request_: Any, code: ErrorCode, field: str
) -> None:
    """By the controller, directly and through a broker."""
    transport = GrpcTransport(TransportLimits(max_message_bytes=TRANSPORT_BYTES))
    brokers = BrokerClient(
        transport, [node.endpoint for node in cluster.brokers], rng=random.Random(0)
    )
    controllers = ControllerClient(
        transport, [node.endpoint for node in cluster.controllers], rng=random.Random(0)
    )
    try:
        for call in (brokers.write, controllers.call):
            assert await refusal(call(request_, timeout_s=PATIENCE_S)) == (code, field, False)
    finally:
        brokers.close()
        controllers.close()
        await transport.close()


async def active_stub(cluster: LocalCluster, channel_to: Callable[[str], Any]) -> Any:
    leader = await asyncio.to_thread(cluster.wait_leader, PATIENCE_S)
    return controller_pb2_grpc.ControllerStub(channel_to(leader.endpoint))


@pytest.fixture
async def channel_to() -> Any:
    """Plain channels without our client."""
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
    """Return the typed error in a gRPC status."""
    values = [value for key, value in error.trailing_metadata() or () if key == ERROR_METADATA_KEY]
    return common_pb2.Error.FromString(values[0])


async def test_foreign_cluster_id_is_refused(cluster: LocalCluster, channel_to: Any) -> None:
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
    assert response.error.error_code == _E.INCONSISTENT_CLUSTER_ID
    assert response.error.field == "cluster_id"
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


# --- what a node shows of itself ----------------------------------------------------------------


def test_metrics_are_valid_prometheus_text(cluster: LocalCluster) -> None:
    shown: dict[str, dict[str, Any]] = {
        node.name: {one.name: one for one in text_string_to_metric_families(metrics_of(node))}
        for node in cluster.nodes
    }

    def value(of: dict[str, Any], name: str) -> float:
        return float(of[name].samples[0].value)

    active = "kafka_controller_active_controllers"
    (leader,) = (of for of in shown.values() if active in of and value(of, active) == 1)
    assert value(leader, "kafka_controller_global_topics") == 1
    assert value(leader, "kafka_controller_fenced_brokers") == 0
    lao = value(leader, "raftlog_lowest_acknowledged_offset")
    assert 0 < lao < value(leader, "raft_metrics_high_watermark")
    assert value(leader, "raftlog_lowest_known_lao") <= lao
    # The reference is generated from stand-ins of nodes.
    families = (*of_a_controller(), *of_a_broker())
    reference = {family.name + "_info" * (family.type == "info") for family in families}
    every = {name for of in shown.values() for name in of}
    assert {
        name for name in every - reference if not name.startswith(("process_", "python_"))
    } == set()


def test_readiness_reason_names_the_role(cluster: LocalCluster) -> None:
    reasons = {node.name: cluster.ready(node.name, PATIENCE_S) for node in cluster.nodes}
    assert all(ready for ready, _ in reasons.values())
    told = sorted(reason.split(" ")[0] for _, reason in reasons.values())
    assert told == ["active", "following", "following", "serving", "serving"]
