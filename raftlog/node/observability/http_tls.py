"""HTTP over TLS: a listener that passes each connection to uvicorn after its handshake.

Uvicorn itself has neither a change of the certificate after its start, nor a bound on handshakes: a
silent connection would be in one for a minute, without being counted.
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
"""Pause before the next accept without a free file descriptor, in seconds."""


class TlsDoor:
    """A listener for TLS connections on a bound socket.

    At most ``max_handshakes`` are in progress: the oldest one is cut for the newest, as among the
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
        """``timeout_ms``: timeout of a handshake."""
        self._bound, self._contexts, self._protocol = bound, contexts, protocol
        self._max_handshakes, self._timeout_s = max_handshakes, timeout_ms / 1000
        self._loop = asyncio.get_running_loop()
        # In the order in which they came.
        self._handshakes: dict[asyncio.Task[None], None] = {}
        bound.setblocking(False)
        self._taking = self._loop.create_task(self._take(), name="https")

    async def close(self) -> None:
        """Stop accepting. Established connections are uvicorn's."""
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
                log.warning("no HTTP connection can be taken", error=str(error))
                await asyncio.sleep(PAUSE_S)
                continue
            task = self._loop.create_task(self._shake_hands(taken))
            self._handshakes[task] = None
            task.add_done_callback(lambda done: self._handshakes.pop(done, None))
            if len(self._handshakes) > self._max_handshakes:
                oldest = next(iter(self._handshakes))
                del self._handshakes[oldest]
                oldest.cancel()
            # It begins before the next one is taken: from there on the socket is the loop's.
            await asyncio.sleep(0)

    async def _shake_hands(self, taken: socket.socket) -> None:
        # What the other side does wrong, or does not do, is its own affair.
        with suppress(OSError):
            await self._loop.connect_accepted_socket(
                self._protocol,
                taken,
                ssl=self._contexts(),
                ssl_handshake_timeout=self._timeout_s,
            )
