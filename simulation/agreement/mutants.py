"""Mutants that the replay of the exported log detects, by rule, and those that it cannot.

A mutant runs with no checker except the ledger, so that it has time to do harm; then its log is
exported and audited. It is *seen* if the audit finds something, or if the fold from the beginning
is not the state of some node. Each runs in its own process: an endless run is killed.
"""

from __future__ import annotations

import multiprocessing
import resource
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from pyspark.sql import SparkSession

from raftlog.errors import RaftlogError
from simulation.agreement.replayed import Answer, compare_states, findings_of, is_disputed
from simulation.agreement.run_and_export import ExportedRun, live
from simulation.agreement.unseen import WHY_UNSEEN
from simulation.cli import silence
from simulation.mutants.edits import edited
from simulation.mutants.mutant import SeedMutant
from simulation.mutants.registry import SEEDED

LIFE_CPU_S = 60
"""CPU time after which a run counts as endless, in seconds; it takes one or two."""
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([__name__])


def _live(mutant: SeedMutant, seed: int, directory: Path, report: Connection) -> None:
    silence()
    resource.setrlimit(resource.RLIMIT_CPU, (LIFE_CPU_S, LIFE_CPU_S + 1))
    try:
        with edited(mutant.edits):
            report.send(live(seed, directory, mutant.config, checked=False))
    except Exception as error:
        report.send(RuntimeError(f"{mutant.name}, seed {seed}: {type(error).__name__}: {error}"))


def live_mutated(mutant: SeedMutant, seed: int, directory: Path) -> ExportedRun | None:
    """Run with the mutant's edits, and export the log; None if the run does not end. Of the
    checkers only the ledger takes part, so that the breakage has time to reach the log. Raises
    RuntimeError for a stale edit.
    """
    receiver, sender = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_live, args=(mutant, seed, directory, sender), daemon=True)
    process.start()
    sender.close()
    try:
        said = receiver.recv()
    except EOFError:
        process.join()
        if process.exitcode == -signal.SIGXCPU:
            return None
        raise RuntimeError(f"{mutant.name}, seed {seed}: the process died") from None
    finally:
        process.kill()
        process.join()
        receiver.close()
    if isinstance(said, RuntimeError):
        raise said
    found: ExportedRun = said
    return found


STATE_HASH = "state hash"
"""Seen without a rule of the audit."""
Lived = tuple[str, ExportedRun | None]
"""A mutant's name, and one run; None if it did not end."""


@dataclass(slots=True)
class Sight:
    """Findings of the replay about one mutant."""

    mutant: SeedMutant
    runs: int = 0
    hung: int = 0
    """Runs that did not end."""
    seen: int = 0
    """Runs in which it was seen."""
    by: Counter[str] = field(default_factory=Counter)
    """Rule, or STATE_HASH -> in how many runs."""

    @property
    def explained(self) -> bool:
        """True if the replay noticed it, or there is a reason why not."""
        return bool(self.seen) or self.mutant.name in WHY_UNSEEN

    def add(self, run: ExportedRun | None, rules: Sequence[str]) -> None:
        """Add the findings of one more run."""
        self.runs += 1
        self.hung += run is None
        self.seen += bool(rules)
        self.by.update(rules)


def live_all(
    names: Sequence[str], seeds: int, directory: Path, *, processes: int = 1
) -> Iterator[Lived]:
    """Live each mutant so often: from the seed that is known to kill it, then from 0 on."""

    def lived(name: str, turn: int) -> Lived:
        mutant = SEEDED[name]
        seed = mutant.known + turn
        return name, live_mutated(mutant, seed, directory / f"{name}-{seed}")

    with ThreadPoolExecutor(processes) as pool:
        pairs = [(name, turn) for turn in range(seeds) for name in names]
        yield from pool.map(lambda pair: lived(*pair), pairs)


def look(spark: SparkSession, lived: Sequence[Lived]) -> list[Sight]:
    """Audit all runs, and fold those in which the nodes' states are disputed."""
    sights = {name: Sight(SEEDED[name]) for name in dict.fromkeys(name for name, _ in lived)}
    whole = [(name, run) for name, run in lived if run is not None and not run.empty]
    for name, run in whole:
        sights[name].add(run, [*sorted(findings_of(spark, run)), *_states(spark, run)])
    for name, nothing in lived:
        if nothing is None or nothing.empty:
            sights[name].add(nothing, ())
    return list(sights.values())


def _states(spark: SparkSession, run: ExportedRun) -> list[str]:
    answer = Answer()
    try:
        if is_disputed(run):
            compare_states(spark, run, answer)
    except RaftlogError as error:
        answer.disagreements.append(str(error))
    return [STATE_HASH] if answer.disagreements else []


def as_markdown(sights: Sequence[Sight]) -> str:
    """Return Markdown tables of the mutants that were seen, and of why the others were not."""
    lines = ["| Mutant | What it breaks | Seen by (runs) | Seen |", "|---|---|---|---|"]
    for sight in sights:
        if sight.seen:
            by = ", ".join(f"{_name(rule)} ({count})" for rule, count in sight.by.most_common())
            lines.append(
                f"| `{sight.mutant.name}` | {sight.mutant.rule} | {by} | {sight.seen} of"
                f" {sight.runs} |"
            )
    lines += ["", "| Mutant not seen | What it breaks | Why | Runs |", "|---|---|---|---|"]
    for sight in sights:
        if not sight.seen:
            why = WHY_UNSEEN.get(sight.mutant.name, "**not explained**")
            runs = f"{sight.runs}" + (f", {sight.hung} without end" if sight.hung else "")
            lines.append(f"| `{sight.mutant.name}` | {sight.mutant.rule} | {why} | {runs} |")
    return "\n".join(lines)


def _name(rule: str) -> str:
    return rule if rule == STATE_HASH else f"`{rule}`"
