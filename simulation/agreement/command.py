"""``scripts/agreement``: many simulated runs, each exported, replayed and audited."""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from replay.spark.session import build_session
from simulation.agreement.mutants import look
from simulation.agreement.summary import Summary, compare
from simulation.mutants.registry import SEEDED

RUNS, RUNS_OF_MUTANTS = 100, 2


def small_session() -> SparkSession:
    """Return a session for small jobs, without the planning that would dominate them."""
    session = build_session("raftlog agreement")
    for key, value in {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
    }.items():
        session.conf.set(key, value)
    return session


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/agreement",
        description=(
            "Run simulated clusters, export their logs, and compare the states that Spark computes"
            " with those of the nodes."
        ),
    )
    parser.add_argument(
        "--seeds",
        type=int,
        help=f"number of runs (default: {RUNS}, or {RUNS_OF_MUTANTS} of each mutant)",
    )
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument(
        "--processes",
        type=int,
        default=1,
        help="number of processes that run clusters, besides Spark (default: %(default)s)",
    )
    parser.add_argument(
        "--kept",
        type=Path,
        default=Path("agreement-failures"),
        help="directory for exports that disagree (default: %(default)s)",
    )
    parser.add_argument(
        "--fold-every",
        type=int,
        default=1,
        metavar="N",
        help=(
            "let Spark fold and verify one run in N, the slowest part; the engine without Spark"
            " folds all runs, and both audit all (default: %(default)s)"
        ),
    )
    parser.add_argument(
        "--mutants",
        nargs="*",
        metavar="NAME",
        help="run the simulator's mutants instead, all or these; prints a table in Markdown",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Return 1 if a replay disagreed, or a run without a mutant had a
    finding.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.mutants or ()) - set(SEEDED))
    if unknown:
        parser.error(f"no mutant is called {', '.join(unknown)}; there are: {', '.join(SEEDED)}")
    spark, begun = small_session(), time.monotonic()
    try:
        if options.mutants is not None:
            _mutants(spark, options.mutants or list(SEEDED), options.seeds or RUNS_OF_MUTANTS)
            return 0
        seeds = range(options.first_seed, options.first_seed + (options.seeds or RUNS))
        summary = compare(spark, seeds, options.kept, options.processes, options.fold_every)
    finally:
        spark.stop()
    _report(summary, time.monotonic() - begun)
    return 0 if summary.agrees else 1


def _mutants(spark: SparkSession, names: Sequence[str], seeds: int) -> None:
    print("| Mutant | What it breaks | Seen by (runs) | Seen |", "|---|---|---|---|", sep="\n")
    with tempfile.TemporaryDirectory(prefix="raftlog-agreement-") as scratch:
        for name in names:
            print(look(spark, SEEDED[name], seeds, Path(scratch)), flush=True)


def _report(summary: Summary, seconds: float) -> None:
    n = summary.counts
    print(
        f"{n['runs']} runs ({n['empty']} empty), {n['records']} records. Of {n['folded']} runs,"
        f" folded by Spark: {n['states']} states of nodes, {n['verified']} recorded ones and"
        f" {n['snapshots']} snapshots compared. Of all, without Spark: {n['local']} states, and"
        f" {n['audited']} audits with those of Spark. By either engine: {n['diffs']} diffs between"
        f" two offsets. {len(summary.disagreements)} runs disagree, the audit finds something in"
        f" {len(summary.findings)}, {len(summary.failed_runs)} failed by themselves;"
        f" {seconds:.0f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
