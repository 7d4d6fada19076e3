"""The hunt for mutants: each runs in its own process, until a check or a test detects it.

Runs and tests have a bound of real time, as a mutant may spin without virtual time: then it is
killed, and counts as hung. A mutant that only crashes the program, a stale edit or a missing test
proves nothing: it is broken.
"""

import argparse
import contextlib
import io
import multiprocessing
import os
import signal
import statistics
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import pytest

import broker.service.service
import controller.service.service
import raftlog.client.broker_client
from raftlog.errors import FatalError, InvariantError
from simulation.checks.api import Checker
from simulation.cli import silence
from simulation.mutants.edits import Edit, StaleMutantError, edited
from simulation.mutants.mutant import BrokenMutantError, Mutant, RowMutant, SeedMutant
from simulation.mutants.registry import NO_EDIT, ROOT, ROWS, named_rows, select
from simulation.run import run_swarm

CRASHES = "defect in raftlog: "
"""Prefix by which the shells report an unexpected exception."""
STRIDE = 1000
RUN_WALL_S = 120.0
"""Longest time of one run, in real seconds; a run takes a second or two."""
TESTS_WALL_S = 300.0
"""Longest time of the tests of one row, on a busy machine."""
_CRASHES_OF_EDITS = (NameError, TypeError, AttributeError)
"""Errors of an edit that is broken itself, if the edited code raises them."""
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([__name__])
_IMPORTED_FOR_TESTS = (
    broker.service.service,
    controller.service.service,
    raftlog.client.broker_client,
)
"""Modules that tests need, imported once before the children are forked."""


class Killed(NamedTuple):
    """A mutant that a check or a test noticed, after a number of seeds; 1 for tests."""

    seed: int
    runs: int
    check: str
    """Check, assertion of the shipped code, or test that noticed."""
    message: str = ""


class Survived(NamedTuple):
    """A mutant that no run of a number of runs noticed."""

    runs: int


class Hung(NamedTuple):
    """A run that did not end; its process was killed, and no check has noticed anything."""

    seed: int
    runs: int


class Broken(NamedTuple):
    """A mutant that proves nothing."""

    message: str
    runs: int = 0


Fate = Killed | Survived | Hung | Broken


@dataclass(frozen=True, slots=True)
class Result:
    """Result of one mutant, from every starting point."""

    mutant: Mutant
    bound: int
    hunts: tuple[Fate, ...]

    @property
    def killed(self) -> bool:
        return all(isinstance(hunt, Killed) for hunt in self.hunts)

    @property
    def median_seeds(self) -> float:
        """Seeds needed; a hunt that failed counts with all its runs."""
        return statistics.median(hunt.runs for hunt in self.hunts)

    @property
    def checks(self) -> list[str]:
        found = [hunt.check for hunt in self.hunts if isinstance(hunt, Killed)]
        return sorted(set(found), key=lambda check: (-found.count(check), check))

    @property
    def failures(self) -> str:
        kinds = ((Survived, "survived"), (Hung, "hung"))
        counts = [(word, sum(isinstance(one, kind) for one in self.hunts)) for kind, word in kinds]
        said = [f"{word} {count} of {len(self.hunts)}" for word, count in counts if count]
        said += [f"broken: {one.message}" for one in self.hunts if isinstance(one, Broken)]
        return ", ".join(said)


def run_mutant(mutant: SeedMutant, seeds: Iterable[int]) -> Killed | Survived:
    """Hunt one mutant here. Raises BrokenMutantError if the program crashed, StaleMutantError."""
    runs = 0
    with edited(mutant.edits):
        for seed in seeds:
            runs += 1
            failure = run_swarm(seed, mutant.config).failure
            if failure is not None:
                return Killed(seed, runs, _noticed_by(mutant, failure), str(failure))
    return Survived(runs)


