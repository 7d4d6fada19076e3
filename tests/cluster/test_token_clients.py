"""A cluster whose clients show tokens: the log names their owners, and a bad token gets nothing."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cluster_kit import PATIENCE_S, one_message, raftlog, says

from raftlog.local.cluster import LocalCluster, Node

REFUSED = re.compile(
    r'^raftlog_transport_complaints_total\{kind="unauthenticated"\} (\d+)', re.MULTILINE
)


@dataclass(frozen=True)
class Tokened:
    cluster: LocalCluster
    pki: Path
    environment: dict[str, str]
    """A client's, with its certificate and without a token."""

    def token(self, name: str, *more: object) -> dict[str, str]:
        """The environment with a new token for this name."""
        ran = raftlog("certs", "token", self.pki, "--client", name, *more)
        assert ran.code == 0, ran
        return {**self.environment, "RAFTLOG_TOKEN_FILE": str(self.pki / f"client-{name}.token")}


@pytest.fixture(scope="module")
def tokened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tokened]:
    directory = tmp_path_factory.mktemp("tokened")
    pki = directory / "pki"
    for command in (
        ("init", pki),
        ("issue", pki, "--client", "service"),
        ("token", pki, "--client", "alice"),
    ):
        ran = raftlog("certs", *command)
        assert ran.code == 0, ran
    lines = [line.removeprefix("#   ") for line in ran.out.splitlines() if line.startswith("#   ")]
    assert len(lines) == 3
    cluster = LocalCluster(directory / "c", controllers=1, brokers=1)
    cluster.generate()
    for node in cluster.nodes:
        issued = raftlog(
            "certs", "issue", pki, "--node", node.node_id, "--host", "127.0.0.1", "--host", "localhost"
        )  # fmt: skip
        assert issued.code == 0, issued
        settings = [line for line in issued.out.splitlines() if not line.startswith("#")]
        with cluster.config_path(node.name).open("a") as config:
            config.writelines(f"{line}\n" for line in (*settings, *lines))
    files = {"CERTIFICATE": "client-service.pem", "KEY": "client-service.key", "CA": "ca.pem"}
    environment = {f"RAFTLOG_TLS_{name}_FILE": str(pki / file) for name, file in files.items()}
    try:
        cluster.start_controllers()
        cluster.start_brokers()
        cluster.wait_ready([node.name for node in cluster.nodes], PATIENCE_S)
        yield Tokened(cluster, pki, environment)
    finally:
        cluster.stop_all(timeout_s=5)


def refusals(node: Node) -> int:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{node.http}/metrics", timeout=PATIENCE_S) as response:
        found = REFUSED.search(response.read().decode())
    assert found is not None
    return int(found[1])


def test_log_names_the_owner_of_the_token(tokened: Tokened) -> None:
    cluster = tokened.cluster
    at = ("--bootstrap-controller", cluster.bootstrap_controllers)
    through = ("--bootstrap-server", cluster.bootstrap_servers)
    alice = tokened.token("alice")
    for key, where, who in (
        ("a", through, alice),
        ("b", at, tokened.token("bob")),
        ("c", through, tokened.environment),
    ):
        alter = ("configs", "alter", "client-metrics", key, "--set", "interval.ms=1000", *where)
        ran = raftlog(*alter, environment=who)
        assert ran.code == 0, ran
    ran = raftlog("quorum", "describe", *at, environment=alice)
    assert ran.code == 0, ran
    ran = raftlog("log", "dump", "--json", *at, environment=alice)
    assert ran.code == 0, ran
    rows = [json.loads(line) for line in ran.out.splitlines()]
    wrote = {
        row["record"]["resource_name"]: row["principal"] for row in rows if row["type"] == "CONFIG"
    }
    assert wrote == {"a": "User:alice", "b": "User:bob", "c": "User:CN=service"}


@pytest.mark.nightly
def test_foreign_token_gets_no_right_with_any_certificate(tokened: Tokened, tmp_path: Path) -> None:
    cluster = tokened.cluster
    (controller,), (broker,) = cluster.controllers, cluster.brokers
    before = [refusals(controller), refusals(broker)]
    raftlog("certs", "init", tmp_path / "other")
    ran = raftlog("certs", "token", tmp_path / "other", "--client", "alice")
    assert ran.code == 0, ran
    forged = tmp_path / "other" / "client-alice.token"
    environment = {**tokened.environment, "RAFTLOG_TOKEN_FILE": str(forged)}
    at = ("--bootstrap-controller", cluster.bootstrap_controllers, "--timeout", 1.5)
    through = ("--bootstrap-server", cluster.bootstrap_servers, "--timeout", 1.5)
    for command, code in (
        # Of nodes that are asked one by one none answers; any other call is refused at once.
        (("quorum", "describe", *at), 4),
        (("brokers", "list", *at), 1),
        (("topics", "create", "forged", *through), 1),
        (("log", "dump", *at), 1),
    ):
        ran = raftlog(*command, environment=environment)
        assert ran.code == code, ran
        refused = "UNAUTHENTICATED" if code == 4 else "SASL_AUTHENTICATION_FAILED"
        says(one_message(ran), refused, "no key of the token's id")
    assert refusals(controller) > before[0]
    assert refusals(broker) > before[1]
    ran = raftlog(
        "topics", "list", "--bootstrap-server", cluster.bootstrap_servers,
        environment=tokened.environment,
    )  # fmt: skip
    assert ran.code == 0, ran
    assert "forged" not in ran.out
    logs = "".join(cluster.log_path(node.name).read_text() for node in cluster.nodes)
    assert "a peer has not proved who it is" in logs
    assert forged.read_text().strip().split(".")[2] not in logs
