"""Real nodes under a real Prometheus. The gate has the same rules on simulated nodes
(test_faults.py), and the same queries against the metric names (test_dashboards.py).
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from prometheus_kit import PROGRAM, Prometheus, prometheus, queries
from rule_runs import Firing, each_rule, load_rules

from raftlog import Client
from raftlog.errors import RaftlogError
from raftlog.local.cluster import LocalCluster

sys.path.insert(0, str(Path(__file__).parents[1] / "cluster"))
from cluster_kit import running

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        PROGRAM is None, reason="NO REAL PROMETHEUS WAS ASKED: the program is not on PATH"
    ),
]
SHOWS_TROUBLE = {
    ("raftlog-overview", "Requests that wait"),
    ("raftlog-overview", "Errors"),
    ("raftlog-brokers", "Who holds LAO back"),
    ("raftlog-quorum", "Refused messages of the quorum"),
}
"""Panels that are empty as long as nothing is wrong, and say so (``noValue``)."""


TRUE_OF_THE_MACHINE = {"RaftlogDiskSlow", "RaftlogEventLoopLags"}
"""Tickets that a busy machine deserves; test_faults.py judges them on simulated disks."""


class Watched(NamedTuple):
    cluster: LocalCluster
    prometheus: Prometheus

    def page(self, name: str) -> Firing:
        return Firing(name, "critical", self.cluster.cluster_id)

    def ticket(self, name: str) -> Firing:
        return Firing(name, "warning", self.cluster.cluster_id)

    def settles(self) -> None:
        """Wait until nothing fires."""
        self.prometheus.wait(
            "all is well again",
            lambda: {one.name for one in self.prometheus.firing()} <= TRUE_OF_THE_MACHINE,
        )

    def only(self, *expected: Firing, lasting: int = 10) -> None:
        """Assert that only these fire, also on the way there, and keep firing for some evaluations."""
        allowed = set(expected)

        def fire() -> bool:
            firing = {
                one for one in self.prometheus.firing() if one.name not in TRUE_OF_THE_MACHINE
            }
            assert firing <= allowed, firing - allowed
            return firing == allowed

        self.prometheus.wait(f"{sorted(allowed)} are to fire", fire)
        for _ in range(lasting):
            before = self.prometheus.evaluated()
            self.prometheus.wait(
                "the next evaluation",
                lambda: self.prometheus.evaluated() != before,  # noqa: B023
            )
            assert fire()


@contextmanager
def writing(cluster: LocalCluster) -> Iterator[None]:
    """A client that writes metadata and records several times a second."""
    ends = threading.Event()

    def write() -> None:
        with Client(cluster.bootstrap_servers) as client:
            client.topics.create("orders", partitions=6, acks="visible")
            client.configs.alter("topic", "orders", set={"min.insync.replicas": 2})
            number = 0
            while not ends.wait(0.2):
                number += 1
                try:
                    client.configs.alter("topic", "orders", set={"retention.ms": number})
                    client.produce("orders", b"x" * 100)
                except RaftlogError:
                    pass  # Without a quorum it goes on trying.

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        ends.set()
        writer.join(60)
        assert not writer.is_alive()


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    with running(LocalCluster(tmp_path / "c", controllers=3, brokers=3)) as cluster:
        targets = [node.http.removeprefix("http://") for node in cluster.nodes]
        with prometheus(tmp_path / "prometheus", targets) as started, writing(cluster):
            known = "count(raftlog:node:last_known and on (job, instance) (up == 1)) == 6"
            started.wait("all are known", lambda: started.ask("query", query=known)["result"])
            yield Watched(cluster, started)


def test_lost_majority_fires_its_alerts_after_a_healthy_start(watched: Watched) -> None:
    cluster, asked = watched
    loaded = {one["name"] for group in asked.ask("rules")["groups"] for one in group["rules"]}
    assert loaded == {one.get("alert") or one["record"] for one in each_rule(load_rules())}
    watched.only(lasting=20)
    for one in queries():
        if (one.board, one.panel) not in SHOWS_TROUBLE:
            asked.wait(
                f"{one.board}, {one.panel}: {one.expr}",
                lambda: asked.series(one.expr, cluster.cluster_id, 60),  # noqa: B023
            )
    for node in cluster.controllers[:2]:
        cluster.kill(node.name, signal.SIGKILL)
    watched.only(
        watched.page("RaftlogNoLeader"),
        watched.ticket("RaftlogNodeDown"),
        watched.ticket("RaftlogBrokerSelfFenced"),
    )
    leaders = next(one for one in queries() if one.panel == "Leaders")
    (shown,) = asked.series(leaders.expr, cluster.cluster_id, 2)
    assert shown["values"][-1][1] == "0"
    for node in cluster.controllers[:2]:
        cluster.start(node.name)
    watched.settles()


def test_paused_broker_is_shown_without_a_page(watched: Watched) -> None:
    cluster, asked = watched
    watched.only(lasting=5)
    paused = cluster.brokers[0]
    pid = cluster.pid(paused.name)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        watched.only(
            watched.ticket("RaftlogNodeDown"), watched.ticket("RaftlogPartitionsUnderReplicated")
        )
        holds = next(one for one in queries() if one.panel == "Who holds LAO back")
        held = asked.series(holds.expr, cluster.cluster_id, 120)
        # Any broker may hold it for the moment of a scrape; this one does until its session ends.
        longest = max(held, key=lambda one: len(one["values"]))
        assert longest["metric"]["broker"] == str(paused.node_id)
        assert len(longest["values"]) >= 5
    finally:
        os.kill(pid, signal.SIGCONT)
