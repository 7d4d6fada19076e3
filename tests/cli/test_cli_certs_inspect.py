"""``raftlog certs inspect``: certificates of strangers, old ones, and what is none."""

from __future__ import annotations

import base64
import ipaddress
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from command_lines import Raftlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from raftlog.node.security.inspection import inspect_certificates

EVIL = "a\x1b[31mb\rc\nFORGED\x9b2J\u202ed[red]e"
KEY = ec.generate_private_key(ec.SECP256R1())
PEM, DER = serialization.Encoding.PEM, serialization.Encoding.DER
DAY = timedelta(days=1)


def made(
    *common_names: str,
    begins: timedelta = -DAY,
    ends: timedelta = DAY,
    names: tuple[x509.GeneralName, ...] = (),
) -> x509.Certificate:
    """A certificate that has signed itself; times from now."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in common_names])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(KEY.public_key())
        .serial_number(1)
        .not_valid_before(now + begins)
        .not_valid_after(now + ends)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(KEY, hashes.SHA256())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "some.pem"


def test_what_is_shown(raftlog: Raftlog, file: Path) -> None:
    names = (
        x509.DNSName("c1.example"),
        x509.IPAddress(ipaddress.ip_address("10.0.0.1")),
        x509.UniformResourceIdentifier("spiffe://example/7"),
        x509.RFC822Name("a@example"),
    )
    certificate = made("node-7", ends=10 * DAY + timedelta(hours=1), names=names)
    file.write_bytes(certificate.public_bytes(PEM))
    ran = raftlog("certs", "inspect", file)
    assert ran.code == 0, ran
    fingerprint = certificate.fingerprint(hashes.SHA256()).hex(":").upper()
    shown = dict(line.split(maxsplit=1) for line in ran.out.splitlines())
    assert (shown["subject"], shown["issuer"], shown["node"]) == ("CN=node-7", "CN=node-7", "7")
    assert shown["names"] == (
        "DNS:c1.example, IP:10.0.0.1, URI:spiffe://example/7, email:a@example"
    )
    assert (shown["usages"], shown["authority"]) == ("any", "no")
    assert (shown["validity"], shown["SHA-256"]) == ("valid, 10 days left", fingerprint)


@pytest.mark.parametrize(
    ("rule", "nodes"),
    [
        ("CN=node-{id}", [7]),
        ("DNS:n{id}.example", [3, 4]),
        ("URI:spiffe://example/{id}", [5]),
        ("CN=broker-{id}", []),
    ],
)
def test_the_node_that_it_names(raftlog: Raftlog, file: Path, rule: str, nodes: list[int]) -> None:
    names = (
        x509.DNSName("n3.example"),
        x509.DNSName("n4.example"),
        x509.UniformResourceIdentifier("spiffe://example/5"),
    )
    file.write_bytes(made("node-7", names=names).public_bytes(PEM))
    ran = raftlog("certs", "inspect", file, "--node-principal-rule", rule, "--json")
    assert ran.json["certificates"][0]["nodes"] == nodes


@pytest.mark.parametrize("common", [("node-7", "node-8"), ("node-7\0evil",)])
def test_a_name_that_nodes_do_not_take_is_no_nodes(
    raftlog: Raftlog, file: Path, common: tuple[str, ...]
) -> None:
    file.write_bytes(made(*common).public_bytes(PEM))
    ran = raftlog("certs", "inspect", file, "--json")
    assert ran.json["certificates"][0]["nodes"] == []


def test_a_rule_that_is_none(raftlog: Raftlog, file: Path) -> None:
    ran = raftlog("certs", "inspect", file, "--node-principal-rule", "node-7")
    assert (ran.code, ran.out) == (2, "")
    assert "--node-principal-rule: 'node-7' is no rule" in ran.err


@pytest.mark.parametrize(
    ("begins", "ends", "validity", "days_left"),
    [(-3 * DAY, -DAY, "expired", -2), (DAY, 3 * DAY, "not yet valid", 2)],
)
def test_the_exit_code_says_that_one_is_of_no_use_now(
    raftlog: Raftlog,
    file: Path,
    begins: timedelta,
    ends: timedelta,
    validity: str,
    days_left: int,
) -> None:
    certificates = (made("good"), made("other", begins=begins, ends=ends))
    file.write_bytes(b"".join(one.public_bytes(PEM) for one in certificates))
    ran = raftlog("certs", "inspect", file, "--json")
    assert ran.code == 3, ran
    good, other = ran.json["certificates"]
    assert (good["subject"], good["validity"]) == ("CN=good", "valid")
    assert (other["validity"], other["days_left"]) == (validity, days_left)
    ran = raftlog("certs", "inspect", file)
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
def test_garbage_gives_one_line(raftlog: Raftlog, file: Path, content: bytes) -> None:
    file.write_bytes(content)
    ran = raftlog("certs", "inspect", file)
    assert (ran.code, ran.out) == (2, "")
    (line,) = ran.err.splitlines()
    assert line.startswith(f"raftlog: {file}: ")
    assert line.isprintable()


def test_a_file_that_cannot_be_read(raftlog: Raftlog, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        ran = raftlog("certs", "inspect", path)
        assert (ran.code, ran.out) == (2, "")
        (line,) = ran.err.splitlines()
        assert line.startswith(f"raftlog: {path}: ")


def test_no_damage_is_more_than_a_value_error() -> None:
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


def test_nothing_of_a_stranger_steers_the_terminal(raftlog: Raftlog, file: Path) -> None:
    names = (
        x509.DNSName("d\x1b[2J\nFORGED"),
        x509.UniformResourceIdentifier("u\x1b[31m\r"),
        x509.DirectoryName(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, EVIL)])),
    )
    file.write_bytes(made(EVIL, names=names).public_bytes(PEM))
    for arguments in ((), ("--json",)):
        ran = raftlog("certs", "inspect", file, *arguments)
        assert ran.code == 0, ran
        for line in ran.out.split("\n"):
            assert line.isprintable()
            assert not line.lstrip().startswith("FORGED")
    assert raftlog("certs", "inspect", file, "--json").json["certificates"][0]["names"][0] == (
        "DNS:d\x1b[2J\nFORGED"
    )


def test_a_usage_without_a_name_is_shown_by_its_number(raftlog: Raftlog, file: Path) -> None:
    now = datetime.now(UTC)
    subject = x509.Name([])
    usages = x509.ExtendedKeyUsage(
        [ExtendedKeyUsageOID.CLIENT_AUTH, x509.ObjectIdentifier("1.2.3.4")]
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(KEY.public_key())
        .serial_number(1)
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
        .add_extension(usages, critical=False)
        .sign(KEY, hashes.SHA256())
    )
    file.write_bytes(certificate.public_bytes(PEM))
    ran = raftlog("certs", "inspect", file)
    assert ran.code == 0, ran
    assert "usages     clientAuth, 1.2.3.4\n" in ran.out
    assert "subject    -\n" in ran.out