def _noticed_by(mutant: Mutant, failure: BaseException) -> str:
    if (
        not isinstance(failure, AssertionError | FatalError)
        or CRASHES in str(failure)
        or "handler raised" in str(failure)
    ):
        shown = "".join(traceback.format_exception(failure))
        raise BrokenMutantError(f"{mutant.name} crashed the program:\n{shown}")
    rule, separator, _ = str(failure).partition(": ")
    number = f" {rule}" if separator and rule[:1] == "I" and rule[1:].isdigit() else ""
    for frame, _ in reversed(list(traceback.walk_tb(failure.__traceback__))):
        me: Any = frame.f_locals.get("self")
        if isinstance(me, Checker):
            return type(me).__name__ + number
    if "stopped without a reason" in str(failure):
        return "a node stops itself"
    if "did not happen" in str(failure):
        return "liveness"
    return (
        "invariants of the core" if isinstance(failure, InvariantError) else type(failure).__name__
    )


class _FirstFailure:
    """A plugin of pytest that keeps the first test that failed, and its error."""

    def __init__(self) -> None:
        self.test = ""
        self.error: BaseException | None = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        report = yield
        if report.failed and not self.test:
            self.test = item.nodeid
            self.error = call.excinfo.value if call.excinfo is not None else None
        return report


def run_tests(edits: Sequence[Edit], tests: Sequence[str]) -> Killed | Survived:
    """Run tests with the edits, until one fails. Raises BrokenMutantError if the edited code is
    broken or a test is missing, StaleMutantError if an edit does not apply.
    """
    first, output = _FirstFailure(), io.StringIO()
    arguments = ["-q", "-x", "-p", "no:cacheprovider", "--no-header", "--tb=short"]
    # The plain assertions of modules that are imported already are none of the tests'.
    arguments += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    arguments += [str(ROOT / "tests" / test) for test in tests]
    # A failure is enough: to look for a smaller one may take minutes.
    arguments += ["--hypothesis-profile=mutants"]
    with edited(edits), contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = pytest.main(arguments, plugins=[first])
    if code == pytest.ExitCode.OK:
        return Survived(1)
    if code != pytest.ExitCode.TESTS_FAILED:
        raise BrokenMutantError(f"pytest ended with {code}: {output.getvalue()[-2000:]}")
    if isinstance(first.error, _CRASHES_OF_EDITS) and _in_edited(first.error):
        raise BrokenMutantError(f"{first.test}: {first.error!r}")
    return Killed(0, 1, first.test.rpartition("tests/")[2])


def _in_edited(error: BaseException) -> bool:
    frames = list(traceback.walk_tb(error.__traceback__))
    return bool(frames) and frames[-1][0].f_code.co_filename.endswith(", edited>")


def _hunt(mutant: Mutant, first_seed: int, seeds: int, reports: Connection) -> None:
    """Hunt a mutant in this process: send each seed as it begins, and at last the fate."""

    def begun() -> Iterator[int]:
        for seed in range(first_seed, first_seed + seeds):
            reports.send(seed)
            yield seed

    os.setpgid(0, 0)
    os.chdir(ROOT)
    try:
        if isinstance(mutant, RowMutant):
            reports.send(run_tests(mutant.edits, mutant.tests))
        elif isinstance(mutant, SeedMutant):
            silence()
            reports.send(run_mutant(mutant, begun()))
    except StaleMutantError as error:
        reports.send(Broken(f"stale: {error}"))
    except Exception as error:
        reports.send(Broken(str(error)))


def hunt_one(mutant: Mutant, first_seed: int, seeds: int, run_wall_s: float = 0.0) -> Fate:
    """Hunt a mutant in its own process; ``run_wall_s`` bounds a run (0: its kind's default)."""
    wall_s = run_wall_s or (TESTS_WALL_S if isinstance(mutant, RowMutant) else RUN_WALL_S)
    receiver, sender = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_hunt, args=(mutant, first_seed, seeds, sender))
    process.start()
    sender.close()
    seed = first_seed
    try:
        while receiver.poll(wall_s):
            report = receiver.recv()
            if not isinstance(report, int):
                fate: Fate = report
                return fate
            seed = report
        return Hung(seed, seed - first_seed + 1)
    except EOFError:
        return Broken(f"the process of seed {seed} died")
    finally:
        assert process.pid is not None
        # With all that its tests may have started.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.join()
        receiver.close()


