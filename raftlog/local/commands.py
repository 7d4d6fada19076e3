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

from raftlog.cli.command import Answer, command, group
from raftlog.cli.exits import Exit, FailedError
from raftlog.cli.options import arg, opt
from raftlog.cli.output import print_line, print_table
from raftlog.errors import ConfigError
from raftlog.local.cluster import LocalCluster, LocalNode, LocalStatus, Node
from raftlog.node.config.sources import LOCAL_DIRECTORY
from raftlog.text import counted

CONTROLLERS, BROKERS = 3, 3
"""Default numbers of controllers and brokers in a new cluster."""
DEFAULT_DIRECTORY = Path(".raftlog")
STATES = {True: "ready", False: "not ready"}
SCRIPTS = {"controller": "scripts/quorum", "broker": "scripts/broker"}

local = group()
Directory = Annotated[
    Path, opt("--dir DIR", "The directory of the cluster.", envvar=LOCAL_DIRECTORY)
]
Timeout = Annotated[float, opt("--timeout S", "Seconds to wait until the nodes are ready.", min=1)]
Names = Annotated[
    list[str] | None, arg("[NODE]...", "Existing nodes, such as controller-1 or broker-4.")
]


@local.callback()
def choose_role(
    context: typer.Context,
    role: Annotated[
        str, opt("--role", "controller or broker: only these nodes.", hidden=True)
    ] = "",
) -> None:
    """A cluster of processes on this machine."""
    if role not in ("", *SCRIPTS):
        raise typer.BadParameter(f"must be controller or broker, not {role!r}", param_hint="--role")
    context.obj = role


@command(local)
def start(
    context: typer.Context,
    names: Names = None,
    controllers: Annotated[
        int | None,
        opt(
            "--controllers --nodes N",
            "Number of controllers in a new cluster; default: 3.",
            min=1,
            max=9,
        ),
    ] = None,
    brokers: Annotated[
        int | None,
        opt(
            "--brokers --count N",
            "Number of brokers; missing ones are added. Default for a new cluster: 3.",
            min=0,
            max=100,
        ),
    ] = None,
    base_port: Annotated[
        int | None,
        opt(
            "--base-port PORT",
            "Use consecutive ports from this one; default: free ports.",
            min=1024,
            max=65000,
        ),
    ] = None,
    directory: Directory = DEFAULT_DIRECTORY,
    timeout: Timeout = 60,
) -> Answer[LocalStatus]:
    """Start a cluster, or the nodes of it that are not
    running. Waits until they are ready.

        \b
        Examples:
          raftlog local start
          raftlog local start controller-1
          raftlog local start --controllers 5 --brokers 0 --dir /tmp/five

        If the directory contains a cluster, continues with it.
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
        # A node may be waiting for others, or to become a voter: stopping it would not help.
        raise FailedError(
            f"{error}\nThe started nodes keep running; run raftlog doctor to see the cause",
            error.exit,
        ) from error
    except BaseException:
        cluster.stop(started)
        raise
    found = cluster.describe()

    def show() -> None:
        if leader_id is not None:
            leads = f"controller {leader_id} leads cluster {cluster.cluster_id}"
            print_line(f"{leads} in {cluster.directory}")
        names = {node.name for node in wanted}
        _show([node for node in found.nodes if node.name in names])
        _say_next(cluster, directory, role)

    return Answer(found, show)


def _start(cluster: LocalCluster, wanted: list[Node], timeout_s: float) -> int | None:
    """Start nodes and wait until they are ready. Return the leader's id if there are controllers
    among them, else None.
    """
    for node in wanted:
        cluster.start(node.name)
    waits = any(node.role == "controller" for node in wanted)
    leader_id = cluster.wait_leader_id(timeout_s) if waits else None
    cluster.wait_ready([node.name for node in wanted], timeout_s)
    return leader_id


@command(local)
def stop(
    context: typer.Context,
    names: Names = None,
    directory: Directory = DEFAULT_DIRECTORY,
    delete: Annotated[
        bool, opt("--delete", "Also delete the data, configurations and logs.")
    ] = False,
) -> None:
    """Stop nodes, all of them by default.

    Keeps the data, so that a later start continues with it. Brokers shut down in a controlled way,
    so that the cluster need not wait for their sessions to expire.

    \b
    Examples:
      raftlog local stop
      raftlog local stop broker-4
      raftlog local stop --delete
    """
    role: str = context.obj
    if delete and (names or role == "broker"):
        raise typer.BadParameter(
            "deletes the whole cluster: omit the node names", param_hint="--delete"
        )
    cluster = _existing(directory, role)
    # Without controllers the brokers are useless.
    wanted = _wanted(cluster, names, "broker" if role == "broker" else "")
    running = [node.name for node in wanted if cluster.pid(node.name) is not None]
    killed = cluster.stop(node.name for node in wanted)
    print_line(f"stopped {', '.join(running)}" if running else "no node was running")
    if delete:
        cluster.delete()
        print_line(f"deleted {cluster.directory}")
    if killed:
        raise FailedError(
            f"killed, because SIGTERM did not end them in time: {', '.join(killed)}", Exit.REFUSED
        )


@command(local)
def env(context: typer.Context, directory: Directory = DEFAULT_DIRECTORY) -> None:
    """Print the environment variables that commands need, for the shell.

    \b
    Examples:
      eval "$(raftlog local env)"
    """
    cluster = _existing(directory, context.obj)
    for name, value in cluster.environment().items():
        print_line(f"export {name}={shlex.quote(value)}")
    print_line(f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH")


@command(local)
def status(context: typer.Context, directory: Directory = DEFAULT_DIRECTORY) -> Answer[LocalStatus]:
    """Show whether each node is running and ready. Exit
    code 3 if one is not ready.
    """
    found = _existing(directory, context.obj).describe()
    errors = [] if all(node.ready for node in found.nodes) else [typer.Exit(Exit.FOUND)]
    return Answer(found, lambda: _show(found.nodes), errors)


def _existing(directory: Path, role: str) -> LocalCluster:
    cluster = LocalCluster(directory)
    if not cluster.exists:
        program = SCRIPTS["controller"] if role else "raftlog local"
        raise ConfigError(
            f"{directory} contains no cluster; create one with: {program} start --dir {directory}"
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
        f"{cluster.directory} already contains a cluster of {counted(len(there), 'controller')} "
        f"with ports from {there[0].port}: give another --dir for a new one. To delete this one: "
        f"{program} stop --delete --dir {shlex.quote(str(cluster.directory))}"
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


def _show(nodes: Sequence[LocalNode]) -> None:
    print_table(
        ("NODE", "PID", "ENDPOINT", "HTTP", "STATE", "REASON"),
        [
            (one.name, one.pid, one.endpoint, one.http, STATES[one.ready], one.reason)
            for one in nodes
        ],
        right=("PID",),
        least=("HTTP", "PID", "ENDPOINT"),
    )


def _program() -> str:
    """Return the command that runs this installation's ``raftlog`` from the current directory."""
    path = Path(sys.executable).parent / "raftlog"
    if shutil.which("raftlog") == str(path):
        return "raftlog"
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
