"""The real network as a node has it: what a client has, and listeners.

Needs what the extra ``server`` brings.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from raftlog.access import CERTIFICATES_ALONE, Access, TokenCheck
from raftlog.errors import ConfigError
from raftlog.transport import grpc_server
from raftlog.transport.api import Acceptor, Conversation, TransportLimits
from raftlog.transport.grpc_transport import GrpcTransport
from raftlog.transport.lane_listener import LaneListener
from raftlog.transport.lane_offer import OF_NODES
from raftlog.transport.listener_security import ListenerSecurity, Routes
from raftlog.transport.probe import split_address
from raftlog.transport.tls import TlsConfig


class GrpcServerTransport(GrpcTransport):
    """Implements :class:`raftlog.transport.api.ServerTransport`.

    Made and used on one running event loop. ``listeners``: how each of the node's listeners is
    secured, by name; without them every listener has ``tls``, or none. ``lane_port``: of the
    connections that fetches move to (lane_offer.py), 0: any; None: they stay on gRPC.
    ``asks_for_lanes``: of the servers that it dials, without one of its own.
    """

    def __init__(
        self,
        limits: TransportLimits | None = None,
        *,
        tls: TlsConfig | None = None,
        rng: random.Random | None = None,
        routes: Routes | None = None,
        listeners: Mapping[str, ListenerSecurity] | None = None,
        lane_port: int | None = None,
        asks_for_lanes: bool = False,
    ) -> None:
        super().__init__(limits, tls=tls, rng=rng, routes=routes)
        self._lane_port = lane_port
        self._laned = OF_NODES if asks_for_lanes or lane_port is not None else ()
        self._lanes: LaneListener | None = None
        self._secured = listeners or {"": ListenerSecurity(tls, reflection=tls is None)}
        for security in self._secured.values():
            # Files that cannot be used are an error now, not when it listens.
            security.server_credentials()
        # gRPC counts the connections of each server by itself: shares keep the sum of all within
        # the limit of the node, and leave each listener some of its own.
        share = max(1, self._limits.max_connections // len(self._secured))
        self._listener_limits = replace(self._limits, max_connections=share)
        self._listeners: list[grpc_server.GrpcListener] = []
        self._token_checks: list[TokenCheck] = []

    async def listen(
        self,
        address: str,
        acceptors: dict[Conversation, Acceptor],
        *,
        name: str = "",
        extra_handlers: Sequence[Any] = (),
        access: Access = CERTIFICATES_ALONE,
    ) -> grpc_server.GrpcListener:
        """Serve these conversations, these generic gRPC handlers and health, and reflection where
        the listener has it.

        ``access``: who may call; its check of tokens is closed with this transport. Raises
        ConfigError.
        """
        security = self._secured[name]
        if access.tokens is not None:
            self._token_checks.append(access.tokens)
            if security.tls is None:
                raise ConfigError("tokens are taken over TLS only: who reads one can use it")
        credentials = security.server_credentials(require_certificates=access.certificates)
        listener = await grpc_server.listen(
            address,
            acceptors,
            name=name,
            extra_handlers=extra_handlers,
            bounds=self.bounds,
            limits=self._listener_limits,
            credentials=credentials,
            access=access,
            reflects=security.reflection,
            lanes=await self._lanes_of(address, acceptors, secured=credentials is not None),
        )
        self._listeners.append(listener)
        return listener

    async def _lanes_of(
        self, address: str, acceptors: dict[Conversation, Acceptor], *, secured: bool
    ) -> LaneListener | None:
        """Where the clients of a listener find their lanes; None: there are none.

        They are plain text, so beside a listener that is, too. One port a node: the first such
        listener for nodes has it.
        """
        if (
            self._lane_port is None
            or secured
            or self._lanes
            or Conversation.REPLICATION not in acceptors
        ):
            return None
        lanes = LaneListener(self.bounds)
        await lanes.open(split_address(address)[0], self._lane_port)
        self._lanes = lanes
        return lanes

    async def _close_listeners(self) -> None:
        if self._lanes is not None:
            self._lanes.close()
        for check in self._token_checks:
            check.close()
        listeners, self._listeners = self._listeners, []
        await asyncio.gather(*(listener.close() for listener in listeners))
