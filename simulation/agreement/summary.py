"""Summary of many runs, each replayed and compared."""

import multiprocessing
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from simulation.agreement.replayed import Answer, ask
from simulation.agreement.run_and_export import ExportedRun, live
from simulation.cli import silence

AHEAD = 4
TOLD_EACH = 25


@dataclass(slots=True)
class Summary:
    """Summary of many runs."""

    counts: Counter[str] = field(default_factory=Counter)
    """Numbers of runs, of empty runs, of records, and of comparisons of each kind."""
    failed_runs: list[int] = field(default_factory=list)
    """Seeds whose runs failed a check of the simulator, which is a different defect."""
    disagreements: dict[int, list[str]] = field(default_factory=dict)
    findings: dict[int, dict[str, list[int]]] = field(default_factory=dict)

    def add(self, run: ExportedRun, answer: Answer) -> None:
        self.counts.update(answer.counts, runs=1, empty=int(run.empty), records=run.end_offset)
        if run.failure:
            self.failed_runs.append(run.seed)
        if answer.disagreements:
            self.disagreements[run.seed] = answer.disagreements
        if answer.findings:
            self.findings[run.seed] = answer.findings

    @property
    def agrees(self) -> bool:
        return not (self.failed_runs or self.disagreements or self.findings)

    def wrong(self, seed: int) -> list[str]:
        lines = list(self.disagreements.get(seed, ()))
        return lines + [
            f"the audit finds {rule} at {at[:10]}"
            for rule, at in self.findings.get(seed, {}).items()
        ]


def compare(
    spark: SparkSession, seeds: Sequence[int], kept: Path, processes: int, fold_every: int = 1
) -> Summary:
    """Run, export, replay and compare each seed; Spark folds one in ``fold_every``, too.
    Disagreeing exports are kept in ``kept``.
    """
    summary = Summary()
    with tempfile.TemporaryDirectory(prefix="raftlog-agreement-") as scratch:
        for number, run in enumerate(_runs(seeds, Path(scratch), processes)):
            summary.add(run, ask(spark, run, folded=number % fold_every == 0))
            _tell(run, kept, summary)
    return summary


def _runs(seeds: Sequence[int], directory: Path, processes: int) -> Iterator[ExportedRun]:
    """Yield the run of each seed, in order. Worker processes are a few runs ahead of the caller."""
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting: list[Future[ExportedRun]] = []
        for seed in seeds:
            waiting.append(pool.submit(_live_quietly, seed, directory / f"seed-{seed}"))
            if len(waiting) > AHEAD:
                yield waiting.pop(0).result()
        for future in waiting:
            yield future.result()


def _live_quietly(seed: int, directory: Path) -> ExportedRun:
    silence()
    return live(seed, directory)


def _tell(run: ExportedRun, kept: Path, summary: Summary) -> None:
    """Print what is wrong with a run; keep its export if anything is, else delete it."""
    wrong = summary.wrong(run.seed)
    for line in wrong:
        print(f"seed {run.seed}: {line}", flush=True)
    if wrong:
        shutil.copytree(run.directory, kept / run.directory.name, dirs_exist_ok=True)
    shutil.rmtree(run.directory, ignore_errors=True)
    if (counts := summary.counts)["runs"] % TOLD_EACH == 0:
        told = f"{counts['runs']} runs, {counts['records']} records, {counts['states']} states"
        print(f"{told} compared", flush=True)
