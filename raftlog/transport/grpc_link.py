"""One gRPC stream as a link, the same at both ends: a writer task woken by a future, and a reader loop.

No Task and no unary RPC is on a message's way. ``send`` serialises and appends; the first one wakes the writer, which takes
all that is pending by its next turn, so that calls made in one turn of the loop, or while a write was under way, share an envelope.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, Protocol

from raftlog.transport import grpc_env  # noqa: F401  (before grpc)
from raftlog.transport.api import TransportLimits
from raftlog.transport.base_link import PEER_ENDED, BaseLink, log
from raftlog.transport.conversations import MalformedMessageError, Wire

import grpc  # isort: skip
import grpc.aio  # isort: skip

_CONNECT_PREAMBLE = re.compile(
    r"^failed to connect to all addresses; last error: \w+: (ipv[46]:\S+: )?(Failed to connect to remote host: (connect: )?)?"
)


class Stream(Protocol):
    """What a client's call and a server's context have in common."""

    async def read(self) -> Any:
        """The next message's bytes, or grpc.aio.EOF."""

    async def write(self, message: bytes) -> None:
        """Send one; returns when the transport has taken it."""


class GrpcLink(BaseLink):
    """A link over one stream. ``run`` must be awaited by whoever owns the stream."""

    def __init__(self, stream: Stream, peer: str, outgoing: Wire, incoming: Wire, limits: TransportLimits) -> None:
        super().__init__(asyncio.get_running_loop(), peer)
        self._stream = stream
        self._outgoing = outgoing
        self._incoming = incoming
        self._encode = outgoing.encode
        self._limits = limits
        self._max_messages = limits.max_queued_messages
        self._max_bytes = limits.max_queued_bytes
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._wake: asyncio.Future[None] | None = None
        self._ended: asyncio.Future[None] = self._loop.create_future()

    def send(self, message: Any) -> None:
        """Queue a message. Raises LinkClosedError, TypeError, and ApiError MESSAGE_TOO_LARGE (nothing sent, link stays)."""
        if self._reason is not None:
            raise self._closed_error()
        data = self._encode(message, self._limits.max_message_bytes)
        pending = self._pending
        if len(pending) >= self._max_messages or self._pending_bytes + len(data) > self._max_bytes:
            self.close(f"{len(pending)} messages of {self._pending_bytes} bytes wait unsent: the peer does not keep up")
            raise self._closed_error()
        pending.append(data)
        self._pending_bytes += len(data)
        wake = self._wake
        if wake is not None:
            self._wake = None
            wake.set_result(None)

    async def run(self) -> None:
        """Carry messages until either side ends the stream or the caller is cancelled."""
        halves = (self._loop.create_task(self._read()), self._loop.create_task(self._write()))
        try:
            await self._ended
        finally:
            self.close("the stream was cancelled")
            for half in halves:
                half.cancel()
            await asyncio.wait(halves)

    def _shut(self) -> None:
        self._pending = []
        self._pending_bytes = 0
        if not self._ended.done():
            self._ended.set_result(None)

    async def _read(self) -> None:
        read, decode = self._stream.read, self._incoming.decode
        try:
            while True:
                data = await read()
                if data is grpc.aio.EOF:
                    self.close(PEER_ENDED)
                    return
                self.deliver(decode(data))
        except (grpc.RpcError, grpc.aio.BaseError) as error:
            self.close(failure_text(error))
        except MalformedMessageError as error:
            log.error("malformed message", peer=self._peer, error=str(error))
            self.close(f"malformed message: {error}")

    async def _write(self) -> None:
        write, envelopes = self._stream.write, self._outgoing.envelopes
        try:
            while self._reason is None:
                if not self._pending:
                    self._wake = self._loop.create_future()
                    await self._wake
                items, self._pending = self._pending, []
                self._pending_bytes = 0
                for envelope in envelopes(items):
                    await write(envelope)
        # InvalidStateError is how grpc.aio says that the call ended under a write.
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            self.close(failure_text(error))


def failure_text(error: Exception) -> str:
    """What a failed stream says about itself, in one line."""
    if isinstance(error, grpc.aio.AioRpcError):
        return status_text(error.code(), error.details())
    return f"{type(error).__name__}: {error}"


def status_text(code: Any, details: str | None) -> str:
    """A gRPC status in one line; a failed connect without gRPC's way of telling it."""
    hint = "; a node of the other kind, or another program, listens there" if details == "Method not found!" else ""
    return f"{code.name}: {_CONNECT_PREAMBLE.sub('', details or '')}{hint}"
