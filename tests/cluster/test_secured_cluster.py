"""A cluster with TLS and tokens: its clients, its commands, and the principals in its log."""

import asyncio
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import configure, metric, one_message, running, says, succeed, until
from cluster_kit import raftlog as command
from matrix_cluster import Authorities, environment
from token_issuer import AUDIENCE, ISSUER, Issuer

import raftlog
from raftlog import errors
from raftlog.local.cluster import HOST, LocalCluster, free_ports
from raftlog.transport.tls import TlsConfig

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

    def files(self, name: str, *, expired: bool = False) -> TlsConfig:
        return self.authorities.client_files(name, expired=expired)

    def options(self, name: str, *, expired: bool = False) -> Any:
        """Return a client's options with a certificate of its own."""
        return options(self.files(name, expired=expired))

    def token_environment(self, name: str) -> dict[str, str]:
        """Return the environment of commands with a certificate, and a token for this name."""
        file = self.directory / f"{name}.token"
        file.write_text(self.issuer.token(sub=name))
        return {**environment(self.files("billing")), "RAFTLOG_TOKEN_FILE": str(file)}


def options(tls: TlsConfig) -> Any:
    certificate, key, ca = tls.paths
    return {"tls_ca_file": ca, "tls_certificate_file": certificate, "tls_key_file": key}


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
    files = secured.options("billing")
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


def test_log_names_the_principal_of_each_write(secured: Secured, tmp_path: Path) -> None:
    """Through a broker or not, by a token or by a certificate alone."""
    cluster, client = secured.cluster, environment(secured.files("billing"))
    alice, bob = map(secured.token_environment, ("alice", "bob"))
    for key, where, who in (
        ("a", {"brokers": cluster}, alice),
        ("b", {"controllers": cluster}, bob),
        ("c", {"controllers": cluster}, client),
    ):
        alter = ("configs alter client-metrics", key, "--set", "interval.ms=1000")
        succeed(*alter, environment=who, **where)
    for other in (("quorum describe",), ("export", tmp_path / "export")):
        succeed(*other, controllers=cluster, environment=alice)
    ran = succeed("log dump --json", controllers=cluster, environment=alice)
    rows = [json.loads(line) for line in ran.out.splitlines()]
    wrote = {
        row["record"]["resource_name"]: row["principal"] for row in rows if row["type"] == "CONFIG"
    }
    assert wrote == {"a": "User:alice", "b": "User:bob", "c": "User:CN=billing"}
    registered = {
        row["record"]["broker_id"]: row["principal"]
        for row in rows
        if row["type"] == "REGISTER_BROKER"
    }
    assert registered == {node.node_id: f"User:CN=node-{node.node_id}" for node in cluster.brokers}


