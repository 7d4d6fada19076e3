"""The console over HTTP: access control, one view of the cluster shared by all subscribers, the
page's files.
"""

from __future__ import annotations

import asyncio
import hmac
import importlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from raftlog.bounds import Shares
from raftlog.client.security import ClientSecurity
from raftlog.errors import ConfigError
from raftlog.files import exposed
from raftlog.logger import get_logger
from raftlog.metadata.image import Image
from raftlog.node.config.node import NodeConfig
from raftlog.node.observability.http_bounds import PEER, HttpPeer
from raftlog.node.transport import peer_tls

MIN_TOKEN_CHARS = 16
_BEARER = "Bearer "


@dataclass(frozen=True, slots=True)
class Refused:
    """The refusal of a request. ``status``: the HTTP status. ``reason``: a sentence for the
    page.
    """

    status: int
    reason: str


class Door:
    """The access rules of the console.

    ``secured``: the node authenticates its clients, so the console does, too. ``token``: the
    configured token, or "" if none.
    """

    def __init__(self, *, secured: bool, token: str = "") -> None:
        self._secured, self._token = secured, token.encode()

    def refusal(self, headers: Mapping[str, str]) -> Refused | None:
        """Return the refusal of a request, or None if it is permitted. Header names must be in
        lower case.
        """
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return Refused(403, "the console only answers requests from its own page")
        if not self._token:
            if self._secured:
                return Refused(
                    403,
                    "this node authenticates its clients: to use the console, set "
                    "http.console.token.file in its configuration",
                )
            return None
        given = headers.get("authorization", "")
        shown = given[len(_BEARER) :] if given.startswith(_BEARER) else ""
        if not hmac.compare_digest(shown.encode(), self._token):
            return Refused(401, "the token is wrong" if shown else "a token is required")
        return None


def read_token(path: Path) -> str:
    """Return the token in a file. Raises ConfigError for a missing file or one that other users can
    read, and for a token that is easy to guess.
    """
    try:
        if exposed(path):
            raise ConfigError(
                f"http.console.token.file: users other than its owner have access to {path}: run "
                "chmod 600"
            )
        token = path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not ASCII text"
        raise ConfigError(f"http.console.token.file: {path}: {reason}") from error
    if len(token) < MIN_TOKEN_CHARS or not token.isprintable() or " " in token:
        raise ConfigError(
            f"http.console.token.file: {path}: must contain one word of at least {MIN_TOKEN_CHARS} "
            "characters"
        )
    return token


log = get_logger(__name__)

Look = Callable[[], Awaitable[bytes]]


class Feed:
    """A feed of documents about the cluster, made while a subscriber waits, at most once per
    ``pause_s``.

    Nothing is queued: a slow subscriber gets the newest document, and no document is made for a
    subscriber that does not read.
    """

    def __init__(self, look: Look, *, pause_s: float, max_subscribers: int) -> None:
        self._look, self._pause_s = look, pause_s
        self._places = Shares(max_subscribers)
        self._changed = asyncio.Condition()
        self._waiting = self._number = 0
        self._newest = b""
        self._looked_at = float("-inf")
        self._task: asyncio.Task[None] | None = None
        self.closed = False

    @property
    def subscribers(self) -> int:
        """Current number of subscribers."""
        return self._places.total

    def subscribe(self, host: str) -> bool:
        """Reserve a place for a client at this address; return False if all are taken.
        ``unsubscribe`` releases it.
        """
        return not self.closed and self._places.take(host)

    def unsubscribe(self, host: str) -> None:
        """Release a subscriber's place."""
        self._places.give_back(host)

    async def after(self, seen: int) -> tuple[int, bytes]:
        """Wait for a document newer than number ``seen`` (0: any); return its number and the
        document. Number 0 means that the feed is closed.
        """
        loop = asyncio.get_running_loop()
        if loop.time() - self._looked_at > self._pause_s:
            seen = self._number
        self._waiting += 1
        try:
            async with self._changed:
                while not self.closed and self._number <= seen:
                    if self._task is None or self._task.done():
                        self._task = asyncio.create_task(self._run(), name="console")
                    await self._changed.wait()
        finally:
            self._waiting -= 1
        return (0, b"") if self.closed else (self._number, self._newest)

    async def close(self) -> None:
        """Cancel the document in progress; subscribers get number 0."""
        self.closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        async with self._changed:
            self._changed.notify_all()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting and not self.closed:
            await asyncio.sleep(max(0.0, self._looked_at + self._pause_s - loop.time()))
            try:
                newest = await self._look()
            except Exception as error:
                # The console only observes: no failure here may end the node.
                log.warning("the console could not survey the cluster", error=str(error))
                self._looked_at = loop.time()
                continue
            # A slow look is followed by an equally long pause.
            self._looked_at = loop.time()
            async with self._changed:
                self._newest, self._number = newest, self._number + 1
                self._changed.notify_all()
            await asyncio.sleep(0)


class Local(NamedTuple):
    """Functions that read the node's memory, each called once per document."""

    role: str
    node_id: int
    image: Callable[[], Image]
    newest_chunks: Callable[[int], Sequence[bytes]]
    """Function that returns at most this many chunks of the log from memory, ascending."""
    committed_end: Callable[[], int]
    controllers: Callable[[], Sequence[str]]
    """Function that returns the addresses of controllers, for surveying the rest of the cluster."""


MAX_SUBSCRIBERS = 32
"""Maximum number of event streams; one address gets at most half of the free places."""
PAUSE_S = 2.0
STALLED_S = 10.0
"""Seconds after which a stream whose client does not read is closed."""
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


Answer = Callable[[Request], Awaitable[Response]]


class Console:
    """The console of one node. ``look`` returns the page's document as JSON in one line."""

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

    def routes(self, guard: Callable[[Answer], Answer]) -> list[Route]:
        """Return the routes; ``guard`` restricts answers to permitted clients."""
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
                "too many console sessions are open at this node\n",
                503,
                {**HEADERS, "Retry-After": "5"},
            )
        return _Stream(self.feed, peer)


class _Stream(StreamingResponse):
    """An event stream's place in the feed, held until the connection ends or its client stops
    reading.
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
    # Sent at once, so that the page knows that it is admitted before the first look ends.
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
    return files("raftlog.ops").joinpath("assets", name).read_bytes()


def console_of(config: NodeConfig, local: Local) -> Console:
    """Return the console of one node. Raises ConfigError for an unusable token."""
    return Console(_LateLooker(local, ClientSecurity(peer_tls(config))).look, door_of(config))


class _LateLooker:
    """A proxy that imports the collector with the first document, so that a node whose console is
    never opened does not pay for the import. Calls of ``look`` do not overlap.
    """

    def __init__(self, local: Local, security: ClientSecurity) -> None:
        self._local, self._security = local, security
        self._look: Look | None = None

    async def look(self) -> bytes:
        """See ``raftlog.ops.console_page.Looker``."""
        if self._look is None:
            module = await asyncio.to_thread(importlib.import_module, "raftlog.ops.console_page")
            self._look = module.Looker(self._local, self._security).look
        return await self._look()


def door_of(config: NodeConfig) -> Door:
    """Return the access rules of one node. Raises ConfigError."""
    secured = (
        config.http_tls is not None
        or bool(config.settings.authorizer_class_name)
        or any(one.security.tls is not None for one in config.listeners)
    )
    token = "" if config.console_token is None else read_token(config.console_token)
    return Door(secured=secured, token=token)
