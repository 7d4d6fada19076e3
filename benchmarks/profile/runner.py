"""``benchmarks/run profile WORKLOAD``: microseconds of CPU per write, by stage, for leader,
follower and client.

Method. The load (w1 to w4) runs twice, each time on three fresh controllers as processes.

*Plain*: the shipped program. This gives the writes per second, each process's CPU per write, and,
if ``perf`` is installed, its CPU by binary (kernel, gRPC, protobuf, RocksDB, interpreter), sampled
by the CPU's clock.

*By stage*: the same program whose functions in ``stages.py`` are wrapped. A stage's time is the
self time of its functions, in CPU time of the loop's thread (see ``stopwatch.py``). The threads'
CPU time comes from the scheduler (``/proc/PID/task/*/schedstat``), exact to the nanosecond. The
remainder of the loop's thread is a separate row, so that the rows add up to the process's CPU.

The wrappers cost more CPU in a busy process than in a loop that only calls them. So slices of 0.25
s with and without measuring alternate, in all processes at the same time. The difference in CPU per
write between the two is the wrappers' cost, which is subtracted from each stage in proportion to
its number of calls.

Errors. The table shows the sum next to the CPU of the slices without measuring. The two differ if
the wrappers seem to cost less than with warm caches, or more than four times that, which noise can
cause in a short run. In slices without measuring, a wrapper still forwards the call, for 0.1 us.
The kernel's share comes from ticks of 4 ms: its error is printed. Stages include the kernel time of
their calls: page faults, and all of the disk's. CPU per write depends on the machine's other load:
compare only tables measured within the same hour.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop
from rich.console import Console

from benchmarks.load import LOADS, Load, Writes, measure
from benchmarks.nodes import Quorum
from benchmarks.profile.attribution import attribute, mean
from benchmarks.profile.node import MEASURE, REST, STOP
from benchmarks.profile.perf import Sampling
from benchmarks.profile.recorder import Recorder
from benchmarks.profile.stages import CLIENT
from benchmarks.profile.tables import ROLES, show
from benchmarks.stats import cpu_s
from raftlog.config_writes.writes import ConfigWrite

WAIT_S = 20.0
SLICE_S = 0.25
PROFILED = [sys.executable, "-m", "benchmarks.profile.node"]

Result = dict[str, Any]


def plain(name: str, directory: Path, seconds: float) -> Result:
    """Return writes per second, CPU per write by role, and samples by role and binary."""
    with Quorum(directory) as quorum, tempfile.TemporaryDirectory() as scratch:
        leader, pids = quorum.leader(), quorum.pids
        sampling, samples = Sampling(Path(scratch)), {}
        used: dict[int, float] = {}
        everybody = [*pids, os.getpid()]

        def begin() -> None:
            sampling.start(everybody)
            used.update({pid: -cpu_s([pid]) for pid in everybody})

        def end() -> None:
            for pid in everybody:
                used[pid] += cpu_s([pid])
            samples.update(sampling.stop())

        address = quorum.endpoints[leader - 1]
        done = uvloop.run(
            measure(LOADS[name], [address], pids, seconds=seconds, at_begin=begin, at_end=end)
        )
    roles = _roles(pids, leader)
    return {
        "writes_per_s": done["writes_per_s"],
        "cpu_us": {
            role: 1e6 * sum(used[pid] for pid in of) / len(of) / max(1, done["writes"])
            for role, of in roles.items()
        },
        "samples": {
            role: sum((samples.get(pid, Counter()) for pid in of), Counter())
            for role, of in roles.items()
        },
    }


class Slices:
    """Makes all processes measure and rest in turn, and counts the writes in both kinds of
    slices.
    """

    def __init__(self, load: Load, pids: list[int]) -> None:
        self.recorder = Recorder(CLIENT)
        self.writes = {True: 0, False: 0}
        self._load, self._pids = load, pids
        self._requests, self._counted = 0, 0
        self._writes = Writes(load)
        self._on = False
        self._timer: asyncio.TimerHandle | None = None
        self.recorded: Result = {}

    def next(self) -> ConfigWrite:
        """Return a request. As the number in flight is constant, the number of created requests
        equals that of finished ones.
        """
        self._requests += 1
        return self._writes.next()

    def begin(self) -> None:
        """Start counting, in a measured slice."""
        self._counted = self._requests
        self._turn(on=True)

    def _turn(self, *, on: bool) -> None:
        self._count()
        self._on = on
        self._signal(MEASURE if on else REST)
        (self.recorder.measure if on else self.recorder.rest)()
        self._timer = asyncio.get_running_loop().call_later(SLICE_S, partial(self._turn, on=not on))

    def end(self) -> None:
        """End the last slice."""
        assert self._timer is not None
        self._timer.cancel()
        self._count()
        self._signal(STOP)
        self.recorded = self.recorder.stop()

    def _count(self) -> None:
        self.writes[self._on] += (self._requests - self._counted) * self._load.batch
        self._counted = self._requests

    def _signal(self, number: int) -> None:
        for pid in self._pids:
            os.kill(pid, number)


def by_stage(name: str, directory: Path, seconds: float) -> Result:
    """Return writes per second, and the recordings of each role's processes."""
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["BENCH_PROFILE"] = scratch
        with Quorum(directory, program=PROFILED) as quorum:
            leader, pids = quorum.leader(), quorum.pids
            slices = Slices(LOADS[name], pids)
            run = measure(
                LOADS[name],
                [quorum.endpoints[leader - 1]],
                pids,
                seconds=seconds,
                writes=slices,
                at_begin=slices.begin,
                at_end=slices.end,
            )
            done = uvloop.run(run)
            found = {pid: _read(Path(scratch) / f"{pid}.json") for pid in pids}
    found[os.getpid()] = slices.recorded
    roles = _roles(pids, leader)
    return {
        "writes_measured": slices.writes[True],
        "writes_between": slices.writes[False],
        "writes_per_s": done["writes_per_s"],
        "recorded": {role: [found[pid] for pid in of] for role, of in roles.items()},
    }