def hunt_all(
    mutants: Sequence[Mutant], *, seeds: int | None, repeat: int, jobs: int
) -> Iterator[Result]:
    """Hunt mutants: from ``repeat`` starting points within a bound of runs; tests once."""
    with ThreadPoolExecutor(jobs) as pool:
        futures: list[tuple[Mutant, int, list[Future[Fate]]]] = []
        for one in mutants:
            bound = (seeds or one.seeds) if isinstance(one, SeedMutant) else 1
            starts = [STRIDE * turn for turn in range(repeat if isinstance(one, SeedMutant) else 1)]
            hunts = [pool.submit(hunt_one, one, start, bound) for start in starts]
            futures.append((one, bound, hunts))
        for one, bound, hunts in futures:
            yield Result(one, bound, tuple(hunt.result() for hunt in hunts))


def failure_without_edits(mutants: Sequence[Mutant]) -> str:
    """Return why a test fails without an edit, so that mutants prove nothing; else empty."""
    tests = sorted({test for one in mutants if isinstance(one, RowMutant) for test in one.tests})
    if not tests:
        return ""
    fate = hunt_one(RowMutant("unedited", "nothing", (), tuple(tests)), 0, 1, 3 * TESTS_WALL_S)
    return "" if isinstance(fate, Survived) else str(fate)


def as_markdown(results: Sequence[Result]) -> str:
    lines = ["| Mutant | What it breaks | Killed by | Seeds, median (bound) |", "|---|---|---|---|"]
    for one in results:
        by = ", ".join(one.checks) or "-"
        by += f" (**{one.failures}**)" if one.failures else ""
        seeds = f"{one.median_seeds:g} ({one.bound})"
        lines.append(f"| `{one.mutant.name}` | {one.mutant.rule} | {by} | {seeds} |")
    return "\n".join(lines)


def _as_line(one: Result) -> str:
    fate = "killed" if one.killed else one.failures.upper()
    seeds = f"{one.median_seeds:g} seeds of {one.bound}  " if one.bound > 1 else ""
    return f"{one.mutant.name:32}  {fate}  {seeds}{', '.join(one.checks)}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/mutants",
        description=(
            "Break the code on purpose, one rule at a time, and see whether a check of a simulated"
            " cluster, or the tests of a row of docs/proposals.md, notice."
        ),
    )
    parser.add_argument(
        "name",
        nargs="*",
        help="mutants to hunt, by name, row (HB-3) or table of rows (HB); by default all",
    )
    parser.add_argument(
        "--seeds", type=int, help="number of runs of each hunt; by default the mutant's own limit"
    )
    parser.add_argument(
        "--repeat",
        type=int,
        default=5,
        help="number of hunts, from different seeds, of each mutant that seeds kill (default: 5)",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count(),
        help="number of parallel hunts (default: one per core)",
    )
    parser.add_argument(
        "--unchecked", action="store_true", help="do not first run the tests without an edit"
    )
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. 1 if a mutant was not killed, or a row has no mutant."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        mutants = select(options.name)
    except KeyError as error:
        parser.error(f"no mutant is called {', '.join(error.args)}: see simulation/mutants")
    bare = [] if options.name else sorted({*named_rows()} - {one.row for one in ROWS} - {*NO_EDIT})
    if bare:
        print(f"rows without a mutant or a reason: {', '.join(bare)}", file=sys.stderr)
    if not options.unchecked and (why := failure_without_edits(mutants)):
        print(f"tests fail without an edit: {why}", file=sys.stderr)
        return 1
    results = []
    for one in hunt_all(mutants, seeds=options.seeds, repeat=options.repeat, jobs=options.jobs):
        results.append(one)
        if not options.markdown:
            print(_as_line(one), flush=True)
    if options.markdown:
        print(as_markdown(results))
    else:
        killed = sum(one.killed for one in results)
        print(f"{killed} of {len(results)} mutants killed")
    return 0 if all(one.killed for one in results) and not bare else 1


if __name__ == "__main__":
    sys.exit(main())
