"""``raftlog cluster``: what it consists of, as clients are told."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from raftlog.cli.exits import EPILOG
from raftlog.cli.options import DEFAULT_TIMEOUT_S, BootstrapServer, Json, Timeout
from raftlog.cli.output import known, print_json, print_line, print_table
from raftlog.cli.reads import ReadMode, ReadModeOption, read
from raftlog.endpoint import address_of
from raftlog.wire.broker.v1 import broker_pb2

app = typer.Typer(
    help="The cluster as a whole: features, log levels, export cursors.",
    epilog=EPILOG,
    no_args_is_help=True,
)


def register(app_: typer.Typer) -> None:
    """Add the commands."""
    app_.add_typer(app, name="cluster")


@app.callback()
def _group() -> None:
    """The cluster as a whole: features, log levels, export cursors."""


@app.command(epilog=EPILOG)
def describe(
    include_fenced_brokers: Annotated[
        bool, typer.Option("--include-fenced-brokers", help="Show fenced brokers, too (KIP-1073).")
    ] = False,
    mode: ReadModeOption = ReadMode.REPEATABLE,
    bootstrap_server: BootstrapServer = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show the cluster's id, its controller and its brokers.

    For what the controller knows: `raftlog brokers list`.

    \b
    Examples:
      raftlog cluster describe --bootstrap-server 127.0.0.1:9092
      raftlog cluster describe --include-fenced-brokers --json
    """
    body = broker_pb2.DescribeClusterRequest(include_fenced_brokers=include_fenced_brokers)
    response = read(body, mode, bootstrap_server, timeout)
    cluster = response.describe_cluster
    rows: list[dict[str, Any]] = [
        {
            "broker_id": one.broker_id,
            "endpoint": address_of(one.host, one.port),
            "rack": one.rack or None,
            "broker_epoch": one.broker_epoch,
            "version": None,
            "is_fenced": one.is_fenced,
        }
        for one in cluster.brokers
    ]
    versions = _versions([row["endpoint"] for row in rows if not row["is_fenced"]], timeout)
    for row in rows:
        row["version"] = versions.get(row["endpoint"])
    if as_json:
        print_json(
            {
                "offset": response.token.offset,
                "cluster_id": cluster.cluster_id,
                "controller_id": known(cluster.controller_id),
                "brokers": rows,
            }
        )
        return
    columns = ("BROKER", "ENDPOINT", "RACK", "EPOCH", "VERSION", "FENCED")
    cells = [[*list(row.values())[:-1], "yes" if row["is_fenced"] else "no"] for row in rows]
    print_table(columns, cells, right=("BROKER", "EPOCH"), least=("EPOCH", "RACK", "VERSION"))
    controller = known(cluster.controller_id)
    print_line(
        f"cluster {cluster.cluster_id}, controller {'-' if controller is None else controller}"
    )
    print_line(f"at offset {response.token.offset}")


def _versions(endpoints: list[str], timeout_s: float) -> dict[str, str]:
    import asyncio

    from raftlog.client.security import security_of_environment
    from raftlog.ops.collector import Collector

    return asyncio.run(Collector(security_of_environment()).versions(endpoints, timeout_s))