def _roles(pids: list[int], leader: int) -> dict[str, list[int]]:
    followers = [pid for node, pid in enumerate(pids, 1) if node != leader]
    return dict(zip(ROLES, ([pids[leader - 1]], followers, [os.getpid()]), strict=True))


def _read(path: Path) -> Result:
    deadline = time.monotonic() + WAIT_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"a node has recorded nothing: {path} does not exist")
        time.sleep(0.05)
    found: Result = json.loads(path.read_text())
    return found


def main(
    workload: Annotated[str, typer.Argument(help=", ".join(LOADS))],
    seconds: Annotated[
        float, typer.Option(help="Duration of each of the two runs, in seconds.")
    ] = 5.0,
    directory: Annotated[
        Path, typer.Option("--dir", help="A directory on the disk to measure.")
    ] = Path(".raftlog/bench"),
    as_json: Annotated[bool, typer.Option("--json", help="JSON for programs.")] = False,
) -> None:
    """Measure microseconds of CPU per write, by stage, for leader, follower and client."""
    if workload not in LOADS:
        raise typer.BadParameter(f"must be one of {', '.join(LOADS)}, not {workload}")
    whole = plain(workload, directory, seconds)
    stages = by_stage(workload, directory, seconds)
    if as_json:
        print(json.dumps({"workload": workload, "plain": whole, "by_stage": stages}, indent=1))
        return
    profiles = {
        role: mean(
            [
                attribute(one, stages["writes_measured"], stages["writes_between"])
                for one in recorded
            ]
        )
        for role, recorded in stages["recorded"].items()
    }
    lacking = sorted(
        {name for some in stages["recorded"].values() for one in some for name in one["missing"]}
    )
    console = Console(width=None if sys.stdout.isatty() else 120)
    show(workload, whole, stages["writes_per_s"], profiles, lacking, console)


if __name__ == "__main__":
    typer.run(main)
