"""A cluster of processes on this machine's loopback interface, for trial, the demo and tests. Not
for production.

Everything is in one directory: ``cluster.json`` (its description), and for each node ``NAME.toml``,
``NAME.log``, ``NAME.pid`` and ``data/NAME``. Another process may open the directory later and
continue with the same cluster.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
import shutil
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from raftlog.cli.exits import Exit, FailedError
from raftlog.endpoint import LANE_PORT_OFFSET
from raftlog.errors import ConfigError
from raftlog.local.processes import Daemons, wait_until
from raftlog.node.config.sources import (
    CUTS_VARIABLE,
    LOCAL_DIRECTORY,
    PARENT_VARIABLE,
    PROCESS_VARIABLES,
)

if TYPE_CHECKING:
    from raftlog.client.quorum_queries import Quorum
    from raftlog.transport.tls import TlsConfig

HOST = "127.0.0.1"
Role = Literal["controller", "broker"]
STATE_FILE = "cluster.json"
_PORTS = range(20_000, 32_000)
"""Range of ports below those that the kernel gives to clients: a client could otherwise take the
port of a node that is temporarily down.
"""
_BLOCK_PORTS = 100
_BLOCKS = tuple(
    block
    for block in _PORTS[::_BLOCK_PORTS]
    if (block - _PORTS.start) // LANE_PORT_OFFSET % 2 == 0  # The others are for lanes.
)
_CLAIMS: dict[int, socket.socket] = {}
"""The blocks of ports that this process has claimed until it exits."""
POLL_S = 0.05
PAUSE_TIMEOUT_S, PAUSE_POLL_S = 5.0, 0.01
"""Longest wait until a SIGSTOP takes effect, and interval of the checks, in seconds."""
_NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_RECENT_PORTS: deque[int] = deque(maxlen=512)
"""Ports that ``free_ports`` has recently returned in this process."""


class Node(msgspec.Struct, frozen=True):
    """One node. ``name``: such as "controller-1" or "broker-4"."""

    name: str
    role: Role
    node_id: int
    port: int
    http_port: int

    @property
    def endpoint(self) -> str:
        """host:port of its gRPC listener."""
        return f"{HOST}:{self.port}"

    @property
    def http(self) -> str:
        """URL of the node's metrics and health."""
        return f"http://{HOST}:{self.http_port}"


class _State(msgspec.Struct):
    cluster_id: str
    settings: dict[str, Any]
    nodes: list[Node]


@dataclass
class LocalNode:
    """A node of a local cluster."""

    name: str
    id: int
    role: Role
    endpoint: str
    http: str
    pid: int | None
    """Process id, or None if the node is not running."""
    ready: bool
    reason: str


@dataclass
class LocalStatus:
    """A cluster on this machine, and the state of its nodes."""

    cluster_id: str
    directory: str
    bootstrap_servers: str
    bootstrap_controllers: str
    console: str
    nodes: list[LocalNode]


