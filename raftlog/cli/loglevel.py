"""``raftlog cluster loglevel``: another log level for a while, on running nodes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raftlog.cli import completion
from raftlog.cli.exits import EPILOG, Exit, FailedError
from raftlog.cli.options import (
    DEFAULT_TIMEOUT_S,
    BootstrapController,
    BootstrapServer,
    Json,
    Timeout,
    controllers,
)
from raftlog.cli.times import parse_span_ms

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from raftlog.cli.node_queries import NodeAt
    from raftlog.client.quorum_queries import Called

DEFAULT_FOR = "10m"
CONFIGURED = "configured"


def register(app_: typer.Typer) -> None:
    """Add the command."""
    app_.command("loglevel", epilog=EPILOG)(loglevel)


def loglevel(
    level: Annotated[
        str,
        typer.Argument(
            metavar="[LEVEL]",
            help="debug, info, warning, error, or configured. Default: show the levels.",
        ),
    ] = "",
    nodes: Annotated[
        list[str] | None,
        typer.Option(
            "--node",
            metavar="NAME",
            help="Only broker-4, controller-1, …; may be repeated.",
            autocompletion=completion.node_names,
        ),
    ] = None,
    span: Annotated[
        str, typer.Option("--for", metavar="SPAN", help="How long; then the configured is back.")
    ] = DEFAULT_FOR,
    bootstrap_controller: BootstrapController = "",
    bootstrap_server: BootstrapServer = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show the log level of each node, or set another one for a while.

    The configured level is back after --for, a day at most, or at the next start.

    \b
    Examples:
      raftlog cluster loglevel
      raftlog cluster loglevel debug --node broker-4 --for 2m
      raftlog cluster loglevel configured
    """
    from raftlog.cli.output import print_json, print_table
    from raftlog.cli.render import time_text

    for_ms = parse_span_ms(span)
    addresses = controllers(bootstrap_controller)
    servers = [one.strip() for one in bootstrap_server.split(",") if one.strip()]
    found = asyncio.run(_ask(addresses, servers, timeout, level, for_ms, nodes or []))
    rows = [_row(node, called) for node, called in found]
    if as_json:
        print_json({"nodes": rows})
    else:
        print_table(
            ("NODE", "LEVEL", "UNTIL", ""),
            [
                (
                    row["node"],
                    row["level"],
                    time_text(row["until_ms"])[:19] + "Z" if row["until_ms"] else None,
                    row["failure"] or "",
                )
                for row in rows
            ],
        )
    if any(row["failure"] for row in rows):
        raise typer.Exit(Exit.REFUSED if any(row["level"] for row in rows) else Exit.UNREACHABLE)


async def _ask(
    addresses: list[str],
    servers: list[str],
    timeout_s: float,
    level: str,
    for_ms: int,
    names: list[str],
) -> list[tuple[NodeAt, Called]]:
    from raftlog.cli.node_queries import ask_all, find_nodes
    from raftlog.client.security import security_of_environment
    from raftlog.wire.node.v1 import node_pb2 as pb

    security = security_of_environment()
    nodes = await find_nodes(addresses, min(timeout_s, 2.0), security, servers)
    if unknown := set(names) - {one.name for one in nodes}:
        there = ", ".join(one.name for one in nodes)
        raise FailedError(f"there is no {', '.join(sorted(unknown))}; there is {there}", Exit.USAGE)
    nodes = [one for one in nodes if not names or one.name in names]
    request: Any
    response: type[Message]
    if level:
        request = pb.AlterLogLevelRequest(
            level="" if level == CONFIGURED else level, for_ms=0 if level == CONFIGURED else for_ms
        )
        method, response = "AlterLogLevel", pb.AlterLogLevelResponse
    else:
        method, request, response = (
            "DescribeNode",
            pb.DescribeNodeRequest(),
            pb.DescribeNodeResponse,
        )
    called = await ask_all(nodes, method, request, response, timeout_s, security)
    return list(zip(nodes, called, strict=True))


def _row(node: NodeAt, called: Called) -> dict[str, Any]:
    one = called.response
    if one is None:
        return {"node": node.name, "level": None, "until_ms": None, "failure": called.failure}
    altered = hasattr(one, "until_ms")
    until_ms = one.until_ms if altered else one.log_level_until_ms
    return {
        "node": node.name,
        "level": one.level if altered else one.log_level,
        "until_ms": until_ms or None,
        "failure": None,
    }
