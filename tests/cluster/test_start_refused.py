"""Nodes that must not start: one message, an error code, no effect on others."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_kit import (
    PATIENCE_S,
    committed_image,
    controllers_of,
    crash,
    one_message,
    raftlog,
    says,
    setting,
    until,
)
from command_runs import Ran

from raftlog.local.cluster import LocalCluster, free_ports

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
        crash(made, DOWN)
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


NODES = pytest.mark.parametrize("name", [DOWN, "broker-4"])


@pytest.mark.nightly
@pytest.mark.usefixtures("still_serving")
class TestMistakes:
    """Each has one message and exit code 2."""

    def mistaken(self, cluster: LocalCluster, name: str, *patterns: str, **flags: object) -> None:
        ran = run(cluster, name, **flags)
        says(one_message(ran), *patterns)
        assert ran.code == 2

    @NODES
    def test_ports_in_use_are_reported(self, cluster: LocalCluster, name: str) -> None:
        other = cluster.node("controller-1")
        said = f"cannot listen on {other.endpoint}: port in use"
        self.mistaken(cluster, name, said, listeners=other.endpoint)
        taken = other.http.removeprefix("http://")
        said = f"http.listener: {taken}: Address already in use"
        self.mistaken(cluster, name, said, http_listener=taken)

    @NODES
    def test_directory_of_another_node_or_an_unformatted_one_is_refused(
        self, cluster: LocalCluster, name: str
    ) -> None:
        place = "data/controller-2"
        self.mistaken(cluster, name, place, "belongs to .*node 2", log_dirs=place)
        said = "data/nowhere is not formatted. If the node has run before, do not format"
        self.mistaken(cluster, name, said, log_dirs="data/nowhere")
        assert not (cluster.directory / "data/nowhere").exists()

    def test_directory_of_another_cluster_or_process_is_refused(
        self, cluster: LocalCluster
    ) -> None:
        said = f"belongs to cluster '{cluster.cluster_id}'"
        self.mistaken(cluster, DOWN, said, "'other'", cluster_id="other")
        pid = cluster.pid("controller-1")
        self.mistaken(cluster, "controller-1", f"data/controller-1 is in use by pid {pid}")


@pytest.mark.usefixtures("still_serving")
def test_start_is_refused_when_the_write_ahead_log_is_damaged(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """The byte of committed records was changed while the node was down."""
    # No process holds the lock of a copy.
    directory = Path(shutil.copytree(cluster.directory / "killed", tmp_path / "data"))
    wal = max((directory / "log").glob("*.log"), key=lambda path: path.stat().st_size)
    content = bytearray(wal.read_bytes())
    content[len(content) // 2] ^= 0x55
    wal.write_bytes(content)
    # It does not even try to listen: the port is taken, and nobody minds.
    ran = run(cluster, DOWN, log_dirs=directory, listeners=cluster.node("controller-1").endpoint)
    assert ran.code == 3
    message = one_message(ran)
    says(
        message,
        rf"the record at byte \d+ of {wal.name} does not match its checksum",
        r"intact up to offset \d+",
    )
    assert 100 < int(message.split("intact up to offset ")[1].split(";")[0]) < RECORDS
    assert "see Corrupted log in docs/operations.md" in message
