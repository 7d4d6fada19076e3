"""A mutant: raftlog with one rule broken on purpose, and the checks that must detect it."""

from __future__ import annotations

from dataclasses import dataclass

from simulation.mutants.edits import Edit
from simulation.swarm.config import SwarmConfig

EditText = tuple[str, str, str]
"""Target, old and new text of an edit."""


class BrokenMutantError(Exception):
    """A mutant made the program crash instead of breaking its rule: that proves nothing."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A breakage of one rule."""

    name: str
    rule: str
    """The broken rule, as a sentence about the mutant."""
    edits: tuple[Edit, ...]


@dataclass(frozen=True, slots=True)
class SeedMutant(Mutant):
    """A mutant that a check of a simulated cluster must notice."""

    config: SwarmConfig
    """Config whose runs reveal the mutant soonest."""
    faults: str = ""
    """Which faults bring it to light; the numbers are in ``config``."""
    seeds: int = 50
    """Number of seeds, wherever they begin, within which the mutant must be killed."""
    known: int = 0
    """A seed that kills it."""


@dataclass(frozen=True, slots=True)
class RowMutant(Mutant):
    """A mutant that makes a row of docs/proposals.md false; at least one of its tests must fail."""

    tests: tuple[str, ...]
    """Node ids below ``tests/``: files, or tests in them."""

    @property
    def row(self) -> str:
        """Name of the row."""
        return self.name.partition(".")[0]


def by_seeds(
    name: str,
    rule: str,
    config: SwarmConfig,
    *edits: EditText,
    faults: str = "",
    seeds: int = 50,
    known: int = 0,
) -> SeedMutant:
    """Return a mutant that simulated runs kill."""
    return SeedMutant(name, rule, tuple(Edit(*one) for one in edits), config, faults, seeds, known)


def by_tests(row: str, rule: str, edits: EditText | list[EditText], *tests: str) -> RowMutant:
    """Return a mutant that tests of a row kill."""
    texts = edits if isinstance(edits, list) else [edits]
    return RowMutant(row, rule, tuple(Edit(*one) for one in texts), tests)
