"""The clusters that are attacked: one that believes everybody, and one that asks who it is."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from cluster_kit import PATIENCE_S
from prometheus_client.parser import text_string_to_metric_families
from siege import Siege
from test_node_certificates import RULE, Files

from raftlog.local.cluster import HOST, LocalCluster, Node
from raftlog.node.security.authority import Authority, Issued, new_authority
from raftlog.node.security.certificate_files import PairPaths, make_private_directory, write_pair
from raftlog.transport.tls import TlsConfig

import grpc  # isort: skip

_DAYS = 1
_OPERATOR = "operator"
SETTINGS = {
    # Pauses are part of some attacks.
    "controller.quorum.fetch.timeout.ms": 4_000,
    "broker.heartbeat.interval.ms": 300,
    # So long a broker that is unregistered may have a lease.
    "broker.session.timeout.ms": 6_000,
}


class Pki:
    """An authority in a directory, and what it issues."""

    def __init__(self, directory: Path) -> None:
        issued = new_authority("tests", _DAYS, datetime.now(UTC))
        make_private_directory(directory)
        self._directory = directory
        self._write("ca", issued)
        self._authority = Authority.load(directory)

    def node(self, node_id: int) -> Files:
        issued = self._authority.issue_node(node_id, [HOST], _DAYS, datetime.now(UTC))
        return self._write(f"node-{node_id}", issued)

    def client(self, name: str) -> Files:
        issued = self._authority.issue_client(name, _DAYS, datetime.now(UTC))
        return self._write(f"client-{name}", issued)

    def _write(self, name: str, issued: Issued) -> Files:
        paths = PairPaths.of(self._directory, name)
        write_pair(paths, issued.certificate, issued.key, replace=True)
        return Files(paths.certificate, paths.key, self._directory / "ca.pem")


class Intruder(NamedTuple):
    """``principal``: as the audit log names it, empty: nobody gets to know it."""

    name: str
    credentials: Any
    principal: str = ""


@dataclass(frozen=True)
class Guarded:
    """``nodes``: their certificates; ``client``: that of one who may do nothing; ``foreign``: one of
    another authority.
    """

    siege: Siege
    nodes: Mapping[int, Files]
    client: Files
    foreign: Files
    forged: list[str] = field(default_factory=list)
    """Requests refused so far that are counted."""

    def without_certificate(self) -> list[Intruder]:
        """Those who show none that counts."""
        ca, foreign = self.client.ca.read_bytes(), self.foreign
        shown = grpc.ssl_channel_credentials(
            ca, foreign.key.read_bytes(), foreign.certificate.read_bytes()
        )
        return [
            Intruder("in plain text", None),
            Intruder("without a certificate", grpc.ssl_channel_credentials(ca)),
            Intruder("of another authority", shown),
        ]

    def thief_of(self, files: Files) -> Intruder:
        name = files.certificate.stem.removeprefix("client-")
        return Intruder(name, tls_of(files).channel_credentials(), f"User:{name}")

    def refusals(self, principal: str) -> int:
        """How often the audit logs say that something was refused to somebody."""
        lines = [
            msgspec.json.decode(line)
            for node in self.siege.cluster.nodes
            for line in _audit_log(self.siege.cluster, node).read_bytes().splitlines()
        ]
        return sum(
            one["actor"]["user"]["name"] == principal and one["status"] == "Failure"
            for one in lines
        )

    def counted(self) -> int:
        """What the nodes' metrics say was forbidden."""
        return sum(_forbidden(node) for node in self.siege.cluster.nodes)


def _forbidden(node: Node) -> int:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{node.http}/metrics", timeout=PATIENCE_S) as response:
        (sample,) = (
            sample
            for family in text_string_to_metric_families(response.read().decode())
            for sample in family.samples
            if sample.name == "raftlog_transport_complaints_total"
            and sample.labels == {"kind": "forbidden"}
        )
    return int(sample.value)


def _audit_log(cluster: LocalCluster, node: Node) -> Path:
    return cluster.directory / f"{node.name}.audit.log"


@contextmanager
def believing(directory: Path) -> Iterator[Siege]:
    """Without TLS, on loopback."""
    cluster = LocalCluster(directory, controllers=3, brokers=2, settings=SETTINGS)
    with _running(cluster):
        yield Siege(cluster)


@contextmanager
def asking(directory: Path) -> Iterator[Guarded]:
    """With a certificate for each node, and an authorizer."""
    pki, nodes = Pki(directory / "pki"), dict[int, Files]()

    def settings_of(node: Node) -> Mapping[str, Any]:
        files = nodes[node.node_id] = pki.node(node.node_id)
        settings = {
            **files.settings(),
            "node.principal.rule": RULE,
            "ssl.principal.mapping.rules": "RULE:^CN=([^,]*).*$/$1/,DEFAULT",
            "authorizer.class.name": "StandardAuthorizer",
            "super.users": f"User:{_OPERATOR};User:admin",
            "audit.log.file": str(_audit_log(cluster, node)),
        }
        return {json.dumps(key): value for key, value in settings.items()}

    cluster = LocalCluster(
        directory / "c", controllers=3, brokers=2, settings=SETTINGS, settings_of=settings_of
    )
    operator = tls_of(pki.client(_OPERATOR))
    cluster.tls = operator
    with _running(cluster):
        yield Guarded(
            Siege(cluster, operator),
            nodes,
            pki.client("mallory"),
            Pki(directory / "foreign").client("mallory"),
        )


def tls_of(files: Files) -> TlsConfig:
    return TlsConfig(files.certificate, files.key, files.ca)


@contextmanager
def _running(cluster: LocalCluster) -> Iterator[None]:
    cluster.generate()
    try:
        cluster.start_controllers()
        cluster.start_brokers()
        cluster.wait_ready([node.name for node in cluster.nodes], PATIENCE_S)
        yield
    finally:
        cluster.stop_all(timeout_s=5)
