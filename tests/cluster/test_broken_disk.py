import json
import sys
from pathlib import Path

import pytest
from cluster_kit import PATIENCE_S, cluster_of, raftlog, succeed
from command_runs import run_text

from raftlog.cli.exits import DISK_REMEDY, Exit
from raftlog.local.cluster import LocalCluster

NODE = Path(__file__).with_name("broken_disk_node.py")


class BrokenCluster(LocalCluster):
    """Nodes whose disks can fail. Their exit codes are in files."""

    def program(self, name: str) -> list[str]:
        files = f"BROKEN_FILE={self.broken_file(name)}", f"ENDED_FILE={self.ended_file(name)}"
        return ["/usr/bin/env", *files, sys.executable, str(NODE)]

    def broken_file(self, name: str) -> Path:
        """While this file exists, the node's disk fails."""
        return self.directory / f"{name}.broken"

    def ended_file(self, name: str) -> Path:
        """The file with the node's exit code."""
        return self.directory / f"{name}.ended"

    def require_told(self, name: str) -> None:
        """Assert the exit code for disk errors, and a last line with the reason and remedy."""
        assert self._daemons.wait_gone(name, PATIENCE_S), f"{name} lives on"
        log = (self.directory / f"{name}.log").read_text()
        assert "Traceback" not in log, log
        assert self.ended_file(name).read_text() == str(int(Exit.DISK)), log
        last = json.loads(log.splitlines()[-1])
        assert last["event"] == "stopped by an error"
        assert str(self.data_path(name)) in last["error"]
        assert "append failed: IO error" in last["error"]
        assert last["remedy"] == DISK_REMEDY


cluster = cluster_of(1, 1, kind=BrokenCluster, scope="function")


@pytest.mark.nightly
def test_nodes_with_a_failing_disk_report_it_and_exit(cluster: BrokenCluster) -> None:
    (broker,), (controller,) = cluster.brokers, cluster.controllers
    for node in cluster.nodes:
        found = [cluster.data_path(node.name), *cluster.data_path(node.name).rglob("*")]
        assert [path for path in found if path.stat().st_mode & 0o077] == [], (
            "RocksDB's files, too, are the owner's alone"
        )
    succeed("topics create t", brokers=broker.endpoint)
    cluster.broken_file(broker.name).touch()
    assert raftlog("produce t --value x --timeout 2", brokers=broker.endpoint).code != 0
    cluster.require_told(broker.name)
    cluster.broken_file(controller.name).touch()
    assert raftlog("topics create u --timeout 2", controllers=controller.endpoint).code != 0
    cluster.require_told(controller.name)


def test_node_on_a_broken_disk_does_not_start(tmp_path: Path) -> None:
    cluster = BrokenCluster(tmp_path / "c", controllers=1, brokers=1)
    cluster.generate()
    for node in cluster.nodes:
        cluster.broken_file(node.name).touch()
        words = [node.role, "run", "-c", str(cluster.config_path(node.name))]
        ran = run_text([*cluster.program(node.name), *words], timeout=PATIENCE_S)
        assert ran.returncode == Exit.DISK, ran
        (line,) = ran.stderr.splitlines()
        assert line.startswith(
            f"raftlog: cannot write {cluster.data_path(node.name)}/lock: [Errno 5] Input/output"
            " error"
        )
        assert line.endswith(DISK_REMEDY)
