"""Runs with a rule broken on purpose, each in a process of its own: a run that does not end is
killed.
"""

from __future__ import annotations

import multiprocessing
import resource
import signal
from multiprocessing.connection import Connection
from pathlib import Path

from simulation.agreement.run_and_export import ExportedRun, live
from simulation.cli import silence
from simulation.mutants.edits import edited
from simulation.mutants.mutant import SeedMutant

LIFE_CPU_S = 60
"""A run takes a second or two of the processor; one that takes this long does not end.

Not by the clock: the machine may be busy.
"""
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
    """Run with the mutant's edits, and export the log; None if the run does not end.

    No checker takes part, so that the breakage has time to reach the log, except the ledger,
    without which the committed log is not known. Raises RuntimeError for an edit that fits no more.
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
