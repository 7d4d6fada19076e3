import asyncio
import signal
from pathlib import Path

import pytest
from cluster_kit import running, until

from raftlog.client.security import ClientSecurity
from raftlog.local.cluster import LocalCluster
from raftlog.node.observability.journal import read_journal
from raftlog.ops.collector import Collector, nodes_of
from raftlog.ops.evidence import NodeEvents


def ask(cluster: LocalCluster) -> dict[str, NodeEvents]:
    async def asked() -> list[NodeEvents]:
        collector = Collector(ClientSecurity())
        survey = await collector.survey(cluster.bootstrap_controllers.split(","), 5.0)
        return await collector.journals(survey, nodes_of(survey), 0, 5.0)

    return {one.name: one for one in asyncio.run(asked())}


def kinds(one: NodeEvents) -> list[str]:
    return [event.kind for event in one.events]


@pytest.mark.nightly
def test_journals_record_a_killed_leader_and_its_return(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "c", controllers=3, brokers=1)
    with running(cluster):
        old = cluster.wait_leader()
        cluster.kill(old.name, signal.SIGKILL)
        until(lambda: cluster.leader() not in (None, old), "another leader")
        new = cluster.wait_leader()
        told = ask(cluster)
        assert told[old.name].failure, "it does not answer, and is named all the same"
        won = [one for one in told[new.name].events if one.kind == "became_leader"]
        assert won[-1].text("reason") == "leader gone"
        # It may have led before; then this is its second epoch.
        assert won[-1].number("epoch") >= 2
        until(lambda: "peer_lost" in kinds(ask(cluster)[new.name]), "the loss is told")
        cluster.start(old.name)
        cluster.wait_ready([old.name])
        until(lambda: "peer_regained" in kinds(ask(cluster)[new.name]), "its return is told")
        told = ask(cluster)
        starts = [one for one in told[old.name].events if one.kind == "started"]
        assert [one.text("after") for one in starts] == ["format", "crash"]
        broker = cluster.brokers[0].name
        assert kinds(told[broker])[:1] == ["started"]
        assert {"registered", "unfenced", "controller_found"} <= set(kinds(told[broker]))
        cluster.stop_all()
    offline = read_journal(cluster.data_path(new.name))
    assert offline[-1].kind == "stopped"
    assert offline[-1].details == {"reason": "asked to stop", "clean": True}
    assert read_journal(cluster.data_path(broker))[-1].kind == "stopped"
    cluster.delete()
