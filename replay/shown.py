"""Output of a job's result, whichever engine ran the job."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import msgspec

from raftlog.text import printable_json
from replay.errors import EXIT_FINDINGS
from replay.opened import Export
from replay.request import JobRequest
from replay.text import console


def say_doubt(export: Export) -> None:
    """Print to stderr what is known to be wrong with the state of an export, if anything."""
    if export.manifest.doubt:
        print(f"raftlog replay: {export.manifest.doubt}", file=sys.stderr)


def show(request: JobRequest, result: Any) -> int:
    """Print a result; returns the exit code."""
    if request.json:
        print(printable_json(msgspec.json.format(msgspec.json.encode(result), indent=2).decode()))
    else:
        importlib.import_module(f"replay.jobs.{request.job}").render(result, console())
    return 0 if getattr(result, "passed", True) else EXIT_FINDINGS
