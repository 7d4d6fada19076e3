"""A raw HTTP/2 peer, which begins gRPC messages and never ends them."""

import select
import socket
import ssl
import struct
from collections.abc import Iterable

DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 3, 4, 6, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
INITIAL_WINDOW_SIZE = 4
MAX_FRAME_BYTES = 16_384
ENDLESS = 32 << 20
"""Length of a message that is begun."""


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _text(value: str) -> bytes:
    """Encode a string of HPACK, below 16 KiB."""
    length = len(value)
    if length < 127:
        return bytes((length,)) + value.encode()
    length -= 127
    return bytes((127, length & 127 | 128, length >> 7)) + value.encode()


class RawHttp2:
    """One connection. ``sent_bytes``: of messages; ``open``: streams not ended by the server."""

    def __init__(self, address: str, context: ssl.SSLContext | None = None) -> None:
        host, _, port = address.rpartition(":")
        self._socket: socket.socket = socket.create_connection((host, int(port)))
        if context is not None:
            self._socket = context.wrap_socket(self._socket, server_hostname=host)
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(SETTINGS, 0, 0))
        self._received = b""
        self._window = self._first_window = 65_535
        self._windows: dict[int, int] = {}
        self._left: dict[int, int] = {}
        self._next = 1
        self._told = False
        self.sent_bytes = 0
        self.closed = False

    @property
    def open(self) -> int:
        return len(self._windows)

    def begin(
        self,
        path: str,
        *,
        length: int = ENDLESS,
        sends: int | None = None,
        metadata: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Begin a call and a message of ``length`` bytes; ``sends``: by default all but 64."""
        while not self._told:
            # Whoever sends more than the server's own windows is hung up on.
            self._read(self._socket.recv(1 << 16))
        stream, self._next = self._next, self._next + 2
        fields = [
            (":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x"),
            ("te", "trailers"), ("content-type", "application/grpc"), *metadata,
        ]  # fmt: skip
        block = b"".join(b"\x00" + _text(name) + _text(value) for name, value in fields)
        self._socket.sendall(_frame(HEADERS, END_HEADERS, stream, block))
        self._windows[stream] = self._first_window
        self._left[stream] = length - 64 if sends is None else sends
        self._data(stream, struct.pack(">BI", 0, length))

    def pump(self, wait_s: float = 0.0) -> None:
        """Send as much as the windows allow, and read all received bytes."""
        if self.closed:
            return
        try:
            ready, _, _ = select.select([self._socket], [], [], wait_s)
            if ready:
                self._read(self._socket.recv(1 << 20))
            for stream in list(self._left):
                # A window may be negative, once the server has made it smaller.
                while (
                    size := min(
                        self._left.get(stream, 0),
                        self._windows.get(stream, 0),
                        self._window,
                        MAX_FRAME_BYTES,
                    )
                ) > 0:
                    self._data(stream, bytes(size))
                    self._left[stream] -= size
                    self.sent_bytes += size
        except OSError:
            self.closed = True

    def close(self) -> None:
        self._socket.close()

    def _data(self, stream: int, data: bytes) -> None:
        self._socket.sendall(_frame(DATA, 0, stream, data))
        self._windows[stream] -= len(data)
        self._window -= len(data)

    def _read(self, data: bytes) -> None:
        if not data:
            self.closed = True
        self._received += data
        while len(self._received) >= 9:
            size = int.from_bytes(self._received[:3], "big")
            if len(self._received) < 9 + size:
                return
            kind, flags, stream = struct.unpack_from(">BBI", self._received, 3)
            payload, self._received = self._received[9 : 9 + size], self._received[9 + size :]
            self._take(kind, flags, stream, payload)

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == SETTINGS and not flags & ACK:
            for at in range(0, len(payload), 6):
                name, value = struct.unpack_from(">HI", payload, at)
                if name == INITIAL_WINDOW_SIZE:
                    more, self._first_window = value - self._first_window, value
                    self._windows = {one: size + more for one, size in self._windows.items()}
            self._told = True
            self._socket.sendall(_frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self._socket.sendall(_frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE:
            if stream == 0:
                self._window += int.from_bytes(payload, "big")
            elif stream in self._windows:
                self._windows[stream] += int.from_bytes(payload, "big")
        elif kind == RST_STREAM or (kind == HEADERS and flags & END_STREAM):
            self._windows.pop(stream, None)
            self._left.pop(stream, None)
