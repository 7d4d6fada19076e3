"""Runs the tests of a row with its edit in force, each in a process forked from one that has
imported everything.

An edit changes the code of functions in memory, so no file is touched, and all that imports the
function has the edited one. Killed means: a test failed. A test that ends because the edited code
itself is broken (a name that is not there) proves nothing and is an error, as are an edit that does
not apply and a test that is not found.
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from row_data import RowEdit

from simulation.mutants.edits import StaleMutantError, edited

ROOT = Path(__file__).parents[2]
LIMIT_S = 300.0
"""Of the tests of one row, on a machine that is busy."""
_NO_PROOF = (NameError, TypeError, AttributeError)
"""Raised by the edited code itself: the edit is broken."""
_OK, _FAILED = pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED
_FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True, slots=True)
class Outcome:
    """``verdict``: killed, survived, stale, broken or hung; ``by``: the test that failed, or what
    is wrong.
    """

    row: str
    verdict: str
    by: str
    seconds: float


class _First:
    """A plugin of pytest: which test failed first, and how."""

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


def _tests(edits: Sequence[Any], tests: Sequence[str]) -> tuple[int, _First, str]:
    first, said = _First(), io.StringIO()
    # Modules that are imported already keep their plain assertions: they are none of the tests.
    arguments = [
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "--no-header",
        "--tb=short",
        "-W",
        "ignore::pytest.PytestAssertRewriteWarning",
    ]
    with edited(edits), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = pytest.main(
            [*arguments, *(str(ROOT / "tests" / test) for test in tests)], plugins=[first]
        )
    return int(code), first, said.getvalue()


def _in_edited(error: BaseException) -> bool:
    frames = list(traceback.walk_tb(error.__traceback__))
    return bool(frames) and frames[-1][0].f_code.co_filename.endswith(", edited>")


def _child(edits: Sequence[Any], tests: Sequence[str], answer: Connection) -> None:
    os.setpgid(0, 0)
    os.chdir(ROOT)
    try:
        code, first, said = _tests(edits, tests)
    except StaleMutantError as error:
        answer.send(("stale", str(error)))
        return
    except Exception as error:
        answer.send(("broken", repr(error)))
        return
    if code == _OK:
        answer.send(("survived", ""))
    elif code != _FAILED:
        answer.send(("broken", f"pytest ended with {code}: {said[-2000:]}"))
    elif isinstance(first.error, _NO_PROOF) and _in_edited(first.error):
        answer.send(("broken", f"{first.test}: {first.error!r}"))
    else:
        answer.send(("killed", first.test.rpartition("tests/")[2]))


def _in_child(edits: Sequence[Any], tests: Sequence[str], limit_s: float) -> tuple[str, str]:
    ours, theirs = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_child, args=(edits, tests, theirs))
    process.start()
    theirs.close()
    try:
        if not ours.poll(limit_s):
            return "hung", f"no end within {limit_s:g} s"
        verdict, by = ours.recv()
    except EOFError:
        return "broken", f"the process ended with {process.exitcode}"
    else:
        return verdict, by
    finally:
        assert process.pid is not None
        process.join(5.0)
        if process.is_alive():
            # With all that its tests may have started.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.join()


def run_edit(one: RowEdit, limit_s: float = LIMIT_S) -> Outcome:
    """Whether the tests of a row notice its edit."""
    began = time.monotonic()
    verdict, by = _in_child(one.edits, one.tests, limit_s)
    return Outcome(one.row, verdict, by, time.monotonic() - began)


def passes_unedited(tests: Sequence[str], limit_s: float = 3 * LIMIT_S) -> str:
    """Why these tests prove nothing, for they do not pass without any edit; empty if they do."""
    verdict, by = _in_child((), tests, limit_s)
    return "" if verdict == "survived" else f"{verdict}: {by}"


def as_json(outcome: Outcome) -> str:
    """One line."""
    row = {
        "row": outcome.row,
        "verdict": outcome.verdict,
        "by": outcome.by,
        "seconds": round(outcome.seconds, 1),
    }
    return json.dumps(row, ensure_ascii=False)


def prepare() -> None:
    """Import what all forks need, once."""
    sys.path[:0] = [str(ROOT)]
    for name in (
        "broker.service.service",
        "controller.service.service",
        "raftlog.client.broker_client",
        "simulation.world",
    ):
        __import__(name)
