"""``raftlog cluster features`` against a real controller and broker."""

from __future__ import annotations

import pytest
from command_lines import Raftlog

from raftlog.local.cluster import LocalCluster
from raftlog.metadata.versions import LATEST_METADATA_VERSION


@pytest.fixture
def at(cluster: LocalCluster) -> tuple[str, str]:
    return "--bootstrap-controller", cluster.bootstrap_controllers


def test_describe(raftlog: Raftlog, at: tuple[str, str]) -> None:
    rows = raftlog("cluster", "features", "describe", *at, "--json").json["features"]
    assert [(row["feature"], row["node_id"], row["finalized_level"]) for row in rows] == [
        ("broker.heartbeat.version", 1, 1),
        ("lao.version", 1, 1),
        ("metadata.version", 1, LATEST_METADATA_VERSION),
    ]
    assert rows[2]["max_supported_version"] == LATEST_METADATA_VERSION
    assert "metadata.version" in raftlog("cluster", "features", "describe", *at).out


def test_an_upgrade_to_what_is_finalized_changes_nothing(
    raftlog: Raftlog, at: tuple[str, str]
) -> None:
    ran = raftlog(
        "cluster", "features", "upgrade", f"metadata.version={LATEST_METADATA_VERSION}", *at
    )
    assert (ran.code, ran.out.strip()) == (
        0,
        f"metadata.version={LATEST_METADATA_VERSION}: was finalized already",
    )


def test_what_cannot_be_says_why(raftlog: Raftlog, at: tuple[str, str]) -> None:
    ran = raftlog("cluster", "features", "upgrade", "metadata.version=99", *at)
    assert ran.code != 0
    assert f"knows metadata.version from 1 to {LATEST_METADATA_VERSION}, not 99" in ran.err
    ran = raftlog("cluster", "features", "downgrade", "broker.heartbeat.version=0", *at)
    assert ran.code != 0
    assert "lao.version 1 rests on the brokers' heartbeats: lower it to 0" in ran.err
    ran = raftlog("cluster", "features", "upgrade", "metadata.version", *at)
    assert "is not NAME=LEVEL" in ran.err


def test_level_is_lowered_with_a_warning_and_raised_again(
    raftlog: Raftlog, at: tuple[str, str]
) -> None:
    for unsafe in ((), ("--unsafe",)):
        ran = raftlog("cluster", "features", "downgrade", "metadata.version=1", *unsafe, *at)
        assert ran.code == 0
        assert "warning: metadata.version goes from 2 to 1: an epoch of -1 passes" in ran.err
        ran = raftlog("cluster", "features", "upgrade", "metadata.version=2", *at)
        assert (ran.code, ran.err) == (0, "")
