"""The console's page and its stream of server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from raftlog.console.door import Door
from raftlog.console.feed import Feed

MAX_SUBSCRIBERS = 32
"""Streams of events; one address has no more of them than it leaves to others."""
PAUSE_S = 2.0
STALLED_S = 10.0
"""A stream whose client has taken nothing for so long is closed."""
PEER = "peer"
"""In the state of a request: who has sent it, a :class:`HttpPeer`."""
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
        " img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_KINDS = {
    "index.html": "text/html",
    "console.css": "text/css",
    "console.js": "text/javascript",
    "curves.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class HttpPeer:
    """The other side of a connection. ``certificate``: that it has shown and TLS has checked, DER,
    empty: none; ``cut`` closes the connection at once.
    """

    address: str
    certificate: bytes
    cut: Callable[[], None]

    @property
    def host(self) -> str:
        """Its address without the port."""
        return self.address.rpartition(":")[0]


Guard = Callable[[Callable[[Request], Awaitable[Response]]], Callable[..., Awaitable[Response]]]


class Console:
    """``look``: makes what the page shows, as JSON in one line."""

    def __init__(
        self,
        look: Callable[[], Awaitable[bytes]],
        door: Door,
        *,
        pause_s: float = PAUSE_S,
        max_subscribers: int = MAX_SUBSCRIBERS,
    ) -> None:
        self._door = door
        self.feed = Feed(look, pause_s=pause_s, max_subscribers=max_subscribers)

    def routes(self, guard: Guard) -> list[Route]:
        """``guard``: what the listener asks of those who want more than health."""
        return [
            Route("/console", guard(_asset("index.html"))),
            *(
                Route(f"/console/{name}", guard(_asset(name)))
                for name in _KINDS
                if name != "index.html"
            ),
            Route("/console/events", guard(self._events)),
        ]

    async def close(self) -> None:
        """End all streams, so that the HTTP server can stop."""
        await self.feed.close()

    async def _events(self, request: Request) -> Response:
        refused = self._door.refusal(request.headers)
        if refused is not None:
            headers = (
                {**HEADERS, "WWW-Authenticate": "Bearer"} if refused.status == 401 else HEADERS
            )
            return PlainTextResponse(refused.reason + "\n", refused.status, headers)
        peer: HttpPeer = getattr(request.state, PEER)
        if not self.feed.subscribe(peer.host):
            return PlainTextResponse(
                "as many pages look at this node's console as may\n",
                503,
                {**HEADERS, "Retry-After": "5"},
            )
        return _Stream(self.feed, peer)


class _Stream(StreamingResponse):
    """Holds one place of the feed, and gives it back however the connection ends, or when nothing
    of it is read any more.
    """

    def __init__(self, feed: Feed, peer: HttpPeer) -> None:
        super().__init__(_told(feed), media_type="text/event-stream", headers=HEADERS)
        self._feed, self._peer = feed, peer

    async def __call__(self, scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        async def send_in_time(message) -> None:  # type: ignore[no-untyped-def]
            try:
                async with asyncio.timeout(STALLED_S):
                    await send(message)
            except TimeoutError:
                self._peer.cut()

        try:
            await super().__call__(scope, receive, send_in_time)
        finally:
            self._feed.unsubscribe(self._peer.host)


async def _told(feed: Feed) -> AsyncIterator[bytes]:
    # At once, so that a page knows that it is let in before the first look is over.
    yield b"retry: 2000\n\n"
    number = 0
    while True:
        number, newest = await feed.after(number)
        if not number:
            return
        yield b"id: %d\ndata: %b\n\n" % (number, newest)


def _asset(name: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        return Response(_content(name), media_type=_KINDS[name], headers=HEADERS)

    return answer


@cache
def _content(name: str) -> bytes:
    return files("raftlog.console").joinpath("assets", name).read_bytes()
