"""Run a job with the engine that fits its export; the virtual environment need not be activated."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from raftlog.cli.process import TerminationError, raise_at_sigterm
from raftlog.cli.streams import INTERRUPTED, TERMINATED, has_no_reader
from raftlog.errors import is_disk_error
from raftlog.text import counted
from replay.engine_choice import announcement, choose_engine
from replay.errors import EXIT_FINDINGS, EXIT_INPUT, ReplayError, exit_code
from replay.java import spark_environment
from replay.request import LOCAL, REQUEST, JobRequest
from replay.streaming.done import Done, read_done
from replay.worker_python import worker_python

_OUR_ERROR = "raftlog replay: "
"""Prefix of lines for standard error."""
"""Exit code after Ctrl-C or SIGTERM."""
_STOP_S = 10.0
"""Longest time in which Spark may end by itself, in seconds: it removes its temporary files."""


def command(environ: dict[str, str], request: JobRequest, conf: list[str]) -> list[str]:
    """Return the command line of spark-submit."""
    options = [word for setting in conf for word in ("--conf", setting)]
    script = Path(__file__).with_name("submit.py")
    submitted = [*options, str(script), REQUEST, request.to_word()]
    return [str(Path(environ["SPARK_HOME"]) / "bin" / "spark-submit"), *submitted]


def submit(request: JobRequest, conf: list[str]) -> int:
    """Run a job, and say on standard error which engine was chosen and why.

    Returns its exit code, 2 if the job can't be started.

    130 after Ctrl-C. 143 after SIGTERM, but that is the orderly end of a job that goes on for ever:
    then 3 if it found something, 0 if not.
    """
    try:
        choice = choose_engine(request, conf)
    except ReplayError as error:
        print(f"{_OUR_ERROR}{error}", file=sys.stderr)
        return exit_code(error)
    if said := announcement(choice):
        print(f"{_OUR_ERROR}{said}", file=sys.stderr)
    return _run_without_spark(request) if choice.engine == LOCAL else _run_in_spark(request, conf)


def _run_in_spark(request: JobRequest, conf: list[str]) -> int:
    """Run a job through spark-submit, its output passed on."""
    follows = request.every_s is not None
    before = _done(request) if follows else None
    try:
        workers = worker_python(os.environ, conf)
        environ = dict(os.environ) | spark_environment(os.environ) | workers
        # The job writes into a pipe, and can't see how wide the terminal is.
        environ.setdefault("COLUMNS", str(shutil.get_terminal_size().columns))
        return _run(command(environ, request, conf), environ, _pass_on if follows else _hand_over)
    except (ReplayError, OSError) as error:
        # What is printed here finds no reader, or no space.
        if is_disk_error(error) or (isinstance(error, BrokenPipeError) and has_no_reader()):
            raise
        print(f"{_OUR_ERROR}{error}", file=sys.stderr)
        return EXIT_INPUT
    except KeyboardInterrupt as error:
        code = TERMINATED if isinstance(error, TerminationError) else INTERRUPTED
        if follows:
            found = _stopped(request, before, _done(request))
            return found if code == TERMINATED else INTERRUPTED
        print(f"{_OUR_ERROR}interrupted, nothing was answered", file=sys.stderr)
        return code


def _run_without_spark(request: JobRequest) -> int:
    """Run a job in this process and its workers."""
    from replay.local.runner import run_local

    try:
        return run_local(request)
    except KeyboardInterrupt as error:
        print(f"{_OUR_ERROR}interrupted, nothing was answered", file=sys.stderr)
        return TERMINATED if isinstance(error, TerminationError) else INTERRUPTED


def _done(request: JobRequest) -> Done | None:
    """Return the position in the directory of a watch; None if it can't be read: the job reports a
    fault.
    """
    try:
        return read_done(Path(request.output or ""))
    except (ReplayError, OSError):
        return None


def _stopped(request: JobRequest, before: Done | None, after: Done | None) -> int:
    """Say how far a watch has come that was ended, and return its exit code."""
    before, after = before or Done(""), after or Done("")
    records, new = after.end_offset - before.end_offset, after.alerts - before.alerts
    print(
        f"raftlog replay: stopped after {counted(records, 'new record')} and"
        f" {counted(new, 'new alert')}; the next run goes on at offset {after.end_offset}",
        file=sys.stderr,
    )
    return EXIT_FINDINGS if new else 0


def _hand_over(process: subprocess.Popen[str]) -> int:
    """Wait for the end. spark-submit writes all that the job writes to standard output, errors too:
    here they go where they belong.
    """
    output, _ = process.communicate()
    code = process.returncode
    print(output, end="", file=sys.stdout if code in (0, EXIT_FINDINGS) else sys.stderr)
    return code


def _pass_on(process: subprocess.Popen[str]) -> int:
    """Wait for the end, and pass on each line as it comes."""
    for line in process.stdout or ():
        print(
            line, end="", flush=True, file=sys.stderr if line.startswith(_OUR_ERROR) else sys.stdout
        )
    return process.wait()


def _run(
    words: list[str], environ: dict[str, str], finish: Callable[[subprocess.Popen[str]], int]
) -> int:
    """Return the exit code.

    Raises KeyboardInterrupt, for SIGTERM too, and OSError of what is printed, when Spark has ended:
    nothing goes on without us.
    """
    before = signal.signal(signal.SIGTERM, raise_at_sigterm)
    try:
        with subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, text=True) as process:
            try:
                return finish(process)
            except (KeyboardInterrupt, OSError):
                process.terminate()
                try:
                    process.communicate(timeout=_STOP_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                raise
    finally:
        signal.signal(signal.SIGTERM, before)
