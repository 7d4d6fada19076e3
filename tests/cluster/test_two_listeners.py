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

from raftlog.local.cluster import LocalCluster, Node, free_ports

import grpc  # isort: skip
import grpc.aio  # isort: skip
from grpc_reflection.v1alpha import reflection_pb2_grpc  # isort: skip

HOST = "127.0.0.1"


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
