"""Fresh seeds for some minutes on all cores; failures are kept and shrunk, with a summary."""

import argparse
import json
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from itertools import islice
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from raftlog.cli.process import run_interruptible
from raftlog.cli.streams import INTERRUPTED
from simulation.cli import silence
from simulation.outcome import as_dict, command, failure_report
from simulation.run import run_swarm
from simulation.shrink import shrink
from simulation.swarm.faults import FAULTS
from simulation.twins.bounds import MAX_STEPS, RunTooLongError

SEEDS_PER_TASK = 5


def run_seeds(
    seeds: list[int], shrink_s: float, max_steps: int = MAX_STEPS
) -> list[dict[str, Any]]:
    """Return each seed's outcome; a failure with its report. Runs in a process of its own."""
    silence()
    outcomes = []
    for seed in seeds:
        outcome = run_swarm(seed, max_steps=max_steps)
        said = as_dict(outcome)
        if outcome.failure is not None:
            # A run that does not end is not run again and again to look for a smaller one.
            if shrink_s and not isinstance(outcome.failure, RunTooLongError):
                again = run_swarm(
                    seed, shrink(seed, outcome.config, outcome.failure, within_s=shrink_s)
                )
                outcome = again if again.failure is not None else outcome
            said["report"] = failure_report(outcome)
            said["shrunk"] = outcome.config.to_json()
        outcomes.append(said)
    return outcomes


def run_pool(
    seeds: Iterator[int], *, processes: int, until: float, shrink_s: float
) -> Iterator[dict[str, Any]]:
    """Yield outcomes of seeds begun before ``until`` (time.monotonic)."""
    spawn = multiprocessing.get_context("spawn")
    others = multiprocessing.active_children()
    with ProcessPoolExecutor(processes, mp_context=spawn) as pool:
        running: set[Future[list[dict[str, Any]]]] = set()
        more = True
        try:
            while more or running:
                while more and len(running) < processes * 2:
                    some = list(islice(seeds, SEEDS_PER_TASK))
                    more = bool(some) and time.monotonic() < until
                    if more:
                        with _children_deaf_to_ctrl_c():
                            running.add(pool.submit(run_seeds, some, shrink_s))
                done, running = (
                    wait(running, return_when=FIRST_COMPLETED) if running else (set(), running)
                )
                for future in done:
                    yield from future.result()
        except BaseException:
            for process in multiprocessing.active_children():
                if process not in others:
                    process.kill()
            raise


@contextmanager
def _children_deaf_to_ctrl_c() -> Iterator[None]:
    """Block SIGINT in processes that are started inside: Ctrl-C would reach them all, and each
    would print a traceback.
    """
    # It unblocks SIGINT when it begins.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _rarest(found: tuple[str, int]) -> tuple[int, str]:
    return found[1], found[0]


def summary_of(
    outcomes: Iterator[dict[str, Any]], failures: Path | None, *, quiet: bool = False
) -> dict[str, Any]:
    faults: Counter[str] = Counter()
    operations: Counter[str] = Counter()
    at_work: Counter[str] = Counter()
    failed: list[dict[str, Any]] = []
    virtual_s, count, begun, interrupted = 0.0, 0, time.monotonic(), False
    try:
        for outcome in outcomes:
            count += 1
            virtual_s += outcome["virtual_s"]
            faults.update(outcome["faults"])
            operations.update(outcome["operations"])
            at_work.update({what: int(found > 0) for what, found in outcome["looked_at"].items()})
            if outcome["failure"]:
                failed.append(outcome)
                if failures is not None:
                    failures.mkdir(parents=True, exist_ok=True)
                    (failures / f"seed-{outcome['seed']}.txt").write_text(outcome["report"] + "\n")
                if not quiet:
                    print(
                        f"FAILED seed {outcome['seed']}: {outcome['failure'][:200]}\n "
                        f" {command(outcome['seed'])}",
                        flush=True,
                    )
            elif not quiet and count % 50 == 0:
                print(
                    f"{count} seeds, {virtual_s / 3600:.2f} h simulated, {len(failed)} failed",
                    flush=True,
                )
    except KeyboardInterrupt:
        interrupted = True
    return {
        "seeds": count,
        "simulated_hours": round(virtual_s / 3600, 3),
        "real_s": round(time.monotonic() - begun, 1),
        "faults": dict(sorted(faults.items())),
        "never_happened": sorted(set(FAULTS) - set(faults)),
        "operations": dict(sorted(operations.items())),
        "checks_at_work": {
            what: round(runs / count, 3) for what, runs in sorted(at_work.items(), key=_rarest)
        },
        "failed": [{key: one[key] for key in ("seed", "failure", "shrunk")} for one in failed],
        "interrupted": interrupted,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument(
        "--first-seed",
        type=int,
        default=None,
        help="first seed; by default the time, so that no two soaks are the same",
    )
    parser.add_argument("--seeds", type=int, default=10**9, help="maximum number of seeds")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--failures", type=Path, default=Path("soak-failures"), help="directory for failures"
    )
    parser.add_argument("--shrink-s", type=float, default=60.0)
    options = parser.parse_args()
    first = int(time.time()) * 1000 if options.first_seed is None else options.first_seed
    print(
        f"seeds from {first} on, {options.processes} processes, {options.minutes:g} min", flush=True
    )
    outcomes = run_pool(
        iter(range(first, first + options.seeds)),
        processes=options.processes,
        until=time.monotonic() + options.minutes * 60,
        shrink_s=options.shrink_s,
    )
    summary = summary_of(outcomes, options.failures)
    print(json.dumps(summary, indent=1))
    if summary["interrupted"]:
        return INTERRUPTED
    return 1 if summary["failed"] else 0


if __name__ == "__main__":
    run_interruptible(lambda: main)
