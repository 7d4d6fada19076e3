"""The real network of a client: each link is a gRPC stream on a separate channel, and each call
presents a certificate or a token.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import re
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from raftlog.errors import ApiError, ConfigError, ErrorCode, OtherServerError, RaftlogError
from raftlog.identity import TOKEN_MAX_CHARS
from raftlog.transport.api import Conversation, Dialer, DialHandler, Probe, TransportLimits
from raftlog.transport.bounds import Bounds
from raftlog.transport.grpc_link import GrpcLink, failure_text, status_text
from raftlog.transport.grpc_runtime import take_all_wakeups
from raftlog.transport.lane_link import DIALED
from raftlog.transport.lane_tickets import ASK_KEY, OF_CLIENTS, VERSION, Offer, offered
from raftlog.transport.links import BaseDialer
from raftlog.transport.probe import host_failure, probe
from raftlog.transport.statuses import error_from_wire, error_of
from raftlog.transport.tls import ClientTls, Credentials, Routes

TokenSource = Callable[[], str | Awaitable[str]]
"""Source of the token for the next connection: a coroutine function, or a function that does not
block.

If it raises NoTokenError, the connection is tried again later.
"""
Metadata = tuple[tuple[str, str], ...]
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")


class NoTokenError(RaftlogError):
    """There is no token to present. The message gives the reason, and contains no part of a
    token.
    """


def token_file(path: Path) -> TokenSource:
    """Return a source that reads the token from a file at each call, as a renewal replaces the
    file.
    """

    def read() -> str:
        try:
            with path.open("rb") as file:
                # With room for a line end, and one byte to detect a longer file.
                content = file.read(TOKEN_MAX_CHARS + 3)
        except OSError as error:
            raise NoTokenError(f"no token: {error.strerror}: {path}") from error
        try:
            return content.decode("ascii").strip()
        except UnicodeDecodeError:
            raise NoTokenError(f"no token: {path} is not ASCII text") from None

    return read


async def authorization(source: TokenSource | None, timeout_s: float) -> Metadata:
    """Return the authorization metadata of a call. Raises NoTokenError."""
    if source is None:
        return ()
    try:
        async with asyncio.timeout(timeout_s):
            given = source()
            token = await given if inspect.isawaitable(given) else given
    except NoTokenError:
        raise
    except Exception as error:
        # The text of an unknown error may contain the token.
        raise NoTokenError(
            f"no token: the token source failed with {type(error).__name__}"
        ) from None
    # gRPC's error for a value that it cannot send would contain the whole value.
    if not isinstance(token, str) or len(token) > TOKEN_MAX_CHARS or not _TOKEN.fullmatch(token):
        raise NoTokenError(
            f"no token: the token source must return a token of at most {TOKEN_MAX_CHARS}"
            " characters, without spaces"
        )
    return (("authorization", f"Bearer {token}"),)


LINK_METADATA_KEY = "raftlog-link"
"""Key in the initial metadata by which a server confirms a stream."""

_OTHER_KIND = {
    Conversation.BROKER: (Conversation.CONTROLLER, "a controller, not a broker"),
    Conversation.WATCH: (Conversation.CONTROLLER, "a controller, not a broker"),
    Conversation.WATCH_MANY: (Conversation.CONTROLLER, "a controller, not a broker"),
    Conversation.CONTROLLER: (Conversation.BROKER, "a broker, not a controller"),
}
"""The conversation that a server of the other kind offers instead, and a description of that
server. A server that offers neither may not be ready yet.
"""


def open_channel(
    address: str, credentials: grpc.ChannelCredentials | None, limits: TransportLimits
) -> Any:
    """Return a channel on the running loop, which gRPC may still wake after the channel is closed.

    The transport reconnects with a new channel; gRPC itself makes only one attempt.
    """
    take_all_wakeups(asyncio.get_running_loop())
    options = [
        # A separate connection for each dialer: votes and heartbeats never queue behind bulk data,
        # and no back-off is shared.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", limits.reconnect_backoff_min_ms),
        ("grpc.max_reconnect_backoff_ms", limits.reconnect_backoff_max_ms),
        # Despite its name, this is also the minimum duration of an attempt, so it must not be less
        # than our own timeout.
        ("grpc.min_reconnect_backoff_ms", limits.connect_timeout_ms),
        ("grpc.keepalive_time_ms", limits.keepalive_time_ms),
        ("grpc.keepalive_timeout_ms", limits.keepalive_timeout_ms),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_send_message_length", limits.max_message_bytes),
        ("grpc.max_receive_message_length", limits.max_message_bytes),
        ("grpc.enable_retries", 0),
        # No proxy from the environment between the nodes, and no DNS TXT lookup before each
        # connect.
        ("grpc.enable_http_proxy", 0),
        ("grpc.service_config_disable_resolution", 1),
    ]
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, credentials, options=options)


class GrpcDialer(BaseDialer):
    """A dialer with a separate channel per link. A failed attempt costs about 0.4 ms of CPU.

    ``credentials`` returns those for the next attempt, ``token`` its token.
    """

    def __init__(
        self,
        address: str,
        conversation: Conversation,
        handler: DialHandler,
        *,
        bounds: Bounds,
        rng: random.Random,
        credentials: Callable[[], Credentials] | None,
        token: TokenSource | None = None,
        lane: bool = False,
    ) -> None:
        """``lane``: True to request a lane from the server."""
        super().__init__(asyncio.get_running_loop(), address, handler, bounds.limits, rng=rng)
        self._conversation = conversation
        self._bounds, self._limits = bounds, bounds.limits
        self._credentials, self._token = credentials, token
        self._asks = ((ASK_KEY, VERSION),) if lane else ()
        self._task: asyncio.Task[None] | None = None
        self._attempting = False
        """True until the outcome of the attempt is known; after that its task ends by itself."""
        self._attempt()

    @property
    def done(self) -> bool:
        """Whether the dialer is closed and its tasks have ended."""
        return self._closed and (self._task is None or self._task.done())

    async def wait_closed(self) -> None:
        """Wait, after ``close``, until the last stream and its tasks have ended."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    def _attempt(self) -> None:
        self._task = self._loop.create_task(self._connect_and_run())

    def _abort(self) -> None:
        if self._task is not None and self._attempting:
            self._task.cancel()

    async def _connect_and_run(self) -> None:
        """Make one attempt, and run the resulting link."""
        self._attempting = True
        try:
            metadata = await authorization(self._token, self._limits.connect_timeout_ms / 1000)
        except NoTokenError as error:
            self._attempting = False
            self._failed(str(error))
            return
        # A lane uses the same files as its stream, even if they are replaced meanwhile.
        shown = None if self._credentials is None else self._credentials()
        credentials = None if shown is None else shown.channel
        channel = open_channel(self._address, credentials, self._limits)
        call = channel.stream_stream(self._conversation.value)(
            metadata=(*(metadata or ()), *self._asks) or None
        )
        try:
            refusal = await self._await_acceptance(call)
            why = await self._error_of(call, channel, metadata) if refusal else None
            self._attempting = False
            if refusal:
                self._failed(refusal, why)
                return
            offer = offered(await call.initial_metadata()) if self._asks else None
            link = self._link_of(call, offer, shown)
            self._opened(link)
            await link.run()
        finally:
            call.cancel()
            await channel.close()

    async def _error_of(self, call: Any, channel: Any, metadata: Any) -> ApiError | None:
        """Return the error of a failed attempt if a further attempt would fail in the same way, or
        None.
        """
        if not call.done():
            return None
        missing = await call.code() is grpc.StatusCode.UNIMPLEMENTED
        if missing and self._conversation in _OTHER_KIND:
            instead, what = _OTHER_KIND[self._conversation]
            look = channel.stream_stream(instead.value)(metadata=metadata)
            try:
                if await self._await_acceptance(look):
                    return None
            finally:
                look.cancel()
            return OtherServerError(ErrorCode.NETWORK_EXCEPTION, f"{self._address} is {what}")
        return await _turned_away(call)

    def _link_of(self, call: Any, offer: Offer | None, shown: Credentials | None) -> GrpcLink:
        of = call, self._address, self._conversation, self._bounds
        if offer is None:
            return GrpcLink(*of, serves=False)
        return DIALED[self._conversation](*of, offer, None if shown is None else shown.lane)

    async def _await_acceptance(self, call: Any) -> str:
        """Wait for the server's initial metadata. Return why that failed, or empty on success."""
        try:
            async with asyncio.timeout(self._limits.connect_timeout_ms / 1000):
                metadata = await call.initial_metadata()
                if LINK_METADATA_KEY in metadata:
                    return ""
                # A failed call has empty initial metadata, and its status contains the reason.
                return status_text(await call.code(), await call.details())
        except TimeoutError:
            return await self._why_silent()
        except (grpc.RpcError, grpc.aio.BaseError) as error:
            return failure_text(error)

    async def _why_silent(self) -> str:
        """Return why no response arrived in time: gRPC may still wait for a name server."""
        timeout_ms = self._limits.connect_timeout_ms
        failure = await host_failure(self._address, timeout_ms / 1000)
        return failure or f"no response within {timeout_ms} ms"


