"""Probes of an address: a raw TCP connect, and a TLS handshake.

A refused TCP connect is the proof of death that lets an election start at once. The handshake
determines why a TLS connection fails, in terms of certificates: gRPC reports only its library's
text, or just a closed socket.

Why: docs/decisions/002-elections-by-proof-of-death.md
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from raftlog.errors import ConfigError
from raftlog.transport.api import Probe
from raftlog.transport.certificates import TlsFiles, at_text, invalid_now, times_of_der


def split_address(address: str) -> tuple[str, int]:
    """Split ``host:port`` or ``[v6]:port``. Raises ConfigError."""
    host, separator, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"{address!r} is not an address of the form host:port")
    return host, int(port)


async def probe(address: str, timeout_s: float) -> Probe:
    """Try to connect to each address of the host. Return ACCEPTED if one accepts, REFUSED only if
    every one refuses, and otherwise SILENT.

    A name like localhost has two addresses, and the refusal of one proves nothing about the other.
    Any other result, such as no route or a timeout, counts as SILENT: the process may be alive.
    """
    host, port = split_address(address)
    found: list[Probe] = []
    try:
        async with asyncio.timeout(timeout_s):
            for family, sockaddr in await _resolve(host, port):
                found.append(await _connect(family, sockaddr))
                if found[-1] is Probe.ACCEPTED:
                    return Probe.ACCEPTED
    except OSError:  # Includes TimeoutError and a failed name lookup.
        return Probe.SILENT
    return Probe.REFUSED if found and all(one is Probe.REFUSED for one in found) else Probe.SILENT


async def host_failure(address: str, timeout_s: float) -> str:
    """Return why the host name of an address cannot be resolved, or empty if it can."""
    host, port = split_address(address)
    try:
        async with asyncio.timeout(timeout_s):
            await _resolve(host, port)
    except OSError as error:
        why = error.strerror or f"no name server has answered within {timeout_s:g} s"
        return f"the host name {host} does not resolve: {why}"
    return ""


async def _resolve(host: str, port: int) -> list[tuple[int, tuple[object, ...]]]:
    try:
        # A numeric address needs no thread.
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        infos = await _lookup(host, port)
    return [(info[0], info[4]) for info in infos]


def _lookup(host: str, port: int) -> asyncio.Future[list[Any]]:
    """Resolve a name in a thread that does not delay the process's exit, as a name server may be
    silent.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[list[Any]] = loop.create_future()

    def settle(infos: list[Any], error: OSError | None) -> None:
        if not future.done():
            if error is None:
                future.set_result(infos)
            else:
                future.set_exception(error)

    def look() -> None:
        infos: list[Any] = []
        failure: OSError | None = None
        try:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            failure = error
        with suppress(RuntimeError):  # The loop is closed.
            loop.call_soon_threadsafe(settle, infos, failure)

    threading.Thread(target=look, name="raftlog-lookup", daemon=True).start()
    return future


async def _connect(family: int, sockaddr: tuple[object, ...]) -> Probe:
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, sockaddr)
        except ConnectionRefusedError:
            return Probe.REFUSED
        except TimeoutError:
            raise
        except OSError:
            return Probe.SILENT
    return Probe.ACCEPTED


_H2 = "h2"
_EXPIRED, _NOT_YET_VALID = 10, 9
_STRANGER = frozenset({2, 18, 19, 20, 21})
_NAME = frozenset({62, 64})
"""OpenSSL's verification error codes."""
_PLAINTEXT_REASONS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"})


