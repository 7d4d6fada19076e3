"""The Spark session of a replay, with settings for correct results and quiet output."""

from __future__ import annotations

import logging
import os
import sys

from pyspark.sql import SparkSession

from replay.spark.java import spark_environment, worker_python

_ALWAYS = {
    # By default Spark does not verify Parquet pages, so a flipped byte would give a wrong answer.
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}

FEW_RECORDS = 200_000
_FOR_FEW = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
_RECORDS_A_TASK = 150_000
"""Number of records per task: few enough to sort in memory, and enough to justify the 10 ms or so
that a task costs.
"""
_LEAST_TASKS = 8


def expect_records(session: SparkSession, records: int) -> None:
    """Configure a session for ``records`` records. Settings from --conf are kept.

    For at most FEW_RECORDS, query compilation is disabled: it would take most of the job's time.
    """
    wanted = {
        "spark.sql.shuffle.partitions": str(max(_LEAST_TASKS, -(-records // _RECORDS_A_TASK)))
    }
    if records <= FEW_RECORDS:
        wanted |= _FOR_FEW
    given = session.sparkContext.getConf()
    for key, value in wanted.items():
        if not given.contains(key):
            session.conf.set(key, value)


def build_session(app_name: str, *, log_level: str = "FATAL") -> SparkSession:
    """Return the session: under spark-submit with its settings, otherwise on all cores of this
    machine.

    Outside of spark-submit, sets this process's environment, from which PySpark starts Java and its
    workers. Defaults for one machine are in ``conf/spark-defaults.conf``; all other settings
    override them. Raises ReplayError without Java.
    """
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        workers = worker_python(os.environ)
        os.environ.update(spark_environment(os.environ) | workers)
    builder = SparkSession.builder.appName(app_name)
    for key, value in _ALWAYS.items():
        builder = builder.config(key, value)
    builder = builder.config("spark.ui.showConsoleProgress", str(sys.stderr.isatty()).lower())
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel(log_level)
    # PySpark's own loggers would print a failed query's plan and two stack traces in addition to
    # our message.
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logging.getLogger(name).setLevel(log_level)
    return session
