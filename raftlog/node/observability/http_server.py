"""The HTTP server of a node, in its event loop: /metrics, /livez, /readyz with its reason, and a
status page.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from time import perf_counter
from typing import Any, Protocol

import uvicorn
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from raftlog.bounds import HTTP_MAX_CONNECTIONS, HTTP_REQUEST_TIMEOUT_MS
from raftlog.node.observability.http_bounds import PEER, HttpPeer, bounded_protocol
from raftlog.node.observability.http_rules import HttpRules
from raftlog.node.observability.http_socket import address_of, bind_http
from raftlog.node.observability.http_tls import TlsDoor
from raftlog.node.observability.registry import MetricsRegistry
from raftlog.text import printable

SCRAPE_PAUSE_MAX_S = 0.1

Ready = Callable[[], tuple[bool, str]]
"""Function that returns whether the node is ready, and why: the obstacle or the node's role."""

Status = Callable[[], Mapping[str, object]]
"""Function that returns the values for the status page, by name."""

Answer = Callable[[Request], Awaitable[Response]]


class Pages(Protocol):
    """Additional pages of the server."""

    def routes(self, guard: Callable[[Answer], Answer]) -> list[Route]:
        """Return the routes; ``guard`` restricts a page to permitted clients."""

    async def close(self) -> None:
        """End all responses, so that the server can stop."""


_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title><style>body{{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:44rem;padding:0 1rem}}
th{{text-align:left;padding-right:2rem;font-weight:500}}td{{font-family:ui-monospace,monospace}}</style>
<h1>{title}</h1><p><strong>{state}</strong>: {reason}</p><table>{rows}</table>
<p>{more}<a href="metrics">metrics</a> · <a href="readyz">readyz</a> · <a href="livez">livez</a></p></html>
"""  # noqa: E501


class _Server(uvicorn.Server):
    """A uvicorn server that leaves the process's signals to the node."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def protocol(self) -> asyncio.Protocol:
        """Return a protocol for a connection that was accepted elsewhere."""
        kind: Any = self.config.http_protocol_class
        made: asyncio.Protocol = kind(
            config=self.config, server_state=self.server_state, app_state={}
        )
        return made


class HttpServer:
    """The server for one node's metrics and health.

    ``port``: 0 means any free one; ``address`` then contains it. ``status`` fills the page at
    ``/``. ``rules``: access rules. ``bound``: a socket that already listens at the address, or
    None. ``console``: the console's pages, or None.
    """

    def __init__(
        self,
        host: str,
        port: int,
        registry: MetricsRegistry,
        ready: Ready,
        *,
        title: str = "raftlog",
        status: Status = dict,
        rules: HttpRules | None = None,
        bound: socket.socket | None = None,
        console: Pages | None = None,
    ) -> None:
        self._host, self._port, self._bound = host, port, bound
        self._registry, self._ready, self._title, self._status = registry, ready, title, status
        self._rules, self._console = rules or HttpRules(), console
        self._door: TlsDoor | None = None
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._rendering = asyncio.Lock()
        self.address = ""

    async def metrics(self) -> bytes:
        """Return the metrics in Prometheus's format."""
        await self._registry.refresh()
        return generate_latest(self._registry.registry)

    async def start(self) -> None:
        """Listen and serve. Raises ConfigError if the address cannot be bound."""
        bound = self._bound or bind_http(self._host, self._port)
        self.address = address_of(bound)
        config = uvicorn.Config(
            self.application(),
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            http=bounded_protocol(
                HTTP_MAX_CONNECTIONS, HTTP_REQUEST_TIMEOUT_MS, self._rules.complain
            ),
            timeout_graceful_shutdown=1,
        )
        self._server = server = _Server(config)
        contexts = self._rules.contexts
        if contexts is None:
            self._serving = asyncio.create_task(server.serve(sockets=[bound]), name="http")
            return
        config.load()
        self._serving = asyncio.create_task(server.serve(sockets=[]), name="http")
        self._door = TlsDoor(
            bound,
            contexts,
            server.protocol,
            max_handshakes=HTTP_MAX_CONNECTIONS,
            timeout_ms=HTTP_REQUEST_TIMEOUT_MS,
        )

    async def stop(self) -> None:
        """Stop listening and close the connections. Idempotent."""
        if self._console is not None:
            await self._console.close()
        door, self._door = self._door, None
        if door is not None:
            await door.close()
        server, serving, self._server, self._serving = self._server, self._serving, None, None
        if server is not None and serving is not None:
            server.should_exit = True
            await serving

    def application(self) -> Starlette:
        """Return the application itself, for tests, or to mount it elsewhere."""
        routes = [
            Route("/metrics", self._guarded(self._metrics)),
            # Open to everybody, under any name: it reveals nothing.
            Route("/livez", self._livez),
            Route("/readyz", self._called_rightly(self._readyz)),
            Route("/", self._guarded(self._page)),
        ]
        if self._console is not None:
            routes += self._console.routes(self._guarded)
        return Starlette(routes=routes)

    def _called_rightly(self, answer: Answer) -> Answer:
        """Return a page that requires the request to name this node."""

        async def guarded(request: Request) -> Response:
            if self._rules.wrong_host(request.headers.get("host")):
                self._rules.complain(
                    _peer(request).address, "the Host header is not a name of this node"
                )
                return PlainTextResponse(
                    "address this node by an IP address, localhost or one of its own names\n", 421
                )
            return await answer(request)

        return guarded

    def _guarded(self, answer: Answer) -> Answer:
        """Return a page that, with TLS, requires a client certificate with access. Not for health
        checks: orchestrators send them without a certificate.
        """

        async def guarded(request: Request) -> Response:
            if why := self._rules.refusal(_peer(request)):
                return PlainTextResponse(f"{printable(why)}\n", status_code=403)
            return await answer(request)

        return self._called_rightly(guarded)

    async def _metrics(self, request: Request) -> Response:
        # Rendered on the loop, not in a thread: the callables read the node's state, which belongs
        # to the loop. Scrapes run one after another, each followed by an equally long pause: a
        # flood of scrapes leaves half of the loop's time to other work.
        async with self._rendering:
            begun = perf_counter()
            body = await self.metrics()
            await asyncio.sleep(min(perf_counter() - begun, SCRAPE_PAUSE_MAX_S))
        return Response(body, media_type=CONTENT_TYPE_LATEST)

    async def _livez(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _readyz(self, request: Request) -> Response:
        ready, reason = self._ready()
        return PlainTextResponse(f"{printable(reason)}\n", status_code=200 if ready else 503)

    async def _page(self, request: Request) -> Response:
        ready, reason = self._ready()
        rows = "".join(
            f"<tr><th>{escape(name)}</th><td>{_shown(value)}</td></tr>"
            for name, value in self._status().items()
        )
        page = _PAGE.format(
            title=escape(self._title),
            state="ready" if ready else "not ready",
            reason=escape(reason),
            rows=rows,
            more="" if self._console is None else '<a href="console">console</a> · ',
        )
        return HTMLResponse(page)


def _peer(request: Request) -> HttpPeer:
    peer: HttpPeer = getattr(request.state, PEER)
    return peer


def escape(text: str) -> str:
    """Return text, which may come from strangers, escaped for the page."""
    return html.escape(printable(text))


def _shown(value: object) -> str:
    """Return a value for the page; unknown ids, epochs and offsets are -1."""
    return "unknown" if value == -1 else escape(str(value))
