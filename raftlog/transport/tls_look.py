"""Why a TLS connection to an address does not come about, in words of certificates.

gRPC tells it in words of its library, or only that the socket was closed. Here is one handshake
more, made to find out.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

_H2 = "h2"
_EXPIRED, _NOT_YET_VALID = 10, 9
_STRANGER = frozenset({2, 18, 19, 20, 21})
_NAME = frozenset({62, 64})
"""Codes of OpenSSL's verification."""
_PLAINTEXT_REASONS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"})
_VALIDITY = re.compile(
    rb"(?:\x17\x0d(\d{12})Z|\x18\x0f(\d{14})Z)(?:\x17\x0d(\d{12})Z|\x18\x0f(\d{14})Z)"
)
"""Both times of a certificate, as DER has them: with two digits for the year, or with four."""
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


class TlsTrouble(StrEnum):
    """What is in the way."""

    NONE = ""
    """Nothing, as far as can be seen."""
    PLAINTEXT = "plaintext"
    """The port speaks no TLS."""
    WANTS_TLS = "wants TLS"
    """It speaks TLS, and we do not."""
    NOT_H2 = "not h2"
    """It speaks TLS, and not gRPC: an HTTP server."""
    EXPIRED = "expired"
    """Its certificate was valid once."""
    NOT_YET_VALID = "not yet valid"
    """Its certificate will be valid: or the clock here, or that of its authority, is wrong."""
    OTHER_AUTHORITY = "other authority"
    OTHER_NAME = "other name"
    OWN_EXPIRED = "own expired"
    """It hangs up, and the certificate here has expired, or is not valid yet."""
    OWN_REFUSED = "own refused"
    """It hangs up on the certificate here, or on there being none."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of a client; without a certificate it has a token."""

    ca: Path
    certificate: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, slots=True)
class TlsSeen:
    """``text``: a predicate about the address, such as ``speaks no TLS``."""

    trouble: TlsTrouble
    text: str = ""


NOTHING = TlsSeen(TlsTrouble.NONE)


def tls_trouble(host: str, port: int, files: TlsFiles, timeout_s: float) -> TlsSeen:
    """Connect as a client with these files does. Never raises for what the other side does.

    Blocks for ``timeout_s`` a step.
    """
    try:
        context = _context(files)
    except (OSError, ValueError):
        return NOTHING  # Who connects says what is wrong with the files.
    try:
        with _connected(context, host, port, timeout_s) as connection:
            if connection.selected_alpn_protocol() != _H2:
                return TlsSeen(TlsTrouble.NOT_H2, "answers as an HTTP server, not gRPC")
            # A server of gRPC begins to speak, or has looked at our certificate and hangs up.
            hung_up = not connection.recv(1)
    except ssl.SSLCertVerificationError as error:
        return _of_certificate(error.verify_code, host, port, timeout_s)
    except ssl.SSLError as error:
        if (error.reason or "") in _PLAINTEXT_REASONS:
            return TlsSeen(TlsTrouble.PLAINTEXT, "speaks no TLS")
        return _of_own(files) if "ALERT" in (error.reason or "") else NOTHING
    except OSError:
        return NOTHING
    return _of_own(files) if hung_up else NOTHING


def speaks_tls(host: str, port: int, timeout_s: float) -> bool:
    """Whether it does, with whatever certificate."""
    try:
        with _connected(_context(None), host, port, timeout_s):
            return True
    except OSError:
        return False


def _connected(context: ssl.SSLContext, host: str, port: int, timeout_s: float) -> ssl.SSLSocket:
    plain = socket.create_connection((host, port), timeout_s)
    try:
        return context.wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise


def _context(files: TlsFiles | None) -> ssl.SSLContext:
    """A client's; None: it takes whatever certificate it is shown."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # What gRPC's own library accepts must not fail here.
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    context.set_alpn_protocols([_H2])
    if files is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    context.load_verify_locations(files.ca)
    if files.certificate is not None:
        context.load_cert_chain(files.certificate, files.key, password="")
    return context


def _of_certificate(code: int, host: str, port: int, timeout_s: float) -> TlsSeen:
    if code in {_EXPIRED, _NOT_YET_VALID}:
        began, ends = _times(_certificate_of(host, port, timeout_s))
        if code == _EXPIRED:
            return TlsSeen(TlsTrouble.EXPIRED, f"shows a certificate that expired{_at(ends)}")
        return TlsSeen(
            TlsTrouble.NOT_YET_VALID, f"shows a certificate that is not valid until{_at(began)}"
        )
    if code in _STRANGER:
        return TlsSeen(TlsTrouble.OTHER_AUTHORITY, "shows a certificate of another authority")
    if code in _NAME:
        return TlsSeen(TlsTrouble.OTHER_NAME, f"shows a certificate that does not name {host}")
    return NOTHING


def _of_own(files: TlsFiles) -> TlsSeen:
    """Why it may have hung up."""
    if files.certificate is None:
        return TlsSeen(TlsTrouble.OWN_REFUSED, "hangs up on a client without a certificate")
    if wrong := invalid_now(files.certificate):
        return TlsSeen(TlsTrouble.OWN_EXPIRED, f"hangs up on {files.certificate}, which {wrong}")
    return TlsSeen(TlsTrouble.OWN_REFUSED, f"hangs up on {files.certificate}")


def invalid_now(certificate: Path) -> str:
    """Return why the first certificate of a PEM file is not valid at this time; empty: it is."""
    began, ends = times_of(certificate)
    now = datetime.now(UTC)
    if ends is not None and ends < now:
        return f"expired{_at(ends)}"
    return f"is not valid until{_at(began)}" if began is not None and began > now else ""


def times_of(certificate: Path) -> tuple[datetime | None, datetime | None]:
    """From when to when the first certificate of a PEM file is valid; None: that cannot be read."""
    try:
        pem = _PEM.search(certificate.read_text())
        return _times(ssl.PEM_cert_to_DER_cert(pem[0]) if pem else b"")
    except (OSError, ValueError):
        return None, None


def first_end(certificates: Iterable[Path]) -> datetime | None:
    """When the first of these files' certificates ends; None: there is none that can be read."""
    ends = [at for _, at in map(times_of, certificates) if at is not None]
    return min(ends, default=None)


def _certificate_of(host: str, port: int, timeout_s: float) -> bytes:
    """The certificate that it shows, whatever it is; DER. Empty: none was got."""
    try:
        with _connected(_context(None), host, port, timeout_s) as connection:
            return connection.getpeercert(binary_form=True) or b""
    except OSError:
        return b""


def _times(der: bytes) -> tuple[datetime | None, datetime | None]:
    """From when to when it is valid."""
    found = _VALIDITY.search(der)
    if found is None:
        return None, None
    began, ends = (found[1] or found[2]), (found[3] or found[4])
    return _time(began), _time(ends)


def _time(digits: bytes) -> datetime | None:
    text = digits.decode()
    if len(text) == len("YYMMDDhhmmss"):
        text = ("19" if text >= "5" else "20") + text
    try:
        return datetime.strptime(text, "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return None


def _at(when: datetime | None) -> str:
    return "" if when is None else f" {when:%Y-%m-%dT%H:%M:%SZ}"
