"""Worker processes without Spark: ``python -m benchmarks.replay.local_side EXPORT [STEP …]``."""

from __future__ import annotations

import sys
from functools import partial

from benchmarks.replay.steps import Step, perform
from replay.request import LOCAL_JOBS, JobRequest
from replay.run import compute

MEASURED_JOBS = tuple(name for name in LOCAL_JOBS if name in {"audit", "lao", "report"})
"""Jobs that need only the export, and that are also measured with Spark."""


def job(name: str, directory: str) -> str | None:
    """Run a job; return its unexpected findings, or None."""
    found = compute(JobRequest(job=name, export=directory))
    return None if found.passed else f"{name} found something: {str(found)[:2000]}"


def fold(directory: str) -> str:
    found: str = compute(JobRequest(job="state", export=directory, limit=1)).state_hash
    return found


def main(directory: str, wanted: list[str]) -> None:
    steps: dict[str, Step] = {"fold": lambda: fold(directory)}
    steps |= {f"job: {name}": partial(job, name, directory) for name in MEASURED_JOBS}
    perform({name: step for name, step in steps.items() if not wanted or name in wanted})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
