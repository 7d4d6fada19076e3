"""The model check of LAO: the real tracker keeps its promises over many random histories, and no
broken one does.
"""

from typing import Any

import lao_mutants
import pytest
from lao_model import PromiseBrokenError, World
from tiers import nightly

from controller.visibility.lao import LaoTracker

STEPS = 250
WORLDS = 1600


def hunt(first_seed: int, worlds: int, **world: Any) -> str:
    """The first broken promise, or an empty string."""
    for seed in range(first_seed, first_seed + worlds):
        try:
            one = World(seed, **world)
            one.run(STEPS)
            one.calm_down()
        except PromiseBrokenError as error:
            return f"seed {seed}: {error}"
    return ""


@pytest.mark.parametrize("worlds", [400, nightly(WORLDS)])
def test_every_promise_of_lao_holds(worlds: int) -> None:
    assert hunt(0, worlds) == ""


def test_worlds_are_worth_checking() -> None:
    """They must reach what the promises are about: failovers with LAO known on both sides, visible
    writes, re-registrations.
    """
    known_in_two_epochs = visible = restarted = unfenced_again = 0
    for seed in range(200):
        world = World(seed)
        world.run(STEPS)
        known_in_two_epochs += (
            sum(controller.announced >= 0 for controller in world.controllers) >= 2
        )
        visible += world.visible >= 0
        restarted += any(
            standing.process.split(".")[1] > "2" for standing in world.standings.values()
        )
        unfenced_again += any(
            not standing.fenced and standing.unfenced_by > 1
            for standing in world.standings.values()
        )
    assert known_in_two_epochs > 60
    assert visible > 150
    assert restarted > 60
    assert unfenced_again > 40


@pytest.mark.parametrize("mutant", lao_mutants.TRACKERS, ids=lambda mutant: mutant.__name__)
def test_broken_tracker_is_caught(mutant: type[LaoTracker]) -> None:
    assert hunt(lao_mutants.FIRST_SEED.get(mutant, 0), 4000, tracker=mutant) != ""


@pytest.mark.parametrize("mutant", lao_mutants.BROKERS, ids=lambda mutant: mutant.__name__)
def test_broken_broker_is_caught(mutant: type) -> None:
    assert hunt(lao_mutants.FIRST_SEED.get(mutant, 0), 4000, broker=mutant) != ""
