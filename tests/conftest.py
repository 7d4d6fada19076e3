"""Scheduling of tests on workers (pytest-xdist), and the state that each test starts from."""

import asyncio
import faulthandler
import gc
import logging
import os
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import structlog
from _pytest.faulthandler import fault_handler_stderr_fd_key
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, Phase, settings
from xdist.scheduler.loadscope import LoadScopeScheduling

sys.path.insert(0, str(Path(__file__).parent / "replay"))
sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "testing"))

from browser import find_browser

from raftlog.transport.grpc_runtime import take_all_wakeups

from grpc._cython import cygrpc  # isort: skip

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Begun in the background of a shell: whatever is started here would be deaf to Ctrl-C, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    # Begun by nohup: the same.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A user's shell has not set it: with it, no test would notice output that a command keeps back.
os.environ.pop("PYTHONUNBUFFERED", None)

# A worker of pytest-xdist has it, and tables in pipes are as narrow as it says. Readline, which
# pytest imports, sets it after the back of os.environ: for what is started here, all the same.
os.environ.pop("COLUMNS", None)
os.unsetenv("COLUMNS")

# Until all tests are collected, next to nothing is garbage, and the search for it would take a third
# of the time.
gc.disable()

# How long an example takes says how busy the machine is.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

# For tests of mutants, whose first failure is enough: a smaller example may take minutes.
settings.register_profile(
    "mutants", settings.get_profile("any machine"), phases=(Phase.explicit, Phase.generate)
)

TOGETHER = ("cluster", "replay", "cli", "testing")
"""Directories that one worker runs alone: real clusters would slow each other, a second Spark
session or cluster would be begun for the other worker."""

PATIENCE_S = {
    "cluster": 900,
    "hostile": 600,
    "power_loss": 600,
    "replay": 900,
    "simulation": 900,
    "storage": 600,
    "testing": 600,
    "test_setup_script.py": 600,
}
"""Timeouts in seconds of tests in these directories, fixtures included: ten times the duration on a
quiet machine. Others have ``timeout`` of pyproject.toml; a ``timeout`` mark takes precedence.
"""

GRACE_S = 60.0
"""Not every hang hears the signal (uvloop does not, code that catches everything does not), and not
every fixture ends. So much later the process ends with the stacks of all threads; pytest-xdist goes
on with another one."""


def pytest_report_header() -> str:
    """Report whether pages are checked in a browser."""
    found = find_browser()
    return (
        f"browser: {found}"
        if found
        else "browser: none, so tests/replay/test_report_browser.py is left out"
    )


def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    """Give each test the time of its directory, and let workers begin with the longest tests."""
    for item in items:
        directory = item.nodeid.partition("::")[0].split("/")[1]
        if directory in PATIENCE_S and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(PATIENCE_S[directory]))
    if hasattr(config, "workerinput"):
        items.sort(key=_rank(items))


def pytest_collection_finish() -> None:
    """Exclude the modules and tests from garbage collection: each simulated run collects all."""
    gc.collect()
    gc.freeze()
    gc.enable()


def _rank(items: Sequence[pytest.Item]) -> Callable[[pytest.Item], tuple[bool, float, int]]:
    """Return the rank of a file or directory group: long ones start first."""
    count = Counter(scope_of(item.nodeid) for item in items)
    patience_s: dict[str, float] = {}
    for item in items:
        scope = scope_of(item.nodeid)
        patience_s[scope] = max(patience_s.get(scope, 0.0), patience_of(item))

    def rank(item: pytest.Item) -> tuple[bool, float, int]:
        scope = scope_of(item.nodeid)
        return scope not in TOGETHER, -patience_s[scope], -count[scope]

    return rank


def patience_of(item: pytest.Item) -> float:
    """Return the timeout of the test in seconds."""
    mark = item.get_closest_marker("timeout")
    return float(mark.args[0] if mark is not None else item.config.getini("timeout"))


