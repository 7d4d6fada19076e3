"""``scripts/agreement``: many simulated lives, each exported and replayed; and what an audit sees of the simulator's mutants."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from replay.session import build_session
from simulation.agreement.lives import Life, live
from simulation.agreement.replayed import Answer, ask
from simulation.cli import silence

AHEAD = 4
"""Lives that wait to be asked about: so many are lived while Spark is busy."""


@dataclass(slots=True)
class Summary:
    """What many lives came to."""

    seeds: int = 0
    empty: int = 0
    """Lives in which nothing was committed."""
    records: int = 0
    states: int = 0
    snapshots: int = 0
    failed_lives: list[int] = field(default_factory=list)
    """Seeds whose lives ended by a check of the simulator: that is another defect."""
    disagreements: dict[int, list[str]] = field(default_factory=dict)
    findings: dict[int, dict[str, list[int]]] = field(default_factory=dict)

    def add(self, life: Life, answer: Answer) -> None:
        """Count one."""
        self.seeds += 1
        self.empty += life.empty
        self.records += answer.records
        self.states += answer.states
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


def small_session() -> SparkSession:
    """A Spark for many jobs on a few hundred rows each: planning and compiling queries would take most of the time."""
    session = build_session("raftlog agreement")
    for key, value in {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
    }.items():
        session.conf.set(key, value)
    return session


def _live_quietly(seed: int, directory: Path) -> Life:
    silence()
    return live(seed, directory)


def lives(seeds: Sequence[int], directory: Path, processes: int) -> Iterator[Life]:
    """Live each seed, in processes of their own, a few ahead of who asks."""
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting: list[Future[Life]] = []
        for seed in seeds:
            waiting.append(pool.submit(_live_quietly, seed, directory / f"seed-{seed}"))
            if len(waiting) > AHEAD:
                yield waiting.pop(0).result()
        for future in waiting:
            yield future.result()


def compare(spark: SparkSession, seeds: Sequence[int], kept: Path, processes: int) -> Summary:
    """Live, export, replay and compare each seed. Exports that the replay does not agree with are kept in the directory ``kept``."""
    summary = Summary()
    with tempfile.TemporaryDirectory(prefix="raftlog-agreement-") as scratch:
        for life in lives(seeds, Path(scratch), processes):
            answer = ask(spark, life)
            summary.add(life, answer)
            if not answer.agrees:
                kept.mkdir(parents=True, exist_ok=True)
                shutil.copytree(life.directory, kept / life.directory.name, dirs_exist_ok=True)
                _tell(life, answer)
            shutil.rmtree(life.directory, ignore_errors=True)
            if summary.seeds % 25 == 0:
                print(f"{summary.seeds} lives, {summary.records} records, {summary.states} states compared", flush=True)
    return summary


def _tell(life: Life, answer: Answer) -> None:
    for line in answer.disagreements:
        print(f"seed {life.seed}: {line}", flush=True)
    for rule, offsets in answer.findings.items():
        print(f"seed {life.seed}: the audit finds {rule} at {offsets[:10]}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. 1 if a replay did not agree, or the audit found something in an honest life."""
    parser = argparse.ArgumentParser(
        prog="scripts/agreement",
        description="Live simulated clusters, export their logs, and compare what Spark makes of them with what the nodes had.",
    )
    parser.add_argument("--seeds", type=int, default=100, help="how many lives (default: %(default)s)")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1, help="that live, beside Spark (default: %(default)s)")
    parser.add_argument("--kept", type=Path, default=Path("agreement-failures"), help="where exports go that disagree")
    parser.add_argument("--json", action="store_true", help="one JSON document at the end")
    options = parser.parse_args(arguments)
    spark, begun = small_session(), time.monotonic()
    try:
        seeds = range(options.first_seed, options.first_seed + options.seeds)
        summary = compare(spark, seeds, options.kept, options.processes)
    finally:
        spark.stop()
    if options.json:
        said = {name: getattr(summary, name) for name in Summary.__slots__}
        print(json.dumps({**said, "agrees": summary.agrees}, indent=1))
    else:
        print(
            f"{summary.seeds} lives ({summary.empty} empty), {summary.records} records: {summary.states} states and {summary.snapshots}"
            f" snapshots compared, {len(summary.disagreements)} lives disagree, the audit finds something in {len(summary.findings)},"
            f" {len(summary.failed_lives)} failed by themselves; {time.monotonic() - begun:.0f} s"
        )
    return 0 if summary.agrees else 1


if __name__ == "__main__":
    sys.exit(main())
