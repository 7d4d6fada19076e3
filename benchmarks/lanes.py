"""The gain of lanes: a load that is written alternately to two quorums, one of which has no lanes,
so that both meet the same state of the machine.

``python -m benchmarks.lanes [w1|w2|w3|w4] [ROUNDS] [ENTRIES]`` prints CPU per write of leader,
followers and client. With ENTRIES, mutual TLS everywhere and an authorizer with that number of
entries.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from benchmarks.load import LOADS, Load, Writes
from benchmarks.nodes import Quorum
from benchmarks.stats import cpu_s
from raftlog.client.controller_client import ControllerClient
from raftlog.client.requests import require_success
from raftlog.endpoint import LANE_PORT_OFFSET
from raftlog.transport.api import Conversation
from raftlog.transport.grpc_transport import GrpcTransport

SLICE_S, WARM_S, ROUNDS = 0.4, 1.5, 16
VARIANTS = {"gRPC": 0, "lanes": LANE_PORT_OFFSET}
"""lane.port.offset of each quorum."""


@dataclass
class Side:
    """One quorum with its clients, and the measurements while they wrote."""

    transport: GrpcTransport
    clients: list[ControllerClient]
    pids: list[list[int]]
    """Process ids of the leader, and of the followers."""
    writes: int = 0
    taken_s: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])

    @classmethod
    def of(cls, quorum: Quorum, leader: int, load: Load) -> Side:
        """Return the clients of a quorum. ``leader``: its index."""
        transport = GrpcTransport(tls=quorum.tls)
        clients = [
            ControllerClient(transport, [quorum.endpoints[leader]], rng=random.Random(number))
            for number in range(load.clients)
        ]
        followers = [pid for index, pid in enumerate(quorum.pids) if index != leader]
        return cls(transport, clients, [[quorum.pids[leader]], followers])

    async def write(self, load: Load, made: Writes, long_s: float) -> None:
        """Write for ``long_s`` seconds, and add up the cost."""
        clock, begun, before_writes = time.perf_counter, time.perf_counter(), self.writes

        async def loop(client: ControllerClient) -> None:
            while (sent := clock()) < begun + long_s:
                require_success(await client.send(made.next(), 30.0))
                self.writes += load.batch
                self.taken_s.append(clock() - sent)

        def used() -> list[float]:
            return [*map(cpu_s, self.pids), time.process_time()]

        before = used()
        await asyncio.gather(*(loop(self.clients[i % load.clients]) for i in range(load.in_flight)))
        self.rates.append((self.writes - before_writes) / (clock() - begun))
        self.cpu_s = [
            sum_s + now - then for sum_s, now, then in zip(self.cpu_s, used(), before, strict=True)
        ]

    def row(self) -> str:
        """Return CPU per write in µs, percentiles in ms, and writes/s, as columns."""
        taken = sorted(self.taken_s)
        times = (taken[int(len(taken) * part)] * 1000 for part in (0.05, 0.5, 0.99))
        cpus = (1e6 * used_s / self.writes for used_s in self.cpu_s)
        moved = self.transport.bounds.lanes.dialed[Conversation.CONTROLLER]
        return (
            "".join(f"{one:10.1f}" for one in (*cpus, 1e6 * sum(self.cpu_s) / self.writes))
            + "".join(f"{one:8.2f}" for one in times)
            + f"{statistics.median(self.rates):10.0f}{moved:7}"
        )


async def compare(load: Load, quorums: dict[str, tuple[Quorum, int]], rounds: int) -> None:
    """Write to all quorums in turn, and print a line for each."""
    made = Writes(load)
    sides = {name: Side.of(*quorum, load) for name, quorum in quorums.items()}
    for side in sides.values():
        await side.write(load, made, WARM_S)
        side.writes, side.taken_s, side.rates, side.cpu_s = 0, [], [], [0.0, 0.0, 0.0]
    for number in range(rounds):
        for side in list(sides.values())[:: 1 if number % 2 else -1]:
            await side.write(load, made, SLICE_S)
    heads = "".join(f"{one:>10}" for one in ("leader", "followers", "client", "sum us"))
    print(f"{'':8}{heads}{'p5 ms':>8}{'p50':>8}{'p99':>8}{'writes/s':>10}{'lanes':>7}")
    for name, side in sides.items():
        print(f"{name:8}{side.row()}")
        for one in side.clients:
            one.close()
        await side.transport.close()


def main() -> None:
    """Start both quorums, and compare them."""
    name = sys.argv[1] if len(sys.argv) > 1 else "w1"
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS
    entries = int(sys.argv[3]) if len(sys.argv) > 3 else None
    with ExitStack() as stack:
        quorums = {
            variant: stack.enter_context(
                Quorum(
                    Path(".raftlog/bench") / variant,
                    acls=entries,
                    settings={"lane.port.offset": offset},
                )
            )
            for variant, offset in VARIANTS.items()
        }
        known = {variant: (one, one.leader() - 1) for variant, one in quorums.items()}
        uvloop.run(compare(LOADS[name], known, rounds))


if __name__ == "__main__":
    main()
