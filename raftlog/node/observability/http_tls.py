"""HTTP over TLS: a listener that passes each connection to uvicorn after the handshake.

Uvicorn itself can neither change the certificate after startup nor limit handshakes: a silent
connection would stay in the handshake for a minute without being counted.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

from raftlog.logger import get_logger
from raftlog.node.observability.http_rules import Contexts

log = get_logger(__name__)

PAUSE_S = 1.0
"""Pause before the next accept if no file descriptor is free, in seconds."""


class TlsDoor:
    """A listener for TLS connections on a bound socket.

    At most ``max_handshakes`` are in progress: the oldest one is closed for the newest, as with
    established connections (``http_bounds``).
    """

    def __init__(
        self,
        bound: socket.socket,
        contexts: Contexts,
        protocol: Callable[[], asyncio.Protocol],
        *,
        max_handshakes: int,
        timeout_ms: int,
    ) -> None:
        self._bound, self._contexts, self._protocol = bound, contexts, protocol
        self._max_handshakes, self._timeout_s = max_handshakes, timeout_ms / 1000
        self._loop = asyncio.get_running_loop()
        # In the order in which they started.
        self._handshakes: dict[asyncio.Task[None], None] = {}
        bound.setblocking(False)
        self._taking = self._loop.create_task(self._take(), name="https")

    async def close(self) -> None:
        """Stop accepting. Established connections belong to uvicorn."""
        tasks = [self._taking, *self._handshakes]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._bound.close()

    async def _take(self) -> None:
        while True:
            try:
                taken, _ = await self._loop.sock_accept(self._bound)
            except OSError as error:
                log.warning("cannot accept an HTTP connection", error=str(error))
                await asyncio.sleep(PAUSE_S)
                continue
            task = self._loop.create_task(self._shake_hands(taken))
            self._handshakes[task] = None
            task.add_done_callback(lambda done: self._handshakes.pop(done, None))
            if len(self._handshakes) > self._max_handshakes:
                oldest = next(iter(self._handshakes))
                del self._handshakes[oldest]
                oldest.cancel()
            # Let the task start before the next accept: then the loop owns the socket.
            await asyncio.sleep(0)

    async def _shake_hands(self, taken: socket.socket) -> None:
        # A failed handshake is the client's problem.
        with suppress(OSError):
            await self._loop.connect_accepted_socket(
                self._protocol,
                taken,
                ssl=self._contexts(),
                ssl_handshake_timeout=self._timeout_s,
            )
