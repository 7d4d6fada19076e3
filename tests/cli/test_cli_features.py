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
    ran = raftlog("cluster", "features", "downgrade", "metadata.version=1", *at)
    assert ran.code != 0
    assert "the log names the voter set" in ran.err
    ran = raftlog("cluster", "features", "upgrade", "metadata.version", *at)
    assert "is not NAME=LEVEL" in ran.err
