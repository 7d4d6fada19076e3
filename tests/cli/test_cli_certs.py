"""``raftlog certs``: an authority, certificates that nodes accept, and their inspection."""

import base64
import ipaddress
import os
import shlex
import stat
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from command_lines import Raftlog
from command_runs import Ran
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from raftlog.errors import ConfigError
from raftlog.identity import NodeRule
from raftlog.node.security.inspection import inspect_certificates
from raftlog.transport.tls import TlsConfig

RULE = NodeRule.parse("CN=node-{id}")
NODE = ("--node", 7, "--host", "localhost", "--host", "127.0.0.1", "--host", "[::1]")


@pytest.fixture
def pki(raftlog: Raftlog, tmp_path: Path) -> Path:
    directory = tmp_path / "some where" / "pki"
    raftlog.succeed("certs init", directory)
    return directory


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def refused(ran: Ran, *says: str) -> None:
    (line,) = ran.refused(2, *says).err.splitlines()
    assert ran.out == ""
    assert line.isprintable()


def test_keys_and_authority_are_readable_by_the_owner_only(raftlog: Raftlog, pki: Path) -> None:
    before = os.umask(0)
    try:
        raftlog.succeed("certs issue", pki, *NODE)
        raftlog.succeed("certs issue", pki, "--client", "alice")
        raftlog.succeed("certs init", pki.parent / "open")
    finally:
        os.umask(before)
    for directory in (pki, pki.parent / "open"):
        assert mode_of(directory) == 0o700
    assert mode_of(pki.parent / "open" / "ca.key") == 0o600
    modes = {path.name: mode_of(path) for path in pki.iterdir()}
    assert modes == {
        f"{name}.{kind}": mode
        for name in ("ca", "node-7", "client-alice")
        for kind, mode in (("pem", 0o644), ("key", 0o600))
    }


def test_certificate_does_not_outlive_its_authority(raftlog: Raftlog, tmp_path: Path) -> None:
    (tmp_path / "pki").mkdir(mode=0o755)
    raftlog.succeed("certs init --days 2", tmp_path / "pki", "--name", "Ours")
    assert mode_of(tmp_path / "pki") == 0o700, "an empty directory becomes private"
    raftlog.succeed("certs issue", tmp_path / "pki", "--client", "a")
    authority, issued = (certificate(tmp_path / "pki" / f"{one}.pem") for one in ("ca", "client-a"))
    assert authority.subject.rfc4514_string() == authority.issuer.rfc4514_string() == "CN=Ours"
    assert (authority.not_valid_after_utc - authority.not_valid_before_utc).days == 2
    assert issued.not_valid_after_utc == authority.not_valid_after_utc


def test_authority_is_never_replaced(raftlog: Raftlog, pki: Path) -> None:
    before = {path: path.read_bytes() for path in pki.iterdir()}
    refused(raftlog("certs init", pki), "is not empty")
    (pki / "ca.pem").unlink()
    refused(raftlog("certs init", pki), "is not empty")
    assert (pki / "ca.key").read_bytes() == before[pki / "ca.key"]


def test_issued_certificates_have_the_right_names_and_usages(raftlog: Raftlog, pki: Path) -> None:
    raftlog("certs issue --days 30", pki, *NODE)
    raftlog("certs issue", pki, "--client", "alice@example.org")
    authority, node = certificate(pki / "ca.pem"), certificate(pki / "node-7.pem")
    person = certificate(pki / "client-alice@example.org.pem")
    server, client = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
    for made, usages in ((node, [server, client]), (person, [client])):
        made.verify_directly_issued_by(authority)
        found = made.extensions
        assert list(found.get_extension_for_class(x509.ExtendedKeyUsage).value) == usages
        assert not found.get_extension_for_class(x509.BasicConstraints).value.ca
        assert found.get_extension_for_class(x509.KeyUsage).value.digital_signature
        assert not found.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
        own = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        signer = found.get_extension_for_class(x509.AuthorityKeyIdentifier).value
        assert signer.key_identifier == own.digest
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert node.subject.rfc4514_string() == "CN=node-7"
    assert person.subject.rfc4514_string() == "CN=alice@example.org"
    row = raftlog("certs inspect --json", pki / "node-7.pem").json["certificates"][0]
    assert row["names"] == ["DNS:localhost", "IP:127.0.0.1", "IP:::1"]
    assert (row["nodes"], row["usages"]) == ([7], ["serverAuth", "clientAuth"])
    assert (row["validity"], row["days_left"]) == ("valid", 29)
    tls_of(pki, "node-7").check()
    with pytest.raises(ConfigError, match="lacks the extended key usage serverAuth"):
        tls_of(pki, "client-alice@example.org").check()


