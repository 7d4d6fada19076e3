"""``raftlog cluster cursors`` and ``hostnames``: entries change under a condition."""

import asyncio
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from command_lines import Raftlog

import raftlog as raftlog_library
from raftlog.cli.command import conditions
from raftlog.local.cluster import LocalCluster


class Kind(NamedTuple):
    words: tuple[str, str]
    noun: str
    name: str
    value: str


CURSORS = Kind(("cluster", "cursors"), "cursor", "name", "end_offset")
HOSTNAMES = Kind(("cluster", "hostnames"), "host", "hostname", "broker_id")
KINDS = pytest.mark.parametrize("kind", [CURSORS, HOSTNAMES], ids=lambda kind: kind.noun)


def listed(kind: Kind, at: Raftlog) -> dict[str, dict[str, Any]]:
    found = at(*kind.words, "list", "--json").json["items"]
    return {one[kind.name]: one for one in found}


def test_registered_hostname_is_listed(at: Raftlog, cluster: LocalCluster) -> None:
    """It names the broker that registered last."""
    one = listed(HOSTNAMES, at)["127.0.0.1"]
    (broker,) = (broker for broker in cluster.brokers if broker.node_id == one["broker_id"])
    assert one["version"] == 0
    assert one["reason"] == "registered"
    assert one["cause"] == "BY_REGISTRATION"
    assert one["address"] == broker.endpoint
    shown = at(*HOSTNAMES.words, "list").out
    assert "127.0.0.1" in shown
    assert broker.endpoint in shown


@KINDS
def test_entry_is_set_compared_and_deleted(at: Raftlog, kind: Kind) -> None:
    ran = at(*kind.words, "set", "new.example", 2, "--validate-only")
    assert (ran.code, ran.out.strip()) == (0, "new.example: would be accepted")
    assert "new.example" not in listed(kind, at)
    at.succeed(*kind.words, "set", "new.example", 2, "--expected-offset", -1)
    one = listed(kind, at)["new.example"]
    assert one[kind.value] == 2
    other = ("--expected-offset", one["offset"] + 1)
    at(*kind.words, "set", "new.example", 3, *other).refused(
        1, "INVALID_UPDATE_VERSION", "field alterations[0].expected_offset"
    )
    same = ("--expected-offset", one["offset"])
    (gone,) = at(*kind.words, "delete", "new.example", *same, "--json").json["items"]
    assert gone == {"name": "new.example", "error": None, "offset": None}
    at(*kind.words, "delete", "new.example").refused(1, "RESOURCE_NOT_FOUND")


@KINDS
def test_change_is_forwarded(at: Raftlog, through: Raftlog, kind: Kind) -> None:
    through.succeed(*kind.words, "set", "fwd.example", 5)
    assert listed(kind, at)["fwd.example"][kind.value] == 5
    at.succeed(*kind.words, "delete", "fwd.example")


@KINDS
def test_all_entries_are_deleted_on_request(at: Raftlog, kind: Kind) -> None:
    for name in ("a.example", "b.example"):
        at.succeed(*kind.words, "set", name, 1)
    names = set(listed(kind, at))
    gone = at(*kind.words, "delete", "--all", "--json").json["items"]
    assert {one["name"] for one in gone} == names >= {"a.example", "b.example"}
    assert listed(kind, at) == {}


@pytest.mark.parametrize(
    ("kind", "arguments", "says"),
    [
        *((kind, line, f"name at least one {kind.noun}, or give --all")
          for kind in (CURSORS, HOSTNAMES) for line in (["delete"], ["delete", "a", "--all"])),
        *((kind, ["delete", "a", "b", "--expected-offset", 1], f"needs exactly one {kind.noun}")
          for kind in (CURSORS, HOSTNAMES)),
        (HOSTNAMES, ["set", "a b", 1], "is not a valid host:"),
        (CURSORS, ["set", "a b", 1], "is not a cursor name"),
        (CURSORS, ["set", "a", 1_000_000_000], "it must be in the log"),
    ],
)  # fmt: skip
def test_invalid_arguments_are_refused(
    at: Raftlog, kind: Kind, arguments: list[str], says: str
) -> None:
    ran = at(*kind.words, *arguments)
    assert ran.code != 0
    assert says in ran.err


def test_cursor_of_another_export_is_replaced_under_a_condition(at: Raftlog) -> None:
    words = (*CURSORS.words, "set", "nightly")
    at.succeed(*words, 2, "--target", "/a")
    one = listed(CURSORS, at)["nightly"]
    assert (one["end_offset"], one["passed"], one["target"]) == (2, False, "/a")
    assert one["lag"] > 0
    shown = at(*CURSORS.words, "list").out
    assert all(text in shown for text in ("nightly", "/a", "begins at offset 0"))
    at(*words, 3, "--target", "/b").refused(1, "cursor nightly belongs to the export /a")
    condition = ("--expected-offset", one["offset"])
    at.succeed(*words, 3, "--target", "/b", *condition)
    moved = at(*words, 4)
    assert "nightly: the log is kept from offset 4 on" in moved.out
    one = listed(CURSORS, at)["nightly"]
    assert (one["end_offset"], one["target"]) == (4, "/b")
    at.succeed(*CURSORS.words, "delete", "nightly")


def test_hostname_is_lower_case_without_a_trailing_dot(at: Raftlog) -> None:
    at.succeed(*HOSTNAMES.words, "set", "Upper.Example.", 77)
    assert "upper.example" in listed(HOSTNAMES, at)
    at.succeed(*HOSTNAMES.words, "delete", "upper.example")


def test_delete_all_deletes_only_what_was_listed() -> None:
    """[What somebody sets meanwhile would be deleted unseen.]"""

    async def listed() -> list[Any]:
        return [SimpleNamespace(name="a", offset=7), SimpleNamespace(name="b", offset=9)]

    chosen = asyncio.run(conditions("cursor", None, None, listed, True))
    assert chosen == {"a": 7, "b": 9}
    named = asyncio.run(conditions("cursor", ["a"], -1, listed, False))
    assert named == {"a": raftlog_library.ABSENT}
