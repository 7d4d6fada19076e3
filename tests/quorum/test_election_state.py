"""The last contact with a leader, and the reasons of campaigns."""

from collections.abc import Callable

import pytest
from quorum_harness import Cluster, SimNode, elected

from raftlog.quorum.election_state import AGE_MAX_MS, NEVER_HEARD, Heard


def test_latest_contact_of_the_latest_epoch_counts() -> None:
    own = Heard(4, 10.0)
    assert own.and_of(4, 500, 11.0) == Heard(4, 10.5)
    assert own.and_of(4, 5_000, 11.0) == own
    assert own.and_of(5, 5_000, 11.0) == Heard(5, 6.0)
    assert own.and_of(3, 0, 11.0) == own
    assert Heard(4, 10.0).age_ms(12.5) == 2_500
    assert Heard(4, 10.0).age_ms(9.0) == 0


@pytest.mark.parametrize(
    ("epoch", "age_ms"), [(4, None), (-1, 10), (4, -1), (4, AGE_MAX_MS + 1)], ids=str
)
def test_unreporting_peer_may_have_heard_the_leader_later(epoch: int, age_ms: int | None) -> None:
    assert Heard(4, 10.0).and_of(epoch, age_ms, 11.0) == Heard(4, 10.0, by_all=False)
    assert not NEVER_HEARD.and_of(4, 10, 11.0).by_all


def test_new_leader_knows_when_the_old_one_was_last_heard_by_its_voters() -> None:
    cluster = Cluster(3)
    old = cluster.elect()
    assert not old.up.succession.by_all, "the first one: nobody has heard any"
    cluster.run(3.0)
    died_at = cluster.now
    cluster.crash(old.id, noticed=False)
    cluster.run_until(lambda: any(one.id != old.id for one in cluster.leaders()), 20.0)
    (new,) = [one for one in cluster.leaders() if one.id != old.id]
    heard = new.up.succession
    assert heard.by_all
    assert heard.epoch == old_epoch_of(new)
    # A parked Fetch is answered after half a second at the latest.
    assert died_at - 0.6 <= heard.at <= died_at


def old_epoch_of(leader: object) -> int:
    return leader.up.epoch - 1  # type: ignore[attr-defined]


def leader_after(begin: Callable[[Cluster, SimNode], None], seed: int) -> SimNode:
    """Return the leader after ``begin`` was applied to the first one."""
    cluster, leader = elected(seed=seed)
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
def test_reason_of_the_next_campaign_is_reported(
    begin: Callable[[Cluster, SimNode], None], reason: str, seed: int
) -> None:
    won = leader_after(begin, seed)
    assert won.up.campaign_reason == reason
    won.cluster.heal()
    won.cluster.run(2)
    followers = [node for node in won.cluster.alive if node.up.role == "follower"]
    assert followers
    assert {node.up.campaign_reason for node in followers} == {""}, "it follows: that is over"


def test_voter_that_cannot_win_keeps_its_first_reason() -> None:
    cluster, leader = elected()
    cluster.run(1)
    (survivor, other) = cluster.others(leader)
    cluster.crash(other.id)
    cluster.crash(leader.id)
    cluster.run(10)
    assert survivor.up.campaign_reason == "leader gone"
