"""The command: one workload, ours and the peer's, with the machine's limits, in one run."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks import peers
import importlib
from benchmarks.load import LOADS, measure
from benchmarks.nodes import Quorum


def run_load(workload: str, directory: Path, seconds: float) -> dict[str, Any]:
    with Quorum(directory) as quorum:
        leader = quorum.endpoints[quorum.leader() - 1]
        return uvloop.run(measure(LOADS[workload], [leader], quorum.pids, seconds=seconds))


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks/run", description=__doc__)
    parser.add_argument("workload", choices=[*LOADS])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--dir", type=Path, default=Path(".raftlog/bench"), help="on the disk to be measured")
    parser.add_argument("--peer", choices=["etcd"])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    result: dict[str, Any] = {"workload": arguments.workload}
    result["ours"] = run_load(arguments.workload, arguments.dir, arguments.seconds)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
