"""A certificate authority for development: a directory with ``ca.pem`` and ``ca.key``.

It issues the files for :class:`~raftlog.transport.tls.TlsConfig`. It neither lists nor revokes
issued certificates; use a company's authority for that.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from raftlog.endpoint import host_error
from raftlog.errors import ConfigError
from raftlog.files import exposed

BACKDATED = timedelta(minutes=10)
"""Time by which a certificate is valid before its time of issue, as the clocks of machines
differ.
"""
CA_CERTIFICATE, CA_KEY = "ca.pem", "ca.key"
_CLIENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_LIKE_A_NODE = re.compile(r"node-[0-9]+", re.IGNORECASE)
_COMMON_NAME_MAX_CHARS = 64


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate and its key, as PEM; ``not_after`` is the end of the certificate's validity."""

    certificate: bytes
    key: bytes
    not_after: datetime


def new_authority(name: str, days: int, now: datetime) -> Issued:
    """Create a self-signed authority that is valid for ``days`` days. Raises ConfigError if the
    name is invalid.
    """
    if not name.isprintable() or not 0 < len(name.strip()) <= len(name) <= _COMMON_NAME_MAX_CHARS:
        raise ConfigError(
            f"--name: {name[:80]!r} is not a valid name: use 1 to {_COMMON_NAME_MAX_CHARS}"
            " printable characters, not only spaces"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _named(name)
    builder = _builder(subject, key.public_key(), now, now + timedelta(days=days))
    certificate = (
        builder.issuer_name(subject)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return _issued(certificate, key)


class Authority:
    """An existing authority."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key

    @classmethod
    def load(cls, directory: Path) -> Authority:
        """Load the authority of a directory.

        Raises ConfigError if it has none, or if other users can read its key.
        """
        path = directory / CA_KEY
        try:
            certificate = x509.load_pem_x509_certificate((directory / CA_CERTIFICATE).read_bytes())
            key = serialization.load_pem_private_key(path.read_bytes(), password=None)
            if wrong := exposed(path):
                raise ConfigError(wrong)
        except FileNotFoundError as error:
            raise ConfigError(
                f"{error.filename} does not exist: create an authority with"
                f" `raftlog certs init {directory}`"
            ) from error
        except OSError as error:
            raise ConfigError(f"{error.filename}: {error.strerror}") from error
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"{CA_CERTIFICATE} and {CA_KEY} in {directory} are not a certificate and its key:"
                f" {error}"
            ) from error
        if (
            not isinstance(key, ec.EllipticCurvePrivateKey)
            or key.public_key() != certificate.public_key()
        ):
            raise ConfigError(
                f"{path} is not the key of {directory / CA_CERTIFICATE}, or was not created by"
                " `raftlog certs init`"
            )
        return cls(certificate, key)

    def issue_node(self, node_id: int, hosts: Sequence[str], days: int, now: datetime) -> Issued:
        """Issue a certificate for a node with these host names and addresses. Raises ConfigError
        for an invalid one, and if the authority has expired.
        """
        names = list(dict.fromkeys(_alternative(host) for host in hosts))
        usages = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
        return self._issue(node_name(node_id), names, usages, days, now)

    def issue_client(self, name: str, days: int, now: datetime) -> Issued:
        """Issue a certificate for a person or a program. Raises ConfigError if the name is invalid
        or the authority has expired.
        """
        check_client_name(name)
        return self._issue(name, [], (ExtendedKeyUsageOID.CLIENT_AUTH,), days, now)

    def _issue(
        self,
        name: str,
        alternatives: Sequence[x509.GeneralName],
        usages: Sequence[x509.ObjectIdentifier],
        days: int,
        now: datetime,
    ) -> Issued:
        authority, ends = self._certificate, self._certificate.not_valid_after_utc
        if ends <= now:
            raise ConfigError(f"the certificate authority expired at {ends:%Y-%m-%d %H:%M} UTC")
        key = ec.generate_private_key(ec.SECP256R1())
        # A certificate that outlives its authority would fail before its stated end.
        until = min(now + timedelta(days=days), ends)
        builder = (
            _builder(_named(name), key.public_key(), now, until)
            .issuer_name(authority.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        if alternatives:
            builder = builder.add_extension(
                x509.SubjectAlternativeName(alternatives), critical=False
            )
        return _issued(builder.sign(self._key, hashes.SHA256()), key)


def node_name(node_id: int) -> str:
    """Return the common name of a node's certificate, as the rule ``CN=node-{id}`` expects it."""
    return f"node-{node_id}"


def check_client_name(name: str) -> None:
    """Raise ConfigError if the name is invalid, or is a node's name, whose owner could act as that
    node.
    """
    if not _CLIENT.fullmatch(name):
        raise ConfigError(
            f"--client: {name[:80]!r} is not a valid name: use 1 to {_COMMON_NAME_MAX_CHARS} ASCII"
            " letters, digits, dots, dashes, underscores and @, beginning with a letter or digit"
        )
    if _LIKE_A_NODE.fullmatch(name):
        raise ConfigError(
            f"--client: {name!r} is the name of a node: use --node for a node's certificate"
        )


def _alternative(host: str) -> x509.GeneralName:
    if wrong := host_error(host):
        raise ConfigError(f"--host: {wrong}")
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        # Certificates have names without the trailing dot.
        return x509.DNSName(host.removesuffix("."))
    if address.is_unspecified or (address.version == 6 and address.scope_id):
        raise ConfigError(f"--host: {host}: give an address that other machines can connect to")
    return x509.IPAddress(address)


def _builder(
    subject: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, until: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now.astimezone(UTC) - BACKDATED)
        .not_valid_after(until.astimezone(UTC))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _issued(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Issued:
    return Issued(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
        certificate.not_valid_after_utc,
    )
