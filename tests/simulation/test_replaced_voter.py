"""Dead voters and spares in a simulated cluster: the stories in which other systems lost quorums."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulation import replaced_voter
from simulation.checks.suite import all_checkers
from simulation.mutants import configs
from simulation.replaced_voter import CONFIG, run_story
from simulation.run import run_swarm
from simulation.swarm.config import SwarmConfig

FIVE = replace(CONFIG, voters=5, observers=0)


@pytest.mark.parametrize(
    ("story", "config", "replaced"),
    [
        ("shrinking", FIVE, 0),
        ("between", CONFIG, 1),
        ("rolled", CONFIG, 0),
        ("replaced", CONFIG, 2),
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_story_of_a_lost_quorum_ends_well(
    story: str, config: SwarmConfig, replaced: int, seed: int
) -> None:
    found = run_story(getattr(replaced_voter, story), config, seed, all_checkers())
    assert found.failure is None
    assert found.looked_at["Replacements.completed"] == replaced


def test_voters_are_replaced_under_faults() -> None:
    found = run_swarm(0, configs.REPLACED)
    assert found.failure is None
    assert found.looked_at["Replacements.completed"] > 0


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_preferred_leader_leads_again_after_it_died(seed: int) -> None:
    config = replace(CONFIG, observers=0, replace_after_ms=0, preferred=seed)
    assert run_story(replaced_voter.preferred, config, seed, all_checkers()).failure is None
