"""Watches of raftlog, each with a stream and a lane.

gRPC opens the stream; after the move to the lane, this client only splits frames, as
:class:`benchmarks.watching.streams.Streams` does with HTTP/2.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, cast

import grpc.aio

from raftlog.transport.lane_link import MARK
from raftlog.transport.lane_tickets import (
    ASK_KEY,
    GREETING,
    PROOF_BYTES,
    VERSION,
    Offer,
    Proofs,
    door_of,
    offered,
)
from raftlog.transport.lanes import HEADER_BYTES


class Sees(Protocol):
    """A recorder of the messages that watchers receive."""

    def watcher(self, connection: int, stream: int, message: bytes) -> None:
        """Record a message to one watcher."""


class LanedStream(asyncio.Protocol):
    """One watch, with its lane in plain text."""

    def __init__(self, call: Any, offer: Offer, received: Callable[[bytes], None]) -> None:
        self._call, self._ticket, self._received = call, offer.ticket, received
        self._buffer = b""
        self._transport: asyncio.Transport | None = None
        self.proved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.failure = ""
        call.add_done_callback(lambda _: self._fail("a stream has ended"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is not a subclass.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(
            GREETING + door_of(self._ticket) + Proofs.of(self._ticket, "").of_client
        )

    def data_received(self, data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
        if not self.proved.done():
            if len(data) < PROOF_BYTES:
                self._buffer = data
                return
            assert data[:PROOF_BYTES] == Proofs.of(self._ticket, "").of_server
            self.proved.set_result(None)
            data = data[PROOF_BYTES:]
        while len(data) >= HEADER_BYTES:
            end = HEADER_BYTES + int.from_bytes(data[:HEADER_BYTES], "big")
            if len(data) < end:
                break
            self._received(data[HEADER_BYTES:end])
            data = data[end:]
        self._buffer = data

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(f"a lane is lost: {error}")

    def _fail(self, why: str) -> None:
        self.failure = self.failure or why
        if not self.proved.done():
            self.proved.set_exception(RuntimeError(why))


async def opened_lanes(
    address: str, path: str, requests: Sequence[bytes], seen: Sees, first: int
) -> list[LanedStream]:
    """Open a stream on one connection for each request, and move each to its lane."""
    channel = grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
    return [
        await _opened(channel, address, path, request, partial(seen.watcher, number, 0))
        for number, request in enumerate(requests, first)
    ]


async def _opened(
    channel: Any, address: str, path: str, request: bytes, received: Callable[[bytes], None]
) -> LanedStream:
    call = channel.stream_stream(path)(metadata=((ASK_KEY, VERSION),))
    await call.write(request)
    offer = offered(dict(await call.initial_metadata()))
    if offer is None:
        raise SystemExit("a watch was offered no lane")
    received(await call.read())
    stream = LanedStream(call, offer, received)
    host = address.rpartition(":")[0]
    await asyncio.get_running_loop().create_connection(lambda: stream, host, offer.port)
    await stream.proved
    await call.write(MARK)
    while (message := await call.read()) != MARK:
        received(message)
    return stream
