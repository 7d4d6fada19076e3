"""Server-streaming gRPC calls at minimal cost: an HTTP/2 client that supports nothing else.

gRPC in Python takes some 50 us of CPU for a received message, so with ten thousand watchers on the
servers' machine the benchmark would measure its own client. This client takes a few. It opens
streams, splits the received bytes into messages and answers pings; a call that ends with an error
just ends.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from typing import cast

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
WINDOW = 2**31 - 1
"""Flow-control window offered to the peer, in bytes; a run never sends as much, so the window is
never updated.
"""
_PREFIX = struct.Struct(">BL")
_HEAD = struct.Struct(">BHBBL")


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return an HTTP/2 frame: its head of nine bytes, and the payload."""
    length = len(payload)
    return _HEAD.pack(length >> 16, length & 0xFFFF, kind, flags, stream) + payload


def _headers(path: str, authority: str) -> bytes:
    """Return the header block of a call, without anything that depends on earlier blocks."""

    def text(value: str) -> bytes:
        data = value.encode()
        assert len(data) < 127
        return bytes([len(data)]) + data

    return (
        b"\x83\x86"  # :method POST, :scheme http
        + (b"\x04" + text(path))
        + (b"\x01" + text(authority))
        + (b"\x0f\x10" + text("application/grpc"))
        + (b"\x00" + text("te") + text("trailers"))
    )


class Streams(asyncio.Protocol):
    """Calls of one method, each with its request, on one connection.

    ``received``: called with the number of a stream, from 0, and a message. ``asked_once``: whether
    the request is the client's only message; otherwise its side stays open.
    """

    def __init__(
        self,
        path: str,
        authority: str,
        requests: Sequence[bytes],
        received: Callable[[int, bytes], None],
        *,
        asked_once: bool,
    ) -> None:
        self._received = received
        self._buffer = bytearray()
        self._partial: dict[int, bytes] = {}
        self._ended = asyncio.get_running_loop().create_future()
        block = _headers(path, authority)
        flags = END_STREAM if asked_once else 0
        calls = b"".join(
            frame(HEADERS, END_HEADERS, 2 * index + 1, block)
            + frame(DATA, flags, 2 * index + 1, _PREFIX.pack(0, len(request)) + request)
            for index, request in enumerate(requests)
        )
        settings = frame(SETTINGS, 0, 0, struct.pack(">HL", 4, WINDOW))
        window = frame(WINDOW_UPDATE, 0, 0, struct.pack(">L", WINDOW - 65_535))
        self._opening = PREFACE + settings + window + calls
        self._transport: asyncio.Transport | None = None

    @property
    def ended(self) -> asyncio.Future[str]:
        """Why the connection, or one of its streams, has ended."""
        return self._ended

    def say(self, stream: int, message: bytes) -> None:
        """Send another message on a stream, numbered from 0. The window is not tracked: messages
        that are sent one at a time, each after the answer to the previous one, never fill it.
        """
        self._write(frame(DATA, 0, 2 * stream + 1, _PREFIX.pack(0, len(message)) + message))

    def close(self) -> None:
        """End all calls at once by closing their connection."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is not a subclass.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._opening)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(f"the connection is lost: {error}")

    def _end(self, why: str) -> None:
        if not self._ended.done():
            self._ended.set_result(why)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        position, end = 0, len(buffer)
        while end - position >= 9:
            high, low, kind, flags, stream = _HEAD.unpack_from(buffer, position)
            after = position + 9 + (high << 16 | low)
            if after > end:
                break
            payload = bytes(buffer[position + 9 : after])
            position = after
            if kind == DATA:
                self._data(stream, payload)
            elif kind == PING and not flags & ACK:
                self._write(frame(PING, ACK, 0, payload))
            elif kind == SETTINGS and not flags & ACK:
                self._write(frame(SETTINGS, ACK, 0))
            elif kind == GOAWAY:
                self._end(f"the server goes away: {payload[8:]!r}")
            if kind == RST_STREAM or (kind in (DATA, HEADERS) and flags & END_STREAM):
                self._end(f"stream {stream} has ended")
        del buffer[:position]

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _data(self, stream: int, payload: bytes) -> None:
        partial = self._partial.pop(stream, None)
        if partial is not None:
            payload = partial + payload
        while len(payload) >= 5:
            _, length = _PREFIX.unpack_from(payload)
            if len(payload) < 5 + length:
                break
            self._received(stream >> 1, payload[5 : 5 + length])
            payload = payload[5 + length :]
        if payload:
            self._partial[stream] = payload
