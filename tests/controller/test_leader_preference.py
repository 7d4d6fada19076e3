"""The preferred leader of the quorum, and transfers over an unsteady link."""

import random
from dataclasses import replace

import pytest

from controller.decisions.quorum.preference import STEADY_S, WINDOW_S, LeaderPreference
from raftlog.quorum.core import QuorumDescription, ReplicaDescription

PREFERRED, LEADER = 3, 1
MOST_AN_HOUR = 9


def replica(node_id: int, priority: int = 0, *, fetched_ms: int = 10) -> ReplicaDescription:
    return ReplicaDescription(
        node_id, f"d{node_id}", 9, fetched_ms, fetched_ms, 2, leader_priority=priority
    )


def seen(*voters: ReplicaDescription) -> QuorumDescription:
    return QuorumDescription("leader", 1, LEADER, 1, 0, 9, 9, 9, 0, voters, ())


class Story:
    """Node 1 checks twice a second; ``up``: whether node 3 fetches."""

    def __init__(self) -> None:
        self.now = 0.0
        self.preference = LeaderPreference(LEADER)
        self.leader_id, self.epoch = LEADER, 1
        self.up = True
        self.transfers: list[float] = []

    def step(self) -> None:
        self.now += 0.5
        self.preference.observe(self.leader_id, self.epoch, self.now)
        if self.leader_id != LEADER:
            return
        one = replica(PREFERRED, 5, fetched_ms=10 if self.up else 5_000)
        target = self.preference.successor(seen(replica(1), replica(2), one), self.now)
        if target >= 0:
            assert target == PREFERRED
            self.preference.transferred(target, succeeded=True, now=self.now)
            self.transfers.append(self.now)
            self.leader_id, self.epoch = PREFERRED, self.epoch + 1

    def lose(self, *, unseen: bool = False) -> None:
        """Node 3 loses the leadership to node 1."""
        if not unseen:
            self.preference.observe(self.leader_id, self.epoch, self.now)
        self.leader_id, self.epoch = LEADER, self.epoch + 1

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.step()


def test_preferred_voter_gets_the_leadership_once_it_is_steady() -> None:
    story = Story()
    story.run(STEADY_S - 1)
    assert story.transfers == []
    story.run(3)
    assert len(story.transfers) == 1


def test_flapping_voter_is_not_steady() -> None:
    story = Story()
    for _ in range(50):
        story.up = True
        story.run(STEADY_S - 1)
        story.up = False
        story.run(1)
    assert story.transfers == []


@pytest.mark.parametrize(
    "fields", [{"low_on_space": True}, {"last_caught_up_age_ms": 9_000}, {"leader_priority": 0}]
)
def test_voter_that_should_not_lead_gets_no_leadership(fields: dict[str, int]) -> None:
    preference = LeaderPreference(LEADER)
    one = replace(replica(PREFERRED, 5), **fields)  # type: ignore[arg-type]
    preference.observe(LEADER, 1, 0.0)
    for now in range(100):
        assert preference.successor(seen(replica(1), one), float(now)) == -1


def test_highest_priority_wins_and_equal_priorities_change_nothing() -> None:
    preference = LeaderPreference(LEADER)
    voters = (replica(1, 2), replica(2, 3), replica(3, 5), replica(4, 2))
    preference.observe(LEADER, 1, 0.0)
    found = {preference.successor(seen(*voters), now / 2) for now in range(60)}
    assert found == {-1, 3}
    outside, others = LeaderPreference(LEADER), seen(replica(2), replica(3, 5))
    found = {outside.successor(others, float(now)) for now in range(100)}
    assert found == {-1}, "a leader outside the voter set transfers nothing"


@pytest.mark.parametrize("unseen", [False, True])
def test_each_lost_leadership_doubles_the_wait(unseen: bool) -> None:
    """Also one that ends before this node has heard of the leadership."""
    story, waits = Story(), []
    for count in range(7):
        begun = story.now
        while len(story.transfers) == count:
            story.step()
        waits.append(story.now - begun)
        story.lose(unseen=unseen)
    assert [round(one / STEADY_S) for one in waits] == [1, 2, 4, 8, 16, 32, 64]


def test_lost_leadership_counts_for_an_hour() -> None:
    story = Story()
    story.run(STEADY_S + 2)
    story.lose()
    story.step()
    assert story.preference.steady_s(PREFERRED, story.now) == 2 * STEADY_S
    assert story.preference.steady_s(PREFERRED, story.now + WINDOW_S) == STEADY_S


def test_failed_transfer_is_not_retried_at_once() -> None:
    preference = LeaderPreference(LEADER)
    preference.observe(LEADER, 1, 0.0)
    attempts, voters, now = [], seen(replica(1), replica(3, 5)), 0.0
    while now < 600:
        now += 0.5
        if preference.successor(voters, now) == PREFERRED:
            attempts.append(now)
            preference.transferred(PREFERRED, succeeded=False, now=now)
    assert len(attempts) <= 6


@pytest.mark.parametrize("seed", range(4))
def test_no_timing_of_a_link_costs_more_than_a_few_transfers_an_hour(seed: int) -> None:
    """The link is up until the transfer, and breaks some time later."""
    rng, story = random.Random(seed), Story()
    cruel = seed < 2
    while story.now < 5 * 3600:
        story.run(0.5 if cruel else rng.choice((0.5, 5, 60, 900)))
        if story.leader_id == PREFERRED:
            story.lose(unseen=rng.random() < 0.5)
    for begin in story.transfers:
        within = sum(begin <= one < begin + 3600 for one in story.transfers)
        assert within <= MOST_AN_HOUR, story.transfers
    assert len(story.transfers) > 5, "it leads again nevertheless"
