"""A load of small writes on a development cluster, and the gaps that failures cause in it."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from statistics import median
from typing import NamedTuple

from raftlog.client.async_client import AsyncClient
from raftlog.errors import ApiError, RaftlogError

WRITERS = 4
RETRY_S = 0.005
WINDOW_S = 2.0
"""Length in seconds of the window over which the rate is measured."""


class Figures(NamedTuple):
    """The current figures of the load."""

    writes_per_s: float
    p50_ms: float
    acknowledged: int
    failed: int
    unknown: int


class Load:
    """Writers that each put one key after the other, waiting for each reply."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        self._recent: deque[tuple[float, float]] = deque()
        """Time and latency of each acknowledged write in the window, in seconds."""
        self._acknowledged = self._failed = self._unknown = 0
        self._last_at = -math.inf
        """Time of the last acknowledged write."""
        self._gap_from = self._gap_s = 0.0

    @property
    def is_on(self) -> bool:
        """Whether writers are running."""
        return bool(self._tasks)

    def start(self, client: AsyncClient, writers: int) -> None:
        """Start writers on this client, replacing running ones."""
        for task in self._tasks:
            task.cancel()
        self._last_at = -math.inf
        self._tasks = [
            asyncio.create_task(self._write(client, number)) for number in range(writers)
        ]

    async def stop(self) -> None:
        """Stop all writers."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def watch_gap(self) -> None:
        """Reset the longest gap, so that only later gaps count."""
        self._gap_from, self._gap_s = time.monotonic(), 0.0

    def gap_s(self) -> float:
        """Return the longest time without an acknowledged write since ``watch_gap``, in seconds."""
        return max(self._gap_s, time.monotonic() - max(self._last_at, self._gap_from))

    def idle_s(self) -> float:
        """Return the time since the last acknowledged write, in seconds."""
        return time.monotonic() - self._last_at

    def figures(self) -> Figures:
        """Return the rate and latency in the window, and the totals since the start."""
        now = time.monotonic()
        while self._recent and self._recent[0][0] < now - WINDOW_S:
            self._recent.popleft()
        latencies = [latency for _, latency in self._recent]
        p50_ms = median(latencies) * 1000 if latencies else 0.0
        rate = len(latencies) / WINDOW_S
        return Figures(rate, p50_ms, self._acknowledged, self._failed, self._unknown)

    async def _write(self, client: AsyncClient, writer: int) -> None:
        while True:
            begun = time.monotonic()
            try:
                await client.kv.put(f"load/{writer}", str(self._acknowledged))
            except ApiError as error:
                self._unknown += error.outcome_unknown
                self._failed += not error.outcome_unknown
            except RaftlogError:
                self._failed += 1
            else:
                self._acknowledge(begun)
                continue
            await asyncio.sleep(RETRY_S)

    def _acknowledge(self, begun: float) -> None:
        now = time.monotonic()
        self._acknowledged += 1
        self._gap_s = max(self._gap_s, now - max(self._last_at, self._gap_from))
        self._last_at = now
        self._recent.append((now, now - begun))
