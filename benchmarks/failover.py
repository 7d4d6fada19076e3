"""W6, W9, W8: a leader that crashes, falls silent, stops or transfers its leadership; and the CPU
time of an idle cluster.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import pairwise
from typing import Any

from benchmarks.load import Load, Writes
from benchmarks.nodes import Quorum
from benchmarks.stats import cpu_s, latency_ms
from raftlog.client.controller_client import ControllerClient
from raftlog.errors import ApiError
from raftlog.transport.grpc_transport import GrpcTransport
from raftlog.wire.controller.v1 import controller_pb2 as pb

TRY_S = 0.05
SETTLE_S = 10.0
"""Pause before an idle quorum is measured, in seconds."""
REST_S = 0.5
"""Pause between two rounds in seconds, in which a restarted node or a new leader catches up."""


class RetryingWriter:
    """A writer with one write in flight, retried every 50 ms. Records when, and in which epoch,
    each write was acknowledged.
    """

    def __init__(self, endpoints: list[str]) -> None:
        self._transport = GrpcTransport()
        self._client = ControllerClient(self._transport, endpoints, rng=random.Random(1))
        self._writes = Writes(Load(1))
        self.acknowledged: list[tuple[float, int]] = []

    async def run(self) -> None:
        """Send one write after another until cancelled, and record when each is acknowledged."""
        while True:
            try:
                response = await self._client.call(self._writes.next_message(), timeout_s=TRY_S)
            except ApiError:
                await asyncio.sleep(0.001)
                continue
            self.acknowledged.append((time.monotonic(), response.controller_epoch))

    async def close(self) -> None:
        self._client.close()
        await self._transport.close()

    def first_in_epoch_after(self, epoch: int) -> float | None:
        """Return the time of the first acknowledged write in a later epoch, or None."""
        return next((at for at, in_epoch in self.acknowledged if in_epoch > epoch), None)

    def longest_gap(self, since: float) -> float:
        """Return the longest interval between two acknowledged writes that ends after ``since``."""
        times = [at for at, _ in self.acknowledged]
        return max(b - a for a, b in pairwise(times) if b > since)


async def _once(
    quorum: Quorum, act: Callable[[], Awaitable[None]], *, stay_s: float
) -> tuple[float, float]:
    """Return the seconds from ``act`` to the first write in a new epoch, and the longest gap."""
    writer = RetryingWriter(quorum.endpoints)
    writing = asyncio.create_task(writer.run())
    await asyncio.sleep(0.8 + random.random() * 0.4)
    epoch = writer.acknowledged[-1][1]
    sent = time.monotonic()
    await act()
    while writer.first_in_epoch_after(epoch) is None:
        await asyncio.sleep(0.005)
        if time.monotonic() - sent > 30:
            raise TimeoutError("no write was acknowledged within 30 s")
    await asyncio.sleep(stay_s)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    first = writer.first_in_epoch_after(epoch)
    assert first is not None
    result = first - sent, writer.longest_gap(sent)
    await writer.close()
    return result


def failovers(quorum: Quorum, number: int, runs: int) -> dict[str, Any]:
    """Signal the leader repeatedly. SIGKILL and SIGSTOP: W6; SIGTERM: W9."""
    import uvloop

    until_write: list[float] = []
    gaps: list[float] = []
    for _ in range(runs):
        leader = quorum.leader()

        first, gap = uvloop.run(_once(quorum, partial(_send, quorum, leader, number), stay_s=1.0))
        until_write.append(first)
        gaps.append(gap)
        if number == signal.SIGSTOP:
            quorum.signal(leader, signal.SIGCONT)
        else:
            quorum.restart(leader)
        quorum.leader()
        time.sleep(REST_S)
    return {
        "way": signal.Signals(number).name,
        "runs": runs,
        "signal_to_first_write_ms": latency_ms(until_write),
        "longest_gap_ms": latency_ms(gaps),
    }


async def _send(quorum: Quorum, leader: int, number: int) -> None:
    quorum.signal(leader, number)


async def _transfer(controller: str, calls: list[float]) -> None:
    """Ask the active controller to transfer its leadership, and record how long the answer took."""
    transport = GrpcTransport()
    client = ControllerClient(transport, [controller], rng=random.Random(2))
    begun = time.monotonic()
    await client.call(pb.TransferLeadershipRequest(target_id=-1), timeout_s=30)
    calls.append(time.monotonic() - begun)
    client.close()
    await transport.close()


def transfers(quorum: Quorum, runs: int) -> dict[str, Any]:
    """W9: let the leader transfer its leadership repeatedly; no process exits."""
    import uvloop

    until_write: list[float] = []
    gaps: list[float] = []
    calls: list[float] = []
    for _ in range(runs):
        leader = quorum.endpoints[quorum.leader() - 1]
        first, gap = uvloop.run(_once(quorum, partial(_transfer, leader, calls), stay_s=2.0))
        until_write.append(first)
        gaps.append(gap)
        time.sleep(REST_S)
    return {
        "way": "transfer",
        "runs": runs,
        "request_to_first_write_ms": latency_ms(until_write),
        "request_to_answer_ms": latency_ms(calls),
        "longest_gap_ms": latency_ms(gaps),
    }


def idle(quorum: Quorum, seconds: float) -> dict[str, Any]:
    """W8: measure the CPU time of the idle quorum."""
    time.sleep(SETTLE_S)
    before = cpu_s(quorum.pids)
    time.sleep(seconds)
    return {
        "cpu_s_per_minute": round((cpu_s(quorum.pids) - before) * 60 / seconds, 2),
        "seconds": seconds,
    }
