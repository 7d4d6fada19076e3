"""What ``scripts/quorum`` and ``scripts/broker`` run: a cluster on this machine, for trying out."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from raftlog.cli.exits import EPILOG, Exit, FailedError
from raftlog.cli.groups import PipedGroup
from raftlog.cli.local_remedies import LOCAL_DIRECTORY
from raftlog.cli.output import print_line, print_table
from raftlog.cli.reporting import report
from raftlog.errors import ConfigError, RaftlogError
from raftlog.local.cluster import LocalCluster, Node
from raftlog.plural import counted

app = typer.Typer(
    name="scripts",
    cls=PipedGroup,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)
quorum = typer.Typer(
    help="Controllers on this machine, for trying out.", epilog=EPILOG, no_args_is_help=True
)
broker = typer.Typer(
    help="Brokers of the cluster that scripts/quorum started.", epilog=EPILOG, no_args_is_help=True
)
app.add_typer(quorum, name="quorum")
app.add_typer(broker, name="broker")

Directory = Annotated[Path, typer.Option("--dir", metavar="DIR", help="Where the cluster lives.")]
Timeout = Annotated[
    float, typer.Option("--timeout", metavar="S", min=1, help="Seconds to wait until it is up.")
]
DEFAULT_DIRECTORY = Path(".raftlog")


@quorum.command("start", epilog=EPILOG)
def start_quorum(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CONTROLLER]...", help="Controllers that are there: controller-1."),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option("--nodes", metavar="N", min=1, max=9, help="How many; default: 3."),
    ] = None,
    base_port: Annotated[
        int | None,
        typer.Option(
            "--base-port",
            metavar="PORT",
            min=1024,
            max=65000,
            help="Ports from here on; default: free ones.",
        ),
    ] = None,
    directory: Directory = DEFAULT_DIRECTORY,
    timeout: Timeout = 60,
) -> None:
    """Start controllers, or start again those of the directory, and wait until one leads.

    \b
    Examples:
      scripts/quorum start
      scripts/quorum start controller-1
      scripts/quorum start --nodes 5 --base-port 19093 --dir /tmp/five

    A directory that holds a cluster goes on with it.
    """
    cluster = LocalCluster(directory, controllers=nodes or 3, brokers=0, base_port=base_port)
    is_new = not cluster.exists
    suffix = "" if directory == DEFAULT_DIRECTORY else f" --dir {directory}"
    there = cluster.controllers
    if not is_new and (base_port not in (None, there[0].port) or nodes not in (None, len(there))):
        raise ConfigError(
            f"{directory} holds a cluster already, of {counted(len(there), 'controller')} from port"
            f" {there[0].port} on: another one needs another --dir. To delete this one:"
            f" scripts/quorum stop --delete{suffix}"
        )
    cluster.generate()
    wanted = [cluster.node(name) for name in names] if names else cluster.controllers
    started = [node.name for node in wanted if cluster.pid(node.name) is None]
    try:
        for node in wanted:
            cluster.start(node.name)
        leader_id = cluster.wait_leader_id(timeout)
        cluster.wait_ready([node.name for node in wanted], timeout)
    except FailedError as error:
        if is_new:
            cluster.stop(started)
            raise
        # It may wait for others, or to become a voter: stopping it would help nobody.
        raise FailedError(
            f"{error}\nWhat was started goes on; what is wrong: raftlog doctor", error.code
        ) from error
    except BaseException:
        cluster.stop(started)
        raise
    print_line(f"controller {leader_id} leads cluster {cluster.cluster_id} in {cluster.directory}")
    _show(cluster, wanted)
    print_line("")
    print_line("Next:")
    print_line(f'  eval "$(scripts/quorum env{suffix})"')
    print_line(f"  {_program()} doctor")
    print_line(f"  scripts/broker start --count 3{suffix}")
    print_line(f"  scripts/quorum stop{suffix}")


@quorum.command("stop", epilog=EPILOG)
def stop_quorum(
    directory: Directory = DEFAULT_DIRECTORY,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the data, configurations and logs too.")
    ] = False,
) -> None:
    """Stop every node in the directory, brokers too.

    The data stays, so that a start goes on with it.
    """
    cluster = _existing(directory)
    running = [node.name for node in cluster.nodes if cluster.pid(node.name) is not None]
    killed = cluster.stop_all()
    print_line(f"stopped {', '.join(running)}" if running else "nothing was running")
    if killed:
        print_line(f"killed, because SIGTERM did not end them in time: {', '.join(killed)}")
    if delete:
        cluster.delete()
        print_line(f"deleted {cluster.directory}")


@quorum.command("env", epilog=EPILOG)
def env(directory: Directory = DEFAULT_DIRECTORY) -> None:
    """Print the exports that commands need, for the shell.

    \b
    Examples:
      eval "$(scripts/quorum env)"
    """
    cluster = _existing(directory)
    print_line(f"export RAFTLOG_BOOTSTRAP_CONTROLLER={cluster.bootstrap_controllers}")
    if cluster.brokers:
        print_line(f"export RAFTLOG_BOOTSTRAP_SERVER={cluster.bootstrap_servers}")
    print_line(f"export {LOCAL_DIRECTORY}={shlex.quote(str(cluster.directory))}")
    print_line(f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH")


@quorum.command("status", epilog=EPILOG)
def status(directory: Directory = DEFAULT_DIRECTORY) -> None:
    """Show the nodes of the directory: whether they run, and what they say.

    Exit code 3 if one is not ready.
    """
    cluster = _existing(directory)
    ready = _show(cluster, cluster.nodes)
    if not ready:
        raise typer.Exit(Exit.FOUND)


@broker.command("start", epilog=EPILOG)
def start_broker(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[BROKER]...", help="Brokers that are there: broker-4."),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            "--count",
            metavar="N",
            min=1,
            max=100,
            help="Have this many brokers, adding those that lack.",
        ),
    ] = None,
    directory: Directory = DEFAULT_DIRECTORY,
    timeout: Timeout = 60,
) -> None:
    """Start brokers and wait until they are unfenced: without arguments all there are, one if there
    is none.

    \b
    Examples:
      scripts/broker start --count 3
      scripts/broker start broker-4
    """
    cluster = _existing(directory)
    while len(cluster.brokers) < (count or 1) and not names:
        cluster.add_broker()
    wanted = [cluster.node(name) for name in names] if names else cluster.brokers
    started = [node.name for node in wanted if cluster.pid(node.name) is None]
    try:
        for node in wanted:
            cluster.start(node.name)
        cluster.wait_ready([node.name for node in wanted], timeout)
    except BaseException:
        cluster.stop(started)
        raise
    _show(cluster, wanted)
    print_line("")
    print_line("Next:")
    suffix = "" if directory == DEFAULT_DIRECTORY else f" --dir {directory}"
    print_line(f'  eval "$(scripts/quorum env{suffix})"')
    print_line(f"  {_program()} topics create orders --partitions 3 --acks visible")


@broker.command("stop", epilog=EPILOG)
def stop_broker(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[BROKER]...", help="Which; default: all.")
    ] = None,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """Stop brokers: they leave in order, so that the cluster need not wait for their sessions to
    end.

    \b
    Examples:
      scripts/broker stop
      scripts/broker stop broker-4
    """
    cluster = _existing(directory)
    wanted = (
        [cluster.node(name).name for name in names]
        if names
        else [node.name for node in cluster.brokers]
    )
    running = [name for name in wanted if cluster.pid(name) is not None]
    killed = cluster.stop(wanted)
    print_line(f"stopped {', '.join(running)}" if running else "nothing was running")
    if killed:
        raise FailedError(
            f"killed, because SIGTERM did not end them in time: {', '.join(killed)}", Exit.REFUSED
        )


def _existing(directory: Path) -> LocalCluster:
    cluster = LocalCluster(directory)
    if not cluster.exists:
        raise ConfigError(
            f"{directory} holds no cluster; make one with: scripts/quorum start --dir {directory}"
        )
    return cluster


def _show(cluster: LocalCluster, nodes: list[Node]) -> bool:
    """A table of nodes; whether all are ready."""
    rows = []
    all_ready = True
    for node in nodes:
        pid = cluster.pid(node.name)
        ready, reason = cluster.ready(node.name) if pid is not None else (False, "does not run")
        all_ready = all_ready and ready
        rows.append(
            (node.name, pid, node.endpoint, node.http, "ready" if ready else "not ready", reason)
        )
    print_table(
        ("NODE", "PID", "ENDPOINT", "HTTP", "STATE", "REASON"),
        rows,
        right=("PID",),
        least=("HTTP", "PID", "ENDPOINT"),
    )
    return all_ready


def _program() -> str:
    """How this installation's ``raftlog`` is called from here."""
    path = Path(sys.executable).parent / "raftlog"
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def main() -> None:
    """Run one command line and exit."""
    try:
        app(prog_name="scripts")
    except RaftlogError as error:
        sys.exit(report(error))
