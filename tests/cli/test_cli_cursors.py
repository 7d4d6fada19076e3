"""``raftlog cluster cursors`` against a real controller and broker."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from command_lines import Raftlog

import raftlog as raftlog_library
from raftlog.cli.command import conditions
from raftlog.local.cluster import LocalCluster

CURSORS = ("cluster", "cursors")


@pytest.fixture
def at(cluster: LocalCluster) -> tuple[str, str]:
    return "--bootstrap-controller", cluster.bootstrap_controllers


def listed(raftlog: Raftlog, at: tuple[str, str]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in raftlog(*CURSORS, "list", *at, "--json").json["items"]}


def test_set_list_take_over_and_delete(
    raftlog: Raftlog, at: tuple[str, str], cluster: LocalCluster
) -> None:
    ran = raftlog(*CURSORS, "set", "nightly", 2, "--target", "/a", "--validate-only", *at)
    assert (ran.code, ran.out.strip()) == (0, "nightly: would be accepted")
    assert listed(raftlog, at) == {}
    assert (
        raftlog(*CURSORS, "set", "nightly", 2, "--target", "/a", "--expected-offset", -1, *at).code
        == 0
    )
    one = listed(raftlog, at)["nightly"]
    assert (one["end_offset"], one["passed"], one["target"]) == (2, False, "/a")
    assert one["lag"] > 0
    shown = raftlog(*CURSORS, "list", *at).out
    assert "nightly" in shown
    assert "/a" in shown
    assert "begins at offset 0" in shown
    refused = raftlog(*CURSORS, "set", "nightly", 3, "--target", "/b", *at)
    assert refused.code == 1
    assert "cursor nightly is that of the export /a" in refused.err
    taken = (
        *CURSORS,
        "set",
        "nightly",
        3,
        "--target",
        "/b",
        "--expected-offset",
        one["offset"],
        *at,
    )
    assert raftlog(*taken).code == 0
    # A broker forwards it.
    moved = raftlog(
        *CURSORS, "set", "nightly", 4, "--bootstrap-server", cluster.brokers[0].endpoint
    )
    assert "nightly: the log is kept from offset 4 on" in moved.out
    one = listed(raftlog, at)["nightly"]
    assert (one["end_offset"], one["target"]) == (4, "/b")
    (gone,) = raftlog(*CURSORS, "delete", "nightly", *at, "--json").json["items"]
    assert gone == {"name": "nightly", "error": None, "offset": None}
    assert (
        "RESOURCE_NOT_FOUND: there is no cursor nightly"
        in raftlog(*CURSORS, "delete", "nightly", *at).err
    )


def test_all_go_when_asked(raftlog: Raftlog, at: tuple[str, str]) -> None:
    for name in ("a", "b"):
        assert raftlog(*CURSORS, "set", name, 1, *at).code == 0
    gone = raftlog(*CURSORS, "delete", "--all", "--json", *at).json["items"]
    assert [one["name"] for one in gone] == ["a", "b"]
    assert listed(raftlog, at) == {}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["delete"], "give the names of cursors, or --all"),
        (["delete", "a", "--all"], "give the names of cursors, or --all"),
        (["delete", "a", "b", "--expected-offset", 1], "is about one cursor"),
        (["set", "a b", 1], "is no name of a cursor"),
        (["set", "a", 1_000_000_000], "would hold nothing"),
    ],
)
def test_what_makes_no_sense(
    raftlog: Raftlog, at: tuple[str, str], arguments: list[str], says: str
) -> None:
    ran = raftlog(*CURSORS, *arguments, *at)
    assert ran.code != 0
    assert says in ran.err


def test_all_are_deleted_only_as_they_are_listed() -> None:
    """[What somebody sets meanwhile would be deleted unseen.]"""

    async def listed() -> list[Any]:
        return [SimpleNamespace(name="a", offset=7), SimpleNamespace(name="b", offset=9)]

    chosen = asyncio.run(conditions("cursor", None, None, listed, True))
    assert chosen == {"a": 7, "b": 9}
    named = asyncio.run(conditions("cursor", ["a"], -1, listed, False))
    assert named == {"a": raftlog_library.ABSENT}
