"""Nodes that must not start: one message, an error code, no effect on others."""

import asyncio
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_kit import (
    PATIENCE_S,
    committed_image,
    controllers_of,
    one_message,
    raftlog,
    says,
    setting,
    until,
)
from command_runs import Ran

from raftlog.local.cluster import LocalCluster, free_ports
from raftlog.node.storage.files import COPY_BYTES, VOTE_FILE
from raftlog.node.storage.rocks_adapter import RocksLog
from raftlog.node.storage.wal import NO_END

RECORDS = 600
VALUE_BYTES = 500
DOWN = "controller-3"


async def fill(cluster: LocalCluster) -> None:
    async with controllers_of(cluster) as client:
        for start in range(0, RECORDS, 20):
            writes = (
                client.call(setting(f"k{i}", "v" * VALUE_BYTES)) for i in range(start, start + 20)
            )
            await asyncio.gather(*writes)


def at_one_end(cluster: LocalCluster) -> bool:
    """Return whether all controllers have the same log end."""
    ends = [one.log_end_offset for one in cluster.quorum(5.0).descriptions]
    return len(ends) == len(cluster.controllers) and len(set(ends)) == 1


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two controllers serve; the third was killed while its log was only in RocksDB's WAL."""
    made = LocalCluster(tmp_path_factory.mktemp("refused") / "c", controllers=3, brokers=1)
    made.generate()
    try:
        made.start_controllers()
        made.wait_ready([node.name for node in made.controllers], PATIENCE_S)
        asyncio.run(fill(made))
        # A majority is without it: on a busy machine it may be far behind.
        until(lambda: at_one_end(made), "all controllers have the whole log")
        made.kill(DOWN, signal.SIGKILL)
        assert made.wait_gone(DOWN)
        # Whoever opens it tidies it up: damage is done to copies of how it was left.
        shutil.copytree(made.data_path(DOWN), made.directory / "killed")
        made.wait_leader(PATIENCE_S)
        yield made
        # Nothing that was tried here has done any harm.
        made.start(DOWN)
        made.wait_ready([node.name for node in made.controllers], PATIENCE_S)
        assert len(asyncio.run(committed_image(made)).configs) > RECORDS
    finally:
        made.stop_all(timeout_s=5)


@pytest.fixture
def still_serving(cluster: LocalCluster) -> Iterator[None]:
    """Assert that the others accept writes, and are the same processes."""

    async def write() -> None:
        async with controllers_of(cluster) as client:
            await client.call(setting("after", "yes"), timeout_s=PATIENCE_S)

    yield
    asyncio.run(write())
    assert [node.name for node in cluster.controllers if cluster.pid(node.name)] == [
        "controller-1",
        "controller-2",
    ]


def run(cluster: LocalCluster, name: str, **flags: object) -> Ran:
    """Run a node in the foreground until it exits by itself."""
    node = cluster.node(name)
    port, http_port = free_ports(2)
    settings = {
        "listeners": f"127.0.0.1:{port}",
        "http_listener": f"127.0.0.1:{http_port}",
        **flags,
    }
    given = [f"--set={key.replace('_', '.')}={value}" for key, value in settings.items()]
    return raftlog(node.role, "run", "-c", cluster.config_path(name), *given)


def copy_of(cluster: LocalCluster, path: Path) -> Path:
    """Return a copy of the killed controller's directory; no process holds the lock of the copy."""
    return Path(shutil.copytree(cluster.directory / "killed", path))


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x55
    path.write_bytes(content)


@pytest.mark.nightly
@pytest.mark.usefixtures("still_serving")
class TestPorts:
    @pytest.mark.parametrize("name", [DOWN, "broker-4"])
    def test_listener_port_in_use_is_reported(self, cluster: LocalCluster, name: str) -> None:
        taken = cluster.node("controller-1").endpoint
        ran = run(cluster, name, listeners=taken)
        says(one_message(ran), f"cannot listen on {taken}: port in use")
        assert ran.code == 2

    @pytest.mark.parametrize("name", [DOWN, "broker-4"])
    def test_http_port_in_use_is_reported(self, cluster: LocalCluster, name: str) -> None:
        taken = cluster.node("controller-1").http.removeprefix("http://")
        ran = run(cluster, name, http_listener=taken)
        says(one_message(ran), f"http.listener: {taken}: Address already in use")
        assert ran.code == 2


