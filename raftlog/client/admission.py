"""The check before the first call that the servers exist and accept this client.

A call retries until its deadline, since servers restart; but for a wrong port or certificate, an
immediate error is better.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from raftlog.endpoint import parse_endpoint
from raftlog.errors import ApiError, ErrorCode, TlsError
from raftlog.text import named

if TYPE_CHECKING:
    from raftlog.client.options import Options
    from raftlog.transport.certificates import TlsFiles
    from raftlog.transport.probe import TlsSeen

PATIENCE_S = 0.1
"""Longest wait, in seconds, for a refused connection, and for the answer of a name server."""
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""First bytes sent by a gRPC client: the preface, and empty settings."""
_NO_GRPC = (b"HTTP/", b"<")
"""First bytes of an HTTP/1 server's response: some servers omit the status line."""
_ALERT = b"\x15"
"""First byte of a TLS server's response to plain text, unless it just closes the connection."""
REFUSES = "nothing listens at {} (connection refused)"
UNKNOWN_NAME = "the host name in {} cannot be resolved (mistyped?)"
WANTS_TLS = "{} requires TLS: set RAFTLOG_TLS_CA_FILE, and a certificate or a token"
NO_TLS = "{} does not use TLS: unset RAFTLOG_TLS_..., or give the address of a TLS listener"
HTTP = "{} answers as an HTTP server, not gRPC: give the port of a listener, not of http.listener"
LOOK_TIMEOUT_S = 2.0
"""Timeout of each step of a handshake, in seconds."""
LOOK_AGAIN_S = 0.2
"""Pause in seconds before a second check, as a stopping server also closes connections."""


def require_listener(
    addresses: Sequence[str], *, plaintext: bool = False, files: TlsFiles | None = None
) -> None:
    """Raise ApiError (NETWORK_EXCEPTION) if every address refuses connections, or has a server that
    this client cannot use.

    Checking the server needs ``plaintext``, or the client's TLS ``files``. Returns at the first
    address with a possible node, or when the check takes too long.
    """
    found: list[dict[str, list[str]]] = []

    def look() -> None:
        wrong: dict[str, list[str]] = {}
        for address in addresses:
            what = _what_is_wrong(address, plaintext, files)
            if not what:
                return
            wrong.setdefault(what, []).append(address)
        found.append(wrong)

    # A daemon, so that a slow name lookup does not keep the process from ending.
    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    looking.join(PATIENCE_S)
    if found:
        said = "; ".join(what.format(named(where)) for what, where in found[0].items())
        raise ApiError(ErrorCode.NETWORK_EXCEPTION, f"{said}; nothing was sent")


def _what_is_wrong(address: str, plaintext: bool, files: TlsFiles | None) -> str:
    """Return what is wrong with an address, as a sentence, or "" if no fault is visible."""
    host, port = parse_endpoint(address).socket_address
    try:
        with socket.create_connection((host, port), PATIENCE_S) as connection:
            if plaintext:
                return _of_plaintext(connection, host, port)
        return _of_tls(host, port, files) if files else ""
    except ConnectionRefusedError:
        return REFUSES
    except socket.gaierror as error:
        return UNKNOWN_NAME if error.errno == socket.EAI_NONAME else ""
    except OSError:
        return ""


def _of_plaintext(connection: socket.socket, host: str, port: int) -> str:
    connection.sendall(_HELLO)
    answer = connection.recv(5)
    if answer.startswith(_NO_GRPC):
        return HTTP
    if answer[:1] in (b"", _ALERT):
        from raftlog.transport.probe import speaks_tls

        return WANTS_TLS if speaks_tls(host, port, PATIENCE_S) else ""
    return ""


def _of_tls(host: str, port: int, files: TlsFiles) -> str:
    from raftlog.transport.probe import TlsTrouble, tls_trouble

    seen = tls_trouble(host, port, files, PATIENCE_S)
    if seen.trouble in (TlsTrouble.NONE, TlsTrouble.OWN_REFUSED):
        return ""  # A stopping server closes connections, too, and may be replaced.
    if seen.trouble is TlsTrouble.PLAINTEXT:
        with socket.create_connection((host, port), PATIENCE_S) as connection:
            return _of_plaintext(connection, host, port) or NO_TLS
    return HTTP if seen.trouble is TlsTrouble.NOT_H2 else f"{{}} {seen.text}"


def require_servers(options: Options) -> None:
    """Raise NetworkError or TlsError if no broker can be used."""
    require_listener(options.servers, plaintext=options.tls is None)
    if options.tls is not None:
        _require_tls(options.servers, options.tls.files)


async def require_tls(options: Options) -> None:
    """Raise TlsError if no reachable broker can be used because of its certificate or the
    client's.
    """
    if options.tls is not None:
        await asyncio.to_thread(_require_tls, options.servers, options.tls.files)


def _require_tls(addresses: Sequence[str], files: TlsFiles) -> None:
    from raftlog.transport.probe import TlsTrouble

    wrong = _looked_at(addresses, files)
    if any(seen.trouble is TlsTrouble.OWN_REFUSED for seen in wrong.values()):
        time.sleep(LOOK_AGAIN_S)
        wrong = _looked_at(addresses, files)
    if wrong:
        said = "; ".join(f"{address} {seen.text}" for address, seen in wrong.items())
        trouble = next(iter(wrong.values())).trouble
        raise TlsError(trouble.value, f"{said}; nothing was sent")


def _looked_at(addresses: Sequence[str], files: TlsFiles) -> dict[str, TlsSeen]:
    """Return the TLS problem of each address; empty if one of them has none."""
    from raftlog.transport.probe import TlsTrouble, tls_trouble

    wrong: dict[str, TlsSeen] = {}
    for address in addresses:
        seen = tls_trouble(*parse_endpoint(address).socket_address, files, LOOK_TIMEOUT_S)
        if seen.trouble is TlsTrouble.NONE:
            return {}
        wrong[address] = seen
    return wrong
