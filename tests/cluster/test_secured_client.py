"""``raftlog.connect`` to nodes with TLS and tokens."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import PATIENCE_S, configure, running, until
from matrix_cluster import Authorities
from token_issuer import AUDIENCE, ISSUER, Issuer

import raftlog
from raftlog import errors
from raftlog.local.cluster import HOST, LocalCluster, free_ports

AT_ONCE_S = 10.0
"""On a busy machine; a call's own time is five times as long."""
TIMEOUT_S = 50.0
NODES, TOKENS = "NODES", "TOKENS"


@dataclass(frozen=True)
class Secured:
    cluster: LocalCluster
    directory: Path
    authorities: Authorities
    issuer: Issuer
    by_certificate: str
    """The broker's listener that wants certificates."""
    by_token: str
    """The one that wants tokens."""

    @property
    def ca(self) -> Path:
        return self.directory / "pki" / "nodes" / "ca.pem"

    def files(self, name: str, authorities: Authorities, *, expired: bool = False) -> Any:
        """A client's options with a certificate of its own."""
        issued = authorities.issue(name, of_nodes=True, expired=expired)
        certificate, key = self.directory / f"{name}.pem", self.directory / f"{name}.key"
        certificate.write_bytes(issued.certificate)
        key.write_bytes(issued.key)
        key.chmod(0o600)
        return {"tls_ca_file": self.ca, "tls_certificate_file": certificate, "tls_key_file": key}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    authorities, issuer = Authorities(directory / "pki"), Issuer()
    jwks = directory / "jwks.json"
    jwks.write_bytes(issuer.jwks())
    cluster = LocalCluster(directory / "c", controllers=3, brokers=1)
    cluster.generate()
    (token_port,) = free_ports(1)
    for node in cluster.nodes:
        keys: dict[str, Any] = {
            **authorities.files(node, of_nodes=True),
            "node.principal.rule": "CN=node-{id}",
            "sasl.oauthbearer.jwks.endpoint.url": jwks.as_uri(),
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
        }
        listeners = [f"{NODES}://{node.endpoint}"]
        if node.role == "broker":
            listeners.append(f"{TOKENS}://{HOST}:{token_port}")
            keys |= {
                "inter.broker.listener.name": NODES,
                "listener.name.tokens.ssl.client.auth": "none",
            }
        keys |= {
            "listeners": listeners,
            "listener.security.protocol.map": f"{NODES}:SSL,{TOKENS}:SSL",
            "controller.listener.names": NODES,
        }
        configure(cluster, node, keys)
    (broker,) = cluster.brokers
    with running(cluster):
        yield Secured(
            cluster, directory, authorities, issuer, broker.endpoint, f"{HOST}:{token_port}"
        )


@contextmanager
def at_once() -> Iterator[None]:
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < AT_ONCE_S


def test_client_with_a_valid_certificate_is_served(secured: Secured) -> None:
    files = secured.files("billing", secured.authorities)
    asyncio.run(entered(secured.by_certificate, files))
    (nobody,) = free_ports(1)
    asyncio.run(entered(f"{HOST}:{nobody}", files))
    with (
        raftlog.connect(secured.by_certificate, timeout_s=TIMEOUT_S, **files) as client,
        client.watch("topics/", idle_timeout_s=TIMEOUT_S) as changes,
    ):
        client.topics.create("by-certificate", acks="visible")
        change = next(changes)
        assert (change.key, change.principal) == ("by-certificate", "User:CN=billing")
        client.produce("by-certificate", "hello")
        with client.consume("by-certificate", offset="earliest") as records:
            assert next(records).value == b"hello"


def test_client_with_a_valid_token_is_served(secured: Secured) -> None:
    token = secured.issuer.token(sub="alice")
    file = secured.directory / "alice.token"
    file.write_text(token + "\n")

    async def fetched() -> str:
        return token

    given: tuple[Any, ...] = ({"token": token}, {"token_file": file}, {"token": fetched})
    for number, option in enumerate(given):
        with raftlog.connect(
            secured.by_token, timeout_s=TIMEOUT_S, tls_ca_file=secured.ca, **option
        ) as client:
            client.topics.create(f"by-token-{number}", acks="visible")
            with client.watch(f"topics/by-token-{number}", initial=True) as changes:
                assert next(changes).key == f"by-token-{number}"
            history = client.configs.describe("topic", f"by-token-{number}")
            assert history["retention.ms"].is_default


