"""All mutants, by name."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

from simulation.mutants import brokers, clients, controller, lao, partitions, quorum, snapshots
from simulation.mutants.mutant import Mutant, RowMutant, SeedMutant

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "proposals.md"
_TABLES = (quorum, snapshots, controller, lao, brokers, partitions, clients)
_ALL: tuple[Mutant, ...] = tuple(one for table in _TABLES for one in table.MUTANTS)

SEEDED: dict[str, SeedMutant] = {one.name: one for one in _ALL if isinstance(one, SeedMutant)}
NO_EDIT = {
    "OP-28": "says what it costs, which is the same in the state: `benchmarks/run k_fence` measures it",
    "LAO-12": "a remark: no code waits for a moment",
    "HB-32": "says what is not done: there is no code of it",
    "ISR-10": "there never was the behaviour that would go",
    "EP-18": "there is neither the version nor the controller that the row speaks of",
    "EP-21": "names tests alone; what they find is in the other rows",
}
"""Rows of docs/proposals.md that no edit of a function can make false, and why."""


def named_rows() -> list[str]:
    return re.findall(r"^\| ([A-Z]+-\d+) \|", TABLE.read_text(), re.MULTILINE)


def _rows_of(mutant: Mutant) -> list[RowMutant]:
    if isinstance(mutant, SeedMutant):
        return [
            RowMutant(row, mutant.rule, mutant.edits, tuple(tests)) for row, *tests in mutant.rows
        ]
    return [mutant] if isinstance(mutant, RowMutant) else []


def _numbered() -> list[RowMutant]:
    """Return the mutants of rows, named by row and number if the row has several."""
    order = {name: at for at, name in enumerate(named_rows())}
    rows = sorted((row for one in _ALL for row in _rows_of(one)), key=lambda one: order[one.name])
    count, seen = Counter(one.name for one in rows), Counter[str]()
    for at, one in enumerate(rows):
        seen[one.name] += 1
        if count[one.name] > 1:
            rows[at] = replace(one, name=f"{one.name}.{seen[one.name]}")
    return rows


ROWS = _numbered()
MUTANTS: dict[str, Mutant] = {**SEEDED, **{one.name: one for one in ROWS}}


def select(names: list[str]) -> list[Mutant]:
    """Return mutants by name, row (HB-3) or table (HB); no names: all. Raises KeyError."""
    found = {one.name: one for one in MUTANTS.values() if not names or names_of(one) & set(names)}
    if unknown := set(names) - {name for one in found.values() for name in names_of(one)}:
        raise KeyError(*sorted(unknown))
    return list(found.values())


def names_of(mutant: Mutant) -> set[str]:
    if isinstance(mutant, RowMutant):
        return {mutant.name, mutant.row, mutant.row.partition("-")[0]}
    return {mutant.name}
