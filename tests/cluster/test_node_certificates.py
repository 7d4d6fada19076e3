"""A cluster in which certificates say which node they are of: it works, the log names who wrote,
and a node with another's certificate gets nowhere. What a stranger gets: test_hostile_stranger.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import PATIENCE_S, configure, raftlog, running, until

from raftlog.local.cluster import LocalCluster

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
        configure(cluster, node, {**files.settings(), "node.principal.rule": RULE})
    client = issue(pki, "client-client", "--client", "client")
    with running(cluster):
        yield Identified(cluster, client, nodes)


def test_log_names_the_owner_of_the_token(identified: Identified) -> None:
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
def test_broker_with_anothers_certificate_ends_and_says_why(
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
def test_controller_with_anothers_certificate_gets_nowhere_and_says_why(
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
