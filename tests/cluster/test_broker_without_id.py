"""Broker processes without a configured id: lost disks, shared hosts, missing ids (KIP-426)."""

import shutil
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from cluster_kit import PATIENCE_S, crash, describe, on_files, raftlog, says, succeed, until

from raftlog.local.cluster import LocalCluster
from raftlog.node.storage.api import NO_NODE_ID
from raftlog.node.storage.directory import read_identity

HOSTNAMES = ("cluster", "hostnames")

SETTINGS = {
    "broker.session.timeout.ms": 3_000,
    "broker.heartbeat.interval.ms": 500,
    "broker.fencing.timeout.ms": 5_000,
    "broker.id.adopt.after.ms": 6_000,
    "initial.broker.registration.timeout.ms": 15_000,
}
HOSTS = {"broker-2": "127.0.0.2", "broker-3": "127.0.0.3", "broker-4": "127.0.0.4"}


class Hosts(LocalCluster):
    """One controller, three brokers without an id on own hosts, and a fourth per test."""

    def prepare(self, name: str, host: str) -> None:
        """Put a new disk into a host: no id in the configuration or the directory."""
        path, port = self.config_path(name), self.node(name).port
        kept = [
            line
            for line in path.read_text().splitlines()
            if not line.startswith(("node.id ", "listeners "))
        ]
        path.write_text("\n".join([*kept, f'listeners = ["{host}:{port}"]', ""]))
        shutil.rmtree(self.data_path(name), ignore_errors=True)
        ran = on_files("storage format -c", path)
        says(ran.out, "a broker without an id yet, of cluster")
        assert self.id_of(name) == NO_NODE_ID

    def id_of(self, name: str) -> int:
        """Return the broker id stored in the directory."""
        return read_identity(self.data_path(name)).node_id

    def up(self, name: str) -> int:
        """Start a broker, wait until it serves, and return its id."""
        self.start(name)
        self.wait_ready([name], PATIENCE_S)
        return self.id_of(name)

    def ask(self) -> Any:
        """Return the hostname mapping and the absent ids."""
        return raftlog(
            *HOSTNAMES, "list", "--json", "--bootstrap-controller", self.bootstrap_controllers
        ).json

    def mapped(self) -> dict[str, int]:
        """Return hostname -> broker id."""
        return {one["hostname"]: one["broker_id"] for one in self.ask()["items"]}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    made = Hosts(
        tmp_path_factory.mktemp("hosts") / "c", controllers=1, brokers=4, settings=SETTINGS
    )
    made.generate()
    try:
        made.start_controllers()
        made.wait_leader(PATIENCE_S)
        for number, (name, host) in enumerate(HOSTS.items()):
            made.prepare(name, host)
            assert made.up(name) == 1001 + number
        succeed("topics create t -p 3 -r 3", controllers=made)
        yield made
    finally:
        made.stop_all(timeout_s=5)


@pytest.mark.nightly
def test_each_host_keeps_the_id_that_it_was_assigned(cluster: Hosts) -> None:
    assert cluster.mapped() == {"127.0.0.2": 1001, "127.0.0.3": 1002, "127.0.0.4": 1003}
    assert {one["id"] for one in describe(cluster)["brokers"]} == {1001, 1002, 1003}
    says(cluster.log_path("broker-2"), "broker id assigned", "generated")
    assert cluster.stop(["broker-2"], PATIENCE_S) == []
    size = cluster.log_path("broker-2").stat().st_size
    assert cluster.up("broker-2") == 1001
    assert "broker id assigned" not in cluster.log_path("broker-2").read_text()[size:], (
        "its directory said it"
    )


@pytest.mark.nightly
def test_host_with_a_lost_disk_gets_its_id_back(cluster: Hosts) -> None:
    crash(cluster, "broker-3")
    before = next(one for one in describe(cluster)["brokers"] if one["id"] == 1002)
    cluster.prepare("broker-3", HOSTS["broker-3"])
    # Without a controller there is no id: it lives, is not ready, and waits.
    (controller,) = cluster.controllers
    cluster.kill(controller.name, signal.SIGSTOP)
    cluster.start("broker-3")
    until(
        lambda: "has no broker id yet" in cluster.ready("broker-3")[1],
        "the broker says what it waits for",
    )
    cluster.kill(controller.name, signal.SIGCONT)
    assert cluster.up("broker-3") == 1002
    after = next(one for one in describe(cluster)["brokers"] if one["id"] == 1002)
    assert after["epoch"] > before["epoch"]
    assert after["replica_count"] == before["replica_count"] == 3
    says(cluster.log_path("broker-3"), "host 127.0.0.3 is mapped to broker 1002")
