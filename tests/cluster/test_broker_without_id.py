"""Brokers that are started without an id, as processes: disks are lost, hosts are shared, ids go
missing (KIP-426).
"""

import re
import shutil
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from cluster_kit import PATIENCE_S, describe, on_files, raftlog, says, succeed, until

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
    """One controller, three brokers without an id on hosts of their own, and one more that is
    placed by each test.
    """

    def prepare(self, name: str, host: str) -> None:
        """A new disk in a host: no id in the configuration, none in the directory."""
        path, port = self.config_path(name), self.node(name).port
        kept = [
            line
            for line in path.read_text().splitlines()
            if not line.startswith(("node.id ", "listeners "))
        ]
        path.write_text("\n".join([*kept, f'listeners = ["{host}:{port}"]', ""]))
        shutil.rmtree(self.data_path(name), ignore_errors=True)
        ran = on_files("storage format -c", path)
        says(ran.out, "a broker that has no id yet, of cluster")
        assert self.id_of(name) == NO_NODE_ID

    def id_of(self, name: str) -> int:
        """Return the broker id stored in the directory."""
        return read_identity(self.data_path(name)).node_id

    def up(self, name: str) -> int:
        """Start a broker, wait until it serves; its id."""
        self.start(name)
        self.wait_ready([name], PATIENCE_S)
        return self.id_of(name)

    def end_of(self, name: str) -> str:
        """Start a broker that ends by itself; what it says at the end."""
        before = self.log_path(name).stat().st_size if self.log_path(name).exists() else 0
        self.start(name)
        until(lambda: self.pid(name) is None, f"{name} ends")
        return self.log_path(name).read_text()[before:].splitlines()[-1]

    def ask(self) -> Any:
        """The mapping and the absent ids."""
        return raftlog(
            *HOSTNAMES, "list", "--json", "--bootstrap-controller", self.bootstrap_controllers
        ).json

    def mapped(self) -> dict[str, int]:
        """Hostname -> broker id."""
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
def test_each_host_got_an_id_and_keeps_it(cluster: Hosts) -> None:
    assert cluster.mapped() == {"127.0.0.2": 1001, "127.0.0.3": 1002, "127.0.0.4": 1003}
    assert {one["id"] for one in describe(cluster)["brokers"]} == {1001, 1002, 1003}
    says(cluster.log_path("broker-2"), "given a broker id", "generated")
    assert cluster.stop(["broker-2"], PATIENCE_S) == []
    size = cluster.log_path("broker-2").stat().st_size
    assert cluster.up("broker-2") == 1001
    assert "given a broker id" not in cluster.log_path("broker-2").read_text()[size:], (
        "its directory said it"
    )


@pytest.mark.nightly
def test_disk_is_lost_and_the_host_gets_its_id_back(cluster: Hosts) -> None:
    cluster.kill("broker-3", signal.SIGKILL)
    assert cluster.wait_gone("broker-3", PATIENCE_S)
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


@pytest.mark.nightly
def test_second_broker_of_a_host_needs_a_configured_id(cluster: Hosts) -> None:
    cluster.stop(["broker-2"], PATIENCE_S)
    cluster.prepare("broker-5", HOSTS["broker-2"])
    said = cluster.end_of("broker-5")
    says(
        said, "INVALID_REGISTRATION", "1001 at 127.0.0.2", "Give each broker on a host its node.id"
    )
    assert cluster.id_of("broker-5") == NO_NODE_ID
    assert cluster.up("broker-2") == 1001
    # Told how, it is one of two.
    with cluster.config_path("broker-5").open("a") as file:
        file.write("node.id = 5\n")
    assert cluster.up("broker-5") == 5
    assert cluster.stop(["broker-5"], PATIENCE_S) == []
    cluster.config_path("broker-5").write_text(
        cluster.config_path("broker-5").read_text().replace("node.id = 5", "node.id = 6")
    )
    says(
        cluster.end_of("broker-5"),
        "node.id is 6, but data directory .* belongs to node 5",
        "set node.id to 5",
    )
    at = ("--bootstrap-controller", cluster.bootstrap_controllers)
    succeed(*HOSTNAMES, "set", HOSTS["broker-2"], 1001, *at)


