"""A node's HTTP server: metrics, health and a page, whatever others send."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
from http_kit import connected, get, hold, serving
from structlog.testing import capture_logs

from raftlog.errors import ConfigError
from raftlog.node.observability.http_rules import HttpRules
from raftlog.node.observability.registry import MetricsRegistry

ON_SIGTERM = signal.getsignal(signal.SIGTERM)
"""Before there was any server. Where coverage is measured, it is coverage's."""


@pytest.fixture
def state() -> dict[str, Any]:
    """Return the node's state, which a test may change."""
    return {"ready": (False, "no leader is known"), "offset": 41}


@pytest.fixture
async def address(state: dict[str, Any]) -> AsyncIterator[str]:
    metrics = MetricsRegistry(process=False)
    metrics.gauge("high_watermark", "The first offset not committed.", lambda: state["offset"])
    status = {"role": "<follower>", "leader": -1}
    async with serving(
        ready=lambda: state["ready"], metrics=metrics, title="controller 1", status=lambda: status
    ) as found:
        yield found


async def test_metrics_are_read_at_each_scrape(address: str, state: dict[str, Any]) -> None:
    status, head, body = await get(address, "/metrics")
    assert status == 200
    assert "text/plain" in head
    assert "high_watermark 41.0" in body
    state["offset"] = 42
    assert "high_watermark 42.0" in (await get(address, "/metrics"))[2]


async def test_readyz_returns_its_reason(address: str, state: dict[str, Any]) -> None:
    assert (await get(address, "/readyz"))[::2] == (503, "no leader is known\n")
    state["ready"] = (True, "follower of 2 in epoch 7")
    assert (await get(address, "/readyz"))[::2] == (200, "follower of 2 in epoch 7\n")


async def test_livez_is_ok_while_not_ready(address: str) -> None:
    assert (await get(address, "/livez"))[::2] == (200, "ok\n")


async def test_page_shows_status_and_escapes_it(address: str) -> None:
    status, head, body = await get(address, "/")
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
    rules = HttpRules(complain=lambda peer, what: counted.append(peer))
    failed: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
    with capture_logs() as logs:
        async with serving(rules) as address:
            for sent in BROKEN:
                for cut in (0, len(sent) - 8):
                    reader, writer = await connected(address)
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
            assert (await get(address, "/livez"))[::2] == (200, "ok\n")
    assert (logs, failed, caplog.records) == ([], [], [])


async def test_failing_handler_is_logged_with_a_traceback() -> None:
    def ready() -> tuple[bool, str]:
        raise KeyError("a mistake of ours")

    counted: list[str] = []
    rules = HttpRules(complain=lambda peer, what: counted.append(what))
    with capture_logs() as logs:
        async with serving(rules, ready) as address:
            for _ in range(3):
                assert (await get(address, "/readyz"))[0] == 500
    assert len(counted) == 3
    (said,) = logs
    assert said["event"] == "an HTTP request failed"
    assert isinstance(said["exc_info"], KeyError)


async def test_requests_must_name_an_address_or_a_name_of_the_node() -> None:
    async with serving(HttpRules(names=frozenset({"c1.example"}))) as address:
        for host, status in (
            ("evil.example", 421),
            ("evil.example:9645", 421),
            ("c1.example.evil", 421),
            ("127.0.0.1.evil:80", 421),
            (" ", 421),
            ("c1.example", 200),
            ("C1.Example.:9645", 200),
            ("localhost:1", 200),
            ("10.0.0.9", 200),
            ("[::1]:9645", 200),
        ):
            for path in ("/metrics", "/readyz", "/"):
                assert (await get(address, path, host=host))[0] == status, (host, path)
            assert (await get(address, "/livez", host=host))[0] == 200
        # A browser always says one.
        assert (await get(address, "/readyz", host="", version="1.0"))[0] == 200


async def test_unknown_path_is_404(address: str) -> None:
    assert (await get(address, "/nope"))[0] == 404


async def test_port_in_use_is_a_config_error_naming_the_address(address: str) -> None:
    why = f"http.listener: {address}: Address already in use"
    with pytest.raises(ConfigError, match=why):
        async with serving(port=int(address.rpartition(":")[2])):
            pass


async def test_stop_frees_the_port_and_is_idempotent() -> None:
    port = 0
    for _ in range(2):
        async with serving(port=port) as address:
            assert (await get(address, "/readyz"))[0] == 200
            port = int(address.rpartition(":")[2])


async def test_http_server_keeps_signal_handlers_of_the_process(address: str) -> None:
    assert signal.getsignal(signal.SIGTERM) == ON_SIGTERM


async def test_silent_connections_do_not_block_health_checks(address: str) -> None:
    async def answered() -> None:
        assert (await get(address, "/livez"))[::2] == (200, "ok\n")

    await hold(address, 20, answered)


async def test_connection_without_a_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftlog.node.observability.http_server.HTTP_REQUEST_TIMEOUT_MS", 100)
    async with serving() as address:
        reader, writer = await connected(address)
        writer.write(b"GET /livez HTTP/1.1\r\nHost: a")
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
