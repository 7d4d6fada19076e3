"""The nodes shared by the tests of one pytest process, from the first test to the last."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from raftlog.cli.exits import Exit, FailedError
from raftlog.local.cluster import LocalCluster, Node
from raftlog.local.processes import wait_until
from raftlog.testing import reaper
from raftlog.testing.slate import LeftoverError, Slate

START_TIMEOUT_S = 60.0
TRIES = 3
"""Number of attempts to start a cluster, as another process may take a port that was free."""
END_TIMEOUT_S = 20.0
_LISTEN = "0A"
"""The state of a listening socket in /proc/net/tcp."""


class ClusterSession:
    """One cluster at a time: started for the first test that uses it, and replaced when a test has
    changed state that no write restores.
    """

    def __init__(self, *, controllers: int = 3, brokers: int = 3) -> None:
        self._controllers, self._brokers = controllers, brokers
        self._cluster: LocalCluster | None = None
        self._slate: Slate | None = None
        self._reaper: subprocess.Popen[bytes] | None = None
        self.replaced: list[str] = []
        """Why clusters were replaced."""

    def clean(self) -> LocalCluster:
        """Return the cluster with all nodes ready and without earlier data. Raises FailedError."""
        for _ in range(TRIES):
            if self._cluster is None or self._slate is None:
                self._begin()
            assert self._cluster is not None
            assert self._slate is not None
            try:
                restore_nodes(self._cluster)
                self._slate.clean()
                return self._cluster
            except (FailedError, LeftoverError) as error:
                self.replaced.append(str(error))
                self.end()
        raise FailedError(f"cannot clean up any cluster: {'; '.join(self.replaced)}", Exit.REFUSED)

    def end(self) -> None:
        """Stop all processes, and remove their directory. Idempotent."""
        slate, self._slate = self._slate, None
        cluster, self._cluster = self._cluster, None
        process, self._reaper = self._reaper, None
        if slate is not None:
            slate.close()
        if process is not None:
            # The same clean-up for every end: one only for crashes would be found broken only in a
            # crash.
            process.communicate(timeout=END_TIMEOUT_S)
        for node in cluster.nodes if cluster is not None else ():
            assert cluster is not None
            cluster.pid(node.name)  # The parent must reap a child that has ended.

    def _begin(self) -> None:
        for left in reversed(range(TRIES)):
            directory = Path(tempfile.mkdtemp(prefix="raftlog-test-"))
            self._reaper = subprocess.Popen(
                [sys.executable, "-I", "-S", reaper.__file__, str(directory)],
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
            self._cluster = LocalCluster(
                directory / "c", controllers=self._controllers, brokers=self._brokers
            )
            try:
                self._cluster.generate()
                self._cluster.start_controllers()
                self._cluster.start_brokers()
                wait_all_ready(self._cluster)
                self._slate = Slate(
                    self._cluster.bootstrap_servers, self._cluster.bootstrap_controllers
                )
            except FailedError as error:
                self.end()
                if not left:
                    raise
                self.replaced.append(str(error))
            except BaseException:
                self.end()
                raise
            else:
                return


def wait_all_ready(cluster: LocalCluster) -> None:
    """Wait until all nodes are ready. Raises FailedError.

    A node of another cluster may have taken a port meanwhile, and be ready there, so each process
    must listen on its own port.
    """
    cluster.wait_ready([node.name for node in cluster.nodes], START_TIMEOUT_S)

    def is_settled(node: Node) -> bool:
        return (pid := cluster.pid(node.name)) is None or _has_port(pid, node.port)

    wait_until(lambda: all(map(is_settled, cluster.nodes)), START_TIMEOUT_S)
    for node in cluster.nodes:
        if not _has_port(cluster.pid(node.name), node.port):
            raise FailedError(f"{node.name} does not listen on its port {node.port}", Exit.REFUSED)


def _has_port(pid: int | None, port: int) -> bool:
    """Return whether a process listens on a port of this machine."""
    listening = {
        f"socket:[{fields[9]}]"
        for table in ("/proc/net/tcp", "/proc/net/tcp6")  # gRPC listens on sockets of both
        for line in Path(table).read_text().splitlines()[1:]
        if (fields := line.split())[3] == _LISTEN and int(fields[1].partition(":")[2], 16) == port
    }
    try:
        descriptors = [*Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return False
    return any(_target(one) in listening for one in descriptors)


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""  # The descriptor was closed meanwhile.


def restore_nodes(cluster: LocalCluster) -> None:
    """Resume paused nodes, start dead ones, and wait until all are ready. Raises FailedError."""
    touched = False
    for node in cluster.nodes:
        if cluster.pid(node.name) is None:
            cluster.start(node.name)
            touched = True
        elif cluster.is_paused(node.name):
            cluster.resume(node.name)
            touched = True
    if touched:
        wait_all_ready(cluster)
