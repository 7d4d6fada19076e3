"""Hunting all mutants, from several starting points, on all cores; and the table of what noticed them."""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import sys
import warnings
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from typing import NoReturn

import structlog

from simulation.mutants.mutant import Killed, Survived, run_mutant
from simulation.mutants.registry import MUTANTS

STRIDE = 1000
"""Between two starting points."""


@dataclass(frozen=True, slots=True)
class Row:
    """One mutant's fate, from every starting point."""

    name: str
    rule: str
    faults: str
    bound: int
    """Seeds within which it must be killed."""
    hunts: tuple[Killed | Survived, ...]

    @property
    def killed(self) -> bool:
        """From every starting point."""
        return all(isinstance(hunt, Killed) for hunt in self.hunts)

    @property
    def median_seeds(self) -> float:
        """Seeds needed; a hunt that failed counts with all its runs."""
        return statistics.median(hunt.runs for hunt in self.hunts)

    @property
    def checks(self) -> list[str]:
        """Who noticed, the most frequent first."""
        found = [hunt.check for hunt in self.hunts if isinstance(hunt, Killed)]
        return sorted(set(found), key=lambda check: (-found.count(check), check))


def _dropped(_logger: object, _name: str, _event: object) -> NoReturn:
    raise structlog.DropEvent


def quiet() -> None:
    """What simulated nodes log is nobody's business here."""
    structlog.configure(processors=[_dropped], wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.getLogger("asyncio").setLevel(logging.CRITICAL + 1)
    warnings.simplefilter("ignore", RuntimeWarning)


def hunt_one(name: str, first_seed: int, seeds: int) -> Killed | Survived:
    """For a pool."""
    return run_mutant(MUTANTS[name], range(first_seed, first_seed + seeds))


def hunt_all(names: Sequence[str], *, seeds: int | None, repeat: int) -> list[Row]:
    """Hunt each from ``repeat`` starting points, within ``seeds`` runs or its own bound."""
    with ProcessPoolExecutor(os.cpu_count(), initializer=quiet) as pool:
        futures: dict[str, list[Future[Killed | Survived]]] = {
            name: [pool.submit(hunt_one, name, STRIDE * start, seeds or MUTANTS[name].seeds) for start in range(repeat)]
            for name in names
        }
        return [
            Row(
                name,
                MUTANTS[name].rule,
                MUTANTS[name].faults,
                seeds or MUTANTS[name].seeds,
                tuple(f.result() for f in found),
            )
            for name, found in futures.items()
        ]


def as_markdown(rows: Sequence[Row]) -> str:
    """The table of the documentation."""
    lines = ["| Mutant | What it breaks | Killed by | Seeds, median (bound) |", "|---|---|---|---|"]
    for row in rows:
        by = ", ".join(row.checks) if row.checks else "-"
        lost = sum(isinstance(hunt, Survived) for hunt in row.hunts)
        fate = by + (f" (**survived** {lost} of {len(row.hunts)} hunts)" if lost else "")
        lines.append(f"| `{row.name}` | {row.rule} | {fate} | {row.median_seeds:g} ({row.bound}) |")
    return "\n".join(lines)


def as_json(rows: Sequence[Row]) -> str:
    """Everything, for programs."""
    return json.dumps(
        [
            {
                "mutant": row.name,
                "rule": row.rule,
                "faults": row.faults,
                "bound": row.bound,
                "killed": row.killed,
                "checks": row.checks,
                "median_seeds": row.median_seeds,
                "seeds": [hunt.runs for hunt in row.hunts],
                "killing_seeds": [hunt.seed for hunt in row.hunts if isinstance(hunt, Killed)],
                "messages": [hunt.message for hunt in row.hunts if isinstance(hunt, Killed)],
            }
            for row in rows
        ],
        indent=2,
    )


def as_text(rows: Sequence[Row]) -> str:
    """For people at a terminal."""
    width = max(len(row.name) for row in rows)
    return "\n".join(
        f"{row.name:{width}}  {'killed' if row.killed else 'SURVIVED'}  {row.median_seeds:g} seeds of {row.bound}"
        f"  {', '.join(row.checks)}"
        for row in rows
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. 1 if a mutant survived."""
    parser = argparse.ArgumentParser(
        prog="scripts/mutants", description="Break the code on purpose, and see whether a simulated cluster notices."
    )
    parser.add_argument("name", nargs="*", help="mutants to hunt; none: all of them")
    parser.add_argument("--seeds", type=int, help="runs of each hunt; by default each mutant's own bound")
    parser.add_argument("--repeat", type=int, default=5, help="hunts of each mutant, from different seeds (default: 5)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="everything, as JSON")
    form.add_argument("--markdown", action="store_true", help="the table of docs/correctness.md")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.name) - set(MUTANTS))
    if unknown:
        parser.error(f"no mutant is called {', '.join(unknown)}; there are: {', '.join(MUTANTS)}")
    rows = hunt_all(options.name or list(MUTANTS), seeds=options.seeds, repeat=options.repeat)
    show = as_json if options.json else as_markdown if options.markdown else as_text
    sys.stdout.write(show(rows) + "\n")
    return 0 if all(row.killed for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
