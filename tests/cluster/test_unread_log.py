"""Nodes whose stderr somebody holds and does not read."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cluster_kit import PATIENCE_S, succeed, until

from raftlog.local.cluster import LocalCluster


def full_pipe() -> tuple[int, int]:
    unread, stderr = os.pipe()
    os.set_blocking(stderr, False)
    try:
        while True:
            os.write(stderr, bytes(4096))
    except BlockingIOError:
        os.set_blocking(stderr, True)
    return unread, stderr


@pytest.mark.nightly
def test_nodes_with_an_unread_log_serve_and_stop(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "c", controllers=1, brokers=1)
    cluster.generate()
    unread, stderr = full_pipe()
    program = (sys.executable, "-m", "raftlog")
    nodes = {
        node: subprocess.Popen(
            [*program, node.role, "run", "--config", str(cluster.config_path(node.name))],
            stderr=stderr,
        )
        for node in cluster.nodes
    }
    try:
        until(lambda: all(cluster.ready(node.name)[0] for node in nodes), "all are ready")
        succeed("topics create t -p 50", controllers=cluster)
        for process in reversed(nodes.values()):
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
    finally:
        for process in nodes.values():
            process.kill()
            process.wait()
        os.close(unread)
        os.close(stderr)