def tls_of(pki: Path, name: str) -> TlsConfig:
    return TlsConfig(pki / f"{name}.pem", pki / f"{name}.key", pki / "ca.pem")


def test_paths_are_not_wrapped_on_a_narrow_terminal(
    raftlog: Raftlog, pki: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.chdir(pki.parent)
    ran = raftlog("certs issue pki", *NODE)
    assert tomllib.loads(ran.out) == {
        "tls": {
            "certificate": {"file": str(pki / "node-7.pem")},
            "key": {"file": str(pki / "node-7.key")},
            "ca": {"file": str(pki / "ca.pem")},
        },
        "node": {"principal": {"rule": RULE.pattern}},
    }
    ran = raftlog("certs issue pki --client alice")
    assert shlex.split(ran.out, comments=True) == [
        "export", f"RAFTLOG_TLS_CERTIFICATE_FILE={pki}/client-alice.pem",
        "export", f"RAFTLOG_TLS_KEY_FILE={pki}/client-alice.key",
        "export", f"RAFTLOG_TLS_CA_FILE={pki}/ca.pem",
    ]  # fmt: skip


def test_files_are_replaced_only_with_force(raftlog: Raftlog, pki: Path) -> None:
    raftlog("certs issue", pki, *NODE)
    before = {path: path.read_bytes() for path in pki.iterdir()}
    (pki / "node-7.pem").unlink()
    refused(raftlog("certs issue", pki, *NODE), f"{pki / 'node-7.key'}: already exists; --force")
    (pki / "node-7.key").chmod(0o644)
    raftlog.succeed("certs issue --force", pki, *NODE)
    after = {path: path.read_bytes() for path in pki.iterdir()}
    assert before.keys() == after.keys()
    assert {path.name for path in after if after[path] != before[path]} == {
        "node-7.pem",
        "node-7.key",
    }
    assert mode_of(pki / "node-7.key") == 0o600
    tls_of(pki, "node-7").server_credentials()


@pytest.mark.parametrize(
    "name",
    ["node-7", "NODE-7", "node-07", "a/b", "../a", "", "-a", ".a", "a b", "a,CN=node-7", "a\n",
     "ä", "a" * 65, "a\x1b[31m", "*"],
)  # fmt: skip
def test_client_name_of_a_possible_node_is_refused(raftlog: Raftlog, pki: Path, name: str) -> None:
    before = set(pki.rglob("*"))
    refused(raftlog("certs issue", pki, f"--client={name}"), "--client")
    assert set(pki.parent.rglob("*")) == before | {pki}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "give --node ID or --client NAME"),
        (("--node", 1, "--client", "a"), "give --node ID or --client NAME"),
        (("--node", 1), "--node needs --host"),
        (("--client", "a", "--host", "h"), "--host is only for --node"),
        (("--node", 1, "--host", "a b"), "'a b' is not a valid host"),
        (("--node", 1, "--host", "*.example"), "is not a valid host"),
        (("--node", 1, "--host", "h\x1b[31m"), r"'h\x1b[31m' is not a valid host"),
        (("--node", 1, "--host", ""), "'' is not a valid host"),
        (("--node", 1, "--host", "0.0.0.0"), "that other machines can connect to"),
        (("--node", 1, "--host", "fe80::1%eth0"), "that other machines can connect to"),
    ],
)
def test_certs_issue_refuses_invalid_options(
    raftlog: Raftlog, pki: Path, arguments: tuple[object, ...], says: str
) -> None:
    refused(raftlog("certs issue", pki, *arguments), says)
    assert {path.name for path in pki.iterdir()} == {"ca.pem", "ca.key"}


