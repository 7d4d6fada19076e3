"""Entry point for spark-submit: ``spark-submit replay/submit.py JOB EXPORT_DIR [options]``.

``raftlog replay`` has already parsed its options and submits ``--request JSON``
(JobRequest.to_word).

``eval "$(python -m replay.spark.java)"`` sets up a shell for this.
"""

from __future__ import annotations

import sys

from replay.app import create_app
from replay.request import REQUEST, JobRequest
from replay.run import run_job


def _run(request: JobRequest, conf: list[str]) -> int:
    """Run a request in the Spark session that is already running with its settings."""
    return run_job(request, spark=True)


def main() -> int:
    """Run the job on the command line and return its exit code."""
    if sys.argv[1:2] == [REQUEST]:
        return run_job(JobRequest.of_word(sys.argv[2]), spark=True)
    code = create_app(_run)(standalone_mode=True)
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    sys.exit(main())
