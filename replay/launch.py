"""Start spark-submit for a job, from a virtual environment that need not be activated."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

from replay.errors import EXIT_FINDINGS, EXIT_INPUT, ReplayError
from replay.java import spark_environment
from replay.request import JobRequest

INTERRUPTED = 130
"""Exit code after Ctrl-C or SIGTERM."""
_STOP_S = 10.0
"""So long Spark may take to end by itself: it removes its temporary files."""


def command(environ: dict[str, str], request: JobRequest, conf: list[str]) -> list[str]:
    """The command line of spark-submit."""
    options = [word for setting in conf for word in ("--conf", setting)]
    script = Path(__file__).with_name("submit.py")
    return [str(Path(environ["SPARK_HOME"]) / "bin" / "spark-submit"), *options, str(script), *request.arguments()]


def submit(request: JobRequest, conf: list[str]) -> int:
    """Run a job through spark-submit, its output passed on. Returns its exit code, 2 if Spark can't be started, 130 if interrupted.

    spark-submit writes all that the job writes to standard output, errors too: here they go where they belong.
    """
    try:
        environ = dict(os.environ) | spark_environment(os.environ)
        # The job writes into a pipe, and can't see how wide the terminal is.
        environ.setdefault("COLUMNS", str(shutil.get_terminal_size().columns))
        words = command(environ, request, conf)
        code, output = _run(words, environ)
    except (ReplayError, OSError) as error:
        print(f"raftlog replay: {error}", file=sys.stderr)
        return EXIT_INPUT
    except KeyboardInterrupt:
        print("raftlog replay: interrupted, nothing was answered", file=sys.stderr)
        return INTERRUPTED
    print(output, end="", file=sys.stdout if code in (0, EXIT_FINDINGS) else sys.stderr)
    return code


def _run(words: list[str], environ: dict[str, str]) -> tuple[int, str]:
    """Exit code and output. Raises KeyboardInterrupt, for SIGTERM too, when Spark has ended: nothing goes on without us."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        with subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, text=True) as process:
            try:
                output, _ = process.communicate()
            except KeyboardInterrupt:
                process.terminate()
                try:
                    process.communicate(timeout=_STOP_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                raise
            return process.returncode, output
    finally:
        signal.signal(signal.SIGTERM, before)
