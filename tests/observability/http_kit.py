"""HTTP servers of nodes, and requests to them."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from raftlog.bounds import HTTP_MAX_CONNECTIONS
from raftlog.node.observability.http_rules import HttpRules
from raftlog.node.observability.http_server import HttpServer
from raftlog.node.observability.registry import MetricsRegistry


@asynccontextmanager
async def serving(
    rules: HttpRules | None = None,
    ready: Callable[[], tuple[bool, str]] = lambda: (True, "fine"),
    *,
    metrics: MetricsRegistry | None = None,
    port: int = 0,
    **more: Any,
) -> AsyncIterator[str]:
    """Run a server; yield its address."""
    registry = metrics or MetricsRegistry(process=False)
    server = HttpServer("127.0.0.1", port, registry, ready, rules=rules or HttpRules(), **more)
    await server.start()
    try:
        yield server.address
    finally:
        await server.stop()
        await server.stop()


async def connected(
    address: str, context: ssl.SSLContext | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port), ssl=context)


async def get(
    address: str,
    path: str,
    context: ssl.SSLContext | None = None,
    *,
    host: str | None = None,
    version: str = "1.1",
) -> tuple[int, str, str]:
    """Return (status, headers, body) of one GET. ``host``: of its header; empty for none."""
    reader, writer = await connected(address, context)
    header = {None: f"Host: {address}\r\n", "": ""}.get(host, f"Host: {host}\r\n")
    writer.write(f"GET {path} HTTP/{version}\r\n{header}Connection: close\r\n\r\n".encode())
    answer = (await asyncio.wait_for(reader.read(), 30)).decode()
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split()[1]), head, body


async def hold(address: str, count: int, answered: Callable[[], Any]) -> None:
    """Hold this number of silent connections above the bound: requests are answered, the oldest
    connections are cut, and no others.
    """
    held = [await connected(address) for _ in range(HTTP_MAX_CONNECTIONS + count)]
    await answered()
    ends = await asyncio.gather(
        *(asyncio.wait_for(reader.read(), 5) for reader, _ in held[:count]), return_exceptions=True
    )
    assert all(end == b"" or isinstance(end, ConnectionError) for end in ends)
    assert not held[-1][0].at_eof()
    for _, writer in held:
        writer.close()
