"""A temporary quorum of real processes on free loopback ports and a real disk."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType

from benchmarks.rights import Rights
from raftlog.local.cluster import LocalCluster
from raftlog.transport.tls import TlsConfig

START_TIMEOUT_S = 30.0
POLL_S = 0.02


class _Cluster(LocalCluster):
    own_program: list[str]

    def program(self, name: str) -> list[str]:
        return self.own_program or super().program(name)


SETTINGS = {"max.connections": 4_096}
"""Settings for all nodes: a thousand brokers need more connections than the default allows."""


class Quorum:
    """A context manager for controllers as processes, which are stopped, and their data removed, at
    the end.

    ``acls``: use mutual TLS and an authorizer with this number of entries, or None for plain text.
    ``audited``: also write an audit log.
    """

    def __init__(
        self,
        directory: Path,
        nodes: int = 3,
        brokers: int = 0,
        *,
        acls: int | None = None,
        audited: bool = False,
        program: Sequence[str] = (),
        settings: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        """``program``: the program to start instead of ``raftlog``; empty for this build's own.
        ``settings``: additional settings for all nodes.
        """
        self._program = list(program)
        self._settings = {**SETTINGS, **settings}
        self.directory = directory
        self._nodes = nodes
        self._brokers = brokers
        self._rights = (
            None if acls is None else Rights(directory.absolute() / "pki", acls, audited=audited)
        )

    def __enter__(self) -> Quorum:
        shutil.rmtree(self.directory, ignore_errors=True)
        rights = self._rights
        self._cluster = _Cluster(
            self.directory,
            controllers=self._nodes,
            brokers=self._brokers,
            settings=self._settings,
            settings_of=None if rights is None else rights.settings,
        )
        self._cluster.own_program = self._program
        if rights is not None:
            rights.authority.make()
            self._cluster.tls = rights.administrator
        self._cluster.generate()
        try:
            self._cluster.start_controllers()
            self.leader()
            if rights is not None:
                rights.grant(self.endpoints)
            self._cluster.start_brokers()
            self._cluster.wait_ready(self.brokers, START_TIMEOUT_S)
        except BaseException:
            self._cluster.delete()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._cluster.delete()

    @property
    def tls(self) -> TlsConfig | None:
        """TLS configuration of the measured client, or None for plain text."""
        return None if self._rights is None else self._rights.client

    @property
    def cluster_id(self) -> str:
        return self._cluster.cluster_id

    @property
    def endpoints(self) -> list[str]:
        """Endpoints of the controllers, by node id from 1."""
        return [node.endpoint for node in self._cluster.controllers]

    @property
    def pids(self) -> list[int]:
        """Process ids of the running controllers."""
        pids = (self._cluster.pid(node.name) for node in self._cluster.controllers)
        return [pid for pid in pids if pid is not None]

    @property
    def brokers(self) -> list[str]:
        """Names of the broker nodes."""
        return [node.name for node in self._cluster.brokers]

    @property
    def broker_pids(self) -> list[int]:
        """Process ids of the running brokers."""
        pids = (self._cluster.pid(name) for name in self.brokers)
        return [pid for pid in pids if pid is not None]

    def endpoint(self, name: str) -> str:
        """Return host:port of a node."""
        return self._cluster.node(name).endpoint

    def log_lines(self, name: str) -> list[str]:
        """Return the lines of a node's log file."""
        return self._cluster.log_path(name).read_text().splitlines()

    def start(self, name: str) -> None:
        """Start a node that is not running."""
        self._cluster.start(name)

    def kill(self, name: str, number: int) -> None:
        """Send a signal to a node by its name."""
        self._cluster.kill(name, number)

    def wait_ended(self, name: str) -> None:
        """Wait until a node's process has exited. Raises TimeoutError."""
        if not self._cluster.wait_gone(name, timeout_s=40):
            raise TimeoutError(f"{name} has not exited")

    def start_brokers(self, count: int) -> tuple[list[str], list[int]]:
        """Start additional brokers, and wait until they serve; return their endpoints and pids.
        They are stopped with the quorum.
        """
        names = [self._cluster.add_broker().name for _ in range(count)]
        for name in names:
            self._cluster.start(name)
        self._cluster.wait_ready(names, START_TIMEOUT_S)
        pids = (self._cluster.pid(name) for name in names)
        return [self._cluster.node(name).endpoint for name in names], [
            pid for pid in pids if pid is not None
        ]

    def signal(self, node: int, number: int) -> None:
        """Send a signal to one node."""
        self._cluster.kill(f"controller-{node}", number)

    def wait_gone(self, node: int) -> None:
        """Wait until a controller's process has exited. Raises TimeoutError."""
        if not self._cluster.wait_gone(f"controller-{node}", timeout_s=20):
            raise TimeoutError(f"controller-{node} has not exited")

    def restart(self, node: int) -> None:
        """Start a node again, once its process has exited. Raises TimeoutError."""
        self.wait_gone(node)
        self._cluster.start(f"controller-{node}")

    def data_path(self, node: int) -> Path:
        """Return the directory of a node's log."""
        return self._cluster.data_path(f"controller-{node}")

    def leader(self) -> int:
        """Return the id of the leading node, once all running nodes agree on it and on the
        committed offset. Raises TimeoutError.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            known = self._cluster.quorum().descriptions
            views = {(one.leader_id, one.leader_epoch, one.high_watermark) for one in known}
            if len(known) == len(self.pids) and len(views) == 1:
                leader, _, high_watermark = views.pop()
                if leader > 0 and high_watermark >= 0:
                    return leader
            time.sleep(POLL_S)
        raise TimeoutError(f"no leader within {START_TIMEOUT_S:.0f} s; see {self.directory}")

    def wait_image(self, node: int, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until a node has folded all committed records. Raises TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            known = self._cluster.quorum().descriptions
            committed = max((one.high_watermark for one in known), default=0)
            if any(one.node_id == node and one.image_offset >= committed - 1 for one in known):
                return
            time.sleep(POLL_S)
        raise TimeoutError(f"controller-{node} has not folded the log; see {self.directory}")
