"""What a voter says of its own election: it is told to operators, so it must be true."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from quorum_harness import Cluster, SimNode


def elected(begin: Callable[[Cluster, SimNode], None], seed: int) -> SimNode:
    """Who leads after ``begin`` did something to the first leader."""
    cluster = Cluster(3, connected=True, seed=seed)
    leader = cluster.elect()
    assert leader.up.campaign_reason == "cold start"
    cluster.run(1)
    begin(cluster, leader)
    cluster.run_until(lambda: any(node.id != leader.id for node in cluster.leaders()))
    return next(node for node in cluster.leaders() if node.id != leader.id)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("begin", "reason"),
    [
        (lambda cluster, leader: cluster.crash(leader.id), "leader gone"),
        (lambda cluster, leader: cluster.isolate(leader.id), "fetch timeout"),
        (lambda cluster, leader: cluster.resign(), "leader resigned"),
    ],
)
def test_why_the_next_leader_campaigned(
    begin: Callable[[Cluster, SimNode], None], reason: str, seed: int
) -> None:
    won = elected(begin, seed)
    assert won.up.campaign_reason == reason
    won.cluster.heal()
    won.cluster.run(2)
    followers = [node for node in won.cluster.alive if node.up.role == "follower"]
    assert followers
    assert {node.up.campaign_reason for node in followers} == {""}, "it follows: that is over"


def test_a_voter_that_cannot_win_keeps_its_first_reason() -> None:
    cluster = Cluster(3, connected=True)
    leader = cluster.elect()
    cluster.run(1)
    (survivor, other) = (node for node in cluster.alive if node is not leader)
    cluster.crash(other.id)
    cluster.crash(leader.id)
    cluster.run(10)
    assert survivor.up.campaign_reason == "leader gone"
