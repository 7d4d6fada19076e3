"""Mutual TLS for links, and the security of each listener (KIP-103).

Both sides present a certificate of the same CA; a client with a token needs none. A node dials each
endpoint with the credentials for that endpoint's listener.
"""

from __future__ import annotations

import ssl
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import grpc

from raftlog.endpoint import parse_endpoints
from raftlog.errors import ConfigError
from raftlog.files import exposed
from raftlog.logger import get_logger
from raftlog.transport.certificates import (
    Reread,
    Stamp,
    TlsFiles,
    first_der,
    invalid_now,
    missing_usages,
    stamp,
    unusable_authorities,
    unusable_chain,
)
from raftlog.transport.lane_tls import LaneTls, fingerprint_of

log = get_logger(__name__)

_KEYS = ("tls.certificate.file", "tls.key.file", "tls.ca.file")


class Credentials(NamedTuple):
    """The credentials for a client's connection and for its lane, made from the same files."""

    channel: Any
    """gRPC's channel credentials."""
    lane: LaneTls


class ClientTls(Protocol):
    """The TLS interface of a client."""

    def rereading_credentials(self) -> Callable[[], Credentials]:
        """Return a function that returns the credentials for the next connection, from the current
        files.

        Raises ConfigError naming unreadable files.
        """

    def channel_credentials(self) -> Any:
        """Return gRPC's credentials from the current files. Raises ConfigError."""

    @property
    def files(self) -> TlsFiles:
        """Paths of the files."""


