"""``raftlog local``: a cluster of processes on this machine, which outlives the command.

``scripts/quorum`` and ``scripts/broker`` are the same with ``--role``.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from raftlog.cli.exits import EPILOG, Exit, FailedError
from raftlog.cli.options import Json, arg, opt
from raftlog.cli.output import print_json, print_line, print_table
from raftlog.errors import ConfigError
from raftlog.local.cluster import LocalCluster, Node
from raftlog.node.config.sources import LOCAL_DIRECTORY
from raftlog.text import counted

CONTROLLERS, BROKERS = 3, 3
"""How many a new cluster has by default."""
DEFAULT_DIRECTORY = Path(".raftlog")
STATES = {True: "ready", False: "not ready"}
SCRIPTS = {"controller": "scripts/quorum", "broker": "scripts/broker"}

local = typer.Typer(
    help="A cluster of processes on this machine.",
    epilog=EPILOG,
    no_args_is_help=True,
)

Directory = Annotated[Path, opt("--dir DIR", "Where the cluster lives.", envvar=LOCAL_DIRECTORY)]
Timeout = Annotated[float, opt("--timeout S", "Seconds to wait until it is up.", min=1)]
Names = Annotated[
    list[str] | None, arg("[NODE]...", "Nodes that are there: controller-1, broker-4.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.add_typer(local, name="local")


@local.callback()
def choose_role(
    context: typer.Context,
    role: Annotated[
        str, opt("--role", "controller or broker: only these nodes.", hidden=True)
    ] = "",
) -> None:
    """A cluster of processes on this machine."""
    if role not in ("", *SCRIPTS):
        raise typer.BadParameter(f"{role!r} is neither controller nor broker", param_hint="--role")
    context.obj = role


@local.command("start", epilog=EPILOG)
def start(
    context: typer.Context,
    names: Names = None,
    controllers: Annotated[
        int | None, opt("--controllers --nodes N", "Of a new cluster: 3.", min=1, max=9)
    ] = None,
    brokers: Annotated[
        int | None,
        opt(
            "--brokers --count N",
            "Have this many brokers, adding those that lack; of a new cluster: 3.",
            min=0,
            max=100,
        ),
    ] = None,
    base_port: Annotated[
        int | None,
        opt("--base-port PORT", "Ports from here on; default: free ones.", min=1024, max=65000),
    ] = None,
    directory: Directory = DEFAULT_DIRECTORY,
    timeout: Timeout = 60,
    as_json: Json = False,
) -> None:
    """Start a cluster, or those of its nodes that do not run.

    Waits until they are ready.

    \b
    Examples:
      raftlog local start
      raftlog local start controller-1
      raftlog local start --controllers 5 --brokers 0 --dir /tmp/five

    A directory that holds a cluster goes on with it.
    """
    role: str = context.obj
    if role == "broker":
        cluster = _existing(directory, role)
    else:
        cluster = LocalCluster(
            directory,
            controllers=controllers or CONTROLLERS,
            brokers=0 if role else BROKERS if brokers is None else brokers,
            base_port=base_port,
        )
    is_new = not cluster.exists
    if not is_new:
        _require_same(cluster, controllers, base_port, role)
    cluster.generate()
    least = (brokers or 1) if role == "broker" else (brokers or 0)
    while len(cluster.brokers) < least and not names:
        cluster.add_broker()
    wanted = _wanted(cluster, names, role)
    started = [node.name for node in wanted if cluster.pid(node.name) is None]
    try:
        leader_id = _start(cluster, wanted, timeout)
    except FailedError as error:
        if is_new or role == "broker":
            cluster.stop(started)
            raise
        # It may wait for others, or to become a voter: stopping it would not help.
        raise FailedError(
            f"{error}\nWhat was started goes on; what is wrong: raftlog doctor", error.exit
        ) from error
    except BaseException:
        cluster.stop(started)
        raise
    if as_json:
        print_json(cluster.describe())
        return
    if leader_id is not None:
        print_line(
            f"controller {leader_id} leads cluster {cluster.cluster_id} in {cluster.directory}"
        )
    _show(cluster, wanted, _look(cluster, wanted))
    _say_next(cluster, directory, role)


def _start(cluster: LocalCluster, wanted: list[Node], timeout_s: float) -> int | None:
    """Start nodes and wait until they are ready; return the leader's id, if that was waited for."""
    for node in wanted:
        cluster.start(node.name)
    waits = any(node.role == "controller" for node in wanted)
    leader_id = cluster.wait_leader_id(timeout_s) if waits else None
    cluster.wait_ready([node.name for node in wanted], timeout_s)
    return leader_id


