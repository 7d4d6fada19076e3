"""Run one job in this process: session, checks, job, output, exit code."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from raftlog.errors import RaftlogError
from raftlog.text import printable
from replay.beginning import BEGIN_IN_BETWEEN, begun
from replay.errors import exit_code, explain
from replay.opened import Export, open_export
from replay.origin import with_origin
from replay.request import JobRequest
from replay.session import build_session, expect_records
from replay.shown import say_doubt, show
from replay.source import check_files
from replay.topic_ids import by_id


def compute(spark: SparkSession, request: JobRequest) -> Any:
    """Return the result of a job. Raises RaftlogError: whatever Spark says is put into one
    paragraph.
    """
    export = open_export(request)
    return compute_on(spark, export, request)


def compute_on(spark: SparkSession, export: Export, request: JobRequest) -> Any:
    """Return the result of a job on an open export, its files checked first."""
    try:
        job = importlib.import_module(f"replay.jobs.{request.job}")
        if request.job in BEGIN_IN_BETWEEN:
            request = by_id(export, request)
            export = begun(export, request)
        if not getattr(job, "CHECKS_FILES", False):
            check_files(spark, export)
        if not hasattr(job, "run"):
            # What Spark's own tables do for it stands apart: without Spark nobody imports that.
            job = importlib.import_module(f"replay.spark_jobs.{request.job}")
        return with_origin(job.run(spark, export, request), export.manifest.origin)
    except (PySparkException, Py4JError) as error:
        raise explain(str(error), export.segments) from error


def run_here(request: JobRequest) -> int:
    """Run a job, print its result, return the exit code: 0, 2 (unusable input), 3 (the audit found
    something, or files are damaged).
    """
    try:
        # Before Spark starts, which takes seconds: most mistakes show here.
        export = open_export(request)
        say_doubt(export)
        spark = build_session(f"raftlog replay {request.job}")
        try:
            expect_records(spark, export.record_count)
            result = compute_on(spark, export, request)
        finally:
            spark.stop()
    except RaftlogError as error:
        print(f"raftlog replay: {printable(str(error), keep=chr(10))}", file=sys.stderr)
        return exit_code(error)
    return show(request, result)
