"""An export as views for SQL: ``register(spark, EXPORT)``, and ask.

* ``records``: the log, a row a record (:mod:`raftlog.segments.columns`);
* ``changes``: what they changed: a row for each entity, with its value before and after
  (:mod:`replay.engine.fold`);
* ``brokers``: registrations, a row for each interval in which one's facts are constant
  (:mod:`replay.spark.timelines`, as the rest);
* ``partitions``: replicas, leader, ISR of partitions;
* ``topics``: from creation to removal;
* ``configs``: values of config keys;
* ``controllers``: who led the quorum;
* ``lao``: LAO and its lag, at each progress record (:mod:`replay.lag.waits`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema

from raftlog.segments.columns import SCHEMA
from raftlog.segments.files import is_uri, open_place
from raftlog.segments.manifest import Segment
from replay.engine.audit import check_files
from replay.engine.fold import CHANGED, change_work
from replay.engine.pool import prepare_worker
from replay.export import Export, open_export, require_whole_history
from replay.kernels.facts import Facts
from replay.request import JobRequest
from replay.spark import timelines
from replay.spark.pool import SparkPool
from replay.spark.timelines import points_table

_GLOB = re.compile(r"([\[\]{}*?\\])")


def records(spark: SparkSession, export: Export) -> DataFrame:
    """Return the rows in question: columns as in :mod:`raftlog.segments.columns`, whole batches
    only.
    """
    rows = _rows(spark, export.target, export.segments)
    for condition in _conditions(export):
        rows = rows.where(condition)
    return rows


def _rows(spark: SparkSession, target: str, segments: tuple[Segment, ...]) -> DataFrame:
    root: str | None = target
    if is_uri(target):
        root = hadoop_uri(spark, target)
        if root is None:
            return read_through_fsspec(spark, target, segments)
    # Spark takes a path for a pattern.
    paths = [_GLOB.sub(r"\\\1", f"{root}/{segment.file}") for segment in segments]
    return spark.read.schema(from_arrow_schema(SCHEMA)).parquet(*paths)


def _conditions(export: Export) -> Iterator[Column]:
    if export.begin is not None:
        yield sf.col("offset") > export.begin.offset
    if export.at_offset is not None:
        # The offset is sorted, so it prunes row groups; a batch is applied whole or not at all.
        yield sf.col("offset") <= export.at_offset
        yield sf.col("batch_last_offset") <= export.at_offset


_HADOOP_SCHEMES = {"s3": "s3a"}
"""Hadoop's names of fsspec's schemes, where they differ."""
_BATCH_ROWS = 16_384
_SCHEMA = pa.schema(
    field.with_type(pa.timestamp("us", tz="UTC")) if pa.types.is_timestamp(field.type) else field
    for field in SCHEMA
)
"""Spark takes timestamps from Arrow in microseconds only."""


def hadoop_uri(spark: SparkSession, uri: str) -> str | None:
    """Return the URI for Spark's own readers; None if Spark has no file system for the scheme."""
    scheme, _, rest = uri.partition("://")
    if "::" in scheme:
        # Chained file systems (simplecache::s3://…) exist in fsspec only.
        return None
    known = _HADOOP_SCHEMES.get(scheme, scheme)
    # The driver's JVM knows; there is no question for it in PySpark's API.
    java: Any = spark._jvm
    context = spark.sparkContext._jsc
    try:
        java.org.apache.hadoop.fs.FileSystem.getFileSystemClass(
            known, context.hadoopConfiguration()
        )
    except Py4JJavaError:
        return None
    return f"{known}://{rest}"


def read_through_fsspec(spark: SparkSession, uri: str, segments: Sequence[Segment]) -> DataFrame:
    """Return the rows of Parquet files, one task a file.

    Every column is read, whatever is asked for: slower than Spark's own reader.
    """
    indexes = spark.range(0, len(segments), 1, len(segments))
    return indexes.mapInArrow(_reader(uri, tuple(segments)), from_arrow_schema(SCHEMA))


def _reader(
    uri: str, segments: Sequence[Segment]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        place = open_place(uri)
        for batch in batches:
            for index in batch.column(0).to_pylist():
                with place.open(segments[index].file) as file:
                    parquet = pq.ParquetFile(file, page_checksum_verification=True)
                    for rows in parquet.iter_batches(_BATCH_ROWS):
                        yield with_all_columns(rows)

    return read


def with_all_columns(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows in today's schema: columns that a file from before does not have are null."""
    names = set(rows.schema.names)
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in names
        else pa.nulls(rows.num_rows, field.type)
        for field in _SCHEMA
    ]
    return pa.record_batch(columns, schema=_SCHEMA)


class _Records:
    """The records and their facts: read once for all views."""

    def __init__(self, spark: SparkSession, export: Export) -> None:
        self.rows = records(spark, export)
        self._pool, self._export = SparkPool(spark, export.record_count), export

    @cached_property
    def facts(self) -> Facts:
        return timelines.facts_of(self.rows)

    @property
    def changes(self) -> DataFrame:
        return self._pool.bucket_frame(*change_work(self._export), CHANGED)


VIEWS: dict[str, Callable[[_Records], DataFrame]] = {
    "records": lambda of: of.rows,
    "changes": lambda of: of.changes,
    "brokers": lambda of: timelines.brokers(of.rows, of.facts),
    "partitions": lambda of: timelines.partitions(of.rows, of.facts),
    "topics": lambda of: timelines.topics(of.rows, of.facts),
    "configs": lambda of: timelines.configs(of.rows, of.facts),
    "controllers": lambda of: timelines.controllers(of.rows),
    "lao": lambda of: points_table(of.rows),
}
"""Each view's name, and how it comes from the records."""


def register(
    spark: SparkSession,
    target: str,
    *,
    at_offset: int | None = None,
    at_time_ms: int | None = None,
    prefix: str = "",
    verify: bool = True,
) -> Export:
    """Make temporary views over the export at a path or a URI, as far as the two limits (both
    inclusive) let it reach.

    The views show what the export held now; register again to see more. ``prefix`` comes before
    their names, for two exports in one session. ``verify``: read all files first and compare their
    hashes. Raises ExportError and its kinds, ReplayError.
    """
    export = open_export(
        JobRequest(job="sql", export=str(target), at_offset=at_offset, at_time_ms=at_time_ms)
    )
    require_whole_history(export)
    if verify:
        check_files(export, SparkPool(spark, export.record_count))
    register_export(spark, export, prefix)
    return export


def register_export(
    spark: SparkSession, export: Export, prefix: str = "", names: Collection[str] = tuple(VIEWS)
) -> None:
    """Make the views over an open export, or some of them: brokers, topics, partitions and configs
    need a look at the records.
    """
    of = _Records(spark, export)
    for name in names:
        VIEWS[name](of).createOrReplaceTempView(prefix + name)