@dataclass(frozen=True, slots=True)
class TlsTrust:
    """The CA of the servers' certificates, for a client without a certificate."""

    ca_path: Path

    def rereading_credentials(self) -> Callable[[], Credentials]:
        """See :class:`ClientTls`."""
        return Reread((self.ca_path,), self._credentials).current

    def channel_credentials(self) -> Any:
        """See :class:`ClientTls`."""
        return self._credentials().channel

    def _credentials(self) -> Credentials:
        context = lane_context(ssl.PROTOCOL_TLS_CLIENT)
        try:
            ca = _read(self.ca_path)
            context.load_verify_locations(cadata=ca.decode())
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(f"tls.ca.file: {self.ca_path} contains no certificate") from error
        except OSError as error:
            raise ConfigError(f"tls.ca.file: {error.strerror}: {self.ca_path}") from error
        if wrong := unusable_authorities(ca.decode()):
            raise ConfigError(f"tls.ca.file: {self.ca_path} contains {wrong}")
        return Credentials(grpc.ssl_channel_credentials(root_certificates=ca), LaneTls(context))

    @property
    def files(self) -> TlsFiles:
        """See :class:`ClientTls`."""
        return TlsFiles(self.ca_path)


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """PEM files: this node's certificate chain and key, and the CA that signs the peers'
    certificates.
    """

    certificate_path: Path
    private_key_path: Path
    ca_path: Path

    @property
    def paths(self) -> tuple[Path, Path, Path]:
        """Paths of certificate, key and CA."""
        return self.certificate_path, self.private_key_path, self.ca_path

    def server_credentials(self, *, require_certificates: bool = True) -> Any:
        """Return credentials that refuse clients without a certificate; each handshake rereads the
        files.

        Without ``require_certificates`` the server requests none: gRPC for Python cannot request an
        optional one. Raises ConfigError naming unreadable files.
        """
        reread = Reread(self.paths, self._server_configuration)
        used = reread.version

        def changed() -> Any | None:
            nonlocal used
            made = reread.current()
            if reread.version == used:
                return None
            used = reread.version
            return made

        return grpc.dynamic_ssl_server_credentials(
            reread.current(), changed, require_client_authentication=require_certificates
        )

    def _server_configuration(self) -> Any:
        certificate, key, ca = self._read()
        if wrong := invalid_now(self.certificate_path):
            log.warning(
                "peers will not accept this node's certificate",
                file=str(self.certificate_path),
                error=f"the certificate {wrong}",
            )
        return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=ca)

    def rereading_server_contexts(self) -> Callable[[], ssl.SSLContext]:
        """Return a function that returns the TLS context for an HTTP server's next connection,
        which verifies a client's certificate but does not require one.

        Raises ConfigError naming unreadable files.
        """
        return Reread(self.paths, self._http_context).current

    def _http_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # A resumed session would present a certificate that was verified with earlier files.
        context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
        context.num_tickets = 0
        context.verify_mode = ssl.CERT_OPTIONAL
        self._load(context)
        return context

    def rereading_lane_tls(self, *, require_certificates: bool) -> Callable[[], LaneTls]:
        """Return a function that returns the settings for a server's next lane. See
        ``server_credentials``.
        """
        verify = ssl.CERT_REQUIRED if require_certificates else ssl.CERT_NONE
        return Reread(self.paths, partial(self._lane_tls, ssl.PROTOCOL_TLS_SERVER, verify)).current

    def _lane_tls(self, protocol: int, verify: ssl.VerifyMode) -> LaneTls:
        context = lane_context(protocol)
        context.verify_mode = verify
        certificate, _, _ = self._load(context)
        return LaneTls(context, fingerprint_of(first_der(_text(certificate))))

    def _load(self, context: ssl.SSLContext) -> tuple[bytes, bytes, bytes]:
        """Load the files into a context, and return their contents. Raises ConfigError."""
        before = [stamp(path) for path in self.paths]
        contents = self._read()
        try:
            context.load_cert_chain(self.certificate_path, self.private_key_path, password="")
            context.load_verify_locations(self.ca_path)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{', '.join(_KEYS)}: {error}") from error
        self._check_unchanged(before)
        return contents

    def rereading_credentials(self) -> Callable[[], Credentials]:
        """See :class:`ClientTls`."""
        return Reread(self.paths, self._credentials).current

    def _credentials(self) -> Credentials:
        before = [stamp(path) for path in self.paths]
        lane = self._lane_tls(ssl.PROTOCOL_TLS_CLIENT, ssl.CERT_REQUIRED)
        channel = self.channel_credentials()
        self._check_unchanged(before)
        return Credentials(channel, lane)

    def channel_credentials(self) -> Any:
        """Return gRPC's credentials, with the client's certificate. Raises ConfigError naming
        unreadable files.
        """
        certificate, key, ca = self._read()
        return grpc.ssl_channel_credentials(
            root_certificates=ca, private_key=key, certificate_chain=certificate
        )

    @property
    def files(self) -> TlsFiles:
        """See :class:`ClientTls`."""
        return TlsFiles(self.ca_path, self.certificate_path, self.private_key_path)

    def _read(self) -> tuple[bytes, bytes, bytes]:
        contents: list[bytes] = []
        mistakes: list[str] = []
        before = [stamp(path) for path in self.paths]
        for key, path in zip(_KEYS, self.paths, strict=True):
            try:
                contents.append(_read(path))
            except OSError as error:
                mistakes.append(f"{key}: {error.strerror}: {path}")
        if mistakes or (mistakes := self._unusable(contents[1])):
            raise ConfigError("; ".join(mistakes))
        self._check_unchanged(before)
        certificate, private_key, ca = contents
        if wrong := unusable_chain(_text(certificate)):
            mistakes.append(f"tls.certificate.file: {self.certificate_path} contains {wrong}")
        if wrong := unusable_authorities(_text(ca)):
            mistakes.append(f"tls.ca.file: {self.ca_path} contains {wrong}")
        if mistakes:
            raise ConfigError("; ".join(mistakes))
        return certificate, private_key, ca

    def check(self, *, dials: bool = False) -> None:
        """Raise ConfigError for faults in the current files. ``dials``: whether the node also
        connects to other nodes with them.
        """
        certificate, _, _ = self._read()
        wrong = invalid_now(self.certificate_path)
        if not wrong and (missing := missing_usages(_text(certificate), dials=dials)):
            wrong = f"lacks the extended key usage {' and '.join(missing)}"
        if wrong:
            raise ConfigError(f"tls.certificate.file: {self.certificate_path} {wrong}")

    def _check_unchanged(self, before: list[Stamp]) -> None:
        """Raise ConfigError if the files have changed since the check began."""
        if [stamp(path) for path in self.paths] != before:
            raise ConfigError(f"{', '.join(_KEYS)}: the files were replaced while they were read")

    def _unusable(self, private_key: bytes) -> list[str]:
        """Return the faults of readable files, as gRPC accepts any contents and then fails each
        handshake.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        mistakes: list[str] = []
        try:
            # An empty password, so that an encrypted key does not prompt on the terminal.
            context.load_cert_chain(self.certificate_path, self.private_key_path, password="")
        except (OSError, ValueError) as error:
            key = self.private_key_path
            mistakes.append(
                f"tls.key.file: {key} has a passphrase: openssl pkey -in {key} writes it without"
                if b"ENCRYPTED" in private_key
                else f"tls.certificate.file, tls.key.file: {self.certificate_path} and {key} are"
                f" not a certificate and its key: {error}"
            )
        try:
            context.load_verify_locations(self.ca_path)
        except (OSError, ValueError) as error:
            mistakes.append(f"tls.ca.file: {self.ca_path} contains no certificate: {error}")
        try:
            wrong = exposed(self.private_key_path)
        except OSError as error:
            wrong = str(error)
        if wrong:
            mistakes.append(f"tls.key.file: {wrong}")
        return mistakes


def _read(path: Path) -> bytes:
    """Return a PEM file's contents without a byte order mark, at which gRPC fails."""
    return path.read_bytes().removeprefix(BOM_UTF8)


