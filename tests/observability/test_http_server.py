import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from raftlog.bounds import HTTP_MAX_CONNECTIONS
from raftlog.errors import ConfigError
from raftlog.node.observability.http_rules import HttpRules
from raftlog.node.observability.http_server import HttpServer
from raftlog.node.observability.registry import MetricsRegistry

ON_SIGTERM = signal.getsignal(signal.SIGTERM)
"""Before there was any server. Where coverage is measured, it is coverage's."""


async def get(address: str, path: str) -> tuple[int, str, str]:
    """Return (status, headers, body) of one GET."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
    answer = (await asyncio.wait_for(reader.read(), 30)).decode()
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split()[1]), head, body


Node = tuple[HttpServer, dict[str, Any]]
"""A server, and the state that it reports."""


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


async def test_readyz_returns_its_reason(node: Node) -> None:
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


BROKEN = [
    b"GET /livez HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\n",
    b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\n",
    b"POST /livez HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nabGARBAGE\r\n\r\n",
    b"GARBAGE\r\n\r\n",
    b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"x" * 100_000,
]


async def test_malformed_requests_are_counted_only(caplog: pytest.LogCaptureFixture) -> None:
    counted: list[str] = []
    server = HttpServer(
        "127.0.0.1",
        0,
        MetricsRegistry(process=False),
        lambda: (True, "fine"),
        rules=HttpRules(complain=lambda peer, what: counted.append(peer)),
    )
    loop, failed = asyncio.get_running_loop(), list[Any]()
    loop.set_exception_handler(lambda _, context: failed.append(context))
    await server.start()
    host, _, port = server.address.rpartition(":")
    with capture_logs() as logs:
        for sent in BROKEN:
            for cut in (0, len(sent) - 8):
                reader, writer = await asyncio.open_connection(host, int(port))
                own = "{}:{}".format(*writer.get_extra_info("sockname"))
                writer.write(sent[:cut])
                # Two reads: the answer may be under way when the rest arrives.
                await asyncio.sleep(0.02)
                writer.write(sent[cut:])
                with contextlib.suppress(ConnectionError):
                    await asyncio.wait_for(reader.read(100), 30)
                writer.close()
                async with asyncio.timeout(30):
                    while not counted:
                        await asyncio.sleep(0.001)
                assert counted == [own], sent
                counted.clear()
        assert (await get(server.address, "/livez"))[::2] == (200, "ok\n")
    await server.stop()
    assert (logs, failed) == ([], [])
    assert [one.getMessage() for one in caplog.records] == []


async def test_failing_handler_is_logged_with_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def ready() -> tuple[bool, str]:
        raise KeyError(f"a mistake of ours in {monkeypatch}")

    counted: list[str] = []
    rules = HttpRules(complain=lambda peer, what: counted.append(what))
    server = HttpServer("127.0.0.1", 0, MetricsRegistry(process=False), ready, rules=rules)
    await server.start()
    with capture_logs() as logs:
        for _ in range(3):
            assert (await get(server.address, "/readyz"))[0] == 500
    await server.stop()
    assert len(counted) == 3
    (said,) = logs
    assert said["event"] == "an HTTP request failed"
    assert isinstance(said["exc_info"], KeyError)


async def test_requests_must_name_an_address_or_a_name_of_the_node() -> None:
    rules = HttpRules(names=frozenset({"c1.example"}))
    async with serving(rules) as address:
        for host, status in (
            ("evil.example", 421),
            ("evil.example:9645", 421),
            ("c1.example.evil", 421),
            ("127.0.0.1.evil:80", 421),
            ("", 421),
            ("c1.example", 200),
            ("C1.Example.:9645", 200),
            ("localhost:1", 200),
            ("10.0.0.9", 200),
            ("[::1]:9645", 200),
        ):
            for path in ("/metrics", "/readyz", "/"):
                assert await status_of(address, path, f"Host: {host}\r\n") == status, (host, path)
            assert await status_of(address, "/livez", f"Host: {host}\r\n") == 200
        # A browser always says one.
        assert await status_of(address, "/readyz", "", version="1.0") == 200


@contextlib.asynccontextmanager
async def serving(rules: HttpRules) -> AsyncIterator[str]:
    registry = MetricsRegistry(process=False)
    server = HttpServer("127.0.0.1", 0, registry, lambda: (True, "fine"), rules=rules)
    await server.start()
    try:
        yield server.address
    finally:
        await server.stop()


async def status_of(address: str, path: str, headers: str, version: str = "1.1") -> int:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/{version}\r\n{headers}Connection: close\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    return int(answer.split()[1])


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


async def test_http_server_keeps_signal_handlers_of_the_process(node: Node) -> None:
    assert signal.getsignal(signal.SIGTERM) == ON_SIGTERM


async def test_silent_connections_do_not_block_health_checks(node: Node) -> None:
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


async def test_connection_without_a_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftlog.node.observability.http_server.HTTP_REQUEST_TIMEOUT_MS", 100)
    server = HttpServer("127.0.0.1", 0, MetricsRegistry(process=False), lambda: (True, "fine"))
    await server.start()
    host, _, port = server.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /livez HTTP/1.1\r\nHost: a")
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()
    await server.stop()
