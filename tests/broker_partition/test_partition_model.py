"""Random schedules of three brokers: the promises hold, and each deliberate breakage of a rule is
caught.
"""

from __future__ import annotations

import pytest
from partition_driver import run
from partition_model import BrokenPromiseError
from partition_mutants import BREAKAGES, Breakage

from simulation.mutants.edits import edited

FEW = 40


@pytest.mark.parametrize("block", range(4))
def test_the_promises_hold(block: int) -> None:
    worlds = [run(seed) for seed in range(block * 15, block * 15 + 15)]
    assert sum(world.acked for world in worlds) > 30
    assert sum(world.led for world in worlds) > 20


def test_they_hold_with_epochs_that_may_be_left_out() -> None:
    for seed in range(100, 110):
        run(seed, level=1)


@pytest.mark.parametrize(
    "breakage", BREAKAGES, ids=lambda breakage: breakage.name.replace(" ", "-")
)
def test_a_breakage_is_caught(breakage: Breakage) -> None:
    with edited(breakage.edits), pytest.raises(BrokenPromiseError):
        _first_few(retains=breakage.retains)


def _first_few(*, retains: bool) -> None:
    for seed in range(FEW):
        run(seed, retains=retains)


def test_they_hold_where_topics_do_not_keep_everything() -> None:
    worlds = [run(seed, retains=True) for seed in range(200, 300)]
    assert sum(world.acked for world in worlds) > 500
    assert sum(world.drops for world in worlds) > 50
    assert sum(world.resets for world in worlds) > 5