@pytest.mark.parametrize("days", [0, -1, 36_501])
def test_certs_commands_refuse_days_out_of_bounds(raftlog: Raftlog, pki: Path, days: int) -> None:
    for command in (("init", pki.parent / "b"), ("issue", pki, "--client", "a")):
        raftlog("certs", *command, f"--days={days}").refused(2, "--days")


@pytest.mark.parametrize("name", ["", " ", "a\x1b[31m", "a\nb", "a" * 65])
def test_authority_name_is_printable(raftlog: Raftlog, tmp_path: Path, name: str) -> None:
    refused(raftlog("certs init", tmp_path / "pki", f"--name={name}"), "--name")
    assert not (tmp_path / "pki").exists()


def test_invalid_authority_is_refused(raftlog: Raftlog, pki: Path, tmp_path: Path) -> None:
    issue = ("certs", "issue", pki, "--client", "a")
    refused(raftlog("certs issue", tmp_path, "--client", "a"), "raftlog certs init")
    (pki / "ca.key").chmod(0o640)
    refused(raftlog(*issue), "chmod 600", "mode 0640")
    raftlog("certs init", tmp_path / "other")
    (pki / "ca.key").chmod(0o600)
    kept = (pki / "ca.key").read_bytes()
    (pki / "ca.key").write_bytes((tmp_path / "other" / "ca.key").read_bytes())
    refused(raftlog(*issue), "is not the key of")
    (pki / "ca.key").write_bytes(b"nothing")
    refused(raftlog(*issue), "are not a certificate and its key")
    (pki / "ca.key").write_bytes(kept)
    raftlog.succeed(*issue)


