"""A controller's HTTP side, which listens at once but serves a little later.

Importing the HTTP server takes a large part of a node's startup time, and elections and claims come
first. A client that requests the health page meanwhile waits for the answer.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from raftlog.errors import FatalError
from raftlog.node.config.node import NodeConfig
from raftlog.node.observability.http_socket import address_of, bind_http
from raftlog.node.transport import http_complaints, http_contexts
from raftlog.transport.grpc_server import GrpcServerTransport
from raftlog.transport.unary import Caller

if TYPE_CHECKING:
    from raftlog.node.observability.http_server import HttpServer

MaySee = Callable[[Caller], None] | None
"""See :class:`raftlog.node.observability.http_rules.HttpRules`."""
WAIT_MAX_S = 1.0
"""Maximum delay in seconds, after which a node that is still not ready serves anyway; its health
page shows why.
"""
POLL_S = 0.02


class Described(NamedTuple):
    """The content that a node's HTTP side serves."""

    ready: Callable[[], tuple[bool, str]]
    """Returns whether the node is ready, and why."""
    server: Callable[[Any, Any, Any, Any], Any]
    """Makes the server. Arguments: the module ``controller.http_side``, a listening socket, its
    rules, and the labels of the build.
    """


class LateHttp:
    """Metrics and health of one node over HTTP, if it is configured."""

    def __init__(self, config: NodeConfig) -> None:
        """Listen.

        Raises ConfigError if the address cannot be bound, or for unreadable TLS files.
        """
        self._config = config
        self._contexts = http_contexts(config)
        where = config.http_listener
        self._bound = None if where is None else bind_http(where.host, where.port)
        self._serving: asyncio.Task[None] | None = None
        self._server: HttpServer | None = None

    @property
    def address(self) -> str:
        """host:port, or "" if HTTP is not configured."""
        return "" if self._bound is None else address_of(self._bound)

    def serve(
        self,
        described: Described,
        transport: GrpcServerTransport,
        may_see: MaySee,
        failed: Callable[[FatalError], None],
    ) -> None:
        """Serve once the node is ready, or after WAIT_MAX_S."""
        if self._bound is not None:
            self._serving = asyncio.create_task(
                self._serve(described, transport, may_see, failed), name="http begins"
            )

    async def _serve(
        self,
        described: Described,
        transport: GrpcServerTransport,
        may_see: MaySee,
        failed: Callable[[FatalError], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + WAIT_MAX_S
        while not described.ready()[0] and loop.time() < until:  # noqa: ASYNC110  (there is no event)
            await asyncio.sleep(POLL_S)
        assert self._bound is not None
        try:
            # In a thread: the loop must answer votes and fetches meanwhile.
            side = await asyncio.to_thread(importlib.import_module, "controller.http_side")
            build = await asyncio.to_thread(side.build_labels)
            rules = side.HttpRules(
                self._contexts,
                side.names_of(self._config),
                may_see,
                http_complaints(transport),
            )
            server: HttpServer = described.server(side, self._bound, rules, build)
            await server.start()
        except Exception as error:
            failed(FatalError(f"cannot serve HTTP: {error}"))
        else:
            self._server = server

    async def metrics(self) -> bytes:
        """Return the metrics in Prometheus's text format; empty until HTTP is served."""
        return b"" if self._server is None else await self._server.metrics()

    async def stop(self) -> None:
        """Stop serving, or waiting to serve, and close the socket."""
        if self._serving is not None and not self._serving.done():
            self._serving.cancel()
        if self._server is not None:
            await self._server.stop()
        elif self._bound is not None:
            self._bound.close()
