"""Exports of whole logs, and jobs on them without Spark."""

import importlib
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "segments"))

from exports import written

from replay.engine.pool import Pool
from replay.export import Export, open_export
from replay.request import JobRequest
from replay.run import compute

__all__ = ["ask", "ask_shared", "opened", "written"]


def opened(directory: Path, **options: Any) -> Export:
    """Open an export as far as a request with these options reads it."""
    return open_export(JobRequest(**{"job": "audit"} | options, export=str(directory)))


def ask(job: str, directory: Path, **options: Any) -> Any:
    """Return the result of a job as the command line would."""
    return compute(JobRequest(job=job, export=str(directory), **options))


def ask_shared(workers: int, job: str, directory: Path, **options: Any) -> Any:
    """Return the result for the whole log, shared as among several workers, in process."""
    request = JobRequest(job=job, export=str(directory), **options)
    with Pool(0) as pool:
        pool.size = workers
        run = importlib.import_module(f"replay.jobs.{job}").run
        return run(open_export(request), request, pool)
