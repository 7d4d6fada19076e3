"""A mutant: raftlog with one rule broken on purpose, and the checks that must detect it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simulation.mutants.edits import Edit, in_full
from simulation.swarm.config import SwarmConfig

EditText = tuple[str, str] | tuple[str, str, str]
"""Target (its module by the last names that identify it), old and new text of an edit. Without a
new text, the condition of the old one ("if …:") is never true.
"""
Row = tuple[str, ...]
"""Row of docs/proposals.md, and node ids below ``tests/``: files, or tests in them."""


class BrokenMutantError(Exception):
    """A mutant made the program crash instead of breaking its rule: that proves nothing."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A breakage of one rule."""

    name: str
    rule: str
    edits: tuple[Edit, ...]


@dataclass(frozen=True, slots=True)
class SeedMutant(Mutant):
    """A mutant that a check of a simulated cluster must notice."""

    config: SwarmConfig
    rows: tuple[Row, ...] = ()
    seeds: int = 50
    """Number of runs within which the mutant must be killed, whatever the first seed."""
    known: int = 0


@dataclass(frozen=True, slots=True)
class RowMutant(Mutant):
    """A mutant that makes a row of docs/proposals.md false; at least one of its tests must fail."""

    tests: tuple[str, ...]

    @property
    def row(self) -> str:
        return self.name.partition(".")[0]


def by_seeds(
    name: str, rule: str, config: SwarmConfig, *edits: EditText,
    rows: Sequence[Row] = (), seeds: int = 50, known: int = 0,
) -> SeedMutant:  # fmt: skip
    """Return a mutant that simulated runs kill, and the tests of ``rows``."""
    return SeedMutant(name, rule, _edits(edits), config, tuple(rows), seeds, known)


def by_tests(tests: str, *rows: tuple[Any, ...]) -> list[RowMutant]:
    """Return mutants that each of these tests (node ids with blanks between) may detect.

    A row: its name, the rule, and the target and texts of its edit, or its edits as tuples.
    """
    return [
        RowMutant(
            name, rule, _edits([edit] if isinstance(edit[0], str) else edit), tuple(tests.split())
        )
        for name, rule, *edit in rows
    ]


def _edits(texts: Sequence[Any]) -> tuple[Edit, ...]:
    return tuple(
        Edit(in_full(target), old, *(new or [f"{old.partition(' ')[0]} False:"]))
        for target, old, *new in texts
    )
