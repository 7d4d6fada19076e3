"""The real network as a node has it: what a client has, and listeners.

Needs what the extra ``server`` brings.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from raftlog.access import CERTIFICATES_ALONE, Access, TokenCheck
from raftlog.errors import ConfigError
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
        self._tls = tls
        if tls is not None:
            # Files that cannot be used are an error now, not when it listens.
            tls.server_credentials()
        self._listeners: list[grpc_server.GrpcListener] = []
        self._token_checks: list[TokenCheck] = []

    async def listen(
        self,
        address: str,
        acceptors: dict[Conversation, Acceptor],
        *,
        extra_handlers: Sequence[Any] = (),
        access: Access = CERTIFICATES_ALONE,
    ) -> grpc_server.GrpcListener:
        """Serve these conversations, these generic gRPC handlers, health and reflection.

        ``access``: who may call; its check of tokens is closed with this transport. Raises
        ConfigError.
        """
        if access.tokens is not None:
            self._token_checks.append(access.tokens)
            if self._tls is None:
                raise ConfigError("tokens are taken over TLS only: who reads one can use it")
        credentials = self._tls and self._tls.server_credentials(
            require_certificates=access.certificates
        )
        listener = await grpc_server.listen(
            address,
            acceptors,
            extra_handlers=extra_handlers,
            bounds=self.bounds,
            credentials=credentials,
            access=access,
        )
        self._listeners.append(listener)
        return listener

    async def _close_listeners(self) -> None:
        for check in self._token_checks:
            check.close()
        listeners, self._listeners = self._listeners, []
        await asyncio.gather(*(listener.close() for listener in listeners))
