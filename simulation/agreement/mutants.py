"""Mutants that the replay of the exported log detects, by rule.

A mutant runs with no checker except the ledger, so that it has time to do harm; then its log is
exported and audited. It is *seen* if the audit finds something, or if the fold from the beginning
is not the state of some node. Each runs in its own process: an endless run is killed.
"""

import multiprocessing
import resource
import signal
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path

from pyspark.sql import SparkSession

from raftlog.errors import RaftlogError
from simulation.agreement.replayed import Answer, compare_states, findings_of, is_disputed
from simulation.agreement.run_and_export import ExportedRun, live
from simulation.cli import silence
from simulation.mutants.edits import edited
from simulation.mutants.mutant import SeedMutant

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
"""Name in the table for a wrong state hash without a finding of the audit."""


def look(spark: SparkSession, mutant: SeedMutant, seeds: int, directory: Path) -> str:
    """Return the row of a table: what the audit finds in runs from the seed known to kill the
    mutant, and in how many runs the nodes' states are not the fold.
    """
    found, seen, hung = Counter[str](), 0, 0
    for seed in range(mutant.known, mutant.known + seeds):
        run = live_mutated(mutant, seed, directory / f"{mutant.name}-{seed}")
        if run is None or run.empty:
            hung += run is None
            continue
        rules = [*(f"`{rule}`" for rule in sorted(findings_of(spark, run))), *_states(spark, run)]
        found.update(rules)
        seen += bool(rules)
    by = ", ".join(f"{rule} ({count})" for rule, count in found.most_common()) or "-"
    ended = f", {hung} without end" if hung else ""
    return f"| `{mutant.name}` | {mutant.rule} | {by} | {seen} of {seeds}{ended} |"


def _states(spark: SparkSession, run: ExportedRun) -> list[str]:
    answer = Answer()
    try:
        if is_disputed(run):
            compare_states(spark, run, answer)
    except RaftlogError as error:
        answer.disagreements.append(str(error))
    return [STATE_HASH] if answer.disagreements else []
