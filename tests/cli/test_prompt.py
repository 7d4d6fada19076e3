"""The prompt of ``raftlog dev``: completion and toolbar."""

import asyncio

import pytest

from raftlog.client.values import PartitionCounts, Visibility
from raftlog.local.cluster import LocalCluster
from raftlog.local.prompt import completions
from raftlog.local.session import Session


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> LocalCluster:
    made = LocalCluster(tmp_path_factory.mktemp("prompt") / "c", controllers=3, brokers=9)
    made.generate()
    return made


@pytest.mark.parametrize(
    ("line", "offered", "not_offered"),
    [
        ("", {"read", "help", "raftlog"}, {"from"}),
        ("kill", {"leader", "broker-4", "controller-1"}, {"from"}),
        ("kill broker-4", {"broker-5", "leader"}, set()),
        ("resume", {"broker-4"}, {"leader"}),
        ("transfer", {"controller-1"}, {"broker-4"}),
        ("read", set(), {"from", "strict"}),
        ("read k", {"from", "strict"}, {"broker-4"}),
        ("read k from", {"broker-4", "broker-12"}, {"controller-1", "strict"}),
        ("read k j from broker-4", {"latest", "strict"}, {"from", "broker-4"}),
        ("write k=v", {"visible", "committed"}, set()),
        ("write", set(), {"visible"}),
        ("raftlog", {"topics", "doctor"}, set()),
        ("load", {"on", "off"}, set()),
    ],
)
def test_completion_offers_valid_continuations(
    cluster: LocalCluster, line: str, offered: set[str], not_offered: set[str]
) -> None:
    found = {*completions(line.split(), ["read", "write"], cluster.nodes)}
    assert found >= offered
    assert not found & not_offered


def test_toolbar_fits_into_80_columns_with_many_paused_nodes(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def make() -> Session:
        session = Session(cluster, None, print)
        session._looking.cancel()
        return session

    session = asyncio.run(make())
    session.leader_id = 1
    brokers = tuple(range(4, 13))
    counts = PartitionCounts(0, 0, 0, 0, 0)
    session.visibility = Visibility(120_001, 99_000, "", brokers, 61_000, counts, ())
    monkeypatch.setattr(cluster, "is_paused", lambda name: name.startswith("broker-"))
    assert "paused broker-4, broker-5" in session.toolbar(400)
    narrow = session.toolbar(80)
    assert len(narrow) <= 80
    assert narrow.startswith("leader 1 · LAO 99000 of 120000, held back by 9 brokers for ")
    assert narrow.endswith("9 paused")
    assert len(session.toolbar(20)) == 20
