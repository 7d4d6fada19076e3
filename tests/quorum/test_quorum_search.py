"""The exhaustive search over the shipped core: no rule is broken within the bounds, and each rule
that is broken on purpose is found with the shortest story.
"""

from dataclasses import replace
from typing import NamedTuple

import pytest
from quorum_search import SCENES, Scene, Spent, search
from tiers import nightly

from simulation.mutants.edits import Edit
from simulation.mutants.registry import MUTANTS


class Broken(NamedTuple):
    """A broken rule, the scene in which the search looks for it, and the expected finding."""

    rule: str
    scene: str
    found: str
    edits: tuple[Edit, ...] = ()
    """Empty: those of the mutant of this name."""
    budget: Spent | None = None
    """Budget of the search; None: the scene's."""
    in_gate: bool = True
    """It takes a second or less."""

    def searched(self) -> tuple[Scene, tuple[Edit, ...]]:
        scene = SCENES[self.scene]
        return replace(scene, budget=self.budget or scene.budget), self.edits or MUTANTS[
            self.rule
        ].edits


def broken(
    rule: str, scene: str, found: str, target: str, old: str, new: str, in_gate: bool = True
) -> Broken:
    return Broken(
        rule, scene, found, (Edit(f"raftlog.quorum.{target}", old, new),), in_gate=in_gate
    )


ONE_VOTER = "what is committed is durable on 1 of 3 voters"
BROKEN = (
    Broken("commit-by-minority", "failover", ONE_VOTER),
    Broken("leader-counts-unflushed", "failover", ONE_VOTER),
    Broken("acknowledge-before-fsync", "failover", "acknowledges what is not durable"),
    Broken("vote-twice", "cold start", "a vote is never changed", in_gate=False),
    Broken("own-vote-counted-early", "cold start", "has a durable vote for itself", in_gate=False),
    Broken("truncate-below-high-watermark", "a tail of its own", "<= HW <=", in_gate=False),
    Broken(
        "log-matching-off", "a tail of its own", "different records at one offset", in_gate=False
    ),
    Broken("observer-counts", "a voter more, a voter less", ONE_VOTER, in_gate=False),
    Broken(
        "membership-on-commit", "a voter more, a voter less", "the current voter set is the newest"
    ),
    Broken("commit-old-epoch", "an inherited tail", "records of an older epoch", in_gate=False),
    Broken("vote-for-shorter-log", "a committed tail", "lacks committed records", in_gate=False),
    Broken(
        "set-survives-truncation",
        "a voter set of its own",
        "the record of every voter set is in the log",
        in_gate=False,
    ),
    Broken("high-watermark-beyond-log", "a follower behind", "<= HW <="),
    Broken("install-keeps-offsets", "a snapshot", "<= HW <=", budget=Spent(deadlines=1)),
    Broken(
        "late-vote-counts",
        "cold start",
        "two leaders in epoch 1",
        budget=Spent(deadlines=1),
        in_gate=False,
    ),
    broken(
        "a leader needs a vote less than a majority",
        "cold start",
        "two leaders in epoch 1",
        "node:Node.votes_needed",
        "return self.voters.majority",
        "return self.voters.majority - 1",
    ),
    broken(
        "a vote is told before it is on the disk",
        "cold start",
        "a vote is told before it is durable",
        "node:Node.grant_vote",
        "self.set_vote(",
        "self.adopt_vote(",
    ),
    broken(
        "each log is as complete as any other",
        "a committed tail",
        "lacks committed records",
        "log_state:LogEnds.is_up_to_date",
        "(last_epoch, end_offset) >= (self.last_epoch, self.end)",
        "True",
        in_gate=False,
    ),
    broken(
        "a fetch acknowledges all that the leader has",
        "failover",
        ONE_VOTER,
        "leader:ReplicaProgress.acknowledge",
        "self.end_offset = end_offset",
        "self.end_offset = leader_end",
    ),
    broken(
        "a removed leader counts itself",
        "a voter more, a voter less",
        "of 2 voters",
        "leader:Progress.majority_offset",
        "[own_flushed_end] if self.counts_leader else []",
        "[own_flushed_end]",
        in_gate=False,
    ),
    broken(
        "a follower that diverges keeps its log",
        "a tail of its own",
        "other records than are durable",
        "fetcher:Fetcher._truncate_to",
        "node.log.truncate(end_offset)",
        "pass",
        in_gate=False,
    ),
    broken(
        "the leader takes a log of another epoch for its own",
        "a tail of its own",
        "different records at one offset",
        "log_state:LogEnds.divergence",
        "last_epoch == self.epochs.last_epoch and self.epochs.last_start < offset <= self.end",
        "self.epochs.last_start < offset <= self.end",
        in_gate=False,
    ),
)


@pytest.mark.parametrize("name", SCENES)
def test_core_breaks_no_rule_within_a_few_steps(name: str) -> None:
    result = search(SCENES[name], depth=4)
    assert not result.broken, result.story
    assert result.depth == 4
    assert result.states > 50


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", SCENES)
def test_core_breaks_no_rule_within_minutes(name: str) -> None:
    result = search(SCENES[name], seconds=300)
    assert not result.broken, result.story
    assert result.states > 100_000


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "one", [one if one.in_gate else nightly(one) for one in BROKEN], ids=lambda one: one.rule
)
def test_search_finds_a_broken_rule(one: Broken) -> None:
    scene, edits = one.searched()
    result = search(scene, edits)
    assert one.found in result.broken
    assert len(result.story) == result.depth + 1
