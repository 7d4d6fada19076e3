"""Random schedules of three brokers: the promises hold, and each deliberate breakage of a rule is
caught.
"""

from __future__ import annotations

import pytest
from partition_model import BrokenPromiseError, run
from partition_mutants import BREAKAGES, Breakage

from simulation.mutants.edits import edited

FEW = 40


@pytest.mark.parametrize("block", range(4))
def test_the_promises_hold(block: int) -> None:
    worlds = [run(seed) for seed in range(block * 15, block * 15 + 15)]
    assert sum(world.acked for world in worlds) > 30
    assert sum(world.led for world in worlds) > 20


@pytest.mark.parametrize("level", [2])
def test_they_hold_with_epochs_that_may_be_left_out(level: int) -> None:
    for seed in range(100, 110):
        run(seed, level=level)


@pytest.mark.parametrize(
    "breakage", BREAKAGES, ids=lambda breakage: breakage.name.replace(" ", "-")
)
def test_a_breakage_is_caught(breakage: Breakage) -> None:
    with edited(breakage.edits), pytest.raises(BrokenPromiseError):
        _first_few()


def _first_few() -> None:
    for seed in range(FEW):
        run(seed)
