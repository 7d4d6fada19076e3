"""What the data about the rows of docs/proposals.md is made of."""

from __future__ import annotations

from dataclasses import dataclass

from simulation.mutants.edits import Edit


@dataclass(frozen=True, slots=True)
class RowEdit:
    """One edit of the product that makes a row false, and the tests of which at least one has to
    fail then.
    """

    row: str
    breaks: str
    """What the product does wrong with the edit, as a sentence about it."""
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]
    """Node ids below ``tests/``: files, or tests in them."""


@dataclass(frozen=True, slots=True)
class NoEdit:
    """A row that no edit of a function can make false."""

    row: str
    why: str


def breaks(row: str, what: str, target: str, old: str, new: str, *tests: str) -> RowEdit:
    """The usual case: one edit."""
    return RowEdit(row, what, (Edit(target, old, new),), tests)