@pytest.mark.nightly
@pytest.mark.usefixtures("still_serving")
class TestDirectories:
    @pytest.mark.parametrize("name", [DOWN, "broker-4"])
    def test_directory_of_another_node_is_refused(self, cluster: LocalCluster, name: str) -> None:
        ran = run(cluster, name, log_dirs="data/controller-2")
        says(one_message(ran), "data/controller-2", "belongs to .*node 2")
        assert ran.code == 2

    def test_directory_of_another_cluster_is_refused(self, cluster: LocalCluster) -> None:
        ran = run(cluster, DOWN, cluster_id="other")
        says(one_message(ran), f"belongs to cluster '{cluster.cluster_id}'", "'other'")
        assert ran.code == 2

    @pytest.mark.parametrize("name", [DOWN, "broker-4"])
    def test_start_is_refused_when_the_directory_is_unformatted(
        self, cluster: LocalCluster, name: str
    ) -> None:
        ran = run(cluster, name, log_dirs="data/nowhere")
        says(
            one_message(ran),
            "data/nowhere is not formatted. If the node has run before, do not format",
        )
        assert ran.code == 2
        assert not (cluster.directory / "data/nowhere").exists()

    def test_start_is_refused_when_another_process_uses_the_directory(
        self, cluster: LocalCluster
    ) -> None:
        ran = run(cluster, "controller-1")
        says(one_message(ran), f"data/controller-1 is in use by pid {cluster.pid('controller-1')}")
        assert ran.code == 2


@pytest.mark.usefixtures("still_serving")
class TestCorruptLog:
    """A byte of committed records was changed while the node was down."""

    def refused(self, cluster: LocalCluster, directory: Path) -> str:
        # It does not even try to listen: the port is taken, and nobody minds.
        ran = run(
            cluster, DOWN, log_dirs=directory, listeners=cluster.node("controller-1").endpoint
        )
        assert ran.code == 3
        return one_message(ran)

    def test_start_is_refused_when_a_table_file_is_damaged(
        self, cluster: LocalCluster, tmp_path: Path
    ) -> None:
        directory = copy_of(cluster, tmp_path / "data")
        # Opening moves what was in the WAL to a table file.
        RocksLog(directory / "log").close()
        table = max((directory / "log").glob("*.sst"), key=lambda path: path.stat().st_size)
        flip(table, table.stat().st_size // 2)
        message = self.refused(cluster, directory)
        says(
            message,
            r"the log cannot be read at offset \d+: ",
            "block checksum mismatch",
            table.name,
        )
        offset = int(message.split("at offset ")[1].split(":")[0])
        assert 100 < offset < RECORDS

    def test_start_is_refused_when_the_write_ahead_log_is_damaged(
        self, cluster: LocalCluster, tmp_path: Path
    ) -> None:
        directory = copy_of(cluster, tmp_path / "data")
        wal = max((directory / "log").glob("*.log"), key=lambda path: path.stat().st_size)
        flip(wal, wal.stat().st_size // 2)
        message = self.refused(cluster, directory)
        says(
            message,
            rf"the record at byte \d+ of {wal.name} does not match its checksum",
            r"intact up to offset \d+",
        )
        assert 100 < int(message.split("intact up to offset ")[1].split(";")[0]) < RECORDS
        assert "see Corrupted log in docs/operations.md" in message

    def test_start_is_refused_when_a_batch_is_damaged_below_the_rocksdb_checksum(
        self, cluster: LocalCluster, tmp_path: Path
    ) -> None:
        directory = copy_of(cluster, tmp_path / "data")
        rocks = RocksLog(directory / "log")
        scan = rocks.scan(RECORDS // 2)
        base, chunk = next(scan)
        scan.close()
        damaged = bytearray(chunk)
        # In the records of its last batch: in a header it may be the length that is wrong.
        damaged[-1] ^= 1
        rocks.put(base, bytes(damaged), NO_END)
        rocks.sync()
        rocks.close()
        says(self.refused(cluster, directory), r"offset \d+: CRC32C does not match")

    def test_corrupt_log_state_file_is_reported(
        self, cluster: LocalCluster, tmp_path: Path
    ) -> None:
        directory = copy_of(cluster, tmp_path / "data")
        flip(directory / "log-state.json", (directory / "log-state.json").stat().st_size // 2)
        says(self.refused(cluster, directory), r"log-state\.json is corrupt")

    def test_start_is_refused_when_both_copies_of_the_vote_are_damaged(
        self, cluster: LocalCluster, tmp_path: Path
    ) -> None:
        directory = copy_of(cluster, tmp_path / "data")
        for begin in (0, COPY_BYTES):
            flip(directory / VOTE_FILE, begin + 20)
        says(self.refused(cluster, directory), r"quorum-state\.json is corrupt")