def test_leadership_is_transferred_through_a_broker(secured: Secured) -> None:
    """Among three controllers; a transfer to an unknown voter is refused."""
    files = secured.files("billing", secured.authorities)
    controllers = secured.cluster.bootstrap_controllers
    with raftlog.connect(
        secured.by_certificate, timeout_s=TIMEOUT_S, controllers=controllers, **files
    ) as client:
        leader = client.quorum.describe().leader_id
        to = next(one.id for one in client.quorum.describe().voters if one.id != leader)
        assert client.quorum.transfer(to) == to
        until(lambda: client.quorum.describe().leader_id == to, "the successor leads")
        with pytest.raises(errors.ApiError) as refused:
            client.quorum.transfer(4_000)
        assert not refused.value.outcome_unknown
        with pytest.raises(errors.VoterNotFoundError):
            client.quorum.remove_voter(4_000, "a" * 22)
        with pytest.raises(errors.ApiError):
            client.quorum.add_voter(4_000, "a" * 22, "127.0.0.1:1", timeout_s=1)


@pytest.mark.parametrize("kind", ["forged", "expired", "for somebody else", "garbage"])
async def test_invalid_token_is_refused_at_once(secured: Secured, kind: str) -> None:
    now = int(time.time())
    token = {
        "forged": Issuer().token(sub="alice"),
        "expired": secured.issuer.token(sub="alice", iat=now - 900, exp=now - 600),
        "for somebody else": secured.issuer.token(sub="alice", aud="other"),
        "garbage": "abc",
    }[kind]
    options: Any = {"tls_ca_file": secured.ca, "token": token, "timeout_s": TIMEOUT_S}
    with at_once(), pytest.raises(errors.SaslAuthenticationFailedError) as refused:
        raftlog.connect(secured.by_token, **options)
    assert not refused.value.outcome_unknown
    assert refused.value.message.endswith("; the request was not executed")

    async with raftlog.AsyncClient(secured.by_token, **options) as client:
        for call in (
            client.topics.create("forged"),
            client.topics.list(),
            client.watch().started(),
            client.produce("by-certificate", "forged"),
        ):
            with at_once(), pytest.raises(errors.SaslAuthenticationFailedError):
                await call


async def entered(address: str, files: Any) -> None:
    async with raftlog.AsyncClient(address, timeout_s=TIMEOUT_S, **files):
        """Nothing is called."""


def test_wrong_certificate_or_authority_is_reported(secured: Secured, tmp_path: Path) -> None:
    others = Authorities(tmp_path / "pki")
    right = secured.files("billing", secured.authorities)
    other_ca = tmp_path / "pki" / "nodes" / "ca.pem"
    cases: list[tuple[str, str, Any, str]] = [
        (
            secured.by_certificate,
            "other authority",
            {**right, "tls_ca_file": other_ca},
            "presents a certificate of another authority",
        ),
        (
            secured.by_certificate,
            "own expired",
            secured.files("old", secured.authorities, expired=True),
            "old.pem, which expired 20",
        ),
        (secured.by_certificate, "own refused", secured.files("stranger", others), "stranger.pem"),
        (
            secured.by_certificate,
            "own refused",
            {"tls_ca_file": secured.ca, "token": secured.issuer.token(sub="alice")},
            "rejects a client without a certificate",
        ),
    ]
    for address, trouble, files, said in cases:
        with at_once(), pytest.raises(errors.TlsError, match=said) as refused:
            raftlog.connect(address, timeout_s=TIMEOUT_S, **files)
        assert refused.value.trouble == trouble
        assert address in refused.value.message
        assert isinstance(refused.value, errors.NetworkError)
        with at_once(), pytest.raises(errors.TlsError, match=said):
            asyncio.run(entered(address, files))
    with at_once(), pytest.raises(errors.NetworkError, match="requires TLS"):
        raftlog.connect(secured.by_certificate, timeout_s=TIMEOUT_S)


def test_server_with_an_expired_certificate_is_reported(secured: Secured) -> None:
    """Last: the broker is not back after that."""
    (broker,) = secured.cluster.brokers
    files = secured.files("billing", secured.authorities)
    now = datetime.now(UTC)
    place = secured.directory / "pki" / "nodes"
    issued = secured.authorities.issue(f"node-{broker.node_id}", of_nodes=True, expired=True)
    assert issued.not_after < now - timedelta(hours=1)
    (place / f"{broker.name}.pem").write_bytes(issued.certificate)
    key = place / f"{broker.name}.key"
    key.write_bytes(issued.key)
    secured.cluster.stop([broker.name])
    secured.cluster.start(broker.name)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with at_once(), pytest.raises(errors.NetworkError) as refused:
            raftlog.connect(secured.by_certificate, timeout_s=TIMEOUT_S, **files)
        if isinstance(refused.value, errors.TlsError):
            break
        assert time.monotonic() < deadline, refused.value
        time.sleep(0.05)
    assert refused.value.trouble == "expired"
    assert "presents a certificate that expired 20" in refused.value.message
