"""A pool whose tasks run in Spark, which reruns only the tasks of a machine that is lost.

The kernels themselves read the export's files with pyarrow: only the columns that they need, as
arrays. Rows that come from Java and have to be converted back to columns would cost five times as
much. Likewise, a shuffle moves pieces of Arrow tables, one per bucket and slice, rather than rows:
each task of the first stage reads a stretch of files and splits it into buckets, and Spark collects
the pieces of each bucket in log order.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from raftlog.errors import RaftlogError
from raftlog.segments.manifest import Segment
from replay.engine.plan import Bucket, Share, Shuffle, bucket_share, shares, stretches
from replay.engine.pool import ALONE_RECORDS, Pool, prepare_worker
from replay.engine.reading import slices
from replay.errors import ReplayError, error_columns, error_from_columns
from replay.export import Export
from replay.kernels.arrays import typed

Task = TypeVar("Task")
Result = TypeVar("Result")
Batches = Iterator[pa.RecordBatch]

STRETCH_BYTES = 32 << 20
"""Size of the Parquet files that one task reads, in bytes: one or two million records."""
BATCH_BYTES = 64 << 20
"""Largest batch that Spark sends to a task, in bytes; the pieces of a shuffle are large rows."""
_TASKS_PER_CORE = 4
_ERROR = pa.schema([("error", pa.string()), ("message", pa.string()), ("fields", pa.string())])
"""Columns for one of raftlog's errors, which as an exception would arrive inside two stack
traces.
"""
_RESULT = pa.schema([("task", pa.int64()), ("result", pa.binary())])
_PIECE = pa.schema([("bucket", pa.int32()), ("offset", pa.int64()), ("piece", pa.binary())])
"""A piece of a bucket: an Arrow stream, and its slice's position in the log."""


