"""``raftlog deploy size``: what a cluster needs of its machines."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Annotated

import typer

from raftlog.cli.exits import EPILOG
from raftlog.cli.options import Json
from raftlog.cli.output import print_json, print_table
from raftlog.deploy.sizing import FIGURES, MIB, size


def register(app_: typer.Typer) -> None:
    """Add the command."""
    app_.command("size", epilog=EPILOG)(_size)


def _size(
    partitions: Annotated[
        int,
        typer.Option("--partitions", metavar="N", min=0, max=100_000_000, help="In all topics."),
    ],
    brokers: Annotated[
        int, typer.Option("--brokers", metavar="N", min=0, max=100_000, help="Of the cluster.")
    ],
    writes_per_second: Annotated[
        float,
        typer.Option(
            "--writes-per-second", metavar="N", min=0, max=1e6, help="Changes of the metadata."
        ),
    ],
    sync_ms: Annotated[
        float,
        typer.Option(
            "--sync-ms", metavar="MS", min=0.001, max=60_000, help="What a sync of the disks takes."
        ),
    ] = 1.0,
    as_json: Json = False,
) -> None:
    """Say what the nodes need: memory, disk, syncs.

    Three controllers and the brokers. For replication factor 3, by the larger of the figures that
    were measured; --json has them all, with their sources. On top come the data of the partitions
    and buffers under load (raftlog_memory_bound_bytes). `raftlog cluster perf` says what a sync
    takes.

    \b
    Examples:
      raftlog deploy size --partitions 100000 --brokers 50 --writes-per-second 200
      raftlog deploy size --partitions 5000 --brokers 3 --writes-per-second 5 --json
    """
    if math.isnan(writes_per_second) or math.isnan(sync_ms):
        raise typer.BadParameter("a number is wanted, not NaN")
    found = size(partitions, brokers, writes_per_second, sync_ms)
    if as_json:
        print_json({**asdict(found), "figures": {k: asdict(one) for k, one in FIGURES.items()}})
        return
    rows = [
        ("memory of a controller", _mib(found.controller_memory_bytes)),
        ("memory of a broker", _mib(found.broker_memory_bytes)),
        ("disk of a controller", _mib(found.controller_disk_bytes)),
        ("log that a controller writes a day", _mib(found.controller_log_bytes_per_day)),
        ("syncs of a controller a second", f"{found.controller_fsyncs_per_second:,.1f}"),
        ("heartbeats, of the leader's core", f"{found.leader_cpu_percent_for_heartbeats:.1f} %"),
        ("records that the leader sends", f"{_mib(found.leader_sent_bytes_per_second)}/s"),
    ]
    print_table(("OF METADATA", "ABOUT"), rows, right=("ABOUT",))


def _mib(count: float) -> str:
    return f"{count / MIB:,.1f} MiB"
