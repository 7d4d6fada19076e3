"""W5, K4: how long until everybody has it, and until everybody knows that everybody has it."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.load import Load, Writes
from benchmarks.nodes import Quorum
from benchmarks.stats import latency_ms
from raftlog.client.controller_client import ControllerClient
from raftlog.transport.grpc_transport import GrpcTransport

FIRST_BROKER = 100
REST_S = 1.0


class Observers:
    """Child processes with brokers in them.

    ``moves`` after ``stop``: for each broker (times, applied, told).
    """

    def __init__(
        self, quorum: Quorum, count: int, processes: int = 3, first: int = FIRST_BROKER
    ) -> None:
        shares = [count // processes + (i < count % processes) for i in range(processes)]
        self.processes: list[subprocess.Popen[str]] = []
        for share in filter(None, shares):
            command = [
                sys.executable,
                "-m",
                "benchmarks.observers",
                quorum.cluster_id,
                ",".join(quorum.endpoints),
            ]
            self.processes.append(
                subprocess.Popen(
                    [*command, str(first), str(share)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            first += share
        self.moves: list[tuple[list[float], list[int], list[int]]] = []

    @property
    def pids(self) -> list[int]:
        """Of the processes."""
        return [process.pid for process in self.processes]

    def wait_ready(self) -> None:
        """Until all are unfenced. Raises RuntimeError."""
        for process in self.processes:
            assert process.stdout is not None
            if process.stdout.readline().strip() != "ready":
                raise RuntimeError("an observer process has ended")

    def stop(self) -> None:
        """Take what they noted."""
        for process in self.processes:
            out, _ = process.communicate("stop\n", timeout=60)
            for moves in json.loads(out):
                self.moves.append(
                    ([m[0] for m in moves], [m[1] for m in moves], [m[2] for m in moves])
                )

    def all_applied(self, offset: int) -> float:
        """When the last broker had applied an offset."""
        return max(times[bisect_left(applied, offset)] for times, applied, _ in self.moves)

    def all_told(self, offset: int) -> float:
        """When the last broker had been told that all have."""
        return max(times[bisect_left(told, offset)] for times, _, told in self.moves)


@contextmanager
def observed(quorum: Quorum, count: int) -> Iterator[Observers]:
    """Observers that are unfenced; ended at the end."""
    observers = Observers(quorum, count)
    try:
        observers.wait_ready()
        yield observers
    finally:
        for process in observers.processes:
            process.kill()
            process.wait()


async def paced(
    bootstrap: list[str], *, period_s: float, count: int
) -> list[tuple[float, float, int]]:
    """Writes on a fixed schedule: (sent, answered, offset)."""
    transport = GrpcTransport()
    client = ControllerClient(transport, bootstrap, rng=random.Random(1))
    writes = Writes(Load(1))
    await client.call(writes.next_message())
    done: list[tuple[float, float, int]] = []

    async def one(at: float) -> None:
        await asyncio.sleep(at - time.monotonic())
        sent = time.monotonic()
        response = await client.call(writes.next_message())
        done.append((sent, time.monotonic(), response.write.token.offset))

    begun = time.monotonic() + 0.5
    await asyncio.gather(*(one(begun + i * period_s) for i in range(count)))
    await asyncio.sleep(REST_S)
    client.close()
    await transport.close()
    return done


def propagation(
    quorum: Quorum, observers: int, *, period_s: float, seconds: float
) -> dict[str, Any]:
    """W5 and K4."""
    import uvloop

    with observed(quorum, observers) as watching:
        leader = quorum.endpoints[quorum.leader() - 1]
        done = uvloop.run(paced([leader], period_s=period_s, count=int(seconds / period_s)))
        watching.stop()
    done = done[len(done) // 10 :]  # the first tenth warms everybody up
    return {
        "observers": observers,
        "writes": len(done),
        "reply_ms": latency_ms([answered - sent for sent, answered, _ in done]),
        "last_applied_from_send_ms": latency_ms(
            [watching.all_applied(o) - sent for sent, _, o in done]
        ),
        "all_told_from_send_ms": latency_ms([watching.all_told(o) - sent for sent, _, o in done]),
    }
