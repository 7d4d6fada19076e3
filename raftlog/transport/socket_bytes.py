"""How many bytes this process's TCP connections have received, as the kernel counts them.

gRPC owns the sockets and hides them, so they are found among the process's file descriptors. Linux
only: elsewhere nothing is found.
"""

from __future__ import annotations

import os
import socket
import struct

_TCP_INFO_BYTES = 136
_RECEIVED_AT = 128
"""Where struct tcp_info has tcpi_bytes_received (Linux 4.1)."""
_DESCRIPTORS = "/proc/self/fd"


class ReceivedBytes:
    """Counters of connections, by the address of the other side as gRPC writes it."""

    def __init__(self) -> None:
        self._descriptors: dict[str, int] = {}

    def of(self, peer: str) -> int | None:
        """Return the bytes received from a peer so far; None: its connection is not known."""
        descriptor = self._descriptors.get(peer)
        if descriptor is None:
            return None
        found = _look(descriptor)
        if found is None or found[0] != peer:
            # Closed, and the number may be another file's by now.
            del self._descriptors[peer]
            return None
        return found[1]

    def find(self) -> None:
        """Look for the connections that are open now."""
        try:
            names = os.listdir(_DESCRIPTORS)
        except OSError:
            return
        looks = ((int(name), _look(int(name))) for name in names)
        self._descriptors = {found[0]: one for one, found in looks if found is not None}


def _look(descriptor: int) -> tuple[str, int] | None:
    """Return the peer of a TCP connection and the bytes received from it; None: it is none."""
    try:
        connection = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 0, descriptor)
    except OSError:
        return None
    try:
        peer = connection.getpeername()
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:
        return None
    finally:
        # It stays gRPC's to close.
        connection.detach()
    if not isinstance(peer, tuple) or len(info) < _TCP_INFO_BYTES:
        return None
    return _address(*peer[:2]), struct.unpack_from("=Q", info, _RECEIVED_AT)[0]


def _address(host: str, port: int) -> str:
    """As ``statuses.peer_address`` has it."""
    host = host.removeprefix("::ffff:")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
