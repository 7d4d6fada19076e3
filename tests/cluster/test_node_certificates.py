"""Certificates name nodes, tokens clients: the log has the principal of each write."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cluster_kit import configure, on_files, running, succeed

from raftlog.local.cluster import LocalCluster

RULE = "CN=node-{id}"


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
    """Issue a certificate by the authority in the directory."""
    on_files("certs issue", directory, *whom)
    return Files(directory / f"{name}.pem", directory / f"{name}.key", directory / "ca.pem")


@dataclass(frozen=True)
class Identified:
    cluster: LocalCluster
    pki: Path
    client: Files
    nodes: dict[int, Files]

    def token(self, name: str) -> dict[str, str]:
        """A client's environment with a new token for this name."""
        on_files("certs token", self.pki, "--client", name)
        return self.showing(self.pki / f"client-{name}.token")

    def showing(self, token: Path) -> dict[str, str]:
        return {**self.client.environment(), "RAFTLOG_TOKEN_FILE": str(token)}


@pytest.fixture(scope="module")
def identified(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Identified]:
    directory = tmp_path_factory.mktemp("identified")
    pki = directory / "pki"
    on_files("certs init", pki)
    ran = on_files("certs token", pki, "--client", "alice")
    lines = [line.removeprefix("#   ") for line in ran.out.splitlines() if line.startswith("#   ")]
    assert (ran.code, len(lines)) == (0, 3), ran
    cluster = LocalCluster(directory / "c", controllers=3, brokers=2)
    cluster.generate()
    nodes: dict[int, Files] = {}
    for node in cluster.nodes:
        whom = ("--node", node.node_id, "--host", "127.0.0.1", "--host", "localhost")
        files = nodes[node.node_id] = issue(pki, f"node-{node.node_id}", *whom)
        configure(cluster, node, {**files.settings(), "node.principal.rule": RULE})
        with cluster.config_path(node.name).open("a") as config:
            config.writelines(f"{line}\n" for line in lines)
    client = issue(pki, "client-client", "--client", "client")
    with running(cluster):
        yield Identified(cluster, pki, client, nodes)


def test_log_names_the_principal_of_each_write(identified: Identified) -> None:
    """Through a broker or not, by a token or by a certificate alone."""
    cluster, client = identified.cluster, identified.client.environment()
    through = ("--bootstrap-server", cluster.bootstrap_servers)
    at = ("--bootstrap-controller", cluster.bootstrap_controllers)
    alice = identified.token("alice")
    for key, where, who in (
        ("a", through, alice),
        ("b", at, identified.token("bob")),
        ("c", through, client),
        ("d", at, client),
    ):
        alter = ("configs", "alter", "client-metrics", key, "--set", "interval.ms=1000", *where)
        succeed(*alter, environment=who)
    succeed("quorum describe", controllers=cluster, environment=alice)
    ran = succeed("log dump --json", controllers=cluster, environment=alice)
    rows = [json.loads(line) for line in ran.out.splitlines()]
    wrote = {
        row["record"]["resource_name"]: row["principal"].partition(",")[0]
        for row in rows
        if row["type"] == "CONFIG"
    }
    by_certificate = "User:CN=client"
    assert wrote == {
        "a": "User:alice", "b": "User:bob", "c": by_certificate, "d": by_certificate
    }  # fmt: skip
    registered = {
        row["record"]["broker_id"]: row["principal"].partition(",")[0]
        for row in rows
        if row["type"] == "REGISTER_BROKER"
    }
    assert registered == {node.node_id: f"User:CN=node-{node.node_id}" for node in cluster.brokers}
