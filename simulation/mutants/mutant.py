"""Mutants, and the hunt for one: run after run from seeds, until a check fails."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from raftlog.errors import FatalError, InvariantError
from simulation.checks.api import Checker
from simulation.mutants.edits import Edit, edited
from simulation.swarm.config import SwarmConfig
from simulation.world import run_swarm

CRASHES = "a defect: "
"""Prefix by which the shells report an unexpected exception."""


class BrokenMutantError(Exception):
    """A mutant made the program crash instead of breaking its rule: that proves nothing."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A breakage of one rule."""

    name: str
    rule: str
    """The broken rule, as a sentence about the mutant."""
    edits: tuple[Edit, ...]
    config: SwarmConfig
    """Config whose runs reveal the mutant soonest."""
    faults: str = ""
    """Which faults bring it to light; the numbers are in ``config``."""
    seeds: int = 50
    """Number of seeds, wherever they begin, within which the mutant must be killed."""
    known: int = 0
    """A seed that kills it."""


@dataclass(frozen=True, slots=True)
class Killed:
    """A mutant that a check noticed."""

    seed: int
    runs: int
    """Seeds needed, this one included."""
    check: str
    """Which check, or which assertion of the shipped code, noticed."""
    message: str


@dataclass(frozen=True, slots=True)
class Survived:
    """A mutant that no run of a number of runs noticed."""

    runs: int


def run_mutant(mutant: Mutant, seeds: Iterable[int]) -> Killed | Survived:
    """Hunt one mutant.

    Raises BrokenMutantError if it crashed the program, StaleMutantError if it does not fit it any
    more.
    """
    runs = 0
    with edited(mutant.edits):
        for seed in seeds:
            runs += 1
            failure = run_swarm(seed, mutant.config).failure
            if failure is not None:
                return Killed(seed, runs, _noticed_by(mutant, failure), str(failure))
    return Survived(runs)


def _noticed_by(mutant: Mutant, failure: BaseException) -> str:
    if (
        not isinstance(failure, AssertionError | FatalError)
        or CRASHES in str(failure)
        or "handler raised" in str(failure)
    ):
        shown = "".join(traceback.format_exception(failure))
        raise BrokenMutantError(f"{mutant.name} crashed the program:\n{shown}")
    rule, separator, _ = str(failure).partition(": ")
    number = f" {rule}" if separator and rule[:1] == "I" and rule[1:].isdigit() else ""
    for frame, _ in reversed(list(traceback.walk_tb(failure.__traceback__))):
        me: Any = frame.f_locals.get("self")
        if isinstance(me, Checker):
            return type(me).__name__ + number
    if "stopped without a reason" in str(failure):
        return "a node stops itself"
    if "did not happen" in str(failure):
        return "liveness"
    return (
        "invariants of the core" if isinstance(failure, InvariantError) else type(failure).__name__
    )
