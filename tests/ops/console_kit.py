"""A console on real connections, and its clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from raftlog.node.observability.http_server import HttpServer
from raftlog.node.observability.registry import MetricsRegistry
from raftlog.ops.console import Console, Door

OPEN = Door(secured=False)


class Counted:
    """A counter of surveys."""

    def __init__(self) -> None:
        self.looks = 0

    async def look(self) -> bytes:
        """The next number."""
        self.looks += 1
        return json.dumps({"look": self.looks}).encode()


@asynccontextmanager
async def serving(
    look: Callable[[], Awaitable[bytes]],
    door: Door = OPEN,
    *,
    pause_s: float = 0.02,
    max_subscribers: int = 32,
    **more: Any,
) -> AsyncIterator[tuple[str, Console]]:
    """Yield (address, console)."""
    console = Console(look, door, pause_s=pause_s, max_subscribers=max_subscribers)
    server = HttpServer(
        "127.0.0.1",
        0,
        MetricsRegistry(process=False),
        lambda: (True, "fine"),
        console=console,
        **more,
    )
    await server.start()
    try:
        yield server.address, console
    finally:
        await server.stop()


class Stream:
    """One request with a possibly endless response."""

    def __init__(self, address: str, path: str = "/console/events", **headers: str) -> None:
        self._address, self._path = address, path
        self._headers = {"Host": address, **{k.replace("_", "-"): v for k, v in headers.items()}}

    async def __aenter__(self) -> Stream:
        host, _, port = self._address.rpartition(":")
        self.reader, self.writer = await asyncio.open_connection(host, int(port))
        lines = "".join(f"{name}: {value}\r\n" for name, value in self._headers.items())
        self.writer.write(f"GET {self._path} HTTP/1.1\r\n{lines}\r\n".encode())
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 30)
        self.status, self.head = int(head.split()[1]), head.decode().lower()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    async def data(self) -> Any:
        """Return the data of the next event that has some."""
        while True:
            line = await asyncio.wait_for(self.reader.readline(), 30)
            if not line:
                raise EOFError
            if line.startswith(b"data: "):
                return json.loads(line.removeprefix(b"data: "))

    async def body(self) -> str:
        """Return the body of a response with a length."""
        length = int(self.head.split("content-length: ")[1].split()[0])
        return (await asyncio.wait_for(self.reader.readexactly(length), 30)).decode()
