"""Keys and certificates that load but allow no handshake are refused."""

from codecs import BOM_UTF8
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed448, ed25519, padding, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from structlog.testing import capture_logs
from tls_files import write

from raftlog.errors import ConfigError
from raftlog.transport import certificates
from raftlog.transport.certificates import unusable_chain
from raftlog.transport.tls import TlsConfig, TlsTrust

import grpc  # isort: skip

KEYS: dict[str, Callable[[], Any]] = {
    "RSA": lambda: rsa.generate_private_key(65537, 2048),
    "P-256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "P-384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "P-224": lambda: ec.generate_private_key(ec.SECP224R1()),
    "P-521": lambda: ec.generate_private_key(ec.SECP521R1()),
    "secp256k1": lambda: ec.generate_private_key(ec.SECP256K1()),
    "Ed25519": ed25519.Ed25519PrivateKey.generate,
    "Ed448": ed448.Ed448PrivateKey.generate,
    "DSA": lambda: dsa.generate_private_key(2048),
}
NOW = datetime.now(UTC)


def certificate(
    name: str,
    key: Any,
    issuer: x509.Certificate | None,
    by: Any,
    *,
    days: tuple[int, int] = (-1, 1),
    usages: Sequence[x509.ObjectIdentifier] = (),
    **how: Any,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW + timedelta(days=days[0]))
        .not_valid_after(NOW + timedelta(days=days[1]))
        .add_extension(x509.BasicConstraints(issuer is None, None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
    )
    if usages:
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=len(usages) == 1)
    plain = isinstance(by, ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey)
    return builder.sign(by, None if plain else hashes.SHA256(), **how)


def files(directory: Path, key: str = "P-256", authority: str = "P-256", **how: Any) -> TlsConfig:
    """A certificate with a key of one kind, signed by an authority of another."""
    directory.mkdir(exist_ok=True)
    root, own = KEYS[authority](), KEYS[key]()
    ca = certificate("ca", root, None, root)
    tls = TlsConfig(directory / "pem", directory / "key", directory / "ca")
    private = own.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    leaf = certificate("leaf", own, ca, root, **how)
    pem = serialization.Encoding.PEM
    write(tls, leaf.public_bytes(pem), private, ca.public_bytes(pem))
    return tls


def handshake_succeeds(tls: TlsConfig) -> bool:
    """Return whether a gRPC server with these files accepts a client with the same."""
    states: SimpleQueue[grpc.ChannelConnectivity] = SimpleQueue()
    outcomes = {
        grpc.ChannelConnectivity.READY: True,
        grpc.ChannelConnectivity.TRANSIENT_FAILURE: False,
    }
    pem, key, ca = (path.read_bytes() for path in tls.paths)
    server = grpc.server(ThreadPoolExecutor(1))
    credentials = grpc.ssl_server_credentials([(key, pem)], ca, require_client_auth=True)
    port = server.add_secure_port("localhost:0", credentials)
    server.start()
    trusts = grpc.ssl_channel_credentials(ca, key, pem)
    try:
        with grpc.secure_channel(f"localhost:{port}", trusts) as channel:
            channel.subscribe(states.put, try_to_connect=True)
            while (state := states.get(timeout=30)) not in outcomes:
                pass
            return outcomes[state]
    finally:
        server.stop(None)


@pytest.mark.parametrize(
    ("key", "authority"),
    [(key, "P-256") for key in ("RSA", "P-256", "P-384")]
    + [("P-256", authority) for authority in ("P-224", "P-521", "Ed25519")],
)
def test_key_is_accepted_when_handshakes_with_it_or_below_it_succeed(
    tmp_path: Path, key: str, authority: str
) -> None:
    tls = files(tmp_path, key, authority)
    tls.check()
    assert handshake_succeeds(tls)


@pytest.mark.parametrize("key", ["P-521", "Ed25519"])
def test_key_is_refused_when_no_handshake_with_it_succeeds(tmp_path: Path, key: str) -> None:
    """[A node started, no client could connect, and the doctor blamed the client.]"""
    tls = files(tmp_path, key)
    assert not handshake_succeeds(tls)
    with pytest.raises(ConfigError, match=rf"tls\.certificate\.file: .* a key of type {key}"):
        tls.check()


@pytest.mark.parametrize("key", ["secp256k1", "Ed448", "DSA"])
def test_key_is_refused_when_no_server_starts_with_it(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"a key of type {key}"):
        files(tmp_path, key).server_credentials()


