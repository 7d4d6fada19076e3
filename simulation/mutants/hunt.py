"""The hunt for all mutants, from several starting points, on all cores; and the table of the checks
that noticed them.

Each hunt has a process of its own. A mutant may spin so that no virtual time passes: no timer ends
that run. It is given a wall-clock bound, and its process is killed.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import statistics
import sys
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import NoReturn

import structlog

from simulation.mutants.mutant import BrokenMutantError, Killed, Mutant, Survived, run_mutant
from simulation.mutants.registry import MUTANTS

STRIDE = 1000
"""Between two starting points."""
RUN_WALL_S = 120.0
"""A run takes a second or two; one that takes this long does not end."""
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([__name__])


@dataclass(frozen=True, slots=True)
class Hung:
    """A run did not end, and its process was killed. No check has noticed anything."""

    seed: int
    runs: int


Fate = Killed | Survived | Hung


@dataclass(frozen=True, slots=True)
class Row:
    """Result of one mutant, from every starting point."""

    name: str
    rule: str
    faults: str
    bound: int
    """Seeds within which it must be killed."""
    hunts: tuple[Fate, ...]

    @property
    def killed(self) -> bool:
        """True if the mutant was killed from every starting point."""
        return all(isinstance(hunt, Killed) for hunt in self.hunts)

    @property
    def median_seeds(self) -> float:
        """Seeds needed; a hunt that failed counts with all its runs."""
        return statistics.median(hunt.runs for hunt in self.hunts)

    @property
    def checks(self) -> list[str]:
        """Return the checks that killed it, the most frequent first."""
        found = [hunt.check for hunt in self.hunts if isinstance(hunt, Killed)]
        return sorted(set(found), key=lambda check: (-found.count(check), check))


def _dropped(_logger: object, _name: str, _event: object) -> NoReturn:
    raise structlog.DropEvent


def quiet() -> None:
    """Drop the logs of simulated nodes."""
    structlog.configure(
        processors=[_dropped], wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL)
    )
    logging.getLogger("asyncio").setLevel(logging.CRITICAL + 1)
    warnings.simplefilter("ignore", RuntimeWarning)


def _hunt(mutant: Mutant, first_seed: int, seeds: int, reports: Connection) -> None:
    """Hunt a mutant in its own process: report each seed at its begin, and the result."""
    quiet()

    def begun() -> Iterator[int]:
        for seed in range(first_seed, first_seed + seeds):
            reports.send(seed)
            yield seed

    try:
        reports.send(run_mutant(mutant, begun()))
    except Exception as error:
        reports.send(BrokenMutantError(f"{mutant.name}: {error}"))


def hunt_one(mutant: Mutant, first_seed: int, seeds: int, run_wall_s: float = RUN_WALL_S) -> Fate:
    """Hunt a mutant in a process of its own; each run gets ``run_wall_s`` of real time.

    Raises BrokenMutantError, also for an edit that fits no more.
    """
    receiver, sender = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_hunt, args=(mutant, first_seed, seeds, sender), daemon=True)
    process.start()
    sender.close()
    seed = first_seed
    try:
        while receiver.poll(run_wall_s):
            said = receiver.recv()
            if isinstance(said, BrokenMutantError):
                raise said
            if not isinstance(said, int):
                fate: Killed | Survived = said
                return fate
            seed = said
        return Hung(seed, seed - first_seed + 1)
    except EOFError:
        raise BrokenMutantError(f"{mutant.name}: the process of seed {seed} died") from None
    finally:
        process.kill()
        process.join()
        receiver.close()


def hunt_all(
    names: Sequence[str], *, seeds: int | None, repeat: int, run_wall_s: float = RUN_WALL_S
) -> list[Row]:
    """Hunt each from ``repeat`` starting points, within ``seeds`` runs or its own bound."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        futures: dict[str, list[Future[Fate]]] = {
            name: [
                pool.submit(
                    hunt_one,
                    MUTANTS[name],
                    STRIDE * start,
                    seeds or MUTANTS[name].seeds,
                    run_wall_s,
                )
                for start in range(repeat)
            ]
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
    """Return the table of the documentation."""
    lines = ["| Mutant | What it breaks | Killed by | Seeds, median (bound) |", "|---|---|---|---|"]
    for row in rows:
        by = ", ".join(row.checks) if row.checks else "-"
        lost = sum(isinstance(hunt, Survived) for hunt in row.hunts)
        hung = sum(isinstance(hunt, Hung) for hunt in row.hunts)
        fate = by + (f" (**survived** {lost} of {len(row.hunts)} hunts)" if lost else "")
        fate += f" (**hung** in {hung} of {len(row.hunts)} hunts)" if hung else ""
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


def _in_short(row: Row) -> str:
    if row.killed:
        return "killed"
    return "HUNG" if any(isinstance(hunt, Hung) for hunt in row.hunts) else "SURVIVED"


def as_text(rows: Sequence[Row]) -> str:
    """Return the table for a terminal."""
    width = max(len(row.name) for row in rows)
    return "\n".join(
        f"{row.name:{width}}  {_in_short(row)}  {row.median_seeds:g} seeds of {row.bound} "
        f" {', '.join(row.checks)}"
        for row in rows
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. 1 if a mutant survived."""
    parser = argparse.ArgumentParser(
        prog="scripts/mutants",
        description="Break the code on purpose, and see whether a simulated cluster notices.",
    )
    parser.add_argument("name", nargs="*", help="mutants to hunt; none: all of them")
    parser.add_argument(
        "--seeds", type=int, help="runs of each hunt; by default each mutant's own bound"
    )
    parser.add_argument(
        "--repeat",
        type=int,
        default=5,
        help="hunts of each mutant, from different seeds (default: 5)",
    )
    parser.add_argument(
        "--run-wall-s",
        type=float,
        default=RUN_WALL_S,
        help=(
            "real seconds of one run; then its process is killed, and the mutant not (default:"
            " %(default)s)"
        ),
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="everything, as JSON")
    form.add_argument("--markdown", action="store_true", help="a Markdown table")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.name) - set(MUTANTS))
    if unknown:
        parser.error(f"no mutant is called {', '.join(unknown)}; there are: {', '.join(MUTANTS)}")
    rows = hunt_all(
        options.name or list(MUTANTS),
        seeds=options.seeds,
        repeat=options.repeat,
        run_wall_s=options.run_wall_s,
    )
    show = as_json if options.json else as_markdown if options.markdown else as_text
    sys.stdout.write(show(rows) + "\n")
    return 0 if all(row.killed for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
