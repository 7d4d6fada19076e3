"""A cluster in which certificates say which node they are of: it works, and nobody else can send in
a node's name, with a client's certificate or another node's.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import PATIENCE_S, raftlog, until

from raftlog.cli.local import LocalCluster
from raftlog.errors import ErrorCode
from raftlog.transport.api import Conversation
from raftlog.transport.tls import TlsConfig
from raftlog.wire.controller.v1 import controller_pb2 as controller
from raftlog.wire.data.v1 import data_pb2 as data
from raftlog.wire.quorum.v1 import quorum_pb2 as quorum

import grpc  # isort: skip
import grpc.aio  # isort: skip

TIMEOUT_S = 10.0
FORGED_EPOCH_BY = 5
RULE = "CN=node-{id}"
SAID = "does not take this node's certificate for its own"


@dataclass(frozen=True)
class Files:
    certificate: Path
    key: Path
    ca: Path

    def settings(self) -> dict[str, str]:
        return {
            "tls.certificate.file": str(self.certificate),
            "tls.key.file": str(self.key),
            "tls.ca.file": str(self.ca),
        }

    def environment(self) -> dict[str, str]:
        return {
            f"RAFTLOG_{key.upper().replace('.', '_')}": value
            for key, value in self.settings().items()
        }


def issue(directory: Path, name: str, *whom: object) -> Files:
    """By the authority in the directory."""
    ran = raftlog("certs", "issue", directory, *whom)
    assert ran.code == 0, ran
    return Files(directory / f"{name}.pem", directory / f"{name}.key", directory / "ca.pem")


@dataclass(frozen=True)
class Identified:
    cluster: LocalCluster
    client: Files
    nodes: dict[int, Files]

    def describe(self) -> Any:
        at = ("--bootstrap-controller", self.cluster.bootstrap_controllers)
        ran = raftlog("quorum", "describe", "--json", *at, environment=self.client.environment())
        assert ran.code == 0, ran
        return json.loads(ran.out)

    def brokers(self) -> Any:
        at = ("--bootstrap-controller", self.cluster.bootstrap_controllers)
        ran = raftlog("brokers", "list", "--json", *at, environment=self.client.environment())
        assert ran.code == 0, ran
        return json.loads(ran.out)


@pytest.fixture(scope="module")
def identified(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Identified]:
    directory = tmp_path_factory.mktemp("identified")
    pki = directory / "pki"
    ran = raftlog("certs", "init", pki)
    assert ran.code == 0, ran
    cluster = LocalCluster(directory / "c", controllers=3, brokers=2)
    cluster.generate()
    nodes: dict[int, Files] = {}
    for node in cluster.nodes:
        whom = ("--node", node.node_id, "--host", "127.0.0.1", "--host", "localhost")
        files = nodes[node.node_id] = issue(pki, f"node-{node.node_id}", *whom)
        lines = {**files.settings(), "node.principal.rule": RULE}.items()
        with cluster.config_path(node.name).open("a") as config:
            config.writelines(f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in lines)
    try:
        cluster.start_controllers()
        cluster.start_brokers()
        cluster.wait_ready([node.name for node in cluster.nodes], PATIENCE_S)
        yield Identified(cluster, issue(pki, "client-client", "--client", "client"), nodes)
    finally:
        cluster.stop_all(timeout_s=5)


def forgeries(
    cluster: LocalCluster, found: Any, brokers: Any
) -> list[tuple[str, Conversation, Any]]:
    """(address, conversation, envelope): each would do damage, were it believed.

    ``found``, ``brokers``: what the cluster says about itself.
    """
    cluster_id, epoch = cluster.cluster_id, found["leader_epoch"] + FORGED_EPOCH_BY
    leader = next(one for one in cluster.controllers if one.node_id == found["leader_id"])
    victim = next(one for one in cluster.controllers if one.node_id != found["leader_id"])
    voter, broker = victim.node_id, brokers["brokers"][0]
    vote = quorum.VoteRequest(
        cluster_id=cluster_id,
        replica_id=voter,
        replica_epoch=epoch,
        last_offset_epoch=epoch,
        last_offset=1 << 40,
        voter_id=leader.node_id,
    )
    begin = quorum.BeginQuorumEpochRequest(
        cluster_id=cluster_id, leader_id=voter, leader_epoch=epoch, leader_endpoint=victim.endpoint
    )
    end = quorum.EndQuorumEpochRequest(
        cluster_id=cluster_id, leader_id=found["leader_id"], leader_epoch=found["leader_epoch"]
    )
    fetch = quorum.FetchRequest(
        cluster_id=cluster_id,
        replica_id=voter,
        current_leader_epoch=found["leader_epoch"],
        fetch_offset=1 << 20,
    )
    heartbeat = controller.BrokerHeartbeatRequest(
        broker_id=broker["broker_id"], broker_epoch=broker["broker_epoch"], want_shut_down=True
    )
    report = controller.MetadataFetchRequest(
        cluster_id=cluster_id,
        replica_id=broker["broker_id"],
        broker_epoch=broker["broker_epoch"],
        controller_epoch=found["leader_epoch"],
        applied_offset=1 << 40,
    )
    registration = controller.RegisterBrokerRequest(
        broker_id=broker["broker_id"], cluster_id=cluster_id, incarnation_id="0" * 32
    )
    moved = controller.UpdateRaftVoterRequest(voter_id=voter, endpoint="127.0.0.1:1")
    to_broker = next(one for one in cluster.brokers if one.node_id == broker["broker_id"])
    follower = data.ReplicaFetchRequest(
        cluster_id=cluster_id,
        leader_id=to_broker.node_id,
        replica_state=data.ReplicaState(
            replica_id=next(one.node_id for one in cluster.brokers if one is not to_broker),
            replica_epoch=1 << 40,
        ),
    )

    def asked(**body: Any) -> Any:
        return controller.ControllerRequests(requests=[controller.ControllerRequest(**body)])

    def said(**body: Any) -> Any:
        return quorum.QuorumMessages(messages=[quorum.QuorumMessage(**body)])

    return [
        (leader.endpoint, Conversation.QUORUM, said(vote_request=vote)),
        (leader.endpoint, Conversation.QUORUM, said(begin_quorum_epoch_request=begin)),
        (victim.endpoint, Conversation.QUORUM, said(end_quorum_epoch_request=end)),
        (leader.endpoint, Conversation.REPLICATION, fetch),
        (leader.endpoint, Conversation.CONTROLLER, asked(broker_heartbeat=heartbeat)),
        (leader.endpoint, Conversation.CONTROLLER, asked(register_broker=registration)),
        (leader.endpoint, Conversation.CONTROLLER, asked(update_raft_voter=moved)),
        (leader.endpoint, Conversation.OBSERVER, report),
        (to_broker.endpoint, Conversation.REPLICA_FETCH, follower),
    ]


RESPONSES: dict[Conversation, Any] = {
    Conversation.QUORUM: quorum.QuorumMessages,
    Conversation.REPLICATION: quorum.FetchResponse,
    Conversation.CONTROLLER: controller.ControllerResponses,
    Conversation.OBSERVER: controller.MetadataFetchResponse,
    Conversation.REPLICA_FETCH: data.ReplicaFetchResponse,
}


def code_of(response: Any) -> int:
    """The error code of any of them."""
    if isinstance(response, quorum.QuorumMessages):
        (message,) = response.messages
        return int(getattr(message, message.WhichOneof("body")).error_code)
    if isinstance(response, controller.ControllerResponses):
        (response,) = response.responses
    return int(response.error.error_code if hasattr(response, "error") else response.error_code)


async def send(address: str, conversation: Conversation, envelope: Any, files: Files) -> int:
    """The error code of what comes back."""
    credentials = TlsConfig(files.certificate, files.key, files.ca).channel_credentials()
    async with grpc.aio.secure_channel(address, credentials) as channel:
        stream = channel.stream_stream(conversation.value)()
        async with asyncio.timeout(TIMEOUT_S):
            await stream.write(envelope.SerializeToString())
            answer = await stream.read()
        stream.cancel()
    return code_of(RESPONSES[conversation].FromString(answer))


def state_of(found: Any, brokers: Any) -> Any:
    """What a forgery would have changed."""
    return (
        found["leader_id"],
        found["leader_epoch"],
        sorted((one["node_id"], one["endpoint"]) for one in found["voters"]),
        [(one["broker_id"], one["broker_epoch"], one["state"]) for one in brokers["brokers"]],
    )


def test_nobody_else_sends_in_a_nodes_name(identified: Identified) -> None:
    found, brokers = identified.describe(), identified.brokers()
    # The certificate of a node, too, is that of one node only: of none that is forged here.
    last_broker = max(identified.nodes)
    for files in (identified.client, identified.nodes[last_broker]):
        for address, conversation, envelope in forgeries(identified.cluster, found, brokers):
            claims_itself = files is not identified.client and f"replica_id: {last_broker}" in str(
                envelope
            )
            if not claims_itself:
                code = asyncio.run(send(address, conversation, envelope, files))
                assert code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED, (conversation, envelope)
    assert state_of(identified.describe(), identified.brokers()) == state_of(found, brokers)
    at = ("--bootstrap-server", identified.cluster.bootstrap_servers)
    ran = raftlog(
        "topics", "create", "t", "-r", 2, "--acks", "visible", *at,
        environment=identified.client.environment(),
    )  # fmt: skip
    assert ran.code == 0, ran


def test_the_log_names_who_really_wrote(identified: Identified) -> None:
    """Whether through a broker or not, and whatever the client states."""
    cluster, environment = identified.cluster, identified.client.environment()
    through = ("--bootstrap-server", cluster.bootstrap_servers)
    at = ("--bootstrap-controller", cluster.bootstrap_controllers)
    for key, where in (("a", through), ("b", at)):
        ran = raftlog(
            "configs",
            "alter",
            "client-metrics",
            key,
            "--set",
            "interval.ms=1000",
            *where,
            environment=environment,
        )
        assert ran.code == 0, ran
    ran = raftlog("log", "dump", "--json", *at, environment=environment)
    assert ran.code == 0, ran
    rows = [json.loads(line) for line in ran.out.splitlines()]
    wrote = {
        row["record"]["resource_name"]: row["principal"] for row in rows if row["type"] == "CONFIG"
    }
    assert sorted(wrote) == ["a", "b"]
    assert {who.partition(",")[0] for who in wrote.values()} == {"User:CN=client"}
    registered = {
        row["record"]["broker_id"]: row["principal"].partition(",")[0]
        for row in rows
        if row["type"] == "REGISTER_BROKER"
    }
    assert registered == {node.node_id: f"User:CN=node-{node.node_id}" for node in cluster.brokers}


@pytest.mark.nightly
def test_a_unary_call_is_no_way_around(identified: Identified) -> None:
    found, broker = identified.describe(), identified.brokers()["brokers"][0]
    leader = next(
        one for one in identified.cluster.controllers if one.node_id == found["leader_id"]
    )
    heartbeat = controller.BrokerHeartbeatRequest(
        broker_id=broker["broker_id"], broker_epoch=broker["broker_epoch"], want_shut_down=True
    )

    async def call() -> grpc.StatusCode:
        files = identified.client
        credentials = TlsConfig(files.certificate, files.key, files.ca).channel_credentials()
        async with grpc.aio.secure_channel(leader.endpoint, credentials) as channel:
            method = channel.unary_unary("/raftlog.wire.controller.v1.Controller/BrokerHeartbeat")
            try:
                await method(heartbeat.SerializeToString(), timeout=TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                return error.code()
        return grpc.StatusCode.OK

    async def call_through(broker_endpoint: str) -> grpc.StatusCode:
        files = identified.client
        credentials = TlsConfig(files.certificate, files.key, files.ca).channel_credentials()
        write = controller.ControllerRequest(broker_heartbeat=heartbeat)
        async with grpc.aio.secure_channel(broker_endpoint, credentials) as channel:
            method = channel.unary_unary("/raftlog.wire.broker.v1.Broker/Write")
            try:
                await method(write.SerializeToString(), timeout=TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                return error.code()
        return grpc.StatusCode.OK

    assert asyncio.run(call()) is grpc.StatusCode.PERMISSION_DENIED
    # The broker itself would forward it with its own certificate.
    itself = next(one for one in identified.cluster.brokers if one.node_id == heartbeat.broker_id)
    assert asyncio.run(call_through(itself.endpoint)) is grpc.StatusCode.PERMISSION_DENIED
    assert identified.brokers()["brokers"][0]["state"] == "active"


@pytest.mark.nightly
def test_a_broker_with_anothers_certificate_ends_and_says_why(
    identified: Identified, tmp_path: Path
) -> None:
    cluster = identified.cluster
    name = cluster.brokers[-1].name
    path = cluster.config_path(name)
    kept = path.read_text()
    own, others = identified.nodes[cluster.brokers[-1].node_id], identified.client
    cluster.stop([name])
    try:
        path.write_text(
            kept.replace(str(own.certificate), str(others.certificate)).replace(
                str(own.key), str(others.key)
            )
        )
        cluster.start(name)
        assert cluster.wait_gone(name, PATIENCE_S)
        assert "CLUSTER_AUTHORIZATION_FAILED" in cluster.log_path(name).read_text()
    finally:
        cluster.stop([name])
        path.write_text(kept)
        cluster.start(name)
        cluster.wait_ready([name], PATIENCE_S)


@pytest.mark.nightly
def test_a_controller_with_anothers_certificate_gets_nowhere_and_says_why(
    identified: Identified,
) -> None:
    cluster, found = identified.cluster, identified.describe()
    node = next(one for one in cluster.controllers if one.node_id != found["leader_id"])
    path = cluster.config_path(node.name)
    kept, own = path.read_text(), identified.nodes[node.node_id]
    others = identified.nodes[found["leader_id"]]
    cluster.stop([node.name])
    try:
        path.write_text(
            kept.replace(str(own.certificate), str(others.certificate)).replace(
                str(own.key), str(others.key)
            )
        )
        said_before = cluster.log_path(node.name).read_text().count(SAID)
        cluster.start(node.name)
        until(lambda: cluster.log_path(node.name).read_text().count(SAID) > said_before, SAID)
        now = identified.describe()
        assert (now["leader_id"], now["leader_epoch"]) == (
            found["leader_id"],
            found["leader_epoch"],
        )
    finally:
        cluster.stop([node.name])
        path.write_text(kept)
        cluster.start(node.name)
        cluster.wait_ready([node.name], PATIENCE_S)
