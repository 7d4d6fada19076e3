"""``raftlog replay ...``: choose an engine for a job and run it, in this process or through
spark-submit. Does not import pyspark itself, so it can report that it is missing.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import typer

from raftlog.cli.built_in import pip_install
from raftlog.cli.process import TerminationError, raise_at_sigterm
from raftlog.cli.streams import INTERRUPTED, TERMINATED, has_no_reader
from raftlog.errors import RaftlogError, is_disk_error
from raftlog.text import counted
from replay.app import create_app
from replay.errors import EXIT_FINDINGS, EXIT_INPUT, ReplayError, exit_code
from replay.export import from_checkpoint, open_export
from replay.request import AUTO, JOBS, LOCAL, REQUEST, SPARK, JobRequest
from replay.run import open_answerable, run_job
from replay.spark.java import spark_environment, worker_python
from replay.streaming.ledger import Done, read_done
from replay.text import size as size_text

_OUR_ERROR = "raftlog replay: "
"""Prefix of lines on standard error."""
_STOP_S = 10.0
"""Time in seconds that Spark may take to shut down and delete its temporary files before it is
killed.
"""


def command(environ: dict[str, str], request: JobRequest, conf: list[str]) -> list[str]:
    """Return the command line of spark-submit."""
    options = [word for setting in conf for word in ("--conf", setting)]
    script = Path(__file__).with_name("submit.py")
    submitted = [*options, str(script), REQUEST, request.to_word()]
    return [str(Path(environ["SPARK_HOME"]) / "bin" / "spark-submit"), *submitted]


def submit(request: JobRequest, conf: list[str]) -> int:
    """Run a job and return its exit code, after reporting on standard error which engine was chosen
    and why.

    Returns 2 if the job cannot be started, 130 after Ctrl-C and 143 after SIGTERM. SIGTERM is the
    normal way to end a job that runs forever: such a job then returns 3 if it has found something,
    else 0.
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
    """Run a job through spark-submit and relay its output."""
    follows = request.every_s is not None
    before = _done(request) if follows else None
    try:
        open_answerable(request)
        workers = worker_python(os.environ, conf)
        environ = dict(os.environ) | spark_environment(os.environ) | workers
        # The job writes into a pipe, so it cannot see the terminal's width.
        environ.setdefault("COLUMNS", str(shutil.get_terminal_size().columns))
        return _run(
            command(environ, request, conf), environ, _relay_lines if follows else _print_at_end
        )
    except (RaftlogError, OSError) as error:
        # Our own output has no reader, or no space.
        if isinstance(error, OSError) and (
            is_disk_error(error) or (isinstance(error, BrokenPipeError) and has_no_reader())
        ):
            raise
        print(f"{_OUR_ERROR}{error}", file=sys.stderr)
        return exit_code(error) if isinstance(error, RaftlogError) else EXIT_INPUT
    except KeyboardInterrupt as error:
        code = TERMINATED if isinstance(error, TerminationError) else INTERRUPTED
        if follows:
            found = _stopped(request, before, _done(request))
            return found if code == TERMINATED else INTERRUPTED
        print(f"{_OUR_ERROR}interrupted, nothing was answered", file=sys.stderr)
        return code


def _run_without_spark(request: JobRequest) -> int:
    """Run a job in this process and its worker processes."""
    try:
        return run_job(request, spark=False)
    except KeyboardInterrupt as error:
        print(f"{_OUR_ERROR}interrupted, nothing was answered", file=sys.stderr)
        return TERMINATED if isinstance(error, TerminationError) else INTERRUPTED


def _done(request: JobRequest) -> Done | None:
    """Return the position stored in a watch's directory, or None if it cannot be read (the job
    reports why).
    """
    try:
        return read_done(Path(request.output or ""))
    except (ReplayError, OSError):
        return None


