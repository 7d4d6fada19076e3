"""``python -m benchmarks.calls w1``: the Python calls that each node makes for a write, by
function.

The fixed cost of a commit round consists of calls, not of work: each costs one to three
microseconds with cold caches. The list can be compared with one made after a change.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.load import LOADS, Load, Writes
from benchmarks.nodes import Quorum
from raftlog.client.controller_client import ControllerClient
from raftlog.client.requests import require_success
from raftlog.transport.grpc_transport import GrpcTransport

WRITES = 300
"""Number of requests that are counted, per request in flight."""
SHOWN = 70
ROOT = str(Path(__file__).parents[1])
OWN = tuple(f"{ROOT}/{name}/" for name in ("raftlog", "controller"))
WAIT_S = 10.0

Calls = dict[tuple[str, str], float]
"""(File, function) -> calls per write."""


def count_calls(name: str, directory: Path) -> dict[str, Calls]:
    """Return the calls for one write of this load, for "leader" and "follower"."""
    with tempfile.TemporaryDirectory() as counts:
        os.environ["BENCH_CALLS"] = counts
        command = [sys.executable, "-m", "benchmarks.counted_node"]
        with Quorum(directory, program=command) as quorum:
            leader = quorum.leader()
            pids = quorum.pids
            address = quorum.endpoints[leader - 1]
            writes = asyncio.run(_run(LOADS[name], address, pids))
            found = [_read(Path(counts) / f"{pid}.json", writes) for pid in pids]
    followers = [calls for node, calls in enumerate(found, 1) if node != leader]
    both: defaultdict[tuple[str, str], float] = defaultdict(float)
    for calls in followers:
        for key, count in calls.items():
            both[key] += count / len(followers)
    return {"leader": found[leader - 1], "follower": both}


async def _run(load: Load, address: str, pids: list[int]) -> int:
    """Write, counting the calls between the signals; return the number of writes."""
    transport = GrpcTransport()
    client = ControllerClient(transport, [address], rng=random.Random(0))
    writes = Writes(replace(load, clients=1))

    async def loop(count: int) -> None:
        for _ in range(count):
            require_success(await client.send(writes.next(), 30.0))

    async def all_of(count: int) -> None:
        await asyncio.gather(*(loop(count) for _ in range(load.in_flight)))

    await all_of(WRITES // 3)
    for pid in pids:
        os.kill(pid, signal.SIGUSR1)
    await all_of(WRITES)
    for pid in pids:
        os.kill(pid, signal.SIGUSR2)
    client.close()
    await transport.close()
    return WRITES * load.in_flight * load.batch


def _read(path: Path, writes: int) -> Calls:
    deadline = time.monotonic() + WAIT_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no counts in {path}")
        time.sleep(0.05)
    calls: defaultdict[tuple[str, str], float] = defaultdict(float)
    for file, function, count in json.loads(path.read_text()):
        calls[file, function] += count / writes
    return calls


def summary(calls: Calls) -> dict[str, Any]:
    """Return the calls per write: of raftlog's own functions, and of all."""
    own = {key: count for key, count in calls.items() if key[0].startswith(OWN)}
    return {
        "own_calls_per_write": round(sum(own.values()), 1),
        "all_calls_per_write": round(sum(calls.values()), 1),
        "own_functions": sum(count >= 0.1 for count in own.values()),
    }


def listing(calls: Calls) -> list[str]:
    """Return the most frequently called functions, one per line."""
    ranked = sorted(calls.items(), key=lambda item: -item[1])
    return [
        f"{count:7.2f}  {file.removeprefix(ROOT + '/').split('site-packages/')[-1]}  {function}"
        for (file, function), count in ranked[:SHOWN]
        if count >= 0.05
    ]


def main() -> None:
    """Print the lists of both roles."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calls", description=__doc__)
    parser.add_argument("workload", choices=sorted(LOADS))
    workload = parser.parse_args().workload
    for role, calls in count_calls(workload, Path(".raftlog/bench")).items():
        print(role, summary(calls))
        print("\n".join(listing(calls)))


if __name__ == "__main__":
    main()
