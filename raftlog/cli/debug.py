"""``raftlog debug``: what others need to help."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raftlog.cli.exits import EPILOG, Exit
from raftlog.cli.options import (
    DEFAULT_TIMEOUT_S,
    BootstrapController,
    BootstrapServer,
    Timeout,
    controllers,
)
from raftlog.cli.times import Period, Since

if TYPE_CHECKING:
    from raftlog.cli.node_queries import NodeAt
    from raftlog.ops.evidence import NodeTold

app = typer.Typer(
    help="Evidence for a bug report, and clusters in virtual time.",
    epilog=EPILOG,
    no_args_is_help=True,
)


def register(app_: typer.Typer) -> None:
    """Add the commands."""
    app_.add_typer(app, name="debug")


@app.callback()
def _group() -> None:
    """Evidence for a bug report, and clusters in virtual time."""


@app.command(epilog=EPILOG)
def bundle(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="Default: raftlog-debug-TIME.tar.gz, here."),
    ] = None,
    since: Since = "",
    disk: Annotated[
        bool, typer.Option("--disk/--no-disk", help="Measure each node's disk with 20 small syncs.")
    ] = True,
    bootstrap_controller: BootstrapController = "",
    bootstrap_server: BootstrapServer = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Write one tar.gz with what every node says of itself.

    Build, configuration without secrets, journal, newest log lines, metrics, disk; the changes of
    the last day; what doctor and explain say. It holds names of topics, principals and hosts. Read
    it with `raftlog doctor --bundle FILE` and `raftlog explain --bundle FILE`.

    \b
    Examples:
      raftlog debug bundle
      raftlog debug bundle /tmp/incident.tar.gz --since 2h --no-disk
    """
    from raftlog.cli.output import print_line
    from raftlog.plural import counted

    addresses = controllers(bootstrap_controller)
    servers = [one.strip() for one in bootstrap_server.split(",") if one.strip()]
    period = Period(since, default="1d")
    name = f"raftlog-debug-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.tar.gz"
    target = file if file is not None else Path(name)
    asked, missing = _write(target, addresses, servers, timeout, period, disk=disk)
    print_line(f"{target}: {counted(asked, 'node')}, {target.stat().st_size} bytes")
    for one in missing:
        print_line(f"missing: {one}")
    if len(missing) >= asked:
        raise typer.Exit(Exit.UNREACHABLE)


def _write(
    target: Path,
    addresses: list[str],
    servers: list[str],
    timeout_s: float,
    period: Period,
    *,
    disk: bool,
) -> tuple[int, list[str]]:
    """How many nodes there are, and what could not be had."""
    import msgspec

    from raftlog.build import build_text
    from raftlog.cli.bundle import FORMAT, About, ToldNode, doctor_part, log_part, write_bundle
    from raftlog.cli.explain_evidence import of_cluster
    from raftlog.cli.node_queries import NodeAt, nodes_of
    from raftlog.ops.doctor import diagnose, verdict
    from raftlog.ops.doctor import screen as doctor_screen
    from raftlog.ops.story import screen as explain_screen
    from raftlog.ops.story import tell

    told, seen = of_cluster(addresses, servers, timeout_s, period)
    findings = diagnose(seen)
    asked = nodes_of(seen, [NodeAt("broker", -1, one) for one in servers])
    parts, failures = asyncio.run(_of_nodes(asked, timeout_s, disk=disk))
    nodes = [
        ToldNode(one.name, one.role, one.node_id, "", one.failure or failures.get(one.name, ""))
        for one in told.nodes
    ]
    about = About(FORMAT, seen.at_ms, build_text(), told.from_ms, told.to_ms, nodes)
    story = tell(told)
    explained = explain_screen(story, (findings, verdict(findings).value), everything=True)
    parts |= {
        "bundle.json": msgspec.json.format(msgspec.json.encode(about), indent=2),
        "doctor.json": doctor_part(seen),
        "doctor.txt": doctor_screen(seen, findings, verdict(findings)).encode(),
        "explain.txt": explained.encode(),
        "log.json": log_part(told.log),
        **{f"nodes/{one.name}/events.jsonl": _lines(one) for one in told.nodes},
    }
    write_bundle(target, dict(sorted(parts.items())), seen.at_ms)
    missing = [f"{one.name}: {one.failure}" for one in nodes if one.failure]
    if told.log.failure:
        missing.append(f"the log: {told.log.failure}")
    return len(nodes), missing


def _lines(node: NodeTold) -> bytes:
    import msgspec

    return b"".join(msgspec.json.encode(one) + b"\n" for one in node.events)


async def _of_nodes(
    nodes: list[NodeAt], timeout_s: float, *, disk: bool
) -> tuple[dict[str, bytes], dict[str, str]]:
    """The parts of each node that answers, and why others do not, by name."""
    from raftlog.cli.node_queries import ask_all
    from raftlog.client.security import security_of_environment
    from raftlog.wire.node.v1 import node_pb2 as pb

    security = security_of_environment()
    described, diagnosed = await asyncio.gather(
        ask_all(
            nodes,
            "DescribeNode",
            pb.DescribeNodeRequest(),
            pb.DescribeNodeResponse,
            min(timeout_s, 2.0),
            security,
        ),
        ask_all(
            nodes,
            "DiagnoseNode",
            pb.DiagnoseNodeRequest(log_lines=1000, probe_disk=disk),
            pb.DiagnoseNodeResponse,
            min(timeout_s, 6.0),
            security,
        ),
    )
    parts: dict[str, bytes] = {}
    failures: dict[str, str] = {}
    for node, of_node, found in zip(nodes, described, diagnosed, strict=True):
        name = node.name if of_node.response is None else _name(node, of_node.response)
        if of_node.response is not None or found.response is not None:
            parts |= _parts(name, node, of_node.response, found.response)
        if of_node.failure or found.failure:
            failures[name] = of_node.failure or found.failure
    return parts, failures


def _value(text: str) -> Any:
    """Return the value of a key; its text, if the node has sent no JSON."""
    import msgspec

    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def _name(node: NodeAt, described: Any) -> str:
    return f"{described.role}-{described.node_id}" if described.node_id >= 0 else node.name


def _parts(name: str, node: NodeAt, described: Any, diagnosed: Any) -> dict[str, bytes]:
    import msgspec

    from raftlog.cli.render import message_to_dict

    document: dict[str, Any] = {"endpoint": node.endpoint}
    if described is not None:
        document |= message_to_dict(described)
        document["config"] = {one.name: _value(one.value) for one in described.config}
    parts = {}
    if diagnosed is not None:
        document["disk"] = {
            "sync_us": list(diagnosed.sync_us),
            "probe_failure": diagnosed.probe_failure or None,
            "free_bytes": diagnosed.free_bytes,
            "total_bytes": diagnosed.total_bytes,
        }
        parts[f"nodes/{name}/metrics.txt"] = diagnosed.metrics.encode()
        parts[f"nodes/{name}/log.jsonl"] = "".join(f"{x}\n" for x in diagnosed.log_lines).encode()
    parts[f"nodes/{name}/node.json"] = msgspec.json.format(msgspec.json.encode(document), indent=2)
    return parts