@local.command("stop", epilog=EPILOG)
def stop(
    context: typer.Context,
    names: Names = None,
    directory: Directory = DEFAULT_DIRECTORY,
    delete: Annotated[
        bool, opt("--delete", "Delete the data, configurations and logs too.")
    ] = False,
) -> None:
    """Stop nodes, all of them by default.

    The data stays, so that a start goes on with it. Brokers leave in
    order, so that the cluster need not wait for their sessions to end.

    \b
    Examples:
      raftlog local stop
      raftlog local stop broker-4
      raftlog local stop --delete
    """
    role: str = context.obj
    if delete and (names or role == "broker"):
        raise typer.BadParameter("deletes the whole cluster: name no nodes", param_hint="--delete")
    cluster = _existing(directory, role)
    # Without controllers the brokers have no use.
    wanted = _wanted(cluster, names, "broker" if role == "broker" else "")
    running = [node.name for node in wanted if cluster.pid(node.name) is not None]
    killed = cluster.stop(node.name for node in wanted)
    print_line(f"stopped {', '.join(running)}" if running else "nothing was running")
    if delete:
        cluster.delete()
        print_line(f"deleted {cluster.directory}")
    if killed:
        raise FailedError(
            f"killed, because SIGTERM did not end them in time: {', '.join(killed)}", Exit.REFUSED
        )


@local.command("env", epilog=EPILOG)
def env(context: typer.Context, directory: Directory = DEFAULT_DIRECTORY) -> None:
    """Print the exports that commands need, for the shell.

    \b
    Examples:
      eval "$(raftlog local env)"
    """
    cluster = _existing(directory, context.obj)
    for name, value in cluster.environment().items():
        print_line(f"export {name}={shlex.quote(value)}")
    print_line(f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH")


@local.command("status", epilog=EPILOG)
def status(
    context: typer.Context, directory: Directory = DEFAULT_DIRECTORY, as_json: Json = False
) -> None:
    """Show the nodes: whether they run, and what they say.

    Exit code 3 if one is not ready.
    """
    cluster = _existing(directory, context.obj)
    looks = _look(cluster, cluster.nodes)
    if as_json:
        document = cluster.describe()
        for node, (ready, reason) in zip(document["nodes"], looks, strict=True):
            node |= {"ready": ready, "reason": reason}
        print_json(document)
    else:
        _show(cluster, cluster.nodes, looks)
    if not all(ready for ready, _ in looks):
        raise typer.Exit(Exit.FOUND)


def _existing(directory: Path, role: str) -> LocalCluster:
    cluster = LocalCluster(directory)
    if not cluster.exists:
        program = SCRIPTS["controller"] if role else "raftlog local"
        raise ConfigError(
            f"{directory} holds no cluster; make one with: {program} start --dir {directory}"
        )
    return cluster


def _require_same(
    cluster: LocalCluster, controllers: int | None, base_port: int | None, role: str
) -> None:
    there = cluster.controllers
    if base_port in (None, there[0].port) and controllers in (None, len(there)):
        return
    program = SCRIPTS["controller"] if role else "raftlog local"
    raise ConfigError(
        f"{cluster.directory} holds a cluster already, of {counted(len(there), 'controller')} from"
        f" port {there[0].port} on: another one needs another --dir. To delete this one:"
        f" {program} stop --delete --dir {shlex.quote(str(cluster.directory))}"
    )


def _wanted(cluster: LocalCluster, names: list[str] | None, role: str) -> list[Node]:
    if names:
        return [cluster.node(name) for name in names]
    return [node for node in cluster.nodes if role in ("", node.role)]


def _say_next(cluster: LocalCluster, directory: Path, role: str) -> None:
    suffix = "" if directory == DEFAULT_DIRECTORY else f" --dir {shlex.quote(str(directory))}"
    program, raftlog = SCRIPTS.get(role, f"{_program()} local"), _program()
    print_line("")
    print_line("Next:")
    print_line(f'  eval "$({SCRIPTS["controller"] if role else program} env{suffix})"')
    if role == "controller":
        print_line(f"  {raftlog} doctor")
        print_line(f"  {SCRIPTS['broker']} start --count 3{suffix}")
    else:
        print_line(f"  {raftlog} topics create orders --partitions 3 --acks visible")
    if role != "broker":
        print_line(f"  {program} stop{suffix}")


def _look(cluster: LocalCluster, nodes: Sequence[Node]) -> list[tuple[bool, str]]:
    """Return, for each node, whether it is ready, and its /readyz text."""
    return [
        (False, "does not run") if cluster.pid(node.name) is None else cluster.ready(node.name)
        for node in nodes
    ]


def _show(cluster: LocalCluster, nodes: Sequence[Node], looks: Sequence[tuple[bool, str]]) -> None:
    rows = [
        (node.name, cluster.pid(node.name), node.endpoint, node.http, STATES[ready], reason)
        for node, (ready, reason) in zip(nodes, looks, strict=True)
    ]
    print_table(
        ("NODE", "PID", "ENDPOINT", "HTTP", "STATE", "REASON"),
        rows,
        right=("PID",),
        least=("HTTP", "PID", "ENDPOINT"),
    )


def _program() -> str:
    """Return the command that calls this installation's ``raftlog`` from here."""
    path = Path(sys.executable).parent / "raftlog"
    if shutil.which("raftlog") == str(path):
        return "raftlog"
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
