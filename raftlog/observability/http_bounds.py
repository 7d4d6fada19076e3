"""What uvicorn does not know of a connection: its client's certificate, and bounds. A health check
always gets one, however many others hold theirs open and say nothing.
"""

from __future__ import annotations

import asyncio
import ssl

from uvicorn.protocols.http.h11_impl import H11Protocol

CERTIFIED = "certified"
"""In the state of a request: whether its client has shown a certificate that was checked."""


def _is_certified(transport: asyncio.Transport) -> bool:
    tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    # Empty of one that was not checked.
    return tls is not None and bool(tls.getpeercert())


def bounded_protocol(max_connections: int, request_timeout_ms: int) -> type[H11Protocol]:
    """Uvicorn's protocol for one server, which itself knows neither bound.

    The newest connection is always taken, and the oldest one cut for it: a probe speaks at once and
    is served before it is old.
    """
    # In the order in which they came.
    open_connections: dict[H11Protocol, None] = {}

    class BoundedProtocol(H11Protocol):
        """One connection."""

        _seen: object = None
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            # Uvicorn puts a copy of it into each request's scope.
            self.app_state = {**self.app_state, CERTIFIED: _is_certified(transport)}
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

        def _check(self) -> None:
            """Cut it, unless a request has come since the last look, or is being answered."""
            cycle = self.cycle
            if cycle is self._seen and (cycle is None or cycle.response_complete):
                self.transport.abort()
                return
            self._seen = cycle
            self._timer = self.loop.call_later(request_timeout_ms / 1000, self._check)

    return BoundedProtocol
