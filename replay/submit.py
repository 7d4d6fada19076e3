"""For spark-submit: ``spark-submit replay/submit.py JOB EXPORT_DIR [options]``.

``raftlog replay`` has read its options already, and submits ``--request JSON``
(JobRequest.to_word).

``eval "$(python -m replay.spark.java)"`` gives a shell the environment for it.
"""

from __future__ import annotations

import sys

from replay.app import create_app
from replay.request import REQUEST, JobRequest
from replay.run import run_job


def _run(request: JobRequest, conf: list[str]) -> int:
    """Spark is there already, and has its settings."""
    return run_job(request, spark=True)


def main() -> int:
    """Run the command line's job."""
    if sys.argv[1:2] == [REQUEST]:
        return run_job(JobRequest.of_word(sys.argv[2]), spark=True)
    code = create_app(_run)(standalone_mode=True)
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    sys.exit(main())
