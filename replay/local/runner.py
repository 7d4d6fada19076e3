"""Run one job in this process and its workers, without Spark: checks, job, output, exit code."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from raftlog.errors import RaftlogError
from raftlog.text import printable
from replay.beginning import BEGIN_IN_BETWEEN, begun
from replay.errors import ReplayError, exit_code
from replay.local.audit import check_files
from replay.local.pool import Pool, prepare_process
from replay.opened import Export, open_export
from replay.origin import with_origin
from replay.request import LOCAL_JOBS, JobRequest
from replay.shown import say_doubt, show
from replay.topic_ids import by_id

_CHECK_BY_THEMSELVES = ("audit", "summary", "verify", "report")
"""Jobs that check the files while they read them."""


def compute_local(request: JobRequest) -> Any:
    """Return the result of a job. Raises RaftlogError."""
    return compute_on(open_local(request), request)


def open_local(request: JobRequest) -> Export:
    """Open the export that a job is about. Raises RaftlogError."""
    if request.job not in LOCAL_JOBS:
        raise ReplayError(f"{request.job} needs Spark: --engine local has {', '.join(LOCAL_JOBS)}")
    return open_export(request)


def compute_on(export: Export, request: JobRequest) -> Any:
    """Return the result of a job on an open export. Raises RaftlogError."""
    if request.job in BEGIN_IN_BETWEEN:
        request = by_id(export, request)
        export = begun(export, request)
    job = importlib.import_module(f"replay.jobs.{request.job}")
    with Pool(export.record_count) as pool:
        if request.job not in _CHECK_BY_THEMSELVES:
            check_files(export, pool)
        return with_origin(job.run_local(export, request, pool), export.manifest.origin)


def run_local(request: JobRequest) -> int:
    """Run a job, print its result, return the exit code: 0, 2 (unusable input), 3 (the audit found
    something, or files are damaged).
    """
    prepare_process()
    try:
        export = open_local(request)
        say_doubt(export)
        result = compute_on(export, request)
    except RaftlogError as error:
        print(f"raftlog replay: {printable(str(error), keep=chr(10))}", file=sys.stderr)
        return exit_code(error)
    return show(request, result)
