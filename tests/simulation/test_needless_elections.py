"""No needless election: while the leader and a majority hold working streams nobody is elected; a
leader that hangs is replaced in time, with far followers, too.
"""

from collections import Counter

import pytest
from tiers import nightly

from raftlog.quorum import messages
from raftlog.quorum.follower import Follower
from raftlog.quorum.leader import Leader
from simulation.flapping import flap
from simulation.silent_leader import hang

SEEDS = 30


def needless_elections(seeds: range) -> list[str]:
    return [
        f"seed {seed}: {outcome.failure}"
        for seed in seeds
        for outcome, _ in [flap(seed)]
        if outcome.failure
    ]


@pytest.mark.nightly
def test_there_is_no_needless_election() -> None:
    seen: Counter[str] = Counter()
    virtual_s, campaigns = 0.0, 0
    for seed in range(SEEDS):
        outcome, needless = flap(seed)
        assert outcome.failure is None, f"seed {seed}: {outcome.failure}"
        seen += needless.seen
        virtual_s, campaigns = virtual_s + outcome.virtual_s, campaigns + needless.campaigns
    print(f"{virtual_s:.0f} s simulated, {campaigns} campaigns came to nothing: {dict(seen)}")
    assert set(seen) == {
        "cut", "pause", "reset", "kill", "long pause", "isolation", "one way", "away from the leader", "flapping",
    }  # fmt: skip
    assert campaigns > SEEDS, "those cast out have asked for votes"


@pytest.mark.nightly
def test_the_same_seed_is_the_same_life() -> None:
    (one, _), (again, _) = flap(3), flap(3)
    assert one.digest == again.digest
    assert one.digest != flap(4)[0].digest


def test_few_lives_have_no_needless_election() -> None:
    assert needless_elections(range(2)) == []


@pytest.mark.nightly
def test_followers_that_grant_pre_votes_while_they_hear_the_leader_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Follower, "grants_pre_vote", lambda self: True)
    assert needless_elections(range(10))


@pytest.mark.nightly
def test_leader_that_takes_any_silent_voter_for_the_majority_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = Leader.on_tick

    def on_tick(self: Leader) -> None:
        if self.progress.silent_voters(self.node.now - 1.5):
            self._resign("a voter is silent")
        else:
            honest(self)

    monkeypatch.setattr(Leader, "on_tick", on_tick)
    assert needless_elections(range(10))


SILENT_LEADER_SEEDS = 4, 12
"""In the gate, and at night."""
FORGETFUL_SEED = 20
"""Notices voters that forget who has asked them, which one in eight does."""


def late(seeds: range) -> tuple[int, list[str]]:
    """How many leaders were replaced, and those that were replaced late. Raises what failed."""
    count, found = 0, []
    for seed in seeds:
        outcome, replaced = hang(seed)
        assert outcome.failure is None, f"seed {seed}: {outcome.failure}"
        count += len(replaced.took_s)
        found += [f"seed {seed}: {one}" for one in replaced.late]
    return count, found


@pytest.mark.parametrize("seeds", [SILENT_LEADER_SEEDS[0], nightly(SILENT_LEADER_SEEDS[1])])
def test_every_silent_leader_is_replaced_in_time(seeds: int) -> None:
    count, found = late(range(seeds))
    assert found == []
    assert count > 3 * seeds


def test_voters_that_forget_a_requester_cause_needless_elections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(messages, "_note_asker", lambda *_, **__: None)
    _, found = late(range(FORGETFUL_SEED, FORGETFUL_SEED + 1))
    assert found
