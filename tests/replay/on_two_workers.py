"""A program for spark-submit, started by ``test_spark_pool.py``: one session on two worker
processes, several jobs, one line of JSON.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from raftlog.metadata.entities import format_hash
from replay.engine import pool
from replay.engine.audit import check_files
from replay.engine.fold import fold
from replay.engine.reading import end_of
from replay.export import open_export
from replay.jobs import audit
from replay.request import JobRequest
from replay.spark.pool import SparkPool
from replay.spark.session import build_session

pool.ALONE_RECORDS = 0
"""Here, and so for the tasks: as if there were much to do."""


def executor(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the Java process that this Python works for: its daemon's parent."""
    stat = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
    for batch in batches:
        yield pa.record_batch([pa.array([int(stat[1])] * batch.num_rows)], names=["executor"])


def main(directory: str) -> None:
    """Run the jobs, and print the results."""
    spark = build_session("raftlog on two workers")
    request = JobRequest(job="summary", export=directory)
    export = open_export(request)
    tasks = SparkPool(spark, export.record_count)
    check_files(export, tasks)
    worked = spark.range(0, 8, 1, 8).mapInArrow(executor, "executor long").distinct().collect()
    folded = fold(export, tasks, tasks=6)
    audited = audit.run(export, request, tasks)
    found = {
        "executors": sorted({row.executor for row in worked}),
        "state_hash": format_hash(folded.state_hash),
        "records": end_of(export).records,
        "audited": audited.checked,
        "offences": audited.total,
    }
    print(json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