class SparkPool(Pool):
    """A pool that runs tasks in a Spark session."""

    def __init__(self, spark: SparkSession, records: int) -> None:
        super().__init__(0)
        self.spark = spark
        self._cores = spark.sparkContext.defaultParallelism
        self.size = 1 if records <= ALONE_RECORDS else self._cores

    def stretches(self, export: Export) -> int:
        """Return the number of stretches: one per core, or more for a large export, to bound their
        size.
        """
        size = sum(each.bytes for each in export.segments)
        return min(len(export.segments), max(self.size, -(-size // STRETCH_BYTES)))

    def map(self, work: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """Yield the results in the order of the tasks. Raises a task's error if it is a
        RaftlogError.
        """
        numbered = list(enumerate(tasks))
        yield from _results(
            self._tasks(partial(_guarded, partial(_pickled, work)), numbered, _RESULT)
        )

    def map_buckets(self, work: Callable[[Bucket], Result], shuffle: Shuffle) -> Iterator[Result]:
        """Yield the result for each bucket of a shuffle. Raises a task's error if it is a
        RaftlogError.
        """
        yield from _results(
            self._buckets(partial(_guarded, partial(_of_bucket, work)), shuffle, _RESULT)
        )

    def frame(self, work: Emit, tasks: list[Any], schema: pa.Schema) -> DataFrame:
        """Return the rows that ``work`` yields for each task, as a Spark table."""
        return self._tasks(work, tasks, schema).drop(*_ERROR.names)

    def bucket_frame(self, work: Emit, shuffle: Shuffle, schema: pa.Schema) -> DataFrame:
        """Return the rows that ``work`` yields for each bucket, as a Spark table."""
        found = self._buckets(work, shuffle, schema)
        return found.drop(*_ERROR.names)

    def _tasks(self, emit: Emit, tasks: list[Any], schema: pa.Schema) -> DataFrame:
        """Return the rows of tasks, with the columns of _ERROR added."""
        count = len(tasks)
        # A file is little work, so a worker gets several tasks at once if there are many.
        at_once = max(1, min(count, _TASKS_PER_CORE * self._cores))
        numbers = self.spark.range(0, count, 1, at_once)
        spark_schema, arrow_schema = _schemas(schema)
        return numbers.mapInArrow(partial(_run_tasks, emit, tasks, arrow_schema), spark_schema)

    def _buckets(self, emit: Emit, shuffle: Shuffle, schema: pa.Schema) -> DataFrame:
        """Return the rows of a shuffle's buckets, with the columns of _ERROR added."""
        of = shuffle.buckets or self._bucket_count(shuffle.export)
        if self.size == 1 or (shuffle.filed and _tail_bytes(shuffle.export) <= STRETCH_BYTES):
            return self._tasks(partial(_of_share, emit, shuffle), shares(shuffle, of), schema)
        spark_schema, arrow_schema = _schemas(schema)
        parts = stretches(shuffle.export, self.stretches(shuffle.export))
        numbers = list(shuffle.splitter.buckets(of))
        cut, tasks = partial(_guarded, partial(_pieces, shuffle, of, numbers)), enumerate(parts)
        spark_pieces, arrow_pieces = _schemas(_PIECE)
        pieces = (
            self.spark.range(0, len(parts), 1, len(parts))
            .mapInArrow(
                partial(_run_tasks, cut, [(not n, part) for n, part in tasks], arrow_pieces),
                spark_pieces,
            )
            .repartitionById(of, "bucket")
            .sortWithinPartitions("bucket", "offset")
        )
        self.spark.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", BATCH_BYTES)
        return pieces.mapInArrow(partial(_gather, emit, of, arrow_schema), spark_schema)

    def _bucket_count(self, export: Export) -> int:
        return 1 if self.size == 1 else max(self.size, self.stretches(export))


def _tail_bytes(export: Export) -> int:
    """Return the size in bytes of the files without buckets, which the task of each bucket
    reads.
    """
    cut = {one.base_offset for one in export.manifest.buckets}
    return sum(one.bytes for one in export.segments if one.base_offset not in cut)


def spark_of(pool: Pool) -> SparkSession:
    """Return the session of a pool. Raises ReplayError if the pool has none."""
    if not isinstance(pool, SparkPool):
        raise ReplayError("this job runs only in Spark")
    return pool.spark


Emit = Callable[[Any], Iterable[pa.Table]]
"""Work that yields rows for a task or bucket."""


def _pickled(work: Callable[[Any], Any], task: tuple[int, Any]) -> Iterator[pa.Table]:
    """Yield the pickled result of a numbered task."""
    number, one = task
    yield pa.table([[number], [pickle.dumps(work(one))]], schema=_RESULT)


def _of_bucket(work: Callable[[Bucket], Any], bucket: Bucket) -> Iterator[pa.Table]:
    """Yield the pickled result of a bucket."""
    return _pickled(work, (bucket.number, bucket))


def _of_share(emit: Emit, shuffle: Shuffle, share: Share) -> Iterator[pa.Table]:
    """Yield the rows of the buckets of a task."""
    for bucket in bucket_share(shuffle, share):
        yield from emit(bucket)


def _guarded(emit: Emit, task: Any) -> Iterator[pa.Table]:
    """Yield the rows of a task; a RaftlogError becomes a row."""
    try:
        yield from emit(task)
    except RaftlogError as error:
        yield pa.table([[each] for each in error_columns(error)], schema=_ERROR)


def _run_tasks(emit: Emit, tasks: Sequence[Any], schema: pa.Schema, batches: Batches) -> Batches:
    """Yield the rows of the tasks whose numbers Spark sends."""
    prepare_worker()
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from _complete(emit(tasks[number]), schema)


def _pieces(
    shuffle: Shuffle, of: int, numbers: list[int], task: tuple[bool, list[Segment]]
) -> Iterator[pa.Table]:
    """Yield the pieces of a stretch of files, split into buckets: the first stage of a shuffle. The
    first task also yields an empty piece for each bucket, as a checkpoint may contain groups of
    that bucket.
    """
    first, part = task
    schema = typed(*shuffle.columns)
    if first:
        nothing = _stream(schema.empty_table())
        yield pa.table([numbers, [-1] * len(numbers), [nothing] * len(numbers)], schema=_PIECE)
    place = part[0].base_offset
    for table in slices(
        shuffle.export,
        shuffle.columns,
        types=shuffle.types,
        only=shuffle.only,
        segments=part,
        coded=shuffle.coded,
    ):
        masks = shuffle.splitter.masks(table, of, numbers)
        for bucket, mask in zip(numbers, masks, strict=True):
            if mask.any():
                piece = _stream(table.filter(pa.array(mask)).cast(schema))
                yield pa.table([[bucket], [place], [piece]], schema=_PIECE)
        place += max(1, table.num_rows)


def _gather(emit: Emit, of: int, schema: pa.Schema, batches: Batches) -> Batches:
    """Yield the rows of buckets, each with its pieces in log order: the second stage of a
    shuffle.
    """
    prepare_worker()
    pieces = (
        piece
        for batch in batches
        for piece in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    )
    for number, some in groupby(pieces, key=itemgetter(0)):
        yield from _complete(emit(Bucket(number, of, _tables(some))), schema)


def _tables(pieces: Iterable[tuple[Any, ...]]) -> Iterator[pa.Table]:
    for _, _, piece, error, *details in pieces:
        if error is not None:
            raise error_from_columns(error, *details)
        yield pa.ipc.open_stream(piece).read_all()


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _schemas(schema: pa.Schema) -> tuple[StructType, pa.Schema]:
    """Return the schema of results with the columns of _ERROR, for Spark and as Spark represents it
    in Arrow.
    """
    fields = [field.with_nullable(nullable=True) for field in (*schema, *_ERROR)]
    spark_schema = from_arrow_schema(pa.schema(fields))
    return spark_schema, to_arrow_schema(spark_schema, timezone="UTC")


def _complete(tables: Iterable[pa.Table], schema: pa.Schema) -> Batches:
    """Yield rows with all columns; a column that a table lacks is null."""
    for table in tables:
        columns = [
            table[field.name].cast(field.type)
            if field.name in table.column_names
            else pa.nulls(table.num_rows, field.type)
            for field in schema
        ]
        yield from pa.table(columns, schema=schema).to_batches()


def _collected(found: DataFrame, schema: pa.Schema) -> pa.Table:
    """Return the rows of all tasks. Raises the first RaftlogError among them."""
    table = found.toArrow()
    errors = table.filter(pc.is_valid(table["error"])).select(_ERROR.names)
    if errors.num_rows:
        raise error_from_columns(
            *min(zip(*(column.to_pylist() for column in errors.columns), strict=True))
        )
    return table.select(schema.names).cast(schema)


def _results(found: DataFrame) -> Iterator[Any]:
    results = _collected(found, _RESULT).sort_by("task")["result"]
    # Safe to unpickle: this job's own workers pickled it.
    return (pickle.loads(each.as_py()) for each in results)
