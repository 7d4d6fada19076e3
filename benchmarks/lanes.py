"""The gain of a lane: one write in flight, on two quorums that are asked in turn, so that both meet
the same hour of the machine.

``python -m benchmarks.lanes [DIRECTORY] [ROUNDS]``: on a disk, or on one that is memory, and how
often each is asked for SLICE_S.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from benchmarks.load import LOADS, Writes
from benchmarks.nodes import Quorum
from benchmarks.stats import cpu_s
from raftlog.client.controller_client import ControllerClient
from raftlog.client.requests import require_success
from raftlog.transport.grpc_transport import GrpcTransport

SLICE_S = 0.3
ROUNDS = 24
WARM_WRITES, FIRST_WRITES = 300, 5
"""Number of writes before the measurement, and before each slice."""
VARIANTS = {"gRPC": -1, "lanes": 0}
"""controller.quorum.fetch.port of each quorum."""


@dataclass
class Measured:
    """One quorum, and what was seen of it."""

    quorum: Quorum
    client: ControllerClient
    writes: Writes = field(default_factory=lambda: Writes(LOADS["w1"]))
    taken_s: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    cpu_s: float = 0.0

    async def write(self, count: int = 1) -> None:
        """Writes, one after the other."""
        for _ in range(count):
            require_success(await self.client.send(self.writes.next(), 30.0))

    async def measure(self) -> None:
        """Write for ``SLICE_S`` seconds, and add up what it took."""
        await self.write(FIRST_WRITES)
        clock, before = time.perf_counter, len(self.taken_s)
        cpu = cpu_s(self.quorum.pids)
        end = clock() + SLICE_S
        while (sent := clock()) < end:
            await self.write()
            self.taken_s.append(clock() - sent)
        self.cpu_s += cpu_s(self.quorum.pids) - cpu
        self.rates.append((len(self.taken_s) - before) / SLICE_S)

    def row(self) -> str:
        """CPU a write in us, percentiles in ms, and writes/s, in columns."""
        taken = sorted(self.taken_s)
        p5, p50, p99 = (taken[int(len(taken) * part)] * 1000 for part in (0.05, 0.5, 0.99))
        return (
            f"{self.cpu_s / len(taken) * 1e6:8.0f}{p5:8.2f}{p50:8.2f}{p99:8.2f}"
            f"{statistics.median(self.rates):12.0f}{max(self.rates):10.0f}"
        )


async def _compare(quorums: dict[str, Quorum], rounds: int) -> None:
    transport = GrpcTransport()
    sides = {
        name: Measured(one, ControllerClient(transport, one.endpoints, rng=random.Random(1)))
        for name, one in quorums.items()
    }
    for side in sides.values():
        await side.write(WARM_WRITES)
    for number in range(rounds):
        for side in list(sides.values())[:: 1 if number % 2 else -1]:
            await side.measure()
    await transport.close()
    print(f"{'':8}{'cpu us':>8}{'p5 ms':>8}{'p50 ms':>8}{'p99 ms':>8}{'writes/s':>12}{'best':>10}")
    for name, side in sides.items():
        print(f"{name:8}{side.row()}")


def main() -> None:
    """Start both, ask them in turn, print a row for each."""
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else ".raftlog/bench")
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS
    with ExitStack() as stack:
        quorums = {
            name: stack.enter_context(
                Quorum(directory / name, settings={"controller.quorum.fetch.port": port})
            )
            for name, port in VARIANTS.items()
        }
        uvloop.run(_compare(quorums, rounds))


if __name__ == "__main__":
    main()
