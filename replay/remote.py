"""Parquet files at a URI: read by Spark itself where Hadoop has a file system for the scheme, else
by fsspec on the workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from raftlog.segments.columns import SCHEMA
from raftlog.segments.files import open_place
from raftlog.segments.manifest import Segment
from replay.workers import prepare_worker

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
