"""The gain of lanes for brokers: a write every 10 ms, alternating between two quorums with the same
number of brokers, so that both meet the same state of the machine.

``python -m benchmarks.fan_out [BROKERS] [ROUNDS] [DIRECTORY]`` prints for each the CPU of the
leader (minus that of a write without brokers: see ``w5c``) and of a broker, per broker and write,
and the times until the last broker has a write, and until it knows that all have it.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from benchmarks.lanes import VARIANTS
from benchmarks.nodes import Quorum
from benchmarks.propagation import Observers, observed, paced
from benchmarks.stats import percentile, thread_cpu_s

PERIOD_S = 0.01
SLICE_WRITES = 150
BROKERS, ROUNDS = 30, 6


@dataclass
class Measured:
    """One quorum, with its measurements."""

    quorum: Quorum
    observers: Observers
    done: list[tuple[float, float, int]] = field(default_factory=list)
    leader_s: float = 0.0
    brokers_s: float = 0.0

    def measure(self) -> None:
        """Write ``SLICE_WRITES`` times, and add up the cost."""
        leader = self.quorum.leader()
        pid = self.quorum.pids[leader - 1]
        begun: list[float] = []

        def used() -> list[float]:
            return [thread_cpu_s(pid), sum(map(thread_cpu_s, self.observers.pids))]

        def end() -> None:
            leader_s, brokers_s = used()
            self.leader_s += leader_s - begun[0]
            self.brokers_s += brokers_s - begun[1]

        done = uvloop.run(
            paced(
                [self.quorum.endpoints[leader - 1]],
                period_s=PERIOD_S,
                count=SLICE_WRITES,
                at_begin=lambda: begun.extend(used()),
                at_end=end,
            )
        )
        self.done += done[len(done) // 10 :]

    def row(self, brokers: int) -> str:
        """Return a table row: CPU in µs per write and per broker and write, and latencies."""
        writes = len(self.done)
        applied, told = (
            sorted(reached(offset) - sent for sent, _, offset in self.done)
            for reached in (self.observers.all_applied, self.observers.all_told)
        )
        return (
            f"{self.leader_s / writes * 1e6:10.0f}{self.leader_s / writes / brokers * 1e6:10.1f}"
            f"{self.brokers_s / writes / brokers * 1e6:10.1f}"
            + "".join(
                f"{percentile(times, share) * 1000:9.2f}"
                for times in (applied, told)
                for share in (0.05, 0.5, 0.99)
            )
        )


def main() -> None:
    """Start both quorums, write to them alternately, and print a row for each."""
    brokers = int(sys.argv[1]) if len(sys.argv) > 1 else BROKERS
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS
    directory = Path(sys.argv[3] if len(sys.argv) > 3 else ".raftlog/bench")
    with ExitStack() as stack:
        sides: dict[str, Measured] = {}
        for name, offset in VARIANTS.items():
            quorum = stack.enter_context(
                Quorum(directory / name, settings={"lane.port.offset": offset})
            )
            sides[name] = Measured(quorum, stack.enter_context(observed(quorum, brokers)))
        for number in range(rounds):
            for side in list(sides.values())[:: 1 if number % 2 else -1]:
                side.measure()
        for side in sides.values():
            side.observers.stop()
    print(f"{brokers} brokers, a write each {PERIOD_S * 1000:g} ms")
    print(
        f"{'':8}{'leader us':>10}{'a broker':>10}{'broker us':>10}"
        f"{'has p5':>9}{'p50':>9}{'p99':>9}{'told p5':>9}{'p50':>9}{'p99':>9}"
    )
    for name, side in sides.items():
        print(f"{name:8}{side.row(brokers)}")


if __name__ == "__main__":
    main()
