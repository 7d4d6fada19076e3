"""The same work in tasks of Spark as in worker processes of one machine.

The kernels read the export's files themselves, by pyarrow: only the columns that they need, as
arrays. Rows that come from Java would cost five times as much, to be put into columns again, and
would have to be brought together first. Spark says where a task runs, restarts it where a machine
is lost, and returns its findings.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession

from raftlog.errors import RaftlogError
from replay.local.pool import ALONE_RECORDS, Pool
from replay.workers import prepare_worker

Task = TypeVar("Task")
Result = TypeVar("Result")

MOST_READERS = 16
"""Most reading tasks. Where the files are not bucketed each task reads all of them, for its share
of the records: beyond this number one more task would bring nothing.
"""
_TASKS_PER_CORE = 4
_FOUND = pa.schema([("id", pa.int64()), ("found", pa.binary())])


class SparkPool(Pool):
    """Pool that runs tasks in a Spark session."""

    def __init__(self, spark: SparkSession, records: int) -> None:
        super().__init__(0)
        self._spark = spark
        if records > ALONE_RECORDS:
            self.size = min(spark.sparkContext.defaultParallelism, MOST_READERS)

    def map(self, work: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """Yield the results, in the order of the tasks. Raises a task's error, if that is ours."""
        listed = list(tasks)
        count = len(listed)
        if not count:
            return
        # A file is little work: of many tasks a worker gets several at once.
        at_once = min(count, _TASKS_PER_CORE * self._spark.sparkContext.defaultParallelism)
        rows = (
            self._spark.range(0, count, 1, at_once)
            .mapInArrow(_runner(work, listed), "id long, found binary")
            .collect()
        )
        for row in sorted(rows, key=lambda row: row["id"]):
            # Pickled by this job's own workers.
            found = pickle.loads(row["found"])
            if isinstance(found, RaftlogError):
                raise found
            yield found


def _runner(
    work: Callable[[Any], Any], tasks: list[Any]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        for batch in batches:
            ids = batch.column(0).to_pylist()
            found = [pickle.dumps(_result(work, tasks[each])) for each in ids]
            yield pa.record_batch([pa.array(ids), pa.array(found, pa.binary())], schema=_FOUND)

    return run


def _result(work: Callable[[Any], Any], task: Any) -> Any:
    try:
        return work(task)
    except RaftlogError as error:
        # As a row, not as an exception: an exception would arrive wrapped in two stack traces.
        return error
