"""Start spark-submit for a job, from a virtual environment that need not be activated."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from replay.errors import EXIT_FINDINGS, EXIT_INPUT, ReplayError
from replay.java import spark_environment
from replay.request import JobRequest


def command(environ: dict[str, str], request: JobRequest, conf: list[str]) -> list[str]:
    """The command line of spark-submit."""
    options = [word for setting in conf for word in ("--conf", setting)]
    script = Path(__file__).with_name("submit.py")
    return [str(Path(environ["SPARK_HOME"]) / "bin" / "spark-submit"), *options, str(script), *request.arguments()]


def submit(request: JobRequest, conf: list[str]) -> int:
    """Run a job through spark-submit, its output passed on. Returns its exit code, 2 if Spark can't be started.

    spark-submit writes all that the job writes to standard output, errors too: here they go where they belong.
    """
    try:
        environ = dict(os.environ) | spark_environment(os.environ)
        # The job writes into a pipe, and can't see how wide the terminal is.
        environ.setdefault("COLUMNS", str(shutil.get_terminal_size().columns))
        words = command(environ, request, conf)
        done = subprocess.run(words, env=environ, stdout=subprocess.PIPE, text=True, check=False)
    except (ReplayError, OSError) as error:
        print(f"raftlog replay: {error}", file=sys.stderr)
        return EXIT_INPUT
    answered = done.returncode in (0, EXIT_FINDINGS)
    print(done.stdout, end="", file=sys.stdout if answered else sys.stderr)
    return done.returncode
