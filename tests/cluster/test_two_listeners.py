"""Nodes talk on one listener and clients on another, each with an authority of its own: a client's
certificate opens nothing on the first, and nobody is a node on the second.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import PATIENCE_S, configure, on_files, raftlog, running
from command_runs import Ran
from test_node_certificates import RULE, Files, issue

from raftlog.errors import ErrorCode
from raftlog.local.cluster import LocalCluster, Node, free_ports
from raftlog.transport.api import Conversation
from raftlog.wire.controller.v1 import controller_pb2 as pb

import grpc  # isort: skip
import grpc.aio  # isort: skip
from grpc_reflection.v1alpha import reflection_pb2_grpc  # isort: skip

HOST = "127.0.0.1"
OF_NODES = {
    "controller": (Conversation.QUORUM, Conversation.REPLICATION),
    "broker": (Conversation.REPLICA_FETCH,),
}


@dataclass(frozen=True)
class Divided:
    """``ports``: of the listeners for clients, by node id; ``client``: a certificate of the authority
    of clients; ``posing``: of that too, with the controller's name.
    """

    cluster: LocalCluster
    ports: dict[int, int]
    client: Files
    posing: Files

    def on(self, node: Node, *, clients: bool) -> str:
        return f"{HOST}:{self.ports[node.node_id]}" if clients else node.endpoint

    def at(self, role: str, *, clients: bool) -> tuple[str, str]:
        node = next(one for one in self.cluster.nodes if one.role == role)
        option = "--bootstrap-server" if role == "broker" else "--bootstrap-controller"
        return option, self.on(node, clients=clients)

    def run(self, *command: object) -> Ran:
        """As a client."""
        return raftlog(*command, environment=self.client.environment())


def authority(directory: Path, node_ids: range) -> list[Files]:
    on_files("certs init", directory)
    return [issue(directory, f"node-{one}", "--node", one, "--host", HOST) for one in node_ids]


@pytest.fixture(scope="module")
def divided(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Divided]:
    directory = tmp_path_factory.mktemp("divided")
    cluster = LocalCluster(directory / "c", controllers=1, brokers=2)
    cluster.generate()
    ids = range(1, 4)
    inside, outside = authority(directory / "inside", ids), authority(directory / "outside", ids)
    ports = dict(zip(ids, free_ports(3), strict=True))
    for node, own, others in zip(cluster.nodes, inside, outside, strict=True):
        controller = node.role == "controller"
        keys: dict[str, Any] = {
            "listeners": [f"CLIENTS://{HOST}:{ports[node.node_id]}", f"INTERNAL://{node.endpoint}"],
            "listener.security.protocol.map": "INTERNAL:SSL,CLIENTS:SSL",
            "controller.listener.names": "INTERNAL",
            "node.principal.rule": RULE,
            **own.settings(),
            **{f"listener.name.clients.{key}": to for key, to in others.settings().items()},
        }
        if not controller:
            keys["inter.broker.listener.name"] = "INTERNAL"
        configure(cluster, node, keys)
    client = issue(directory / "outside", "client-client", "--client", "client")
    with running(cluster):
        yield Divided(cluster, ports, client, outside[0])


def test_client_does_all_its_work_on_its_own_listener(divided: Divided, tmp_path: Path) -> None:
    controllers, brokers = (divided.at(one, clients=True) for one in ("controller", "broker"))
    for command in (
        ("quorum", "describe", *controllers),
        ("topics", "create", "t", "--replication-factor", 2, "--acks", "visible", *controllers),
        ("produce", "t", "--value", "hello", *brokers),
        ("consume", "t", "--from-beginning", "--max-messages", 1, *brokers),
        ("export", tmp_path / "export", *controllers),
    ):
        ran = divided.run(*command)
        assert ran.code == 0, ran
    found = divided.run("cluster", "describe", "--json", *brokers).json
    assert {one["address"] for one in found["brokers"]} == {
        f"{HOST}:{divided.ports[node.node_id]}" for node in divided.cluster.brokers
    }
    isrs = divided.run("partitions", "isr", "--json", *brokers).json["partitions"]
    assert [len(one["isr"]) for one in isrs] == [2], "brokers fetch from each other"


def test_clients_certificate_opens_nothing_on_the_listener_of_nodes(divided: Divided) -> None:
    for role in ("controller", "broker"):
        at = divided.at(role, clients=False)
        command = ("quorum", "describe") if role == "controller" else ("cluster", "describe")
        ran = divided.run(*command, *at, "--timeout", 2)
        assert ran.code == 4, ran


async def test_client_listener_has_no_conversations_between_nodes(divided: Divided) -> None:
    async def status(address: str, files: Files, conversation: Conversation) -> Any:
        async with channel(address, files) as opened:
            return await opened.stream_stream(conversation.value)().code()

    for node in divided.cluster.nodes:
        for conversation in OF_NODES[node.role]:
            address = divided.on(node, clients=True)
            found = await status(address, divided.posing, conversation)
            assert found is grpc.StatusCode.UNIMPLEMENTED, (node, conversation)


def test_client_listener_refuses_requests_in_a_nodes_name(divided: Divided) -> None:
    """Whatever its certificate says: this one is of the clients' authority, with a node's name."""
    beat = pb.BrokerHeartbeatRequest(broker_id=1)
    requests = pb.ControllerRequests(
        requests=[pb.ControllerRequest(correlation_id=1, broker_heartbeat=beat)]
    )

    async def ask() -> Any:
        node = divided.cluster.controllers[0]
        async with channel(divided.on(node, clients=True), divided.posing) as opened:
            stream = opened.stream_stream(
                Conversation.CONTROLLER.value,
                request_serializer=pb.ControllerRequests.SerializeToString,
                response_deserializer=pb.ControllerResponses.FromString,
            )()
            await stream.write(requests)
            return (await stream.read()).responses[0]

    assert asyncio.run(ask()).error.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_secured_listener_offers_no_reflection(divided: Divided) -> None:
    async def ask() -> Any:
        node = divided.cluster.controllers[0]
        async with channel(divided.on(node, clients=True), divided.client) as opened:
            stub = reflection_pb2_grpc.ServerReflectionStub(opened)
            # Nothing is asked: gRPC reports a write that comes after the refusal as INTERNAL.
            return await stub.ServerReflectionInfo(timeout=PATIENCE_S).code()

    assert asyncio.run(ask()) is grpc.StatusCode.UNIMPLEMENTED


def channel(address: str, files: Files) -> Any:
    credentials = grpc.ssl_channel_credentials(
        root_certificates=files.ca.read_bytes(),
        private_key=files.key.read_bytes(),
        certificate_chain=files.certificate.read_bytes(),
    )
    return grpc.aio.secure_channel(address, credentials)
