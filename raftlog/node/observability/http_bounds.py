"""Limits on HTTP connections, and their client certificates, which uvicorn lacks.

A health check always gets a connection, however many silent connections other clients hold open. No
request may cause a traceback, or a log line each time. (uvicorn and h11 raise if a request stops in
the middle, and respond to an invalid request even after a response has been sent.)
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from raftlog.logger import get_logger

log = get_logger(__name__)

SEND_BUFFER_BYTES = 128 << 10
"""Unread bytes of a response that the kernel accepts; small, so that a client that stops reading is
noticed.
"""
MAX_LOGGED_KINDS = 64
"""Maximum number of internal errors that are logged with a traceback, each once."""

Complain = Callable[[str, str], None]
"""Function that counts a violation by a peer: its address, and the violation."""


PEER = "peer"
"""Key in a request's state for the :class:`HttpPeer` that sent it."""


@dataclass(frozen=True, slots=True)
class HttpPeer:
    """The client's side of a connection.

    ``certificate``: the client's certificate as verified by TLS, in DER, or empty. ``cut`` closes
    the connection at once.
    """

    address: str
    certificate: bytes
    cut: Callable[[], None]

    @property
    def host(self) -> str:
        """The address without its port."""
        return self.address.rpartition(":")[0]


def _peer_of(transport: asyncio.Transport) -> HttpPeer:
    tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    host, port = (transport.get_extra_info("peername") or ("", 0))[:2]
    return HttpPeer(
        f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        (tls.getpeercert(binary_form=True) if tls is not None else None) or b"",
        transport.abort,
    )


class _Log:
    """A replacement of uvicorn's logger."""

    level = logging.WARNING
    _logged: set[str] = set()  # noqa: RUF012  (of the process)

    def __init__(self, complain: Complain, address: str) -> None:
        self._complain, self._address = complain, address

    def warning(self, message: str, *args: object) -> None:
        """Count a warning as a violation by the client."""
        self._complain(self._address, message % args if args else message)

    def error(self, message: str, *args: object, exc_info: BaseException | None = None) -> None:
        """Log an error in a response."""
        if exc_info is None:
            self.warning(message, *args)
            return
        self._complain(self._address, f"{type(exc_info).__name__}: {exc_info}")
        kind = repr(exc_info)[:200]
        if kind not in self._logged and len(self._logged) < MAX_LOGGED_KINDS:
            self._logged.add(kind)
            log.error("an HTTP request failed", exc_info=exc_info)


def bounded_protocol(
    max_connections: int, request_timeout_ms: int, complain: Complain
) -> type[H11Protocol]:
    """Return uvicorn's protocol for one server, with both limits.

    The newest connection is always accepted, and the oldest one is closed to make room: a probe
    sends at once and is served before its connection is old.
    """
    # In the order in which they were opened.
    open_connections: dict[H11Protocol, None] = {}

    class BoundedProtocol(H11Protocol):
        """One bounded connection."""

        _seen: object = None
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            peer = _peer_of(transport)
            quiet: Any = _Log(complain, peer.address)
            self.logger = quiet
            # Uvicorn copies this into each request's scope.
            self.app_state = {**self.app_state, PEER: peer}
            connection = transport.get_extra_info("socket")
            if connection is not None:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            open_connections[self] = None
            self._timer = self.loop.call_later(request_timeout_ms / 1000, self._check)
            if len(open_connections) > max_connections:
                oldest = next(iter(open_connections))
                del open_connections[oldest]
                oldest.transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            open_connections.pop(self, None)
            if self._timer is not None:
                self._timer.cancel()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            try:
                super().data_received(data)
            except Exception as error:
                self._give_up(error)

        def handle_events(self) -> None:
            # Also called when a response is complete.
            try:
                super().handle_events()
            except Exception as error:
                self._give_up(error)

        def send_400_response(self, msg: str) -> None:
            cycle: Any = self.cycle
            if cycle is None:
                super().send_400_response(msg)
            else:
                # A response may be in progress: it is now useless.
                cycle.disconnected = True
                self.transport.abort()

        def _unsupported_upgrade_warning(self) -> None:
            self.logger.warning("the client requests an upgrade to another protocol")

        def _give_up(self, error: Exception) -> None:
            self.logger.warning(f"{type(error).__name__}: {error}")
            if self.cycle is not None:
                self.cycle.disconnected = True
            self.transport.abort()

        def _check(self) -> None:
            """Close the connection, unless a request has arrived since the last check, or is being
            answered.
            """
            cycle = self.cycle
            if cycle is self._seen and (cycle is None or cycle.response_complete):
                self.transport.abort()
                return
            self._seen = cycle
            self._timer = self.loop.call_later(request_timeout_ms / 1000, self._check)

    return BoundedProtocol
