"""Processes whose disks hang or fail."""

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster_kit import (
    PATIENCE_S,
    Load,
    cluster_of,
    committed_image,
    controllers_of,
    lost,
    raftlog,
    running,
    succeed,
    until_true,
)
from command_runs import run_text
from data_kit import SETTINGS, TOPIC, Reader, clients_of, nothing_is_lost
from data_kit import Load as DataLoad

from raftlog.cli.exits import DISK_REMEDY, Exit
from raftlog.local.cluster import LocalCluster, Node

NODE = Path(__file__).with_name("bad_disk_node.py")
GAP_S = 15.0
"""Bound in seconds for a fetch timeout (1 s) and an election; idle machines need less."""
HUNG_S = 4.0
"""Long enough for several elections, if the hung node wanted any."""


class BadDisks(LocalCluster):
    """Nodes whose disks can hang or fail. Their exit codes are in files."""

    def program(self, name: str) -> list[str]:
        files = {
            "HANG_FILE": self.hang_file(name),
            "BROKEN_FILE": self.broken_file(name),
            "ENDED_FILE": self.ended_file(name),
        }
        variables = [f"{variable}={file}" for variable, file in files.items()]
        return ["/usr/bin/env", *variables, sys.executable, str(NODE)]

    def hang_file(self, name: str) -> Path:
        """While this file exists, the node's disk hangs."""
        return self.directory / f"{name}.hangs"

    def broken_file(self, name: str) -> Path:
        """While this file exists, the node's disk fails."""
        return self.directory / f"{name}.broken"

    def ended_file(self, name: str) -> Path:
        """The file with the node's exit code."""
        return self.directory / f"{name}.ended"

    def require_told(self, name: str) -> None:
        """Assert the exit code for disk errors, and a last line with the reason and remedy."""
        assert self.wait_gone(name, PATIENCE_S), f"{name} lives on"
        log = self.log_path(name).read_text()
        assert "Traceback" not in log, log
        assert self.ended_file(name).read_text() == str(int(Exit.DISK)), log
        last = json.loads(log.splitlines()[-1])
        assert last["event"] == "stopped by an error"
        assert str(self.data_path(name)) in last["error"]
        assert "append failed: IO error" in last["error"]
        assert last["remedy"] == DISK_REMEDY


@contextmanager
def healed(made: BadDisks) -> Iterator[BadDisks]:
    with running(made):
        try:
            yield made
        finally:
            for node in made.nodes:
                made.hang_file(node.name).unlink(missing_ok=True)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[BadDisks]:
    with healed(BadDisks(tmp_path / "c", controllers=3, brokers=0)) as made:
        yield made


async def roles(cluster: LocalCluster) -> dict[int, tuple[str, int, int]]:
    """Return role, epoch and leader of each controller that answers, by id."""
    quorum = await asyncio.to_thread(cluster.quorum, 2.0)
    return {one.node_id: (one.role, one.leader_epoch, one.leader_id) for one in quorum.descriptions}


@pytest.mark.nightly
async def test_leader_with_a_hanging_disk_is_replaced_and_follows(cluster: BadDisks) -> None:
    leader: Node = await asyncio.to_thread(cluster.wait_leader, PATIENCE_S)
    others = [node.node_id for node in cluster.controllers if node != leader]
    async with controllers_of(cluster) as client:
        load = Load(client, prefix="hung")
        await load.more(200)
        epoch, load.longest_gap_s = load.epoch, 0.0
        cluster.hang_file(leader.name).touch()
        hung_at = asyncio.get_running_loop().time()
        took_s = await load.led_by_another(epoch)
        await load.more(200)
        print(
            f"writes went on {took_s:.2f} s after the disk hung; the longest gap was"
            f" {load.longest_gap_s:.2f} s"
        )
        assert load.longest_gap_s < GAP_S

        # The node lives, and leaves the others alone.
        while asyncio.get_running_loop().time() < hung_at + HUNG_S:
            seen = await roles(cluster)
            role, *_ = seen.get(leader.node_id, ("",))
            assert role not in ("leader", "candidate", "prospective"), seen
            await asyncio.sleep(0.2)
        print(f"meanwhile: {seen}")
        assert cluster.pid(leader.name) is not None

        cluster.hang_file(leader.name).unlink()

        async def follows() -> bool:
            role, now, led_by = (await roles(cluster)).get(leader.node_id, ("", -1, -1))
            return role == "follower" and now > epoch and led_by in others

        await until_true(follows, "the node whose disk is back follows")
        await load.more(100)
        await load.stop()
    assert lost(load.acknowledged, await committed_image(cluster)) == []
    await asyncio.to_thread(cluster.wait_ready, [leader.name], PATIENCE_S)


HANG_TIMEOUT_MS = 1_500
MOVED_S = 15.0
"""Bound in seconds for the hang timeout, the next disk check, and a heartbeat."""


@pytest.fixture
def of_brokers(tmp_path: Path) -> Iterator[BadDisks]:
    settings = {
        **SETTINGS,
        "broker.disk.hang.timeout.ms": HANG_TIMEOUT_MS,
        "broker.metadata.lag.probation.ms": 2_000,
    }
    with healed(BadDisks(tmp_path / "c", controllers=1, brokers=3, settings=settings)) as made:
        yield made


def told(cluster: LocalCluster, *command: str) -> str:
    return succeed(*command, controllers=cluster).out


@pytest.mark.nightly
async def test_broker_with_a_hanging_disk_loses_its_leaderships_and_returns(
    of_brokers: BadDisks,
) -> None:
    cluster = of_brokers
    ids = [node.node_id for node in cluster.brokers]
    placed = ":".join(map(str, ids))
    await asyncio.to_thread(
        told, cluster, "topics", "create", TOPIC, "--replica-assignment", placed,
        "--config", "min.insync.replicas=2", "--acks", "visible",
    )  # fmt: skip
    async with clients_of(cluster) as world:
        load, reader = DataLoad(world.producer(), writers=64), Reader(world.consumer())
        await load.more(100)
        await world.led_by(ids[0])
        cluster.hang_file(f"broker-{ids[0]}").touch()
        begun = asyncio.get_running_loop().time()
        await world.led_by(ids[0], other=True)
        took_s = asyncio.get_running_loop().time() - begun
        print(f"another broker led {took_s:.2f} s after the disk hung")
        assert took_s < MOVED_S
        await load.more(100)
        listed = await asyncio.to_thread(told, cluster, "brokers", "list")
        print(listed)
        assert "disk hangs longer than" in listed, listed
        cluster.hang_file(f"broker-{ids[0]}").unlink()

        async def is_back() -> bool:
            listed = await asyncio.to_thread(told, cluster, "brokers", "list")
            return "inactive" not in listed

        await until_true(is_back, "the broker is let in again")
        await load.more(100)
        await load.stop()
        await reader.stop()
        await nothing_is_lost(world, load, reader)
    story = await asyncio.to_thread(told, cluster, "explain", "--since", "10m")
    assert f"the disk of broker-{ids[0]} had not answered for" in story, story


pair = cluster_of(1, 1, kind=BadDisks, scope="function")


@pytest.mark.nightly
def test_nodes_with_a_failing_disk_report_it_and_exit(pair: BadDisks) -> None:
    cluster, (broker,), (controller,) = pair, pair.brokers, pair.controllers
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
    cluster = BadDisks(tmp_path / "c", controllers=1, brokers=1)
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
