"""What the doctor says of a node that has the id of a voter, and not its data directory."""

from __future__ import annotations

from typing import Any

from clusters import codes, only, quorum

from raftlog.ops.doctor import diagnose
from raftlog.ops.evidence import Reach, Replica, Survey
from raftlog.ops.quorum_findings import Severity

VOTERS = {one: {"replica_directory_id": f"dir-{one}"} for one in (1, 2, 3)}


def replaced(leader: int = 1, gone: dict[int, Reach] | None = None, **voter: Any) -> Survey:
    """Node 3 came back with an empty disk: the voter that it was fetches no more."""
    return quorum(
        3,
        leader,
        gone,
        voters=VOTERS | {3: {**VOTERS[3], "last_caught_up_age_ms": 76_000, **voter}},
        says={
            1: {"directory_id": "dir-1"},
            2: {"directory_id": "dir-2"},
            3: {"directory_id": "dir-new", "role": "observer"},
        },
    )


def test_a_replaced_disk_is_said_to_be_one_and_not_a_slow_one() -> None:
    found = only(replaced())
    assert (found.code, found.severity) == ("VOTER_REPLACED", Severity.DEGRADED)
    assert found.cause == (
        "Node 3 runs with another data directory than the voter has, which is dir-3:"
        " it follows as an observer."
    )
    assert found.consequence == (
        "It does not count. 2 of 3 voters are left: one more failure stops all writes."
    )
    assert found.command == "raftlog quorum remove-voter --voter-id 3"


def test_it_does_not_count_where_voters_are_counted() -> None:
    down = {2: Reach.REFUSES}
    lost, *more = diagnose(replaced(leader=0, gone=down))
    assert lost.code == "NO_QUORUM"
    assert lost.cause.startswith("No leader: 1 of 3 voters answers, 2 are needed")
    assert "nodes 2 and 3" in lost.remedy
    assert [one.code for one in more] == ["VOTER_REPLACED"]
    assert more[0].consequence == "It does not count. 1 of 3 voters is left, 2 are needed."


def test_a_voter_that_does_not_know_yet_that_it_is_one_has_its_own_directory() -> None:
    """[it was added a moment ago, and has not read that far]"""
    says = {3: {"directory_id": "dir-3", "role": "observer"}}
    assert codes(quorum(3, voters=VOTERS, says=says)) == []
    older = {3: {"role": "observer"}}
    assert codes(quorum(3, voters=VOTERS, says=older)) == [], "a build that does not say"


def twice(age_ms: int = 30, replica_id: int = 3, connected_from: str = "") -> Survey:
    other = Replica(
        replica_id=replica_id,
        replica_directory_id="dir-twin",
        last_fetch_age_ms=age_ms,
        connected_from=connected_from,
    )
    return quorum(3, voters=VOTERS, says={1: {"observers": [other]}})


def test_two_controllers_with_one_id_are_named() -> None:
    found = only(twice())
    assert (found.code, found.severity) == ("NODE_ID_TWICE", Severity.DEGRADED)
    assert found.cause == (
        "Two nodes run as node 3: the voter at 127.0.0.1:9093, and one with data directory"
        " dir-twin."
    )
    assert (
        "and one that connects from 10.0.0.7:53422, with data directory dir-twin."
        in only(twice(connected_from="10.0.0.7:53422")).cause
    )


def test_who_fetches_no_more_and_who_has_an_id_of_its_own_is_no_second_one() -> None:
    assert codes(twice(age_ms=30_000)) == []
    assert codes(twice(replica_id=4)) == []
