"""The command: one workload, ours and the peer's, with the machine's limits, in one run."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks import broker_restarts, failover, fencing, peers, propagation
from benchmarks.limits import limits
from benchmarks.load import LOADS, measure
from benchmarks.nodes import Quorum
from benchmarks.produce import produce
from benchmarks.replicas import reopen
from benchmarks.scale import scale
from raftlog.errors import ConfigError

Result = dict[str, Any]


def _load(name: str) -> Callable[[Quorum, float, int], list[Result]]:
    def run(quorum: Quorum, seconds: float, runs: int) -> list[Result]:
        leader = quorum.endpoints[quorum.leader() - 1]
        return [
            uvloop.run(measure(LOADS[name], [leader], quorum.pids, seconds=seconds, tls=quorum.tls))
            for _ in range(runs)
        ]

    return run


def _w5(quorum: Quorum, seconds: float, runs: int) -> list[Result]:
    return [
        propagation.propagation(quorum, n, period_s=0.01, seconds=seconds) for n in (3, 30, 100)
    ]


def _w6(quorum: Quorum, seconds: float, runs: int) -> list[Result]:
    times = max(5, runs)
    return [
        failover.failovers(quorum, number, times) for number in (signal.SIGKILL, signal.SIGSTOP)
    ]


WORKLOADS: dict[str, tuple[str, Callable[[Quorum, float, int], list[Result]]]] = {
    "w1": ("one write in flight", _load("w1")),
    "w2": ("64 writes in flight, one connection", _load("w2")),
    "w3": ("1,000 writes in flight, four connections", _load("w3")),
    "w4": ("requests of 100 writes, 8 in flight", _load("w4")),
    "w5": ("one write each 10 ms, until the last of N brokers has it", _w5),
    "w6": ("kill -9 and SIGSTOP of the leader under a retrying writer", _w6),
    "w7": (
        "100,000 partitions: memory, disk, restarts",
        lambda quorum, seconds, runs: [scale(quorum)],
    ),
    "w8": (
        "the idle quorum",
        lambda quorum, seconds, runs: [failover.idle(quorum, max(30.0, seconds))],
    ),
    "w9": (
        "SIGTERM of the leader under a retrying writer",
        lambda quorum, seconds, runs: [failover.failovers(quorum, signal.SIGTERM, max(5, runs))],
    ),
    "d1": (
        "records with acks=all to six partitions of three replicas",
        lambda quorum, seconds, runs: produce(quorum, seconds),
    ),
    "d2": (
        "a broker's partition replicas opened and checked: many small ones, and a gigabyte",
        lambda quorum, seconds, runs: reopen(quorum.directory.parent / "replicas"),
    ),
    "k_fence": (
        "fencing a broker with 1,000 partitions, of 10,000 and of 100,000",
        lambda quorum, seconds, runs: [
            *map(fencing.alone, fencing.TOTALS),
            *fencing.on_a_quorum(quorum),
        ],
    ),
    "k3": (
        "one call that creates many partitions, three brokers",
        lambda quorum, seconds, runs: [
            propagation.create_many(quorum, 1, 2_000),
        ],
    ),
    "k4": (
        "one write at 20/s until the last of three brokers shows it",
        lambda quorum, seconds, runs: [
            propagation.propagation(quorum, 3, period_s=0.05, seconds=seconds)
        ],
    ),
    "k6": (
        "a broker that is killed or stopped: until the others know, and until it is back",
        lambda quorum, seconds, runs: broker_restarts.broker_lives(quorum, max(3, runs)),
    ),
    "k7": (
        "heartbeats of 0, 100, 1,000 brokers, every 2 s each",
        lambda quorum, seconds, runs: broker_restarts.heartbeats(quorum, max(10.0, seconds)),
    ),
}
SECURED = ("w1", "w2", "w3", "w4")
"""Workloads that can run with mutual TLS and an authorizer."""
BROKERS = {"k6": 3}
"""Workloads that want brokers as processes."""


def main(
    workload: Annotated[
        str, typer.Argument(help=", ".join(f"{k}: {v[0]}" for k, v in WORKLOADS.items()))
    ],
    seconds: Annotated[float, typer.Option(help="How long each measurement lasts.")] = 10.0,
    runs: Annotated[int, typer.Option(help="How often it is repeated.")] = 1,
    peer: Annotated[
        str | None, typer.Option(help="etcd: measured beside us, see peers.py.")
    ] = None,
    directory: Annotated[Path, typer.Option("--dir", help="On the disk to be measured.")] = Path(
        ".raftlog/bench"
    ),
    acls: Annotated[
        int | None,
        typer.Option(help="With mutual TLS and an authorizer with so many entries (w1 to w4)."),
    ] = None,
    audited: Annotated[bool, typer.Option(help="With an audit log, too (with --acls).")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON for programs.")] = False,
) -> None:
    """Measure one workload on three real nodes with real fsync, and print it beside the machine's
    limits.
    """
    if workload not in WORKLOADS:
        raise typer.BadParameter(f"{workload} is none of {', '.join(WORKLOADS)}")
    if acls is not None and workload not in SECURED:
        raise typer.BadParameter(f"--acls goes with {', '.join(SECURED)}")
    with Quorum(directory, brokers=BROKERS.get(workload, 0), acls=acls, audited=audited) as quorum:
        machine = uvloop.run(limits(directory))
        ours = WORKLOADS[workload][1](quorum, seconds, runs)
    result: Result = {
        "workload": workload,
        "what": WORKLOADS[workload][0],
        "acls": acls,
        "audited": audited,
        "limits": machine,
        "ours": ours,
    }
    if peer is not None:
        try:
            result["etcd"] = peers.etcd(workload, seconds=seconds, runs=1)
        except ConfigError as error:
            raise typer.BadParameter(str(error)) from error
        result["ratios"] = peers.ratios(workload, ours, result["etcd"])
    if as_json:
        print(json.dumps(result, indent=1))
    else:
        show(result)


def show(result: Result) -> None:
    """For people."""
    table = Table(title=f"{result['workload']}: {result['what']}", title_justify="left")
    table.add_column("")
    table.add_column("")
    for name, value in result["limits"].items():
        table.add_row(f"limit {name}", str(value))
    for index, ours in enumerate(result["ours"]):
        for name, value in ours.items():
            table.add_row(
                f"ours {name}" + (f" [{index + 1}]" if len(result["ours"]) > 1 else ""), str(value)
            )
    for part in ("etcd", "ratios"):
        for name, value in (result.get(part) or {}).items():
            table.add_row(f"{part} {name}", str(value))
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