def test_directory_that_cannot_be_created_is_reported(raftlog: Raftlog, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(raftlog("certs init", tmp_path / "file"), str(tmp_path / "file"))
    refused(raftlog("certs init", tmp_path / "file" / "pki"), str(tmp_path / "file"))


EVIL = "a\x1b[31mb\rc\nFORGED\x9b2J\u202ed[red]e"
KEY = ec.generate_private_key(ec.SECP256R1())
PEM, DER = serialization.Encoding.PEM, serialization.Encoding.DER
DAY = timedelta(days=1)


def made(
    *common_names: str,
    begins: timedelta = -DAY,
    ends: timedelta = DAY,
    names: Sequence[x509.GeneralName] = (),
    usages: Sequence[x509.ObjectIdentifier] = (),
) -> x509.Certificate:
    """Return a self-signed certificate; times relative to now."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in common_names])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(subject).serial_number(1)
    builder = builder.public_key(KEY.public_key())
    builder = builder.not_valid_before(now + begins).not_valid_after(now + ends)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    if usages:
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    return builder.sign(KEY, hashes.SHA256())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "some.pem"


def test_inspect_shows_names_and_validity(raftlog: Raftlog, file: Path) -> None:
    names = (
        x509.DNSName("c1.example"),
        x509.IPAddress(ipaddress.ip_address("10.0.0.1")),
        x509.UniformResourceIdentifier("spiffe://example/7"),
        x509.RFC822Name("a@example"),
    )
    certificate = made("node-7", ends=10 * DAY + timedelta(hours=1), names=names)
    file.write_bytes(certificate.public_bytes(PEM))
    ran = raftlog.succeed("certs inspect", file)
    fingerprint = certificate.fingerprint(hashes.SHA256()).hex(":").upper()
    shown = dict(line.split(maxsplit=1) for line in ran.out.splitlines())
    assert (shown["subject"], shown["issuer"], shown["node"]) == ("CN=node-7", "CN=node-7", "7")
    assert shown["names"] == (
        "DNS:c1.example, IP:10.0.0.1, URI:spiffe://example/7, email:a@example"
    )
    assert (shown["usages"], shown["authority"]) == ("any", "no")
    assert (shown["validity"], shown["SHA-256"]) == ("valid, 10 days left", fingerprint)


@pytest.mark.parametrize(
    ("common", "rule", "nodes"),
    [
        ("node-7", "CN=node-{id}", [7]),
        ("node-7", "DNS:n{id}.example", [3, 4]),
        ("node-7", "URI:spiffe://example/{id}", [5]),
        ("node-7", "CN=broker-{id}", []),
        ("node-7 node-8", "CN=node-{id}", []),
        ("node-7\0evil", "CN=node-{id}", []),
    ],
)
def test_inspect_names_the_nodes_that_the_rule_derives(
    raftlog: Raftlog, file: Path, common: str, rule: str, nodes: list[int]
) -> None:
    names = (
        x509.DNSName("n3.example"),
        x509.DNSName("n4.example"),
        x509.UniformResourceIdentifier("spiffe://example/5"),
    )
    file.write_bytes(made(*common.split(), names=names).public_bytes(PEM))
    ran = raftlog("certs inspect --json --node-principal-rule", rule, file)
    assert ran.json["certificates"][0]["nodes"] == nodes


def test_invalid_node_principal_rule_is_refused(raftlog: Raftlog, file: Path) -> None:
    ran = raftlog("certs inspect --node-principal-rule node-7", file)
    refused(ran, "--node-principal-rule: 'node-7' is not a rule")


@pytest.mark.parametrize(
    ("begins", "ends", "validity", "days_left"),
    [(-3 * DAY, -DAY, "expired", -2), (DAY, 3 * DAY, "not yet valid", 2)],
)
def test_exit_code_reports_a_certificate_that_is_not_valid_now(
    raftlog: Raftlog, file: Path, begins: timedelta, ends: timedelta, validity: str, days_left: int
) -> None:
    certificates = (made("good"), made("other", begins=begins, ends=ends))
    file.write_bytes(b"".join(one.public_bytes(PEM) for one in certificates))
    ran = raftlog("certs inspect --json", file).refused(3)
    good, other = ran.json["certificates"]
    assert (good["subject"], good["validity"]) == ("CN=good", "valid")
    assert (other["validity"], other["days_left"]) == (validity, days_left)
    ran = raftlog("certs inspect", file)
    assert (ran.code, ran.err) == (3, "")
    assert f"validity   {validity}\n" in ran.out


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\xff" * 100,
        b"\x1b[31m\nFORGED",
        b"-----BEGIN CERTIFICATE-----\n\x1b[31m\n-----END CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
        b"x" * (1 << 21),
    ],
    ids=["empty", "zeros", "escapes", "escapes inside", "short", "key", "long"],
)
def test_garbage_is_reported_in_one_line(raftlog: Raftlog, file: Path, content: bytes) -> None:
    file.write_bytes(content)
    refused(raftlog("certs inspect", file), f"raftlog: {file} ")


def test_unreadable_file_is_reported(raftlog: Raftlog, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        refused(raftlog("certs inspect", path), f"raftlog: {path}: ")


def test_damaged_certificate_raises_only_value_error() -> None:
    whole = made("node-7", names=(x509.DNSName("a.example"),)).public_bytes(DER)
    for at in range(len(whole)):
        for mask in (0x01, 0x10, 0x80, 0xFF):
            damaged = whole[:at] + bytes([whole[at] ^ mask]) + whole[at + 1 :]
            _inspect_der(damaged)
        _inspect_der(whole[:at])


def _inspect_der(der: bytes) -> None:
    body = base64.encodebytes(der)
    pem = b"-----BEGIN CERTIFICATE-----\n" + body + b"-----END CERTIFICATE-----\n"
    with suppress(ValueError):
        inspect_certificates(pem)


def test_certificate_text_cannot_control_the_terminal(raftlog: Raftlog, file: Path) -> None:
    names = (
        x509.DNSName("d\x1b[2J\nFORGED"),
        x509.UniformResourceIdentifier("u\x1b[31m\r"),
        x509.DirectoryName(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, EVIL)])),
    )
    file.write_bytes(made(EVIL, names=names).public_bytes(PEM))
    for arguments in ((), ("--json",)):
        ran = raftlog.succeed("certs inspect", file, *arguments)
        for line in ran.out.split("\n"):
            assert line.isprintable()
            assert not line.lstrip().startswith("FORGED")
    assert raftlog("certs inspect --json", file).json["certificates"][0]["names"][0] == (
        "DNS:d\x1b[2J\nFORGED"
    )


def test_usage_without_a_name_is_shown_by_its_number(raftlog: Raftlog, file: Path) -> None:
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH, x509.ObjectIdentifier("1.2.3.4")]
    file.write_bytes(made(usages=usages).public_bytes(PEM))
    raftlog("certs inspect", file).showed("usages     clientAuth, 1.2.3.4\n", "subject    -\n")
