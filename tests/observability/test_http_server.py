"""The HTTP side of a node, over real connections."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest

from raftlog.errors import ConfigError
from raftlog.observability.http_server import HttpServer
from raftlog.observability.registry import MetricsRegistry
from raftlog.resource_limits import HTTP_MAX_CONNECTIONS

ON_SIGTERM = signal.getsignal(signal.SIGTERM)
"""Before there was any server. Where coverage is measured, it is coverage's."""


async def get(address: str, path: str) -> tuple[int, str, str]:
    """(status, headers, body) of one GET."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
    answer = (await asyncio.wait_for(reader.read(), 30)).decode()
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split()[1]), head, body


Node = tuple[HttpServer, dict[str, Any]]
"""A server, and what it says."""


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    metrics = MetricsRegistry(process=False)
    state: dict[str, Any] = {"ready": (False, "no leader is known"), "offset": 41}
    metrics.gauge(
        "raft_metrics_high_watermark", "The first offset not committed.", lambda: state["offset"]
    )
    server = HttpServer(
        "127.0.0.1",
        0,
        metrics,
        lambda: state["ready"],
        title="controller 1",
        status=lambda: {"role": "<follower>", "leader": -1},
    )
    await server.start()
    yield server, state
    await server.stop()


async def test_metrics_are_read_at_each_scrape(node: Node) -> None:
    server, state = node
    status, head, body = await get(server.address, "/metrics")
    assert status == 200
    assert "text/plain" in head
    assert "raft_metrics_high_watermark 41.0" in body
    state["offset"] = 42
    assert "raft_metrics_high_watermark 42.0" in (await get(server.address, "/metrics"))[2]


async def test_readyz_gives_its_reason(node: Node) -> None:
    server, state = node
    assert (await get(server.address, "/readyz"))[::2] == (503, "no leader is known\n")
    state["ready"] = (True, "follower of 2 in epoch 7")
    assert (await get(server.address, "/readyz"))[::2] == (200, "follower of 2 in epoch 7\n")


async def test_livez_is_ok_while_not_ready(node: Node) -> None:
    assert (await get(node[0].address, "/livez"))[::2] == (200, "ok\n")


async def test_page_shows_status_and_escapes_it(node: Node) -> None:
    status, head, body = await get(node[0].address, "/")
    assert status == 200
    assert "text/html" in head
    assert "controller 1" in body
    assert "not ready" in body
    assert "&lt;follower&gt;" in body
    assert "<follower>" not in body
    assert "<th>leader</th><td>unknown</td>" in body, "and not -1"


async def test_unknown_path_is_404(node: Node) -> None:
    assert (await get(node[0].address, "/nope"))[0] == 404


async def test_port_in_use_is_a_config_error_naming_the_address(node: Node) -> None:
    host, _, port = node[0].address.rpartition(":")
    second = HttpServer(host, int(port), MetricsRegistry(process=False), lambda: (True, ""))
    with pytest.raises(
        ConfigError, match=rf"http.listener: 127.0.0.1:{port}: Address already in use"
    ):
        await second.start()
    await second.stop()


async def test_stop_frees_the_port_and_is_idempotent(node: Node) -> None:
    server, _ = node
    host, _, port = server.address.rpartition(":")
    await server.stop()
    await server.stop()
    again = HttpServer(host, int(port), MetricsRegistry(process=False), lambda: (True, "ok"))
    await again.start()
    assert (await get(again.address, "/readyz"))[0] == 200
    await again.stop()


async def test_signals_stay_the_process_s(node: Node) -> None:
    assert signal.getsignal(signal.SIGTERM) == ON_SIGTERM


async def test_silent_connections_shut_no_health_check_out(node: Node) -> None:
    server, _state = node
    host, _, port = server.address.rpartition(":")
    held = [
        await asyncio.open_connection(host, int(port)) for _ in range(HTTP_MAX_CONNECTIONS + 20)
    ]
    assert (await get(server.address, "/livez"))[::2] == (200, "ok\n")
    # The oldest were cut, and no others.
    ends = await asyncio.gather(
        *(asyncio.wait_for(held[i][0].read(), 2) for i in range(20)), return_exceptions=True
    )
    assert all(end == b"" or isinstance(end, ConnectionError) for end in ends)
    assert not held[-1][0].at_eof()
    for _, writer in held:
        writer.close()


async def test_a_connection_without_a_whole_request_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("raftlog.observability.http_server.HTTP_REQUEST_TIMEOUT_MS", 100)
    server = HttpServer("127.0.0.1", 0, MetricsRegistry(process=False), lambda: (True, "fine"))
    await server.start()
    host, _, port = server.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /livez HTTP/1.1\r\nHost: a")
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()
    await server.stop()
