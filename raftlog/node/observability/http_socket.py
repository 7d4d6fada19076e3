"""The socket of a node's HTTP server, which is bound before the server is imported."""

from __future__ import annotations

import socket

from raftlog.errors import ConfigError


def bind_http(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 means any free one. Raises ConfigError if the address
    cannot be bound.
    """
    host = host.strip("[]")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"http.listener: {host}:{port}: {error.strerror}") from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        # Listen before the server exists: a client that knows the address may connect at once.
        bound.listen(128)
    except OSError as error:
        bound.close()
        raise ConfigError(f"http.listener: {host}:{port}: {error.strerror}") from error
    return bound


def address_of(bound: socket.socket) -> str:
    """Return host:port of a listening socket."""
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