def _stopped(request: JobRequest, before: Done | None, after: Done | None) -> int:
    """Report the progress of a watch that was stopped, and return its exit code."""
    before, after = before or Done(), after or Done()
    records, new = after.end_offset - before.end_offset, after.alerts - before.alerts
    print(
        f"raftlog replay: stopped after {counted(records, 'new record')} and"
        f" {counted(new, 'new alert')}; the next run continues at offset {after.end_offset}",
        file=sys.stderr,
    )
    return EXIT_FINDINGS if new else 0


def _print_at_end(process: subprocess.Popen[str]) -> int:
    """Wait for the job to finish, then print its output. spark-submit merges the job's errors into
    standard output; the exit code tells which stream the output belongs to.
    """
    output, _ = process.communicate()
    code = process.returncode
    print(output, end="", file=sys.stdout if code in (0, EXIT_FINDINGS) else sys.stderr)
    return code


def _relay_lines(process: subprocess.Popen[str]) -> int:
    """Relay each line as it arrives until the job has finished."""
    for line in process.stdout or ():
        print(
            line, end="", flush=True, file=sys.stderr if line.startswith(_OUR_ERROR) else sys.stdout
        )
    return process.wait()


def _run(
    words: list[str], environ: dict[str, str], finish: Callable[[subprocess.Popen[str]], int]
) -> int:
    """Run a command and return its exit code.

    Raises KeyboardInterrupt (also on SIGTERM), and OSError if the output cannot be printed, but
    only after Spark has exited, so that nothing is left running.
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


LOCAL_MAX_RECORDS = 5_000_000
LOCAL_MAX_BYTES = 1 << 30
"""Maximum size, in bytes, of the Parquet files with the records for a job that runs locally."""


class Choice(NamedTuple):
    """The chosen engine, with a reason to show, or "" if the caller named the engine."""

    engine: str
    reason: str = ""


def choose_engine(request: JobRequest, conf: list[str]) -> Choice:
    """Return the engine for a job. ``conf``: settings for Spark. Raises RaftlogError if the job
    cannot run as requested.
    """
    if request.engine == LOCAL and conf:
        raise ReplayError("--conf applies only to Spark: drop it, or drop --engine local")
    if JOBS[request.job].needs_spark:
        _require_pyspark(request.job)
        reason = f"{request.job} needs Spark"
        return Choice(SPARK, "" if request.engine == SPARK else reason)
    if request.engine != AUTO:
        return Choice(request.engine)
    if conf:
        return Choice(SPARK, "--conf was given")
    try:
        records, size = _size(request)
    except RaftlogError:
        # The job itself reports what is wrong with the export.
        return Choice(LOCAL)
    export = _words(records, size)
    if records <= LOCAL_MAX_RECORDS and size <= LOCAL_MAX_BYTES:
        return Choice(LOCAL, f"{export}, a small export; --engine spark overrides this")
    if _has_pyspark():
        return Choice(SPARK, f"{export}, a large export")
    return Choice(LOCAL, f"{export}, a large export, but PySpark is not installed")


def announcement(choice: Choice) -> str:
    """Return the line that announces the engine, or "" if the caller named it."""
    if not choice.reason:
        return ""
    engine = "in Spark" if choice.engine == SPARK else "without Spark"
    return f"{engine}: {choice.reason}"


def _size(request: JobRequest) -> tuple[int, int]:
    """Return the number of records that the job reads, and the size of their files in bytes."""
    export = open_export(request)
    if JOBS[request.job].in_between:
        export = from_checkpoint(export, request)
    return export.record_count, sum(one.bytes for one in export.segments)


def _words(records: int, size: int) -> str:
    return f"{counted(records, 'record')} ({size_text(size)})"


def _has_pyspark() -> bool:
    return find_spec("pyspark") is not None


def _require_pyspark(job: str) -> None:
    if not _has_pyspark():
        raise ReplayError(f"{job} needs Spark, which is not installed: {pip_install(['replay'])}")


def register(app: typer.Typer) -> None:
    """Add the commands to ``raftlog``."""
    app.add_typer(create_app(submit), name="replay")