def test_leadership_is_transferred_through_a_broker(secured: Secured) -> None:
    """Among three controllers; a transfer to an unknown voter is refused."""
    controllers = secured.cluster.bootstrap_controllers
    with raftlog.connect(
        secured.by_certificate,
        timeout_s=TIMEOUT_S,
        controllers=controllers,
        **secured.options("billing"),
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
    given: Any = {"tls_ca_file": secured.ca, "token": token, "timeout_s": TIMEOUT_S}
    with at_once(), pytest.raises(errors.SaslAuthenticationFailedError) as refused:
        raftlog.connect(secured.by_token, **given)
    assert not refused.value.outcome_unknown
    assert refused.value.message.endswith("; the request was not executed")

    async with raftlog.AsyncClient(secured.by_token, **given) as client:
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
        pass


def doctor(secured: Secured, shown: Mapping[str, str], code: int, *texts: str) -> str:
    """Run the doctor until it ends so: on a busy machine a node may seem silent. Return its words."""
    told = ""

    def says_so() -> bool:
        nonlocal told
        ran = command("doctor", controllers=secured.cluster, environment={**shown, "COLUMNS": "80"})
        assert all(len(line) <= 80 or ".pem" in line for line in ran.out.splitlines()), ran.out
        told = " ".join(ran.out.split())
        return ran.code == code and all(text in told for text in texts)

    until(says_so, f"the doctor exits with {code} and says {texts}")
    return told


def test_wrong_certificate_or_authority_is_reported(secured: Secured, tmp_path: Path) -> None:
    """To a client of the library, and by the doctor."""
    others = Authorities(tmp_path / "pki")
    right, strange = secured.files("billing"), others.client_files("stranger")
    cases: list[tuple[str, Any, str]] = [
        (
            "other authority",
            TlsConfig(*right.paths[:2], strange.ca_path),
            "presents a certificate of another authority",
        ),
        ("own expired", secured.files("old", expired=True), "old.pem, which expired 20"),
        ("own refused", TlsConfig(*strange.paths[:2], right.ca_path), "stranger.pem"),
        ("own refused", None, "rejects a client without a certificate"),
    ]
    for trouble, tls, said in cases:
        files = (
            {"tls_ca_file": secured.ca, "token": secured.issuer.token(sub="alice")}
            if tls is None
            else options(tls)
        )
        with at_once(), pytest.raises(errors.TlsError, match=said) as refused:
            raftlog.connect(secured.by_certificate, timeout_s=TIMEOUT_S, **files)
        assert refused.value.trouble == trouble
        assert secured.by_certificate in refused.value.message
        assert isinstance(refused.value, errors.NetworkError)
        with at_once(), pytest.raises(errors.TlsError, match=said):
            asyncio.run(entered(secured.by_certificate, files))
        if trouble != "own refused":
            doctor(secured, environment(tls), 4, said)
    with at_once(), pytest.raises(errors.NetworkError, match="requires TLS"):
        raftlog.connect(secured.by_certificate, timeout_s=TIMEOUT_S)
    doctor(secured, {}, 4, "requires TLS, and this command does not use it")


def test_validity_of_certificates_is_shown_and_an_expired_one_is_reported(
    secured: Secured,
) -> None:
    """Running nodes read their files again."""
    client, cluster = environment(secured.files("billing")), secured.cluster
    for node in (cluster.controllers[0], cluster.brokers[0]):
        valid_s = metric(node, "raftlog_certificate_valid_seconds")
        assert 0 < valid_s <= 2 * 86_400, "they were issued for two days"
    told = doctor(secured, client, 0, "NOTICE Certificates expire soon or have expired: node 1 (")
    assert told.startswith("HEALTHY:")
    assert "all but" not in told

    def renew(*, expired: bool) -> None:
        for node in cluster.nodes:
            secured.authorities.files(node, of_nodes=True, expired=expired)

    renew(expired=True)
    try:
        expired = "presents a certificate that expired 20"
        doctor(secured, client, 4, "DOWN 127.0.0.1:", expired, "Open connections last until they")
        refused: list[errors.TlsError] = []

        def is_refused() -> bool:
            """A node looks at its files at a handshake, but not at each of many."""
            options = secured.options("billing")
            with at_once():
                try:
                    raftlog.connect(secured.by_certificate, timeout_s=TIMEOUT_S, **options).close()
                except errors.TlsError as error:
                    refused.append(error)
            return bool(refused)

        until(is_refused, "the broker presents its expired certificate")
        assert refused[0].trouble == "expired"
        assert expired in refused[0].message
    finally:
        renew(expired=False)
    doctor(secured, client, 0)


def test_node_with_unusable_certificates_does_not_start(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "c", controllers=1, brokers=0)
    cluster.generate()
    authorities = Authorities(tmp_path / "pki")
    mine, other = authorities.client_files("mine"), authorities.client_files("other")
    mine.ca_path.write_text("no certificate")
    files = (mine.certificate_path, other.private_key_path, mine.ca_path)
    flags = [
        f"--set=tls.{name}.file={path}"
        for name, path in zip(("certificate", "key", "ca"), files, strict=True)
    ]
    ran = command("controller run -c", cluster.config_path("controller-1"), *flags)
    says(
        one_message(ran),
        f"{files[0]} and {files[1]} are not a certificate and its key",
        r"tls\.ca\.file: ",
    )
    assert ran.code == 2