async def _turned_away(call: Any) -> ApiError | None:
    """Return the server's refusal of a client that it does not admit, or None."""
    if await call.code() is not grpc.StatusCode.UNAUTHENTICATED:
        return None
    error = error_of(await call.trailing_metadata() or ())
    # Another program, or an older build, sends only the status.
    error.error_code = error.error_code or ErrorCode.SASL_AUTHENTICATION_FAILED
    error.error_message = error.error_message or await call.details() or ""
    return error_from_wire(error)


_GRPC_STATUS_TASK = "_AioCall._handle_status_once_received"


class GrpcTransport:
    """The gRPC implementation of :class:`raftlog.transport.api.Transport`.

    Created and used on one running event loop. ``token`` returns the token that each new connection
    presents to servers that accept tokens. ``rng`` randomises the pauses between connection
    attempts. ``routes``: the routes of a node, which dials listeners with different security;
    without them ``tls`` applies to all. Raises ConfigError for unreadable TLS files, and for a
    token without TLS.
    """

    def __init__(
        self,
        limits: TransportLimits | None = None,
        *,
        tls: ClientTls | None = None,
        token: TokenSource | None = None,
        rng: random.Random | None = None,
        routes: Routes | None = None,
        lanes: bool = True,
    ) -> None:
        """``lanes``: True to request lanes for the conversations that may have one."""
        check_token_is_safe(tls, token)
        self._limits = limits or TransportLimits()
        self._rng = rng or random.Random()
        self._token = token
        self._routes = routes or Routes({"": tls})
        self.bounds = Bounds(asyncio.get_running_loop(), self._limits)
        self._laned: Collection[Conversation] = OF_CLIENTS if lanes else ()
        """Conversations for which the transport requests lanes."""
        self._dialers: list[GrpcDialer] = []

    def dial(self, address: str, conversation: Conversation, handler: DialHandler) -> Dialer:
        """Start keeping a link to ``address``. ``handler`` is never called before this returns."""
        self._dialers = [dialer for dialer in self._dialers if not dialer.done]
        address, credentials = self._routes.lead(address)
        dialer = GrpcDialer(
            address,
            conversation,
            handler,
            bounds=self.bounds,
            rng=self._rng,
            credentials=credentials,
            token=self._token,
            lane=conversation in self._laned,
        )
        self._dialers.append(dialer)
        return dialer

    async def probe(self, address: str, timeout_s: float) -> Probe:
        """Try a raw TCP connect."""
        address, _ = self._routes.lead(address)
        return await probe(address, timeout_s)

    async def close(self) -> None:
        """Close all links and wait until they have ended. Idempotent.

        If another transport has live calls, this takes 50 ms.
        """
        self.bounds.complaints.close()
        dialers, self._dialers = self._dialers, []
        for dialer in dialers:
            dialer.close()
        await asyncio.gather(*(dialer.wait_closed() for dialer in dialers), self._close_listeners())
        if dialers:
            await _let_grpc_confirm()

    async def _close_listeners(self) -> None:
        """Close the listeners of a transport that has any."""


def check_token_is_safe(tls: ClientTls | None, token: TokenSource | None) -> None:
    """Raise ConfigError for a token that would be sent in plain text."""
    if token is not None and tls is None:
        raise ConfigError("a token requires TLS: anyone who reads it on the network could use it")


async def _let_grpc_confirm() -> None:
    """Wait for gRPC's own tasks that await the end of a cancelled call, which gRPC's thread
    confirms a moment later.

    If the loop were closed earlier, gRPC would call it after that. It cannot be determined which
    transport owns a task's call, so this waits for all.
    """
    for _ in range(50):
        coroutines = [task.get_coro() for task in asyncio.all_tasks()]
        if not any(getattr(coro, "__qualname__", "") == _GRPC_STATUS_TASK for coro in coroutines):
            return
        await asyncio.sleep(0.001)
