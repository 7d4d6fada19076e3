"""A cluster in which certificates name the nodes and tokens name the clients: the log names the
owner of each write, and another's certificate or a forged token gets nothing.
"""

import json
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import (
    PATIENCE_S,
    configure,
    on_files,
    one_message,
    raftlog,
    running,
    says,
    succeed,
    until,
)

from raftlog.local.cluster import LocalCluster, Node

RULE = "CN=node-{id}"
SAID = "does not take this node's certificate for its own"
REFUSED = re.compile(
    r'^raftlog_transport_complaints_total\{kind="unauthenticated"\} (\d+)', re.MULTILINE
)


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

    def refusals(self, nodes: list[Node]) -> int:
        """Return the number of peers that these nodes refused for lack of proof of identity."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        count = 0
        for node in nodes:
            with opener.open(f"{node.http}/metrics", timeout=PATIENCE_S) as response:
                found = REFUSED.search(response.read().decode())
            assert found is not None
            count += int(found[1])
        return count

    def describe(self) -> Any:
        ran = succeed(
            "quorum describe --json",
            controllers=self.cluster,
            environment=self.client.environment(),
        )
        return json.loads(ran.out)


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


def test_log_names_the_owner_of_each_write(identified: Identified) -> None:
    """Return whether through a broker or not, by a token or by a certificate alone."""
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


@pytest.mark.nightly
def test_foreign_token_gets_no_right_with_any_certificate(
    identified: Identified, tmp_path: Path
) -> None:
    cluster = identified.cluster
    before = [identified.refusals(nodes) for nodes in (cluster.controllers, cluster.brokers)]
    on_files("certs init", tmp_path / "other")
    on_files("certs token", tmp_path / "other", "--client", "alice")
    forged = tmp_path / "other" / "client-alice.token"
    at = ("--bootstrap-controller", cluster.bootstrap_controllers, "--timeout", 1.5)
    through = ("--bootstrap-server", cluster.bootstrap_servers, "--timeout", 1.5)
    for command, code in (
        # Of nodes that are asked one by one none answers; any other call is refused at once.
        (("quorum", "describe", *at), 4),
        (("brokers", "list", *at), 1),
        (("topics", "create", "forged", *through), 1),
        (("log", "dump", *at), 1),
    ):
        ran = raftlog(*command, environment=identified.showing(forged))
        assert ran.code == code, ran
        refused = "UNAUTHENTICATED" if code == 4 else "SASL_AUTHENTICATION_FAILED"
        says(one_message(ran), refused, "no key of the token's id")
    after = [identified.refusals(nodes) for nodes in (cluster.controllers, cluster.brokers)]
    assert after[0] > before[0]
    assert after[1] > before[1]
    ran = succeed("topics list", brokers=cluster, environment=identified.client.environment())
    assert "forged" not in ran.out
    logs = "".join(cluster.log_path(node.name).read_text() for node in cluster.nodes)
    assert "a peer has not proved who it is" in logs
    assert forged.read_text().strip().split(".")[2] not in logs
