"""The real network as a node has it: what a client has, and listeners.

Needs what the extra ``server`` brings.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from raftlog.transport import grpc_server
from raftlog.transport.api import Acceptor, Conversation, TransportLimits
from raftlog.transport.grpc_transport import GrpcTransport
from raftlog.transport.tls import TlsConfig


class GrpcServerTransport(GrpcTransport):
    """Implements :class:`raftlog.transport.api.ServerTransport`.

    Made and used on one running event loop.
    """

    def __init__(
        self,
        limits: TransportLimits | None = None,
        *,
        tls: TlsConfig | None = None,
        rng: random.Random | None = None,
    ) -> None:
        super().__init__(limits, tls=tls, rng=rng)
        self._server_credentials = tls.server_credentials() if tls else None
        self._listeners: list[grpc_server.GrpcListener] = []

    async def listen(
        self,
        address: str,
        acceptors: dict[Conversation, Acceptor],
        *,
        extra_handlers: Sequence[Any] = (),
    ) -> grpc_server.GrpcListener:
        """Serve these conversations, these generic gRPC handlers, health and reflection.

        Raises ConfigError.
        """
        listener = await grpc_server.listen(
            address,
            acceptors,
            extra_handlers=extra_handlers,
            bounds=self.bounds,
            credentials=self._server_credentials,
        )
        self._listeners.append(listener)
        return listener

    async def _close_listeners(self) -> None:
        listeners, self._listeners = self._listeners, []
        await asyncio.gather(*(listener.close() for listener in listeners))
