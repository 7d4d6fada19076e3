"""Many lives, each replayed and compared, and what they came to."""

from __future__ import annotations

import multiprocessing
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from simulation.agreement.replayed import Answer, ask
from simulation.agreement.run_and_export import Life, live
from simulation.agreement.spliced import audit_spliced
from simulation.cli import silence

AHEAD = 4
"""Simulated runs that may wait for Spark."""
AUDITED_AT_ONCE = 50


@dataclass(slots=True)
class Summary:
    """What many lives came to."""

    lives: int = 0
    empty: int = 0
    """Runs in which nothing was committed."""
    records: int = 0
    states: int = 0
    verified: int = 0
    snapshots: int = 0
    failed_lives: list[int] = field(default_factory=list)
    """Seeds whose lives ended by a check of the simulator: that is another defect."""
    disagreements: dict[int, list[str]] = field(default_factory=dict)
    """By seed."""
    findings: dict[int, dict[str, list[int]]] = field(default_factory=dict)
    """Seed -> rule of the audit -> offsets."""

    def add(self, life: Life, answer: Answer) -> None:
        """Count one."""
        self.lives += 1
        self.empty += life.empty
        self.records += answer.records
        self.states += answer.states
        self.verified += answer.verified
        self.snapshots += answer.snapshots
        if life.failure:
            self.failed_lives.append(life.seed)
        if answer.disagreements:
            self.disagreements[life.seed] = answer.disagreements
        if answer.findings:
            self.findings[life.seed] = answer.findings

    @property
    def agrees(self) -> bool:
        """Nothing was wrong with any."""
        return not (self.failed_lives or self.disagreements or self.findings)

    def wrong(self, seed: int) -> list[str]:
        """What was wrong with one."""
        lines = list(self.disagreements.get(seed, ()))
        return lines + [
            f"the audit finds {rule} at {at[:10]}"
            for rule, at in self.findings.get(seed, {}).items()
        ]


def compare(spark: SparkSession, seeds: Sequence[int], kept: Path, processes: int) -> Summary:
    """Live, export, replay and compare each seed.

    Exports that the replay does not agree with are kept in the directory ``kept``.
    """
    summary = Summary()
    waiting: list[Life] = []
    with tempfile.TemporaryDirectory(prefix="raftlog-agreement-") as scratch:
        for life in _lives(seeds, Path(scratch), processes):
            # The first of those that are audited together is audited alone, too.
            summary.add(life, ask(spark, life, audited=not waiting))
            waiting.append(life)
            if len(waiting) == AUDITED_AT_ONCE:
                _audit(spark, waiting, Path(scratch), kept, summary)
                waiting = []
        _audit(spark, waiting, Path(scratch), kept, summary)
    return summary


def _lives(seeds: Sequence[int], directory: Path, processes: int) -> Iterator[Life]:
    """Live each seed, in processes of their own, a few ahead of who asks."""
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting: list[Future[Life]] = []
        for seed in seeds:
            waiting.append(pool.submit(_live_quietly, seed, directory / f"seed-{seed}"))
            if len(waiting) > AHEAD:
                yield waiting.pop(0).result()
        for future in waiting:
            yield future.result()


def _live_quietly(seed: int, directory: Path) -> Life:
    silence()
    return live(seed, directory)


def _audit(
    spark: SparkSession, lives: Sequence[Life], scratch: Path, kept: Path, summary: Summary
) -> None:
    """Audit what was lived since the last time, tell what was wrong, and make room."""
    whole = [life for life in lives if not life.empty]
    if whole:
        for life, found in zip(
            whole, audit_spliced(spark, whole, scratch / "spliced.parquet"), strict=True
        ):
            if found:
                summary.findings[life.seed] = found
    for life in lives:
        for line in summary.wrong(life.seed):
            print(f"seed {life.seed}: {line}", flush=True)
        if summary.wrong(life.seed):
            shutil.copytree(life.directory, kept / life.directory.name, dirs_exist_ok=True)
        shutil.rmtree(life.directory, ignore_errors=True)
    print(
        f"{summary.lives} lives, {summary.records} records, {summary.states} states compared",
        flush=True,
    )
