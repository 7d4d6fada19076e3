"""What a node's process sets up for itself."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from raftlog.process import StopSignals


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130), (signal.SIGHUP, 0)]
)
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
        for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            asyncio.get_running_loop().remove_signal_handler(one)


async def test_node_that_was_started_with_nohup_survives_the_end_of_its_terminal() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    asked = asyncio.Event()
    StopSignals(asked.set)
    try:
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(10):
            await asked.wait()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        for one in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(one)
        signal.signal(signal.SIGHUP, before)