class TlsTrouble(StrEnum):
    """Reason why a TLS connection fails."""

    NONE = ""
    """No obstacle was detected."""
    PLAINTEXT = "plaintext"
    """The port does not speak TLS."""
    WANTS_TLS = "wants TLS"
    """The port speaks TLS, and this client does not."""
    NOT_H2 = "not h2"
    """The port speaks TLS but not gRPC: it belongs to an HTTP server."""
    EXPIRED = "expired"
    """The server's certificate has expired."""
    NOT_YET_VALID = "not yet valid"
    """The server's certificate is not valid yet, or the clock of this host or of the CA is
    wrong.
    """
    OTHER_AUTHORITY = "other authority"
    OTHER_NAME = "other name"
    OWN_EXPIRED = "own expired"
    """The server closes the connection, and this client's certificate has expired or is not valid
    yet.
    """
    OWN_REFUSED = "own refused"
    """The server closes the connection because of this client's certificate, or because there is
    none.
    """


@dataclass(frozen=True, slots=True)
class TlsSeen:
    """Result of a TLS probe. ``text``: a predicate about the address, such as ``does not
    use TLS``.
    """

    trouble: TlsTrouble
    text: str = ""


NOTHING = TlsSeen(TlsTrouble.NONE)


def tls_trouble(host: str, port: int, files: TlsFiles, timeout_s: float) -> TlsSeen:
    """Connect as a client with these files does, and return the obstacle. Never raises for a
    failure of the server. Blocks for up to ``timeout_s`` seconds per step.
    """
    try:
        context = _context(files)
    except (OSError, ValueError):
        return NOTHING  # The code that connects reports what is wrong with the files.
    try:
        with _connected(context, host, port, timeout_s) as connection:
            if connection.selected_alpn_protocol() != _H2:
                return TlsSeen(TlsTrouble.NOT_H2, "answers as an HTTP server, not gRPC")
            # A gRPC server either sends its settings, or rejects our certificate and hangs up.
            hung_up = not connection.recv(1)
    except ssl.SSLCertVerificationError as error:
        return _of_certificate(error.verify_code, host, port, timeout_s)
    except ssl.SSLError as error:
        if (error.reason or "") in _PLAINTEXT_REASONS:
            return TlsSeen(TlsTrouble.PLAINTEXT, "does not use TLS")
        return _of_own(files) if "ALERT" in (error.reason or "") else NOTHING
    except OSError:
        return NOTHING
    return _of_own(files) if hung_up else NOTHING


def speaks_tls(host: str, port: int, timeout_s: float) -> bool:
    """Return whether a server speaks TLS, whatever its certificate."""
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
    """Return a client's TLS context; without files it accepts any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Accept every cipher that gRPC's TLS library accepts.
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
        began, ends = times_of_der(_certificate_of(host, port, timeout_s))
        if code == _EXPIRED:
            return TlsSeen(
                TlsTrouble.EXPIRED, f"presents a certificate that expired{at_text(ends)}"
            )
        return TlsSeen(
            TlsTrouble.NOT_YET_VALID,
            f"presents a certificate that is not valid until{at_text(began)}",
        )
    if code in _STRANGER:
        return TlsSeen(TlsTrouble.OTHER_AUTHORITY, "presents a certificate of another authority")
    if code in _NAME:
        return TlsSeen(TlsTrouble.OTHER_NAME, f"presents a certificate that does not name {host}")
    return NOTHING


def _of_own(files: TlsFiles) -> TlsSeen:
    """Return why the server may have closed the connection, judging by this client's
    certificate.
    """
    if files.certificate is None:
        return TlsSeen(TlsTrouble.OWN_REFUSED, "rejects a client without a certificate")
    if wrong := invalid_now(files.certificate):
        return TlsSeen(TlsTrouble.OWN_EXPIRED, f"rejects {files.certificate}, which {wrong}")
    return TlsSeen(TlsTrouble.OWN_REFUSED, f"rejects {files.certificate}")


def _certificate_of(host: str, port: int, timeout_s: float) -> bytes:
    """Return the server's certificate in DER, unverified, or empty if none was received."""
    try:
        with _connected(_context(None), host, port, timeout_s) as connection:
            return connection.getpeercert(binary_form=True) or b""
    except OSError:
        return b""
