"""A flood of scrapes leaves the loop to others."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from raftlog.node.observability import http_server
from raftlog.node.observability.http_server import HttpServer
from raftlog.node.observability.registry import MetricsRegistry


def test_scrapes_come_one_after_the_other_with_a_pause_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rendered = 0

    def render(registry: Any) -> bytes:
        nonlocal rendered
        rendered += 1
        time.sleep(0.02)
        return b""

    monkeypatch.setattr(http_server, "generate_latest", render)

    async def main() -> None:
        server = HttpServer("127.0.0.1", 0, MetricsRegistry(), lambda: (True, ""))
        anything: Any = None
        scrapes = [asyncio.create_task(server._metrics(anything)) for _ in range(5)]
        for _ in range(5):
            await asyncio.sleep(0)
        assert rendered == 1
        assert [response.status_code for response in await asyncio.gather(*scrapes)] == [200] * 5
        assert rendered == 5

    asyncio.run(main())