class LocalCluster:
    """A cluster of local processes: generates, starts, kills, restarts and stops nodes.

    Methods block; those that wait take ``timeout_s`` and raise FailedError. ``settings``:
    additional configuration keys for every node. If the directory contains a cluster, that cluster
    is opened.
    """

    def __init__(
        self,
        directory: Path,
        *,
        controllers: int = 3,
        brokers: int = 3,
        base_port: int | None = None,
        ports: Sequence[int] | None = None,
        cuttable: bool = False,
        dies_with_parent: bool = False,
        settings: Mapping[str, Any] | None = None,
        settings_of: Callable[[Node], Mapping[str, Any]] | None = None,
    ) -> None:
        """Create or open the cluster.

        ``settings_of``: returns additional keys for one node, quoted where TOML requires it; called
        when the node is generated. ``ports``: the gRPC ports of the nodes followed by their HTTP
        ports, or None for free ones. ``cuttable``: whether nodes can be partitioned (``cut``).
        ``dies_with_parent``: whether the kernel kills the nodes when this process dies.
        """
        self._dies_with_parent = dies_with_parent
        self._fixed_ports = list(ports or ())
        self._cuttable = cuttable
        self._cuts: set[frozenset[str]] = set()
        self._settings_of = settings_of
        self.tls: TlsConfig | None = None
        """The certificate and key that this object presents to nodes with mutual TLS, or None."""
        self.directory = directory.absolute()
        self._controllers, self._brokers, self._base_port = controllers, brokers, base_port
        self._settings = dict(settings or {})
        self._daemons = Daemons(self.directory)
        self._state = _State("", {}, [])
        if self.exists:
            self._state = msgspec.json.decode(
                (self.directory / STATE_FILE).read_bytes(), type=_State
            )

    @property
    def exists(self) -> bool:
        """Whether the directory contains a cluster."""
        return (self.directory / STATE_FILE).exists()

    @property
    def cluster_id(self) -> str:
        """The cluster's id."""
        return self._state.cluster_id

    @property
    def nodes(self) -> list[Node]:
        """All nodes, controllers first, sorted by id."""
        return sorted(self._state.nodes, key=lambda node: node.node_id)

    @property
    def controllers(self) -> list[Node]:
        """The controllers, sorted by id."""
        return [node for node in self.nodes if node.role == "controller"]

    @property
    def brokers(self) -> list[Node]:
        """The brokers, sorted by id."""
        return [node for node in self.nodes if node.role == "broker"]

    @property
    def bootstrap_controllers(self) -> str:
        """Value for --bootstrap-controller."""
        return ",".join(node.endpoint for node in self.controllers)

    @property
    def bootstrap_servers(self) -> str:
        """Value for --bootstrap-server."""
        return ",".join(node.endpoint for node in self.brokers)

    def environment(self) -> dict[str, str]:
        """Return the environment variables by which commands find this cluster."""
        found = {"RAFTLOG_BOOTSTRAP_CONTROLLER": self.bootstrap_controllers}
        if self.brokers:
            found["RAFTLOG_BOOTSTRAP_SERVER"] = self.bootstrap_servers
        return found | {LOCAL_DIRECTORY: str(self.directory)}

    def describe(self) -> LocalStatus:
        """Return names, addresses and paths, and the state of each node."""
        return LocalStatus(
            self.cluster_id,
            str(self.directory),
            self.bootstrap_servers,
            self.bootstrap_controllers,
            f"{self.controllers[0].http}/console",
            [
                LocalNode(
                    node.name,
                    node.node_id,
                    node.role,
                    node.endpoint,
                    node.http,
                    pid := self.pid(node.name),
                    *((False, "is not running") if pid is None else self.ready(node.name)),
                )
                for node in self.nodes
            ],
        )

    def node(self, name: str) -> Node:
        """Return a node by name. Raises ConfigError."""
        for node in self._state.nodes:
            if node.name == name:
                return node
        raise ConfigError(
            f"{self.directory} has no node {name!r}; it has"
            f" {', '.join(one.name for one in self.nodes)}"
        )

    # --- generating ------------------------------------------------------------------------------

    def generate(self) -> None:
        """Write each node's configuration and format its storage, unless the cluster exists."""
        if self.exists:
            return
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            if not os.access(self.directory, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise ConfigError(f"cannot create {self.directory}: {error.strerror}") from error
        count = self._controllers + self._brokers
        ports = self._ports(2 * count)
        self._state = _State(str(uuid.uuid4()), self._settings, [])
        for index in range(count):
            role: Role = "controller" if index < self._controllers else "broker"
            node_id = index + 1
            self._state.nodes.append(
                Node(f"{role}-{node_id}", role, node_id, ports[index], ports[count + index])
            )
        for node in self.nodes:
            self._prepare(node)
        self._save()

    def add_broker(self) -> Node:
        """Generate one more broker. Its id is the next free one."""
        node_id = max(node.node_id for node in self._state.nodes) + 1
        port, http_port = self._ports(2)
        node = Node(f"broker-{node_id}", "broker", node_id, port, http_port)
        self._state.nodes.append(node)
        self._prepare(node)
        self._save()
        return node

    def delete(self) -> None:
        """Stop everything and remove the directory."""
        self.stop_all()
        shutil.rmtree(self.directory, ignore_errors=True)

    # --- running ---------------------------------------------------------------------------------

    def start(self, name: str) -> int:
        """Start a stopped node without waiting (see ``wait_ready``); return its pid."""
        node = self.node(name)
        running = self._daemons.pid(name)
        if running is not None:
            return running
        command = [*self.program(name), node.role, "run", "-c", str(self.config_path(name))]
        environment = own_environment()
        if self._cuttable:
            environment[CUTS_VARIABLE] = str(self._cuts_path(name))
        if self._dies_with_parent:
            environment[PARENT_VARIABLE] = str(os.getpid())
        return self._daemons.start(name, command, environment)

    def program(self, name: str) -> list[str]:
        """Return the command that runs ``raftlog`` of this build for a node."""
        return [sys.executable, "-m", "raftlog"]

    def start_controllers(self) -> None:
        """Start all controllers."""
        for node in self.controllers:
            self.start(node.name)

    def start_brokers(self) -> None:
        """Start all brokers."""
        for node in self.brokers:
            self.start(node.name)

    def kill(self, name: str, number: int) -> bool:
        """Send a signal, such as SIGKILL; return whether the node was running."""
        self.node(name)
        return self._daemons.signal(name, number)

    def pause(self, name: str) -> bool:
        """Pause a node with SIGSTOP, and wait until it is paused; return whether it was running."""
        if not self.kill(name, signal.SIGSTOP):
            return False
        wait_until(lambda: self.is_paused(name), PAUSE_TIMEOUT_S, PAUSE_POLL_S)
        return True

    def resume(self, name: str) -> bool:
        """Resume a paused node; return whether it was running."""
        return self.kill(name, signal.SIGCONT)

    def is_paused(self, name: str) -> bool:
        """Return whether a node is paused, by SIGSTOP."""
        return self._daemons.is_stopped(self.node(name).name)

    def stop(self, names: Iterable[str], timeout_s: float = 10.0) -> list[str]:
        """Stop nodes with SIGTERM, then SIGKILL; return the names of those that had to be killed.

        Stops brokers first: they shut down in a controlled way while a controller can record it.
        """
        nodes = [self.node(name) for name in names]
        killed: list[str] = []
        for role in ("broker", "controller"):
            of_role = [node.name for node in nodes if node.role == role]
            killed += self._daemons.stop(of_role, timeout_s)
        return killed

    def stop_all(self, timeout_s: float = 10.0) -> list[str]:
        """Stop every node."""
        return self.stop((node.name for node in self.nodes), timeout_s)

    def pid(self, name: str) -> int | None:
        """Return the pid of a node, or None if it is not running."""
        return self._daemons.pid(self.node(name).name)

    def wait_gone(self, name: str, timeout_s: float = 10.0) -> bool:
        """Wait until a node's process has exited; return whether it has."""
        return self._daemons.wait_gone(self.node(name).name, timeout_s)

    def config_path(self, name: str) -> Path:
        """Return the path of a node's configuration."""
        return self.directory / f"{name}.toml"

    def data_path(self, name: str) -> Path:
        """Return the path of a node's data directory."""
        return self.directory / "data" / name

    def log_path(self, name: str) -> Path:
        """Return the path of a node's log, which is its stderr."""
        return self._daemons.log_path(name)

    # --- partitions ------------------------------------------------------------------------------

    @property
    def cuts(self) -> set[frozenset[str]]:
        """The pairs of nodes that cannot reach each other."""
        return set(self._cuts)

    def cut(self, one: str, others: Iterable[str]) -> None:
        """Block all messages between a node and others, in both directions, until ``heal``."""
        self._cuts |= {frozenset((one, other)) for other in others if other != one}
        self._write_cuts()

    def heal(self, *names: str) -> None:
        """End partitions: all of them, those of one node, or the one between two nodes."""
        self._cuts = {pair for pair in self._cuts if names and not pair.issuperset(names)}
        self._write_cuts()

    def _write_cuts(self) -> None:
        for node in self.nodes:
            others = {name for pair in self._cuts if node.name in pair for name in pair}
            lines = [f"{self.node(name).endpoint}\n" for name in sorted(others - {node.name})]
            path = self._cuts_path(node.name)
            # Replaced atomically: a node must not read a partial file.
            temporary = path.with_suffix(".new")
            temporary.write_text("".join(lines))
            temporary.replace(path)

    def _cuts_path(self, name: str) -> Path:
        return self.directory / f"{name}.cuts"

    # --- queries ---------------------------------------------------------------------------------

    def ready(self, name: str, timeout_s: float = 1.0) -> tuple[bool, str]:
        """Return whether a node is ready, and the reason from its /readyz."""
        return ask_ready(self.node(name).http, timeout_s)

    def quorum(self, timeout_s: float = 2.0) -> Quorum:
        """Return the quorum as each controller describes it."""
        from raftlog.client.quorum_queries import ask_quorum
        from raftlog.client.security import ClientSecurity

        addresses = [node.endpoint for node in self.controllers]
        return asyncio.run(ask_quorum(addresses, timeout_s, ClientSecurity(self.tls)))

    def leader_id(self, timeout_s: float = 2.0) -> int | None:
        """Return the id of the controller that claims to lead, or None. The leader may not be a
        node of this directory, since voters can be added.
        """
        described = self.quorum(timeout_s).leader
        return None if described is None else described.node_id

    def leader(self, timeout_s: float = 2.0) -> Node | None:
        """Return the node of this directory that leads, or None if no controller leads. Raises
        ConfigError if the leader is not one of its nodes.
        """
        leader_id = self.leader_id(timeout_s)
        return None if leader_id is None else self.node(f"controller-{leader_id}")

    def wait_leader(self, timeout_s: float = 30.0) -> Node:
        """Wait until a controller leads, and return its node. Raises as ``wait_leader_id``, and
        ConfigError if the leader is not a node of this directory.
        """
        return self.node(f"controller-{self.wait_leader_id(timeout_s)}")

    def wait_leader_id(self, timeout_s: float = 30.0) -> int:
        """Wait until a controller leads, and return its id. Raises FailedError, in particular as
        soon as no controller is running.
        """
        deadline = time.monotonic() + timeout_s
        while (leader := self.leader_id()) is None:
            if all(self.pid(node.name) is None for node in self.controllers):
                raise self._died(self.controllers[0].name)
            if time.monotonic() > deadline:
                raise FailedError(f"no controller leads after {timeout_s:g} s", Exit.UNREACHABLE)
            time.sleep(POLL_S)
        return leader

    def wait_ready(
        self,
        names: Sequence[str],
        timeout_s: float = 30.0,
        *,
        waiting: Callable[[str, str], None] | None = None,
    ) -> None:
        """Wait until these nodes are ready.

        ``waiting``: called with (name, reason) when a node has a new reason for not being ready.
        Raises FailedError, in particular as soon as a node has exited; the message then has the end
        of its log.
        """
        deadline = time.monotonic() + timeout_s
        for name in names:
            told = ""
            while True:
                ready, reason = self.ready(name)
                if ready:
                    break
                if self.pid(name) is None:
                    raise self._died(name)
                if time.monotonic() > deadline:
                    raise FailedError(
                        f"{name} is not ready after {timeout_s:g} s: {reason}", Exit.UNREACHABLE
                    )
                if waiting is not None and reason != told:
                    waiting(name, reason)
                told = reason
                time.sleep(POLL_S)

    def _died(self, name: str) -> FailedError:
        log = self.log_path(name)
        return FailedError(
            f"{name} is not running. The end of {log}:\n{self._daemons.tail(name)}", Exit.REFUSED
        )

    # --- files -----------------------------------------------------------------------------------

    def _ports(self, count: int) -> list[int]:
        if self._fixed_ports:
            fixed, self._fixed_ports = self._fixed_ports, []
            return fixed
        if self._base_port is not None:
            used = {port for node in self._state.nodes for port in (node.port, node.http_port)}
            return [
                port
                for port in range(self._base_port, self._base_port + count + len(used))
                if port not in used
            ][:count]
        return free_ports(count)

    def _prepare(self, node: Node) -> None:
        from raftlog.node.config.load import load_config
        from raftlog.node.storage.api import NodeIdentity
        from raftlog.node.storage.directory import format_storage

        voters = [f"{one.node_id}@{one.endpoint}" for one in self.controllers]
        values: dict[str, Any] = {
            "process.roles": [node.role],
            "node.id": node.node_id,
            "cluster.id": self._state.cluster_id,
            "log.dirs": [f"data/{node.name}"],
            "listeners": [node.endpoint],
            "http.listener": f"{HOST}:{node.http_port}",
            "controller.quorum.voters": voters,
            **self._state.settings,
            **(self._settings_of(node) if self._settings_of is not None else {}),
        }
        path = self.config_path(node.name)
        # JSON strings, numbers and arrays are also valid TOML.
        path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items()))
        load_config(path, environment={})
        identity = NodeIdentity(self._state.cluster_id, node.node_id, str(uuid.uuid4()))
        format_storage(self.data_path(node.name), identity, ignore_formatted=True)

    def _save(self) -> None:
        temporary = self.directory / f"{STATE_FILE}.new"
        temporary.write_bytes(
            msgspec.json.format(msgspec.json.encode(self._state), indent=2) + b"\n"
        )
        temporary.replace(self.directory / STATE_FILE)


