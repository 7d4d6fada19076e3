"""``raftlog dev``: a development cluster that runs as long as its prompt."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import structlog
import typer

from raftlog.cli.command import command
from raftlog.cli.exits import Exit
from raftlog.cli.options import opt
from raftlog.cli.process import TerminationError, raise_at_sigterm
from raftlog.cli.streams import INTERRUPTED
from raftlog.errors import ConfigError
from raftlog.text import counted, to_json

if TYPE_CHECKING:
    from raftlog.local.cluster import LocalCluster

FIRST_PORT, PORT_STEP, FIRST_HTTP_PORT = 9092, 100, 8081
"""Broker N listens at 9092 + 100 (N - 1), controller N one port above; HTTP of node N is at 8080 +
N.
"""
READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
DISK = Path("/var/tmp")
PKI = "pki"
"""Subdirectory for certificates; exists if the cluster is secure."""


@command()
def dev(
    nodes: Annotated[int, opt("--nodes", "Number of controllers: 1, 3 or 5.")] = 3,
    brokers: Annotated[int, opt("--brokers", "Brokers.", min=1, max=20)] = 3,
    directory: Annotated[
        Path | None,
        opt(
            "--dir DIR",
            "Keep the cluster in this directory, and continue with it next time. Default: a "
            "temporary directory, deleted at the end.",
        ),
    ] = None,
    headless: Annotated[
        bool,
        opt("--headless", "For scripts: print one line of JSON when ready, and run until SIGTERM."),
    ] = False,
    secure: Annotated[
        bool, opt("--secure", "Use mutual TLS, an authorizer, and the users admin and alice.")
    ] = False,
) -> None:
    """Run a cluster on this machine, with a prompt to try it.

    At the prompt you can write and read, kill and pause nodes, and partition them, and see the
    effects.

    \b
    Examples:
      raftlog dev
      raftlog dev --nodes 5 --brokers 2 --dir ./cluster
      raftlog dev --headless &
      printf 'write a=1\\nkill leader\\nread a\\n' | raftlog dev
    """
    if nodes not in (1, 3, 5):
        raise typer.BadParameter(f"must be 1, 3 or 5, not {nodes}", param_hint="--nodes")
    # Clients would log the failures of nodes that the prompt kills.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with _directory(directory) as chosen:
        cluster = _DevCluster(chosen, nodes, brokers, secure=secure)
        raise typer.Exit(cluster.run(headless=headless, keeps=directory is not None))


@contextmanager
def _directory(chosen: Path | None) -> Iterator[Path]:
    if chosen is not None:
        yield chosen
        return
    # Not in /tmp, which may be in memory.
    disk = DISK if os.access(DISK, os.W_OK) else None
    made = Path(tempfile.mkdtemp(prefix="raftlog-dev-", dir=disk))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


class _DevCluster:
    """The cluster in a directory, from start to stop. Raises ConfigError."""

    def __init__(self, directory: Path, controllers: int, brokers: int, *, secure: bool) -> None:
        # Imported only now: help and completion need none of it.
        from raftlog.local.authority import ADMINISTRATOR, Authority
        from raftlog.local.cluster import LocalCluster, own_environment

        for name in os.environ.keys() - own_environment().keys():
            del os.environ[name]
        # Two clusters starting at the same time would both find the usual ports free.
        self._claim = socket.socket(socket.AF_UNIX)
        self._ports = fixed_ports(controllers, brokers) if _claimed(self._claim) else None
        self._authority = Authority(directory.absolute() / PKI) if secure else None
        self._cluster = cluster = LocalCluster(
            directory,
            controllers=controllers,
            brokers=brokers,
            ports=self._ports,
            cuttable=True,
            dies_with_parent=True,
            settings_of=None if self._authority is None else self._authority.settings,
        )
        if cluster.exists:
            _require_same(cluster, controllers, brokers, secure=secure)
        elif directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise ConfigError(
                f"{directory} is neither an empty directory nor the directory of a cluster"
            )
        elif self._authority is not None:
            self._authority.make()
        if self._authority is not None:
            cluster.tls = self._authority.tls(ADMINISTRATOR)

    def run(self, *, headless: bool, keeps: bool) -> int:
        """Start the cluster, serve the prompt, and stop the cluster; return the exit code."""
        begun, cluster = time.monotonic(), self._cluster
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, raise_at_sigterm)
        try:
            cluster.generate()
            cluster.heal()
            cluster.start_controllers()
            cluster.start_brokers()
            cluster.wait_ready([node.name for node in cluster.nodes], READY_TIMEOUT_S)
            if headless:
                print(json.dumps(to_json(cluster.describe())), flush=True)
                while True:
                    signal.pause()
            for line in self._greeting(time.monotonic() - begun, keeps=keeps):
                print(line, flush=True)
            asyncio.run(self._serve())
        except KeyboardInterrupt as error:
            # A script ends the cluster with SIGTERM.
            return Exit.OK if isinstance(error, TerminationError) else INTERRUPTED
        finally:
            # Nothing may interrupt the shutdown.
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            cluster.stop_all(STOP_TIMEOUT_S)
        return Exit.OK

    async def _serve(self) -> None:
        from raftlog.local.prompt import run_prompt, run_script
        from raftlog.local.session import Session

        session = Session(self._cluster, self._authority, _print)
        try:
            await session.connect()
            if sys.stdin.isatty() and sys.stdout.isatty():
                await run_prompt(session, _history())
            else:
                await run_script(session)
        finally:
            await session.close()
            _print("stopping the cluster")

    def _greeting(self, took_s: float, *, keeps: bool) -> Iterator[str]:
        cluster = self._cluster
        controllers = counted(len(cluster.controllers), "controller")
        brokers = counted(len(cluster.brokers), "broker")
        yield f"raftlog: {controllers} and {brokers} on this machine, ready after {took_s:.1f} s"
        if self._authority is None:
            yield f'  connect  raftlog.connect("{cluster.bootstrap_servers}")'
        else:
            yield "  users    admin (current), and alice, who has no rights yet: user alice"
        yield f"  console  {cluster.controllers[0].http}/console"
        there = shlex.quote(str(cluster.directory))
        yield f'  shell    eval "$(raftlog local env --dir {there})"'
        yield f"  data     {cluster.directory}{'' if keeps else ', deleted at the end'}"
        if self._ports is None:
            yield "  ports    other free ones, because some of the usual ports are taken"
        one = cluster.brokers[0].node_id
        yield f"Try: load on | kill leader | pause {one} | write k=v | resume {one} | read k | help"


def _print(line: str) -> None:
    print(line, flush=True)


def _require_same(cluster: LocalCluster, controllers: int, brokers: int, *, secure: bool) -> None:
    """Raise ConfigError if the directory's cluster is running, or has a different size."""
    there = cluster.directory
    running = [node.name for node in cluster.nodes if cluster.pid(node.name) is not None]
    if running:
        raise ConfigError(f"the cluster in {there} is already running: {', '.join(running)}")
    taken = [port for node in cluster.nodes for port in (node.port, node.http_port)]
    if not are_free(taken):
        raise ConfigError(
            f"ports of the cluster in {there} are in use ({min(taken)} to {max(taken)}): end the "
            "program that uses them, or give another --dir"
        )
    found = len(cluster.controllers), len(cluster.brokers)
    if found != (controllers, brokers):
        raise ConfigError(
            f"{there} contains a cluster of {counted(found[0], 'controller')} and"
            f" {counted(found[1], 'broker')}: give --nodes {found[0]} --brokers {found[1]}, or"
            " another --dir"
        )
    if (there / PKI).exists() != secure:
        how = "without" if secure else "with"
        raise ConfigError(
            f"{there} contains a cluster {how} TLS: start it {how} --secure, or give another --dir"
        )


def _history() -> Path | None:
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "raftlog"
    try:
        state.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return state / "dev_history"


def fixed_ports(controllers: int, brokers: int) -> Sequence[int] | None:
    """Return the usual ports for a cluster of this size, or None if one of them is in use."""
    rest = range(max(controllers, brokers))
    own = [FIRST_PORT + 1 + PORT_STEP * one for one in rest[:controllers]]
    own += [FIRST_PORT + PORT_STEP * one for one in rest[:brokers]]
    ports = own + [FIRST_HTTP_PORT + one for one in range(len(own))]
    return ports if are_free(ports) else None


def are_free(ports: Sequence[int]) -> bool:
    """Return whether a server could bind each of these ports."""
    for port in ports:
        with socket.socket() as one:
            # Binds like a server, for which a port whose last connections are closing is free.
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                return False
    return True


def _claimed(claim: socket.socket) -> bool:
    """Claim the name that reserves the usual ports for this process until it ends; return whether
    that succeeded.
    """
    try:
        claim.bind("\0raftlog-dev")
    except OSError:
        return False
    return True
