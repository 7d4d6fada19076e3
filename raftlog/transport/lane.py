"""A lane: a TCP connection of its own for the envelopes of one gRPC stream.

A frame is the length of an envelope, four bytes with the highest first, and the envelope. What a
frame announces is checked before anything of it is kept.

Why: docs/decisions/028-a-lane-beside-the-stream.md
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

HEADER_BYTES = 4
JOINED_BYTES = 8 << 10
"""A longer envelope is not copied behind its length."""
READ_AHEAD_FRAMES, READ_AHEAD_BYTES = 4, 64 << 10
"""When so many wait to be read, or of so many bytes, nothing more is taken from the kernel."""
CLOSED_BY_PEER = "the peer closed the lane"


class _Framed:
    """What is sent to many, one after the other, is framed once."""

    def __init__(self) -> None:
        self.envelope = self.frame = b""

    def take(self, envelope: bytes) -> bytes:
        """Put an envelope behind its length, and keep both."""
        self.frame = len(envelope).to_bytes(HEADER_BYTES, "big") + envelope
        self.envelope = envelope
        return self.frame


_last = _Framed()


class FrameAccount(Protocol):
    """Bounds the frames of one lane that have arrived in part."""

    def begin(self, length: int) -> str:
        """Account for a frame of so many bytes; returns why it is refused, else nothing."""

    def end(self) -> None:
        """The frame is complete, or the lane closed."""


class LaneError(Exception):
    """The lane is gone, or was never had: the text says why."""


class Lane(asyncio.Protocol):
    """One end. ``read`` and ``write`` are those of a gRPC stream; ``put`` and ``take`` are the
    short way for a message that finds nothing in front of it.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        max_bytes: int,
        account: FrameAccount | None = None,
    ) -> None:
        """``max_bytes``: the largest envelope that is taken. ``account``: of what the peer sends;
        None: the peer is trusted.
        """
        self._loop = loop
        self._max_bytes = max_bytes
        self._account = account
        self._accounts = False
        """True while a frame has arrived in part."""
        self._transport: asyncio.Transport | None = None
        self._rest = bytearray()
        self._frames: deque[bytes] = deque()
        self._kept_bytes = 0
        """Of the frames."""
        self._reader: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._reads = True
        self._failure = ""
        self.writable = False
        """Whether the kernel has all that was written."""
        self.take: Callable[[bytes], bool] | None = None
        """Offered each envelope that finds a reader waiting; whether it was taken."""

    def begin(self, transport: asyncio.Transport) -> None:
        """From here on the connection is this lane's."""
        self._transport = transport
        # Whatever the kernel does not take at once pauses the writing.
        transport.set_write_buffer_limits(high=0)
        self.writable = True
        transport.set_protocol(self)

    def data_received(self, data: bytes) -> None:
        """Frames, and parts of frames."""
        length = len(data) - HEADER_BYTES
        if (
            length == int.from_bytes(data[:HEADER_BYTES], "big")
            and not self._rest
            and length <= self._max_bytes
        ):
            # One whole frame, and somebody waits for it: what comes nearly always.
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
        """Take frames from what has come, no more than may wait: an empty one costs many times what
        it has on the wire.
        """
        rest, begin = self._rest, 0
        while len(rest) - begin >= HEADER_BYTES and self._has_room():
            body = begin + HEADER_BYTES
            length = int.from_bytes(rest[begin:body], "big")
            if length > self._max_bytes:
                self.fail(f"a frame of {length} bytes; {self._max_bytes} are taken on a lane")
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
        """False while what has arrived has to be read first."""
        return self._reads

    def _arrived(self, envelope: bytes) -> None:
        take, reader = self.take, self._reader
        if take is None or reader is None or reader.done() or not take(envelope):
            self._keep(envelope)

    def _keep(self, envelope: bytes) -> None:
        """Until it is read."""
        reader = self._reader
        if reader is not None and not reader.done():
            reader.set_result(None)
        self._frames.append(envelope)
        self._kept_bytes += len(envelope)

    def _has_room(self) -> bool:
        return len(self._frames) < READ_AHEAD_FRAMES and self._kept_bytes < READ_AHEAD_BYTES

    def _pace(self) -> None:
        """Take more from the kernel, or no more."""
        reads = self._has_room()
        if reads is not self._reads and self._transport is not None:
            self._reads = reads
            if reads:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    async def readable(self) -> None:
        """Wait for an envelope. Raises LaneError when there is none any more."""
        while not self._frames:
            self._check()
            self._reader = self._loop.create_future()
            await self._reader

    async def read(self) -> bytes:
        """The next envelope. Raises LaneError when there is none any more."""
        if not self._frames:
            await self.readable()
        envelope = self._frames.popleft()
        self._kept_bytes -= len(envelope)
        if self._rest:
            self._cut()
        self._pace()
        return envelope

    def put(self, envelope: bytes) -> None:
        """Write an envelope where the lane is ``writable``."""
        if self._transport is not None:
            if len(envelope) <= JOINED_BYTES:
                frame = _last.frame if envelope is _last.envelope else _last.take(envelope)
                self._transport.write(frame)
            else:
                self._transport.writelines((len(envelope).to_bytes(HEADER_BYTES, "big"), envelope))

    async def write(self, envelope: bytes) -> None:
        """Write an envelope; returns when the kernel has all of it. Raises LaneError."""
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
        """The kernel has not taken all."""
        self.writable = False

    def resume_writing(self) -> None:
        """It has."""
        self.writable = True
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        """Nothing comes any more, and nothing leaves."""
        self._end_account()
        self._transport, self.writable = None, False
        self._failure = self._failure or (str(error) if error else CLOSED_BY_PEER)
        for waiter in (self._reader, self._drained):
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    def fail(self, reason: str) -> None:
        """Close at once; the reader is told why."""
        self._failure = self._failure or reason
        self.abort()

    def abort(self) -> None:
        """Close at once. Idempotent."""
        if self._transport is not None:
            self._transport.abort()