def _text(pem: bytes) -> str:
    return pem.decode(errors="replace")


def lane_context(protocol: int) -> ssl.SSLContext:
    """Return a TLS context for lanes, without certificates."""
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # As in gRPC, an intermediate CA in tls.ca.file suffices.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 1
    return context


@dataclass(frozen=True, slots=True)
class ListenerSecurity:
    """Security of a listener; ``tls`` is None for PLAINTEXT.

    ``client_auth``: ssl.client.auth, which decides whether clients must present a certificate.
    """

    tls: TlsConfig | None = None
    client_auth: str = "required"
    reflection: bool = True
    """Whether gRPC reflection lists the services to every client."""

    def server_credentials(self, *, require_certificates: bool = True) -> Any | None:
        """Return the credentials, or None for PLAINTEXT. Raises ConfigError naming unreadable
        files.
        """
        if self.tls is None:
            return None
        return self.tls.server_credentials(require_certificates=require_certificates)

    def lane_tls(self, *, require_certificates: bool = True) -> Callable[[], LaneTls] | None:
        """Return the source of the settings for the next lane, or None for PLAINTEXT. Raises
        ConfigError.
        """
        if self.tls is None:
            return None
        return self.tls.rereading_lane_tls(require_certificates=require_certificates)


class Routes:
    """A map from addresses to host:port and credentials."""

    def __init__(
        self, tls: Mapping[str, ClientTls | None], preferred: tuple[str, ...] = ()
    ) -> None:
        """``tls``: TLS by the name of the dialed listener; "" is for addresses without a name.
        ``preferred``: the order in which a listener is chosen on a node with several. Raises
        ConfigError naming unreadable files.
        """
        made: dict[ClientTls, Callable[[], Credentials]] = {}
        self._by_name: dict[str, Callable[[], Credentials] | None] = {}
        for name, one in tls.items():
            if one is not None and one not in made:
                made[one] = one.rereading_credentials()
            self._by_name[name] = None if one is None else made[one]
        self._preferred = preferred

    def lead(self, address: str) -> tuple[str, Callable[[], Credentials] | None]:
        """Return host:port and the source of credentials for host:port, ``NAME://host:port``, or
        several of these (``endpoints_text``).

        If none of the listeners is preferred, the first one is dialed, with the credentials for an
        address without a name, or with its own if it is the only one and its name is known.
        """
        if "://" not in address:
            return address, self._by_name[""]
        endpoints = parse_endpoints(address)
        known = {one.name: one for one in endpoints}
        for name in self._preferred:
            if name in known:
                return known[name].address, self._by_name[name]
        only = endpoints[0]
        named = len(endpoints) == 1 and only.name in self._by_name
        return only.address, self._by_name[only.name if named else ""]
