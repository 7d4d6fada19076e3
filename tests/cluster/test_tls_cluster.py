"""A cluster over mutual TLS, and the command line as its client."""

import re
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from cluster_kit import PATIENCE_S, one_message, raftlog, running, says, succeed, until

from raftlog.local.cluster import LocalCluster

TIMEOUT_S = 1.5


def issue(
    authority: trustme.CA, directory: Path, *, valid: timedelta = timedelta(days=1)
) -> dict[str, Path]:
    """Issue a certificate; return its files. ``valid``: until when from now."""
    directory.mkdir()
    files = {name: directory / f"{name}.pem" for name in ("certificate", "key", "ca")}
    ends = datetime.now(UTC) + valid
    certificate = authority.issue_cert(
        "127.0.0.1", "localhost", not_before=ends - timedelta(days=2), not_after=ends
    )
    files["key"].touch(mode=0o600)
    certificate.private_key_pem.write_to_path(files["key"])
    for blob in certificate.cert_chain_pems:
        blob.write_to_path(files["certificate"], append=True)
    authority.cert_pem.write_to_path(files["ca"])
    return files


def environment(files: Mapping[str, Path]) -> dict[str, str]:
    """Return the environment by which the command line uses the certificates."""
    return {f"RAFTLOG_TLS_{name.upper()}_FILE": str(path) for name, path in files.items()}


@dataclass(frozen=True)
class Secured:
    """A cluster, its nodes' files, clients' certificates, and a ``stranger``'s."""

    cluster: LocalCluster
    authority: trustme.CA
    node: dict[str, Path]
    client: dict[str, str]
    stranger: dict[str, str]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    node = issue(authority, directory / "node")
    settings = {f"tls.{name}.file": str(path) for name, path in node.items()}
    with running(
        LocalCluster(directory / "c", controllers=3, brokers=1, settings=settings)
    ) as cluster:
        yield Secured(
            cluster,
            authority,
            node,
            environment(issue(authority, directory / "client")),
            environment(issue(trustme.CA(), directory / "stranger")),
        )


def test_key_readable_by_others_is_refused(secured: Secured) -> None:
    key = Path(secured.client["RAFTLOG_TLS_KEY_FILE"])
    key.chmod(0o640)
    try:
        ran = raftlog("quorum describe", controllers=secured.cluster, environment=secured.client)
    finally:
        key.chmod(0o600)
    assert ran.code == 2, ran
    says(one_message(ran), rf"tls\.key\.file: .*{key} \(mode 0640\): chmod 600 {key}")


def test_every_command_works_with_a_certificate(secured: Secured, tmp_path: Path) -> None:
    at = ("--bootstrap-controller", secured.cluster.bootstrap_controllers)
    through = ("--bootstrap-server", secured.cluster.bootstrap_servers)
    for command in (
        ("quorum", "describe", *at),
        ("brokers", "list", *at),
        ("topics", "create", "t", "-r", 1, "--acks", "visible", *through),
        ("topics", "describe", "t", *through),
        ("log", "dump", *at),
        ("export", tmp_path / "export", *at),
    ):
        succeed(*command, environment=secured.client)


def test_peer_without_a_valid_certificate_gets_no_response(secured: Secured) -> None:
    at = ("--bootstrap-controller", secured.cluster.bootstrap_controllers, "--timeout", TIMEOUT_S)
    for command, shown in ((("quorum", "describe"), {}), (("brokers", "list"), secured.stranger)):
        ran = raftlog(*command, *at, environment=shown).refused(4)
        one_message(ran)


def doctor(secured: Secured, shown: Mapping[str, str]) -> tuple[int, str]:
    ran = raftlog("doctor", controllers=secured.cluster, environment={**shown, "COLUMNS": "80"})
    assert all(len(line) <= 80 or ".pem" in line for line in ran.out.splitlines()), ran.out
    return int(ran.code), " ".join(ran.out.split())


def test_doctor_describes_a_secured_cluster(secured: Secured, tmp_path: Path) -> None:
    code, said = doctor(secured, secured.client)
    assert (code, said.split()[0]) == (0, "HEALTHY:")
    assert "all but" not in said
    past = timedelta(hours=-1)
    mine = issue(secured.authority, tmp_path / "mine", valid=past)
    code, said = doctor(secured, environment(mine))
    assert code == 4
    assert f"rejects {mine['certificate']}, which expired {datetime.now(UTC):%Y-}" in said
    code, said = doctor(secured, secured.stranger)
    assert code == 4
    assert "presents a certificate of another authority (also: " in said
    code, said = doctor(secured, {})
    assert code == 4
    assert "requires TLS, and this command does not use it" in said


def test_each_node_shows_how_long_its_certificate_is_valid(secured: Secured) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for node in (secured.cluster.controllers[0], secured.cluster.brokers[0]):
        with opener.open(f"{node.http}/metrics", timeout=PATIENCE_S) as answer:
            text = answer.read().decode()
        found = re.search(r"^raftlog_certificate_valid_seconds (\S+)$", text, re.MULTILINE)
        assert found is not None
        assert 0 < float(found[1]) <= 86_400, "they were issued for a day"
    _, said = doctor(secured, secured.client)
    assert "NOTICE Certificates expire: that of node 1 in" in said


def test_node_whose_certificate_has_expired_is_reported(secured: Secured, tmp_path: Path) -> None:
    old = issue(secured.authority, tmp_path / "old", valid=timedelta(hours=-1))
    good = {name: secured.node[name].read_bytes() for name in ("certificate", "key")}
    try:
        for name in good:
            old[name].replace(secured.node[name])
        until(lambda: doctor(secured, secured.client)[0] == 4, "all of them use the new files")
        _, said = doctor(secured, secured.client)
        assert "DOWN 127.0.0.1:" in said
        assert f"presents a certificate that expired {datetime.now(UTC):%Y-}" in said
        assert "Open connections last until they break" in said
    finally:
        for name, content in good.items():
            file = tmp_path / name
            file.touch(mode=0o600)
            file.write_bytes(content)
            file.replace(secured.node[name])
    until(lambda: doctor(secured, secured.client)[0] == 0, "the good ones are used again")


def test_incomplete_certificate_files_are_refused(secured: Secured) -> None:
    half = {name: path for name, path in secured.client.items() if "KEY" not in name}
    ran = raftlog("quorum describe", controllers=secured.cluster, environment=half).refused(2)
    says(one_message(ran), "missing: RAFTLOG_TLS_KEY_FILE")


def test_node_with_unusable_certificates_does_not_start(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "c", controllers=1, brokers=0)
    cluster.generate()
    files = issue(trustme.CA(), tmp_path / "tls")
    flags = [f"--set=tls.{name}.file={path}" for name, path in files.items()]
    run = ("controller", "run", "-c", cluster.config_path("controller-1"))
    ran = raftlog(*run, *flags, "--set=tls.key.file=nowhere.pem")
    says(one_message(ran), r"tls\.key\.file: No such file .*nowhere\.pem")
    assert ran.code == 2
    files["key"].chmod(0o604)
    ran = raftlog(*run, *flags)
    says(one_message(ran), rf"tls\.key\.file: .*\(mode 0604\): chmod 600 {files['key']}")
    assert ran.code == 2
    other = issue(trustme.CA(), tmp_path / "other")
    files["ca"].write_text("no certificate")
    ran = raftlog(*run, *flags, f"--set=tls.key.file={other['key']}")
    says(
        one_message(ran),
        f"{files['certificate']} and {other['key']} are not a certificate and its key",
        r"tls\.ca\.file: ",
    )
    assert ran.code == 2