@pytest.mark.nightly
def test_several_ids_are_missing(cluster: Hosts) -> None:
    cluster.prepare("broker-5", "127.0.0.9")
    cluster.stop(["broker-3", "broker-4"], PATIENCE_S)
    until(
        lambda: sum(one["missing"] for one in cluster.ask()["absent_ids"]) == 2,
        "two ids are missing",
    )
    said = cluster.end_of("broker-5")
    says(
        said,
        "2 broker ids are missing",
        r"1002 \(last at 127.0.0.3",
        r"1003 \(last at 127.0.0.4",
        "hostnames set 127.0.0.9",
    )
    assert cluster.up("broker-4") == 1003
    assert cluster.up("broker-5") == 1002
    says(cluster.log_path("broker-5"), "is the only one missing")
    assert cluster.mapped()["127.0.0.9"] == 1002
    # The old disk comes back: the id is not its any more.
    said = cluster.end_of("broker-3")
    says(said, "DUPLICATE_BROKER_REGISTRATION|was replaced by another process", "1002")


@pytest.mark.nightly
def test_hostname_mapping_is_edited_with_compare_and_set(cluster: Hosts) -> None:
    at = ("--bootstrap-controller", cluster.bootstrap_controllers)
    succeed(*HOSTNAMES, "set", "spare.example", 1003, "--expected-offset", -1, *at)
    offset = next(
        one["offset"] for one in cluster.ask()["items"] if one["hostname"] == "spare.example"
    )
    ran = raftlog(*HOSTNAMES, "set", "spare.example", 7, "--expected-offset", offset - 1, *at)
    assert ran.code != 0
    says(
        ran.err,
        f"host spare.example is mapped to broker 1003 since offset {offset}, expected was offset"
        f" {offset - 1}",
    )
    says(raftlog(*HOSTNAMES, "list", *at).out, "spare.example", "set by hand")
    succeed(*HOSTNAMES, "delete", "spare.example", "--expected-offset", offset, *at)
    assert "spare.example" not in cluster.mapped()
    says(raftlog(*HOSTNAMES, "delete", "spare.example", *at).err, "RESOURCE_NOT_FOUND")


@pytest.mark.nightly
def test_newcomer_waits_for_an_absent_id_unless_a_new_one_is_forced(cluster: Hosts) -> None:
    """[its owner was killed a moment ago: the newcomer gets a new id, without replicas]"""
    cluster.prepare("broker-3", "127.0.0.8")
    cluster.kill("broker-4", signal.SIGKILL)
    assert cluster.wait_gone("broker-4", PATIENCE_S)
    cluster.start("broker-3")
    absent = r"broker 1003 \(last at 127.0.0.4:\d+\) is absent and holds 3 replicas.* s more"
    until(
        lambda: re.search(absent, cluster.ready("broker-3")[1]),
        "the broker says for what it waits, and how long",
    )
    says(cluster.log_path("broker-3"), "no broker id yet", "BROKER_NOT_AVAILABLE")
    (controller,) = cluster.controllers
    says(cluster.log_path(controller.name), "a broker without an id waits", "1003")
    (waiting,) = cluster.ask()["waiting_brokers"]
    assert waiting["awaited_broker_id"] == 1003
    assert waiting["address"] == f"127.0.0.8:{cluster.node('broker-3').port}"
    assert 0 < waiting["remaining_ms"] <= 6_000
    assert cluster.stop(["broker-3"], PATIENCE_S) == []
    assert cluster.id_of("broker-3") == NO_NODE_ID
    with cluster.config_path("broker-3").open("a") as file:
        file.write("broker.id.generation.force = true\n")
    assert cluster.up("broker-3") == 1004
    says(cluster.log_path("broker-3"), "generated", "a new id is forced .*; absent: 1003")
