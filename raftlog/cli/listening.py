"""Whether a node listens where a command is to ask: if not, it says so at once.

A client library goes on trying until its deadline, as servers restart; a person who has mistyped a
port does not want to wait for that.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence

from raftlog.endpoint import parse_endpoint
from raftlog.errors import ApiError, ErrorCode

PATIENCE_S = 0.1
"""A refusal of a host that is there comes sooner; a slow name server is not waited for."""
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""How a client of gRPC begins: the preface, and settings of nothing."""
_NO_GRPC = (b"HTTP/", b"<")
"""How servers of HTTP/1 answer that: some do not even say a status."""
REFUSES = "nobody listens at {} (connection refused)"
HTTP = "{} answers as an HTTP server, not gRPC: give the port of a listener, not of http.listener"


def require_listener(addresses: Sequence[str], *, plaintext: bool = False) -> None:
    """Raises ApiError (NETWORK_EXCEPTION) if every address refuses connections, or is of a server
    that speaks HTTP/1: told only where the client is to speak in ``plaintext``.

    Returns at the first that may be a node, or when it takes too long to know.
    """
    found: list[dict[str, list[str]]] = []

    def look() -> None:
        wrong: dict[str, list[str]] = {}
        for address in addresses:
            what = _what_is_wrong(address, plaintext)
            if not what:
                return
            wrong.setdefault(what, []).append(address)
        found.append(wrong)

    # A daemon: the lookup of a name must not keep the process from ending.
    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    looking.join(PATIENCE_S)
    if found:
        said = "; ".join(what.format(_listed(where)) for what, where in found[0].items())
        raise ApiError(ErrorCode.NETWORK_EXCEPTION, f"{said}; nothing was sent")


def _listed(addresses: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(addresses[:-1]), addresses[-1])))


def _what_is_wrong(address: str, plaintext: bool) -> str:
    """A sentence about an address; empty: nothing, as far as can be seen."""
    endpoint = parse_endpoint(address)
    try:
        with socket.create_connection(
            (endpoint.host.strip("[]"), endpoint.port), PATIENCE_S
        ) as connection:
            if not plaintext:
                return ""
            connection.sendall(_HELLO)
            return HTTP if connection.recv(5).startswith(_NO_GRPC) else ""
    except ConnectionRefusedError:
        return REFUSES
    except OSError:
        return ""
