"""The nodes of one cluster: a process each, in its own network namespace, on its own disk."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from raftlog.local.cluster import ask_ready
from raftlog.local.processes import Daemons
from raftlog.node.storage.api import NodeIdentity
from raftlog.node.storage.directory import format_storage
from simulation.chaos.network import Network
from simulation.chaos.power import PowerDisk

PORT, HTTP_PORT = 9093, 9193
STOP_S = 20.0
_AHEAD = """
import runpy, sys, time
ahead_s = int(sys.argv.pop(1))
real, real_ns = time.time, time.time_ns
time.time = lambda: real() + ahead_s
time.time_ns = lambda: real_ns() + ahead_s * 10**9
runpy.run_module("raftlog", run_name="__main__", alter_sys=True)
"""
SETTINGS: dict[str, Any] = {
    "broker.session.timeout.ms": 3000,
    "broker.heartbeat.interval.ms": 500,
    "broker.fencing.timeout.ms": 5000,
    "replica.lag.time.max.ms": 3000,
}


class ChaosNode:
    """One node. ``name``: "controller-1", "broker-4", ... ``id`` is its host's number, too."""

    def __init__(self, role: str, node_id: int, directory: Path, network: Network) -> None:
        self.role, self.id, self.name = role, node_id, f"{role}-{node_id}"
        self.directory, self.network = directory, network
        self.http_port = HTTP_PORT
        self.disk = PowerDisk(directory / f"{self.name}.img", directory / "disks" / self.name)
        self.data = self.disk.mount_point / "data"
        self.config = directory / f"{self.name}.toml"
        self._daemons = Daemons(directory)
        self.log = self._daemons.log_path(self.name)
        self.endpoint = self.address(PORT)
        self.has_power = True

    def address(self, port: int) -> str:
        return f"{self.network.address(self.id)}:{port}"

    def prepare(self, cluster_id: str, voters: list[str]) -> None:
        self.disk.create()
        self.configure(cluster_id, voters)
        format_storage(self.data, NodeIdentity(cluster_id, self.id, str(uuid.uuid4())))

    def configure(self, cluster_id: str, voters: list[str]) -> None:
        """Write the configuration file, with the node's current endpoint."""
        values = {
            "process.roles": [self.role],
            "node.id": self.id,
            "cluster.id": cluster_id,
            "log.dirs": [str(self.data)],
            "listeners": [self.endpoint],
            # The addresses of namespaces of our own.
            "security.plaintext.allow": True,
            "http.listener": self.address(self.http_port),
            "controller.quorum.voters": voters,
            **SETTINGS,
        }
        # JSON strings, numbers and arrays of them are TOML, too.
        self.config.write_text(
            "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
        )

    @property
    def runs(self) -> bool:
        """True if the process exists, paused or not."""
        return self._daemons.pid(self.name) is not None

    def start(self, clock_ahead_s: int = 0) -> None:
        if not self.runs:
            begin = ["-c", _AHEAD, str(clock_ahead_s)] if clock_ahead_s else ["-m", "raftlog"]
            program = [sys.executable, *begin, self.role, "run", "-c", str(self.config)]
            inherited = {
                name: value for name, value in os.environ.items() if not name.startswith("RAFTLOG_")
            }
            # A namespace is entered by exec, so the pid is the node's own.
            self._daemons.start(
                self.name,
                ["nsenter", f"--net=/var/run/netns/{self.network.space(self.id)}", *program],
                inherited,
            )

    def signal(self, number: int) -> None:
        self._daemons.signal(self.name, number)

    def stop(self) -> None:
        self._daemons.stop([self.name], STOP_S)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self._daemons.wait_gone(self.name, STOP_S)

    def lose_power(self) -> None:
        """Cut the disk's power, then kill the process. ``restore_power`` before the next start."""
        if self.has_power:
            self.has_power = False
            self.disk.cut_power()
        self.kill()

    def restore_power(self) -> None:
        self.kill()
        self.disk.restore_power()
        self.has_power = True

    def ready(self, timeout_s: float = 1.0) -> tuple[bool, str]:
        return ask_ready(f"http://{self.address(self.http_port)}", timeout_s)

    def log_tail(self, lines: int = 20) -> str:
        return self._daemons.tail(self.name, lines)


class Stranger(ChaosNode):
    """Another process in a node's namespace, with its own configuration, directory and port."""

    def __init__(self, node: ChaosNode, kind: str, port: int) -> None:
        super().__init__(node.role, node.id, node.directory, node.network)
        self.name = f"{node.name}-{kind}"
        self.config = self.directory / f"{self.name}.toml"
        self.data = self.directory / self.name
        self.endpoint, self.http_port = self.address(port), HTTP_PORT + 1

    def remove(self) -> None:
        self.kill()
        self.config.unlink()
        shutil.rmtree(self.data, ignore_errors=True)


class ChaosCluster:
    """Controllers 1 to 3 and brokers 4 to 6. ``close`` leaves no process, mount or namespace."""

    def __init__(self, directory: Path, *, controllers: int = 3, brokers: int = 3) -> None:
        self.directory = directory
        ids = range(1, controllers + brokers + 1)
        self.network = Network(f"rl{os.getpid()}", ids)
        self.nodes = [
            ChaosNode(
                "controller" if node_id <= controllers else "broker",
                node_id,
                directory,
                self.network,
            )
            for node_id in ids
        ]
        self.cluster_id = str(uuid.uuid4())
        self.undo: list[Callable[[], None]] = []
        """Functions that undo faults; the last one is called first."""
        self.violations: list[str] = []

    @property
    def controllers(self) -> list[ChaosNode]:
        return [node for node in self.nodes if node.role == "controller"]

    @property
    def brokers(self) -> list[ChaosNode]:
        return [node for node in self.nodes if node.role == "broker"]

    @property
    def voters(self) -> list[str]:
        return [f"{node.id}@{node.endpoint}" for node in self.controllers]

    @property
    def endpoints(self) -> list[str]:
        return [node.endpoint for node in self.controllers]

    def create(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.network.create()
        for node in self.nodes:
            node.prepare(self.cluster_id, self.voters)
        self.network.enter_router()

    def start_all(self) -> None:
        for node in self.nodes:
            node.start()

    def unready(self) -> str:
        """Return which node is not ready, and why; empty if all are ready."""
        for node in self.nodes:
            ready, reason = node.ready()
            if not ready:
                return f"{node.name}: {reason}" + ("" if node.runs else f"\n{node.log_tail()}")
        return ""

    def wait_ready(self, within_s: float) -> str:
        """Wait until all nodes are ready. Return why one is not, or an empty string. Blocks."""
        deadline = time.monotonic() + within_s
        while (reason := self.unready()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return reason

    def close(self) -> None:
        """End all processes by SIGKILL; unmount, and remove the namespaces. Idempotent."""
        while self.undo:
            self.undo.pop()()
        for node in self.nodes:
            node.signal(signal.SIGKILL)
        for node in self.nodes:
            node.kill()
            node.disk.unmount()
        self.network.delete()


def is_possible() -> str:
    """Return the reason why this machine cannot do it; empty if it can."""
    for program in ("ip", "nsenter", "mkfs.ext4", "mount"):
        if subprocess.run(["which", program], capture_output=True, check=False).returncode:
            return f"there is no program {program} here"
    return "" if os.geteuid() == 0 else "network namespaces and file systems of its own need root"
