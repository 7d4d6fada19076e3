"""A node that speaks of itself does not wait for a disk that hangs."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from raftlog.node.observability import node_rpc


async def test_disk_that_hangs_is_unknown_and_holds_one_thread(
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