@pytest.mark.parametrize("key", ["secp256k1", "Ed448"])
def test_authority_is_refused_by_nodes_and_clients_when_its_certificates_are_not_accepted(
    tmp_path: Path, key: str
) -> None:
    tls = files(tmp_path, authority=key)
    wanted = rf"tls\.ca\.file: .* a CA certificate with a key of type {key}"
    for use in (tls.check, TlsTrust(tls.ca_path).channel_credentials):
        with pytest.raises(ConfigError, match=wanted):
            use()


def signed_with_pss(directory: Path, salt_bytes: int) -> TlsConfig:
    pss = padding.PSS(padding.MGF1(hashes.SHA256()), salt_bytes)
    return files(directory, authority="RSA", rsa_padding=pss)


def test_signature_is_accepted_only_when_handshakes_with_it_succeed(tmp_path: Path) -> None:
    good, bad = (signed_with_pss(tmp_path / str(salt), salt) for salt in (32, 222))
    good.check()
    assert handshake_succeeds(good)
    assert not handshake_succeeds(bad)
    with pytest.raises(ConfigError, match="with an unsupported signature"):
        bad.check()


def test_renewal_needs_a_usable_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "LOOK_AGAIN_S", 0.0)
    current = files(tmp_path).rereading_credentials()
    before = current()
    files(tmp_path, "Ed25519")
    with capture_logs() as logs:
        assert current() is before
    assert "a key of type Ed25519" in logs[0]["error"]
    files(tmp_path, "P-384")
    assert current() is not before


@pytest.mark.parametrize(
    ("days", "said"), [((-3, -1), "expired 20"), ((1, 3), "is not valid until 20")]
)
def test_certificate_outside_its_validity_is_reported_at_check_and_start(
    tmp_path: Path, days: tuple[int, int], said: str
) -> None:
    tls = files(tmp_path, days=days)
    assert not handshake_succeeds(tls)
    with pytest.raises(ConfigError, match=rf"^tls.certificate.file: {tls.certificate_path} {said}"):
        tls.check()
    with capture_logs() as logged:
        tls.server_credentials()
    assert [(one["event"], said in one["error"]) for one in logged] == [
        ("peers will not accept this node's certificate", True)
    ]


SERVER, CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH


@pytest.mark.parametrize(
    ("usages", "dials", "missing"),
    [
        ([], True, ""),
        ([SERVER, CLIENT], True, ""),
        ([ExtendedKeyUsageOID.EMAIL_PROTECTION, CLIENT, SERVER], True, ""),
        ([ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE], True, ""),
        ([SERVER], False, ""),
        ([SERVER], True, "clientAuth"),
        ([CLIENT], True, "serverAuth"),
        ([CLIENT], False, "serverAuth"),
        ([ExtendedKeyUsageOID.EMAIL_PROTECTION], True, "serverAuth and clientAuth"),
    ],
)
def test_certificate_without_a_usage_is_refused(
    tmp_path: Path, usages: list[x509.ObjectIdentifier], dials: bool, missing: str
) -> None:
    """Most mistakes are certificates for clients or servers only."""
    tls = files(tmp_path, usages=usages)
    if not missing:
        tls.check(dials=dials)
        return
    assert not handshake_succeeds(tls)
    with pytest.raises(ConfigError, match=f"lacks the extended key usage {missing}$"):
        tls.check(dials=dials)


def test_files_with_a_byte_order_mark_are_read_without_it(tmp_path: Path) -> None:
    """[They passed the check, but gRPC could use none of them.]"""
    tls = files(tmp_path)
    contents = [path.read_bytes() for path in tls.paths]
    write(tls, *(BOM_UTF8 + one for one in contents))
    assert list(tls._read()) == contents
    TlsTrust(tls.ca_path).channel_credentials()


def test_chain_without_a_plain_certificate_is_refused(tmp_path: Path) -> None:
    tls = files(tmp_path)
    pem = tls.certificate_path.read_text()
    tls.certificate_path.write_text(pem.replace("CERTIFICATE", "X509 CERTIFICATE"))
    for use in (tls.check, tls.rereading_credentials):
        with pytest.raises(ConfigError, match=r"certificate\.file: .* no -----BEGIN CERTIFICATE"):
            use()


def test_key_with_a_passphrase_is_refused(tmp_path: Path) -> None:
    tls = files(tmp_path)
    key = serialization.load_pem_private_key(tls.private_key_path.read_bytes(), None)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    tls.private_key_path.write_bytes(private)
    with pytest.raises(ConfigError, match=rf"^tls\.key\.file: {tls.private_key_path} has a passph"):
        tls.check()


def test_malformed_certificate_has_no_usable_key() -> None:
    pem = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"
    assert "a key of an unknown type" in unusable_chain(pem)
