"""A cluster with an authorizer: its administrator gives permissions and takes them away, and what
was taken away is refused on every broker.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from cluster_kit import on_files, raftlog, running
from test_node_certificates import RULE, Files, issue

from raftlog.local.cluster import LocalCluster

SETTINGS = {
    "node.principal.rule": RULE,
    "ssl.principal.mapping.rules": "RULE:^CN=([^,]*).*$/$1/,DEFAULT",
    "authorizer.class.name": "StandardAuthorizer",
    "super.users": "User:admin",
}
DENIED = 1
"""The exit code of what was refused."""


@dataclass(frozen=True)
class Guarded:
    """One controller and two brokers that ask an authorizer."""

    cluster: LocalCluster
    people: dict[str, Files]

    def run(self, who: str, *command: object) -> Any:
        return raftlog(*command, environment=self.people[who].environment())

    def done(self, who: str, *command: object) -> Any:
        ran = self.run(who, *command)
        assert ran.code == 0, ran
        return ran

    def refused(self, who: str, *command: object) -> str:
        ran = self.run(who, *command)
        assert ran.code == DENIED, ran
        assert "AUTHORIZATION_FAILED" in ran.err, ran
        return str(ran.err)

    @property
    def controllers(self) -> tuple[str, str]:
        return "--bootstrap-controller", self.cluster.bootstrap_controllers

    @property
    def brokers(self) -> list[tuple[str, str]]:
        return [("--bootstrap-server", one.endpoint) for one in self.cluster.brokers]

    def shown(self, who: str, broker: tuple[str, str]) -> list[str]:
        topics = self.done(who, "topics", "list", "--json", *broker).json["items"]
        return [one["name"] for one in topics]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("guarded")
    pki = directory / "pki"
    on_files("certs init", pki)
    cluster = LocalCluster(directory / "c", controllers=1, brokers=2)
    cluster.generate()
    for node in cluster.nodes:
        whom = ("--node", node.node_id, "--host", "127.0.0.1", "--host", "localhost")
        lines = {**issue(pki, f"node-{node.node_id}", *whom).settings(), **SETTINGS}.items()
        with cluster.config_path(node.name).open("a") as config:
            config.writelines(f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in lines)
    people = {name: issue(pki, f"client-{name}", "--client", name) for name in ("admin", "alice")}
    with running(cluster):
        yield Guarded(cluster, people)


@pytest.mark.nightly
def test_permission_is_given_and_taken_away_on_every_broker(guarded: Guarded) -> None:
    controllers, brokers = guarded.controllers, guarded.brokers
    guarded.done("admin", "topics", "create", "orders", "-r", 2, "--acks", "visible", *brokers[0])
    said = guarded.refused("alice", "topics", "create", "mine", *brokers[1])
    assert "User:alice from 127.0.0.1 may not CREATE TOPIC 'mine'" in said
    assert (
        "CLUSTER_AUTHORIZATION_FAILED"
        in guarded.run("alice", "quorum", "describe", *controllers).err
    )
    assert guarded.shown("alice", brokers[0]) == []
    on_orders = ("--topic", "orders", *controllers)
    guarded.done("admin", "acls", "add", "--allow-principal", "User:alice", "--operation", "read",
        "--operation", "alter-configs", *on_orders)  # fmt: skip
    for broker in brokers:
        assert guarded.shown("alice", broker) == ["orders"]
    guarded.done("alice", "configs", "alter", "topic", "orders", "--set", "retention.ms=1000",
        *brokers[1])  # fmt: skip
    tested = ("acls", "test", "--principal", "User:alice", "--topic", "orders", *controllers)
    said = guarded.done("admin", *tested, "--operation", "describe").out
    assert said == ("topic orders: allowed: allow User:alice from any host: read on topic orders\n")
    removed = guarded.done("admin", "acls", "remove", "--principal", "User:alice", *on_orders)
    assert removed.out.splitlines()[-1].startswith("acknowledged at offset")
    for broker in brokers:
        assert guarded.shown("alice", broker) == []
    guarded.refused("alice", "configs", "alter", "topic", "orders", "--set", "retention.ms=2000",
        *brokers[1])  # fmt: skip
    rows = [json.loads(line) for line in
        guarded.done("admin", "log", "dump", "--json", *controllers).out.splitlines()]  # fmt: skip
    wrote = {row["principal"] for row in rows if row["type"] == "CONFIG"}
    assert wrote == {"User:alice"}
    guarded.refused("alice", "log", "dump", "--json", *controllers)
