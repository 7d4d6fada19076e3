"""The command: one workload for raftlog and the peer, with the machine's limits, in one run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks import peers
from benchmarks.limits import floor, limits
from benchmarks.nodes import Quorum
from benchmarks.page.figures import ENTRIES, dig
from benchmarks.workloads import SECURED, WORKLOADS, Result
from raftlog.errors import ConfigError
from raftlog.transport import grpc_runtime


def main(
    workload: Annotated[
        str, typer.Argument(help=", ".join(f"{k}: {v.what}" for k, v in WORKLOADS.items()))
    ],
    seconds: Annotated[
        float, typer.Option(help="Duration of each measurement, in seconds.")
    ] = 10.0,
    runs: Annotated[int, typer.Option(help="Number of runs.")] = 1,
    peer: Annotated[
        str | None, typer.Option(help="etcd: measure it as well, see peers.py.")
    ] = None,
    directory: Annotated[
        Path, typer.Option("--dir", help="A directory on the disk to measure.")
    ] = Path(".raftlog/bench"),
    acls: Annotated[
        int | None,
        typer.Option(
            help="Use mutual TLS (also for the peer) and an authorizer with this number of entries "
            "(w1 to w4)."
        ),
    ] = None,
    audited: Annotated[bool, typer.Option(help="Also write an audit log (with --acls).")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure one workload on three real nodes with real fsync, and print it with the machine's
    limits.
    """
    if workload not in WORKLOADS:
        raise typer.BadParameter(f"must be one of {', '.join(WORKLOADS)}, not {workload}")
    if acls is not None and workload not in SECURED:
        raise typer.BadParameter(f"--acls is only for {', '.join(SECURED)}")
    chosen = WORKLOADS[workload]
    with Quorum(directory, brokers=chosen.brokers, acls=acls, audited=audited) as quorum:
        machine = uvloop.run(limits(directory))
        ours = chosen.run(quorum, seconds, runs)
    result: Result = {
        "workload": workload,
        "what": chosen.what,
        "event_engine": grpc_runtime.event_engine_state(),
        "acls": acls,
        "audited": audited,
        "limits": machine,
        "ours": ours,
    }
    their_floor: Result = {}
    if peer is not None:
        their_floor = floor(directory)
        # As many runs as for raftlog; for a fair comparison ``all`` also alternates them.
        try:
            result["etcd"] = peers.etcd(workload, seconds=seconds, runs=runs, tls=acls is not None)
        except ConfigError as error:
            raise typer.BadParameter(str(error)) from error
        result["ratios"] = peers.ratios(workload, ours, result["etcd"])
    entry = ENTRIES.get(workload)
    if entry is not None and entry.floor_of is not None:
        result["times_the_floor"] = {
            side: round(found / at["floor_ms"], 2)
            for side, rows, path, at in (
                ("ours", ours, entry.floor_of.ours, machine),
                ("etcd", result.get("etcd"), entry.floor_of.theirs, their_floor),
            )
            if (found := dig(rows, path)) is not None
        }
    if as_json:
        print(json.dumps(result, indent=1))
    else:
        show(result)


def show(result: Result) -> None:
    """Print the result as text."""
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
    for part in ("etcd", "ratios", "times_the_floor"):
        for name, value in (result.get(part) or {}).items():
            table.add_row(f"{part} {name}", str(value))
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
