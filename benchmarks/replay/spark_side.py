"""Spark's side: ``python -m benchmarks.replay.spark_side EXPORT [STEP …]``.

All steps run in one session, whose start is measured separately.
"""

from __future__ import annotations

import importlib
import sys
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from benchmarks.replay.questions import QUESTIONS, answer
from benchmarks.replay.steps import Step, perform

MEASURED_JOBS = ("lao", "availability", "verify", "audit", "report")
"""Jobs that need only the export; the most expensive last, as time may run out."""
_TOLD = 2_000
"""Maximum length of an unexpected result in a message."""


def steps(directory: str) -> dict[str, Step]:
    """Return all steps, in order."""
    kept: dict[str, Any] = {}

    def start() -> None:
        from replay.export import open_export
        from replay.request import JobRequest
        from replay.spark.pool import SparkPool
        from replay.spark.session import build_session, expect_records
        from replay.spark.views import records

        kept["spark"] = build_session("raftlog benchmark")
        kept["request"] = JobRequest(job="summary", export=directory)
        kept["export"] = open_export(kept["request"])
        expect_records(kept["spark"], kept["export"].record_count)
        kept["pool"] = SparkPool(kept["spark"], kept["export"].record_count)
        kept["records"] = records(kept["spark"], kept["export"])
        kept["records"].withColumnRenamed("offset", "at_offset").createOrReplaceTempView("records")

    def first_job() -> None:
        # Also starts Python on the workers.
        kept["spark"].range(2).mapInArrow(lambda batches: batches, "id long").collect()

    def check() -> None:
        from replay.engine.audit import check_files

        check_files(kept["export"], kept["pool"])

    def scan() -> None:
        kept["records"].write.format("noop").mode("overwrite").save()

    def fold() -> str:
        from raftlog.metadata.entities import format_hash
        from replay.engine.fold import fold

        return format_hash(fold(kept["export"], kept["pool"]).state_hash)

    def question(text: str) -> list[list[str]]:
        return answer([tuple(row) for row in kept["spark"].sql(text).collect()])

    def job(name: str) -> str | None:
        with TemporaryDirectory() as directory_:
            request = msgspec.structs.replace(
                kept["request"], job=name, output=f"{directory_}/report.html"
            )
            found = importlib.import_module(f"replay.jobs.{name}").run(
                kept["export"], request, kept["pool"]
            )
        if getattr(found, "passed", True):
            return None
        return f"{name} found something in a history that has nothing to find: {str(found)[:_TOLD]}"

    asked = {name: (lambda text=text: question(text)) for name, text in QUESTIONS.items()}
    jobs = {f"job: {name}": (lambda name=name: job(name)) for name in _jobs()}
    begin: dict[str, Step] = {
        "start of Spark": start,
        "first job": first_job,
        "SHA-256 of all files": check,
    }
    return {**begin, "scan": scan, "fold": fold, **asked, **jobs}


def _jobs() -> list[str]:
    from replay.request import JOBS

    return [name for name in MEASURED_JOBS if name in JOBS]


def main(directory: str, wanted: list[str]) -> None:
    """Run the steps ``wanted``, or all if none is named; the first two always."""
    everything = steps(directory)
    perform(
        {
            n: step
            for i, (n, step) in enumerate(everything.items())
            if i < 2 or not wanted or n in wanted
        }
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
