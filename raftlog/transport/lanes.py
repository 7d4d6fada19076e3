"""Lanes: TCP connections that carry the envelopes of one gRPC stream each.

A frame is the length of an envelope (four bytes, big-endian) and the envelope. The announced length
is checked before any part of the frame is kept.

lane_tickets.py describes how a lane opens. If its stream has TLS, so does the lane: lane_tls.py.

Why: docs/decisions/028-a-lane-beside-the-stream.md
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

HEADER_BYTES = 4
JOINED_BYTES = 8 << 10
"""Largest envelope, in bytes, that is copied into one buffer with its length."""
READ_AHEAD_FRAMES, READ_AHEAD_BYTES = 4, 64 << 10
"""Number and bytes of unread frames above which nothing more is read from the kernel."""
CLOSED_BY_PEER = "the peer closed the lane"


class _Framed:
    """A cache of the last framed envelope: an envelope for many lanes is framed once."""

    def __init__(self) -> None:
        self.envelope = self.frame = b""

    def take(self, envelope: bytes) -> bytes:
        """Return an envelope preceded by its length, and keep both."""
        self.frame = len(envelope).to_bytes(HEADER_BYTES, "big") + envelope
        self.envelope = envelope
        return self.frame


_last = _Framed()


class FrameAccount(Protocol):
    """A limit on the partially received frames of one lane."""

    def begin(self, length: int) -> str:
        """Account for a frame of ``length`` bytes. Return the refusal, or empty if it is
        accepted.
        """

    def end(self) -> None:
        """End the account of a frame, because it is complete or the lane is closed."""


class LaneError(Exception):
    """The lane is closed or could not be opened; the text is the reason."""


class LaneTransport(Protocol):
    """The connection of a lane: a part of asyncio.Transport."""

    def write(self, data: bytes, /) -> None:
        """Send bytes."""

    def writelines(self, parts: Iterable[bytes], /) -> None:
        """Send a header and a body."""

    def pause_reading(self) -> None:
        """Stop reading from the kernel."""

    def resume_reading(self) -> None:
        """Read from the kernel again."""

    def is_closing(self) -> bool:
        """Return whether the connection is closed, or about to be."""

    def close(self) -> None:
        """Close after everything is sent."""

    def abort(self) -> None:
        """Close at once."""

    def set_write_buffer_limits(self, high: int) -> None:
        """Set the size of the buffer above which the protocol is paused."""

    def set_protocol(self, protocol: asyncio.Protocol, /) -> None:
        """Deliver to another protocol."""

    def get_extra_info(self, name: str, /) -> Any:
        """Return the socket, or its addresses."""


class Lane(asyncio.Protocol):
    """One end of a lane.

    ``read`` and ``write`` are those of a gRPC stream; ``put`` and ``take`` are the short path for a
    message when nothing is queued before it.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        max_bytes: int,
        account: FrameAccount | None = None,
    ) -> None:
        """``max_bytes``: largest accepted envelope. ``account``: limit on the peer's frames, or
        None if the peer is trusted.
        """
        self._loop = loop
        self._max_bytes = max_bytes
        self._account = account
        self._accounts = False
        """True while a frame has partially arrived and is accounted for."""
        self._transport: LaneTransport | None = None
        self._rest = bytearray()
        self._frames: deque[bytes] = deque()
        self._kept_bytes = 0
        """Size of the kept frames, in bytes."""
        self._reader: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._reads = True
        self._failure = ""
        self.writable = False
        """Whether the kernel has accepted all written bytes."""
        self.take: Callable[[bytes], bool] | None = None
        """Callback for an envelope that arrives while a reader waits; returns whether it has
        processed the envelope.
        """

    def begin(self, transport: LaneTransport) -> None:
        """Start the lane on its connection."""
        self._transport = transport
        # Writing pauses as soon as the kernel does not accept all data.
        transport.set_write_buffer_limits(high=0)
        self.writable = True
        transport.set_protocol(self)

    def data_received(self, data: bytes) -> None:
        """Receive frames and parts of frames."""
        length = len(data) - HEADER_BYTES
        if (
            length == int.from_bytes(data[:HEADER_BYTES], "big")
            and self._reads
            and not self._rest
            and length <= self._max_bytes
        ):
            # The usual case: exactly one whole frame.
            take, reader = self.take, self._reader
            envelope = data[HEADER_BYTES:]
            if take is not None and reader is not None and not reader.done() and take(envelope):
                return
            self._keep(envelope)
        else:
            self._rest += data
            self._cut()
        self._pace()

    def _cut(self) -> None:
        """Extract frames from the received bytes, up to the limit on unread frames, as an empty
        frame costs many times its size on the wire.
        """
        rest, begin = self._rest, 0
        while len(rest) - begin >= HEADER_BYTES and self._has_room():
            body = begin + HEADER_BYTES
            length = int.from_bytes(rest[begin:body], "big")
            if length > self._max_bytes:
                self.fail(f"the frame has {length} bytes, but the limit is {self._max_bytes}")
                break
            if len(rest) - body < length:
                if not self._accounts and self._account is not None:
                    self._accounts = True
                    if refusal := self._account.begin(length):
                        self.fail(refusal)
                break
            self._end_account()
            begin = body + length
            with memoryview(rest) as view:
                envelope = bytes(view[body:begin])
            self._arrived(envelope)
        del rest[:begin]

    def _end_account(self) -> None:
        if self._accounts and self._account is not None:
            self._accounts = False
            self._account.end()

    @property
    def reads(self) -> bool:
        """False while received frames must be read first."""
        return self._reads

    def _arrived(self, envelope: bytes) -> None:
        take, reader = self.take, self._reader
        if take is None or reader is None or reader.done() or not take(envelope):
            self._keep(envelope)

    def _keep(self, envelope: bytes) -> None:
        """Keep an envelope until it is read."""
        reader = self._reader
        if reader is not None and not reader.done():
            reader.set_result(None)
        self._frames.append(envelope)
        self._kept_bytes += len(envelope)

    def _has_room(self) -> bool:
        return len(self._frames) < READ_AHEAD_FRAMES and self._kept_bytes < READ_AHEAD_BYTES

    def _pace(self) -> None:
        """Pause or resume reading from the kernel."""
        reads = self._has_room()
        if reads is not self._reads and self._transport is not None:
            self._reads = reads
            if reads:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    async def readable(self) -> None:
        """Wait for an envelope. Raises LaneError after the last one."""
        while not self._frames:
            self._check()
            self._reader = self._loop.create_future()
            await self._reader

    async def read(self) -> bytes:
        """Return the next envelope. Raises LaneError after the last one."""
        if not self._frames:
            await self.readable()
        envelope = self._frames.popleft()
        self._kept_bytes -= len(envelope)
        if self._rest:
            self._cut()
        self._pace()
        return envelope

    def put(self, envelope: bytes) -> None:
        """Write an envelope; only while the lane is ``writable``."""
        if self._transport is not None:
            if len(envelope) <= JOINED_BYTES:
                frame = _last.frame if envelope is _last.envelope else _last.take(envelope)
                self._transport.write(frame)
            else:
                self._transport.writelines((len(envelope).to_bytes(HEADER_BYTES, "big"), envelope))

    async def write(self, envelope: bytes) -> None:
        """Write an envelope; return when the kernel has accepted all of it. Raises LaneError."""
        await self._drain()
        self.put(envelope)
        await self._drain()

    async def _drain(self) -> None:
        self._check()
        if not self.writable:
            self._drained = self._loop.create_future()
            await self._drained
            self._check()

    def _check(self) -> None:
        if self._transport is None:
            raise LaneError(self._failure)

    def pause_writing(self) -> None:
        """Mark the lane as unwritable, as the kernel has not accepted all bytes."""
        self.writable = False

    def resume_writing(self) -> None:
        """Mark the lane as writable."""
        self.writable = True
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        """Handle the end of the connection."""
        self._end_account()
        self._transport, self.writable = None, False
        self._failure = self._failure or (str(error) if error else CLOSED_BY_PEER)
        for waiter in (self._reader, self._drained):
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    def fail(self, reason: str) -> None:
        """Close the lane at once, with a reason for the reader."""
        self._failure = self._failure or reason
        self.abort()

    def abort(self) -> None:
        """Close at once. Idempotent."""
        if self._transport is not None:
            self._transport.abort()
