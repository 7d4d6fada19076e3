"""``raftlog dev``: a development cluster that lives as long as its prompt."""

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
"""Broker N listens at 9092 + 100 (N - 1), controller N one above; HTTP of node N at 8080 + N."""
READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
DISK = Path("/var/tmp")
PKI = "pki"
"""Subdirectory of the certificates; it exists if the cluster is secure."""


@command()
def dev(
    nodes: Annotated[int, opt("--nodes", "Controllers: 1, 3 or 5.")] = 3,
    brokers: Annotated[int, opt("--brokers", "Brokers.", min=1, max=20)] = 3,
    directory: Annotated[
        Path | None,
        opt(
            "--dir DIR",
            "Keep the cluster here, and continue with it the next time. Default: a temporary"
            " directory, deleted at the end.",
        ),
    ] = None,
    headless: Annotated[
        bool,
        opt("--headless", "For scripts: print one line of JSON when ready, and run until SIGTERM."),
    ] = False,
    secure: Annotated[
        bool, opt("--secure", "With mutual TLS, an authorizer, and the users admin and alice.")
    ] = False,
) -> None:
    """Run a cluster on this machine and a prompt to try it.

    The prompt writes and reads, kills and pauses nodes, cuts links, and shows what follows.

    \b
    Examples:
      raftlog dev
      raftlog dev --nodes 5 --brokers 2 --dir ./cluster
      raftlog dev --headless &
      printf 'write a=1\\nkill leader\\nread a\\n' | raftlog dev
    """
    if nodes not in (1, 3, 5):
        raise typer.BadParameter(f"{nodes} is none of 1, 3, 5", param_hint="--nodes")
    # Clients log what happens to the nodes that the prompt kills.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with _directory(directory) as chosen:
        cluster = _DevCluster(chosen, nodes, brokers, secure=secure)
        raise typer.Exit(cluster.run(headless=headless, keeps=directory is not None))


@contextmanager
def _directory(chosen: Path | None) -> Iterator[Path]:
    if chosen is not None:
        yield chosen
        return
    # On a disk: /tmp may be in memory.
    disk = DISK if os.access(DISK, os.W_OK) else None
    made = Path(tempfile.mkdtemp(prefix="raftlog-dev-", dir=disk))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


class _DevCluster:
    """The cluster in a directory, from its start to its end. Raises ConfigError."""

    def __init__(self, directory: Path, controllers: int, brokers: int, *, secure: bool) -> None:
        # Only now: help and completion need none of it.
        from raftlog.local.authority import ADMINISTRATOR, Authority
        from raftlog.local.cluster import LocalCluster, own_environment

        for name in os.environ.keys() - own_environment().keys():
            del os.environ[name]
        # Two that start at the same time would both find the usual ports free.
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
            raise ConfigError(f"{directory} is not an empty directory, and holds no cluster")
        elif self._authority is not None:
            self._authority.make()
        if self._authority is not None:
            cluster.tls = self._authority.tls(ADMINISTRATOR)

    def run(self, *, headless: bool, keeps: bool) -> int:
        """Start the cluster, serve the prompt, and stop it; return the exit code."""
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
            # SIGTERM is how a script ends it.
            return Exit.OK if isinstance(error, TerminationError) else INTERRUPTED
        finally:
            # Nothing may interrupt the end.
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
            yield "  users    admin (now), and alice, who has no rights yet: user alice"
        yield f"  console  {cluster.controllers[0].http}/console"
        there = shlex.quote(str(cluster.directory))
        yield f'  shell    eval "$(raftlog local env --dir {there})"'
        yield f"  data     {cluster.directory}{'' if keeps else ', deleted at the end'}"
        if self._ports is None:
            yield "  ports    free ones: some of the usual ports are taken"
        one = cluster.brokers[0].node_id
        yield f"Try: load on | kill leader | pause {one} | write k=v | resume {one} | read k | help"


def _print(line: str) -> None:
    print(line, flush=True)


def _require_same(cluster: LocalCluster, controllers: int, brokers: int, *, secure: bool) -> None:
    """Raise ConfigError if the cluster of the directory runs, or has other nodes."""
    there = cluster.directory
    running = [node.name for node in cluster.nodes if cluster.pid(node.name) is not None]
    if running:
        raise ConfigError(f"the cluster in {there} runs already: {', '.join(running)}")
    taken = [port for node in cluster.nodes for port in (node.port, node.http_port)]
    if not are_free(taken):
        raise ConfigError(
            f"ports of the cluster in {there} are taken ({min(taken)} to {max(taken)}): end the"
            " program that has them, or give another --dir"
        )
    found = len(cluster.controllers), len(cluster.brokers)
    if found != (controllers, brokers):
        raise ConfigError(
            f"{there} holds a cluster of {counted(found[0], 'controller')} and"
            f" {counted(found[1], 'broker')}: give --nodes {found[0]} --brokers {found[1]}, or"
            " another --dir"
        )
    if (there / PKI).exists() != secure:
        how = "without" if secure else "with"
        raise ConfigError(
            f"{there} holds a cluster {how} TLS: start it {how} --secure, or give another --dir"
        )


def _history() -> Path | None:
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "raftlog"
    try:
        state.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return state / "dev_history"


def fixed_ports(controllers: int, brokers: int) -> Sequence[int] | None:
    """Return the usual ports of a cluster of this size; None if one of them is taken."""
    rest = range(max(controllers, brokers))
    own = [FIRST_PORT + 1 + PORT_STEP * one for one in rest[:controllers]]
    own += [FIRST_PORT + PORT_STEP * one for one in rest[:brokers]]
    ports = own + [FIRST_HTTP_PORT + one for one in range(len(own))]
    return ports if are_free(ports) else None


def are_free(ports: Sequence[int]) -> bool:
    """Return whether a server could bind each of these ports."""
    for port in ports:
        with socket.socket() as one:
            # As a server binds: a port whose last connections are closing is free.
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                return False
    return True


def _claimed(claim: socket.socket) -> bool:
    """Claim the name by which this process alone uses the usual ports, until it ends."""
    try:
        claim.bind("\0raftlog-dev")
    except OSError:
        return False
    return True
