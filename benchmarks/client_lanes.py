"""The gain of a lane for a client: two clients write to one quorum in turn, one of them without a
lane, so that both meet the same hour of the machine.

``python -m benchmarks.client_lanes [w1|w2|w3|w4] [ROUNDS]``: CPU a write of leader, followers, client.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from benchmarks.load import LOADS, Load, Writes
from benchmarks.nodes import Quorum
from benchmarks.stats import cpu_s
from raftlog.client.controller_client import ControllerClient
from raftlog.client.requests import require_success
from raftlog.transport.api import Conversation
from raftlog.transport.grpc_transport import GrpcTransport

SLICE_S, WARM_S, ROUNDS = 0.5, 1.5, 12


@dataclass
class Side:
    """One client of the two, and what was seen while it wrote."""

    transport: GrpcTransport
    clients: list[ControllerClient]
    writes: int = 0
    taken_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])


async def slice_of(
    side: Side, load: Load, made: Writes, pids: list[list[int]], long_s: float
) -> None:
    """Write for so long, and add up what it took."""
    clock, end = time.perf_counter, time.perf_counter() + long_s

    async def loop(client: ControllerClient) -> None:
        while (sent := clock()) < end:
            require_success(await client.send(made.next(), 30.0))
            side.writes += load.batch
            side.taken_s.append(clock() - sent)

    def used() -> list[float]:
        return [*map(cpu_s, pids), time.process_time()]

    before = used()
    await asyncio.gather(*(loop(side.clients[i % load.clients]) for i in range(load.in_flight)))
    side.cpu_s = [
        sum_s + now - then for sum_s, now, then in zip(side.cpu_s, used(), before, strict=True)
    ]


async def compare(load: Load, address: str, pids: list[list[int]], rounds: int) -> None:
    """Both in turn, and a line for each."""
    made, sides = Writes(load), dict[str, Side]()
    for name in ("gRPC", "lane"):
        transport = GrpcTransport(lanes=name == "lane")
        sides[name] = Side(
            transport,
            [
                ControllerClient(transport, [address], rng=random.Random(number))
                for number in range(load.clients)
            ],
        )
    for side in sides.values():
        await slice_of(side, load, made, pids, WARM_S)
        side.writes, side.taken_s, side.cpu_s = 0, [], [0.0, 0.0, 0.0]
    for number in range(rounds):
        for side in (*sides.values(),) if number % 2 else (*reversed(sides.values()),):
            await slice_of(side, load, made, pids, SLICE_S)
    for name, side in sides.items():
        leader, followers, client = (1e6 * used / side.writes for used in side.cpu_s)
        taken, moved = sorted(side.taken_s), side.transport.bounds.lanes
        print(
            f"{name}: {moved.dialed[Conversation.CONTROLLER]} of {load.clients} moved; us a write:"
            f" leader {leader:.1f}, both followers {followers:.1f}, client {client:.1f};"
            f" p5 {1e3 * taken[len(taken) // 20]:.2f}, p50 {1e3 * taken[len(taken) // 2]:.2f} ms"
        )
        for one in side.clients:
            one.close()
        await side.transport.close()


def main() -> None:
    """Arguments: a workload, and how often each client writes."""
    name = sys.argv[1] if len(sys.argv) > 1 else "w1"
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS
    with Quorum(Path(".raftlog/bench")) as quorum:
        leader = quorum.pids[quorum.leader() - 1]
        pids = [[leader], [pid for pid in quorum.pids if pid != leader]]
        address = quorum.endpoints[quorum.leader() - 1]
        uvloop.run(compare(LOADS[name], address, pids, rounds))


if __name__ == "__main__":
    main()
