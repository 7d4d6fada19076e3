"""Descriptions of a node while its disk hangs."""

import asyncio
import threading
import time
from pathlib import Path

import pytest

from raftlog.clock import TOLERANCE_MS
from raftlog.node.observability import node_rpc
from raftlog.node.observability.clock_watch import LOOK_EVERY_S, ClockWatch
from raftlog.node.observability.journal import Kind, RecentEvents


async def test_hanging_disk_is_unknown_and_blocks_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, asked = threading.Event(), []

    def hanging(directory: Path) -> object:
        asked.append(directory)
        goes_on.wait(30)
        raise OSError("the disk is gone")

    disk = node_rpc.DiskUsage(tmp_path)
    known = await disk.free_and_total()
    assert 0 < known[0] <= known[1]
    monkeypatch.setattr("shutil.disk_usage", hanging)
    try:
        begun = time.monotonic()
        assert [await disk.free_and_total() for _ in range(3)] == [(0, 0)] * 3
        assert time.monotonic() - begun < 10
        assert asked == [tmp_path], "those who ask later wait for the same answer"
    finally:
        goes_on.set()
    monkeypatch.undo()
    until = time.monotonic() + 30
    while (await disk.free_and_total())[1] != known[1]:
        assert time.monotonic() < until


async def test_concurrent_disk_usage_requests_share_one_answer(tmp_path: Path) -> None:
    disk = node_rpc.DiskUsage(tmp_path)

    async def ask() -> list[tuple[int, int]]:
        return [await disk.free_and_total() for _ in range(50)]

    answers = await asyncio.gather(*(ask() for _ in range(20)))
    assert all(0 < free <= total for each in answers for free, total in each)


def test_clock_watch_logs_once_that_a_clock_is_overruled_and_once_that_it_agrees() -> None:
    off = -TOLERANCE_MS - 1
    once, twice = (7_000, TOLERANCE_MS), (7_001, 7_000, -9_000)
    looks = (None, *once, *twice, None, TOLERANCE_MS, 400, 0, off, off)
    ahead = iter(looks)
    journal = RecentEvents(1, "broker", wall_clock_ms=lambda: 1_000)
    watch = ClockWatch(lambda: next(ahead), journal)
    for look in range(len(looks)):
        watch.tick(look * LOOK_EVERY_S)
        watch.tick((look + 0.9) * LOOK_EVERY_S)
    told, _ = journal.since(0, 0, 10)
    assert [(one.kind, one.details) for one in told] == [
        (Kind.CLOCK_OVERRULED, {"ahead_ms": 7_000}),
        (Kind.CLOCK_AGREES, {}),
        (Kind.CLOCK_OVERRULED, {"ahead_ms": off}),
    ]
