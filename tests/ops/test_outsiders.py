"""What the doctor says of a node that is no voter and cannot follow."""

from __future__ import annotations

from typing import Any

import pytest
from clusters import codes, described, endpoint, only, quorum, voter

from raftlog.ops.evidence import NodeSeen, Reach, Survey
from raftlog.ops.quorum_findings import Severity

VOTERS = {one: {"replica_directory_id": f"dir-{one}"} for one in (1, 2, 3)}


def beside(node_id: int = 4, **fields: Any) -> Survey:
    """A sound quorum of three in epoch 7, and one more node that takes itself for a voter."""
    sound = quorum(3, voters=VOTERS, says={one: {"directory_id": f"dir-{one}"} for one in VOTERS})
    states = [voter(one, replica_directory_id=f"dir-{one}") for one in (1, 3, 4)]
    given: dict[str, Any] = {"directory_id": f"dir-{node_id}", "leader_epoch": 63, **fields}
    more = described(node_id, "prospective", states, **given)
    found = NodeSeen(endpoint(node_id), Reach.ANSWERS, more, node_id=node_id)
    nodes = [node for node in sound.nodes if node.node_id != node_id]
    return Survey((*nodes, found), sound.brokers, sound.brokers_failure, sound.at_ms)


def test_a_node_that_was_removed_in_a_higher_epoch_than_the_others_is_named() -> None:
    found = only(beside())
    assert (found.code, found.severity) == ("REMOVED_AHEAD", Severity.DEGRADED)
    assert found.cause == "Node 4 is no voter, and in epoch 63; the leader's is 7."
    assert found.command == "raftlog storage format -c FILE --no-initial-controllers"


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"leader_epoch": 7}, id="it is not ahead, and hears of the leader yet"),
        pytest.param({"leader_id": 2}, id="it follows a leader that was not asked"),
        pytest.param({"node_id": 3}, id="a voter: the others take its epoch"),
        pytest.param({"directory_id": ""}, id="a build that does not say which directory"),
    ],
)
def test_others_come_back_by_themselves(fields: dict[str, Any]) -> None:
    assert "REMOVED_AHEAD" not in codes(beside(**fields))