def ask_ready(http: str, timeout_s: float) -> tuple[bool, str]:
    """Return whether the node at the URL ``http`` is ready, and the text of its /readyz. Blocks."""
    try:
        with _NO_PROXY.open(f"{http}/readyz", timeout=timeout_s) as response:
            return True, response.read().decode().strip()
    except urllib.error.HTTPError as error:
        with error:
            return False, error.read().decode().strip()
    except (urllib.error.URLError, OSError) as error:
        return False, f"does not answer: {getattr(error, 'reason', error)}"


def free_ports(count: int) -> list[int]:
    """Return distinct ports that are free now, and whose lane ports (``LANE_PORT_OFFSET`` higher)
    are free, too. Raises FailedError.

    No other process gets ports of the same block. Ports that this process has recently returned are
    excluded, as their nodes may not listen yet.
    """
    found: list[int] = []
    with ExitStack() as stack:
        for port in (port for block in _claimed() for port in range(block, block + _BLOCK_PORTS)):
            if port in _RECENT_PORTS:
                continue
            both = [stack.enter_context(socket.socket()) for _ in range(2)]
            try:
                for one, number in zip(both, (port, port + LANE_PORT_OFFSET), strict=True):
                    one.bind((HOST, number))
            except OSError:
                for one in both:
                    one.close()
                continue
            found.append(port)
            if len(found) == count:
                _RECENT_PORTS.extend(found)
                return found
    raise FailedError(
        f"{count} free ports are needed, but only {len(found)} were found", Exit.REFUSED
    )


def _claimed() -> Iterator[int]:
    """Yield the first ports of this process's blocks, then claim further ones.

    A claim is an abstract Unix socket: like ports, it belongs to a network namespace, and the
    kernel closes it when the process exits.
    """
    yield from tuple(_CLAIMS)
    for block in random.sample(_BLOCKS, len(_BLOCKS)):
        if block not in _CLAIMS:
            claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                claim.bind(f"\0raftlog-ports-{block}")
            except OSError:
                claim.close()
                continue
            _CLAIMS[block] = claim
            yield block


_PASSED_ON = PROCESS_VARIABLES | {"RAFTLOG_LOG_LEVEL"}


def own_environment() -> dict[str, str]:
    """Return this process's environment without the variables that would configure every node, or
    direct clients to another cluster.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("RAFTLOG_") or name in _PASSED_ON
    }
