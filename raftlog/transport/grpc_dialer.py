"""The client's side of gRPC links."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from google.protobuf.message import DecodeError

from raftlog.errors import ApiError, ErrorCode, OtherServerError
from raftlog.transport import grpc_env  # noqa: F401  (before grpc)
from raftlog.transport.api import Conversation, DialHandler, TransportLimits
from raftlog.transport.bounds import Bounds
from raftlog.transport.dialing import BaseDialer
from raftlog.transport.grpc_link import GrpcLink, failure_text, status_text
from raftlog.transport.lane_offer import ASK_KEY, VERSION, Offer, offered
from raftlog.transport.laned_link import DialedLanedLink
from raftlog.transport.probe import host_failure
from raftlog.transport.statuses import ERROR_METADATA_KEY
from raftlog.transport.token_source import NoTokenError, TokenSource, authorization
from raftlog.transport.wire_errors import error_from_wire
from raftlog.wire.common.v1 import common_pb2

import grpc  # isort: skip
import grpc.aio  # isort: skip

LINK_METADATA_KEY = "raftlog-link"
"""In the initial metadata by which a server says that it has taken a stream."""

_OTHER_KIND = {
    Conversation.BROKER: (Conversation.CONTROLLER, "a controller, not a broker"),
    Conversation.WATCH: (Conversation.CONTROLLER, "a controller, not a broker"),
    Conversation.WATCH_MANY: (Conversation.CONTROLLER, "a controller, not a broker"),
    Conversation.CONTROLLER: (Conversation.BROKER, "a broker, not a controller"),
}
"""What a server that does not have a conversation of clients has instead, if it is of the other
kind; it may also be one that is not ready yet.
"""


def channel_options(limits: TransportLimits) -> list[tuple[str, int]]:
    """Options of a link's channel.

    The transport reconnects by making a new channel: gRPC itself has one attempt.
    """
    return [
        # A connection of its own for each dialer: votes and heartbeats never queue behind bulk, and
        # no backoff is shared.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", limits.reconnect_backoff_min_ms),
        ("grpc.max_reconnect_backoff_ms", limits.reconnect_backoff_max_ms),
        # In spite of its name also the least time an attempt is given, so not less than what we
        # wait ourselves.
        ("grpc.min_reconnect_backoff_ms", limits.connect_timeout_ms),
        ("grpc.keepalive_time_ms", limits.keepalive_time_ms),
        ("grpc.keepalive_timeout_ms", limits.keepalive_timeout_ms),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_send_message_length", limits.max_message_bytes),
        ("grpc.max_receive_message_length", limits.max_message_bytes),
        ("grpc.enable_retries", 0),
        # A proxy of the environment must not come between the nodes, nor a DNS TXT lookup before
        # each connect.
        ("grpc.enable_http_proxy", 0),
        ("grpc.service_config_disable_resolution", 1),
    ]


class GrpcDialer(BaseDialer):
    """Keeps a link over a channel of its own. A failed attempt costs about 0.4 ms of CPU.

    ``credentials`` gives those of the next attempt, ``token`` its token.
    """

    def __init__(
        self,
        address: str,
        conversation: Conversation,
        handler: DialHandler,
        *,
        bounds: Bounds,
        rng: random.Random,
        credentials: Callable[[], Any] | None,
        token: TokenSource | None = None,
        lane: bool = False,
    ) -> None:
        """``lane``: ask for one."""
        super().__init__(asyncio.get_running_loop(), address, handler, bounds.limits, rng=rng)
        self._conversation = conversation
        self._bounds, self._limits = bounds, bounds.limits
        self._credentials, self._token = credentials, token
        self._asks = ((ASK_KEY, VERSION),) if lane else ()
        self._task: asyncio.Task[None] | None = None
        self._attempting = False
        """It is not known yet what becomes of the attempt. When it is, its task ends by itself."""
        self._attempt()

    @property
    def done(self) -> bool:
        """Closed, with nothing left behind."""
        return self._closed and (self._task is None or self._task.done())

    async def wait_closed(self) -> None:
        """After ``close``: until the last stream and its tasks are gone."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    def _attempt(self) -> None:
        self._task = self._loop.create_task(self._connect_and_run())

    def _abort(self) -> None:
        if self._task is not None and self._attempting:
            self._task.cancel()

    async def _connect_and_run(self) -> None:
        """One attempt, and the life of the link that comes of it."""
        self._attempting = True
        try:
            metadata = await authorization(self._token, self._limits.connect_timeout_ms / 1000)
        except NoTokenError as error:
            self._attempting = False
            self._failed(str(error))
            return
        channel = self._channel()
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
            link = self._link_of(call, offer)
            self._opened(link)
            await link.run()
        finally:
            call.cancel()
            await channel.close()

    async def _error_of(self, call: Any, channel: Any, metadata: Any) -> ApiError | None:
        """What a failed attempt says that the next one would not change; None: nothing."""
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

    def _link_of(self, call: Any, offer: Offer | None) -> GrpcLink:
        of = call, self._address, self._conversation, self._bounds
        return GrpcLink(*of, serves=False) if offer is None else DialedLanedLink(*of, offer)

    def _channel(self) -> Any:
        options = channel_options(self._limits)
        if self._credentials is None:
            return grpc.aio.insecure_channel(self._address, options=options)
        return grpc.aio.secure_channel(self._address, self._credentials(), options=options)

    async def _await_acceptance(self, call: Any) -> str:
        """Wait for the server's initial metadata; returns what went wrong, or nothing."""
        try:
            async with asyncio.timeout(self._limits.connect_timeout_ms / 1000):
                metadata = await call.initial_metadata()
                if LINK_METADATA_KEY in metadata:
                    return ""
                # A call that failed has empty initial metadata, and its status says why.
                return status_text(await call.code(), await call.details())
        except TimeoutError:
            return await self._why_silent()
        except (grpc.RpcError, grpc.aio.BaseError) as error:
            return failure_text(error)

    async def _why_silent(self) -> str:
        """Why nothing came in time: gRPC may still be asking a name server."""
        timeout_ms = self._limits.connect_timeout_ms
        failure = await host_failure(self._address, timeout_ms / 1000)
        return failure or f"no answer within {timeout_ms} ms"


async def _turned_away(call: Any) -> ApiError | None:
    """What a server says of a client that it does not let in; None: it has said nothing of that."""
    if await call.code() is not grpc.StatusCode.UNAUTHENTICATED:
        return None
    error = common_pb2.Error()
    for key, value in await call.trailing_metadata() or ():
        if key == ERROR_METADATA_KEY:
            with suppress(DecodeError):
                error.ParseFromString(value)
    # Of a stranger, or of an older build, the status alone.
    error.error_code = error.error_code or ErrorCode.SASL_AUTHENTICATION_FAILED
    error.error_message = error.error_message or await call.details() or ""
    return error_from_wire(error)