def scope_of(nodeid: str) -> str:
    """Return the scope that one worker runs: a file, or directories that stay together."""
    file = PurePosixPath(nodeid.partition("::")[0])
    return next((each for each in TOGETHER if each in file.parts), str(file))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Show the number of tests and the seconds of each directory, the longest first."""
    count, seconds = Counter[str](), defaultdict[str, float](float)
    for reports in terminalreporter.stats.values():
        for one in reports:
            if isinstance(one, pytest.TestReport):
                directory = str(PurePosixPath(one.nodeid.partition("::")[0]).parent)
                count[directory] += one.when == "call"
                seconds[directory] += one.duration
    if len(count) > 1:
        terminalreporter.section("seconds by directory")
        for directory, took_s in sorted(seconds.items(), key=lambda one: -one[1]):
            terminalreporter.line(f"{took_s:8.1f} s  {count[directory]:5} tests  {directory}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Run a test as pytest does, but bound hangs that nothing else ends, and end all fixtures with
    the last test of a directory that stays together: idle nodes take CPU time from other tests.
    """
    faulthandler.dump_traceback_later(
        patience_of(item) + GRACE_S, exit=True, file=item.config.stash[fault_handler_stderr_fd_key]
    )
    scope = scope_of(item.nodeid)
    if nextitem is not None and scope in TOGETHER and scope_of(nextitem.nodeid) != scope:
        nextitem = None
    try:
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        runtestprotocol(item, nextitem=nextitem)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    finally:
        faulthandler.cancel_dump_traceback_later()
    return True


class Together(LoadScopeScheduling):  # type: ignore[misc]
    """A file's tests stay in one worker, as they share its fixtures, and so do those of some
    directories.

    Not ``--dist loadgroup``: that of pytest-xdist 3.8 names groups in a way that pytest 9.2 does
    not see, and so makes none.
    """

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def remove_node(self, node: Any) -> str | None:
        """Remove a worker as the base class does, but do not start a test again that ended its
        worker: it would end each of them.
        """
        workload = self.assigned_work.pop(node)
        left = [
            (unit, nodeid)
            for unit in workload.values()
            for nodeid, done in unit.items()
            if not done
        ]
        if not left:
            return None
        unit, crashed = left[0]
        unit[crashed] = True
        self.workqueue.update(
            {scope: unit for scope, unit in workload.items() if not all(unit.values())}
        )
        for other in self.assigned_work:
            self._reschedule(other)
        return crashed


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together:
    # In the order of `_rank`, not by their numbers of tests alone.
    config.option.loadscopereorder = False
    return Together(config, log)


_working_loop = cygrpc.get_working_loop


def _prepared_loop() -> asyncio.AbstractEventLoop:
    """Return the loop of a channel or server of gRPC, prepared as raftlog prepares its own: a test
    that uses gRPC itself leaves no event to the loop of the next test.
    """
    loop: asyncio.AbstractEventLoop = _working_loop()
    take_all_wakeups(loop)
    return loop


cygrpc.get_working_loop = _prepared_loop


@pytest.fixture(autouse=True)
def _logs_are_heard() -> Iterator[None]:
    """Simulated worlds silence asyncio's log and structlog for the whole process, and command lines
    configure both.

    Nothing is taken over from the test before: a fixture of its module may have silenced them
    before this one came.
    """
    logging.getLogger("asyncio").setLevel(logging.NOTSET)
    structlog.reset_defaults()
    yield
    logging.getLogger("asyncio").setLevel(logging.NOTSET)
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def quiet_is_quiet(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check, whenever a controller in the test's process finds nothing due, that nothing is."""
    if not {"controller", "controller_lao", "controller_service", "simulation"} & {
        *PurePosixPath(request.node.nodeid).parts
    }:
        yield
        return
    from controller.decider import DueWork

    looks = DueWork._is_quiet

    def is_quiet(due: DueWork, now: float) -> bool:
        quiet = looks(due, now)
        assert not quiet or due._find(now) is None, "there was something to do"
        return quiet

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(DueWork, "_is_quiet", is_quiet)
        yield
