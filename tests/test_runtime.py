"""What a node's process sets up for itself."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from raftlog.runtime import StopSignals


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
async def test_a_signal_stops_whoever_listens_then_and_later(number: int, code: int) -> None:
    first, later = asyncio.Event(), asyncio.Event()
    signals = StopSignals(first.set)
    try:
        assert signals.exit_code == 0
        os.kill(os.getpid(), number)
        async with asyncio.timeout(10):
            await first.wait()
        signals.call(later.set)
        assert later.is_set(), "a signal that came while the node was starting is not lost"
        assert signals.exit_code == code
    finally:
        for one in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(one)
