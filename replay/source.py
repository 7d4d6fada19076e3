"""An export as Spark reads it: the files that a question needs, their checks, and their rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema

from raftlog.errors import RaftlogError
from raftlog.segments.columns import SCHEMA
from raftlog.segments.files import is_uri
from raftlog.segments.manifest import Segment
from raftlog.segments.range_checks import check_segment
from replay.errors import as_error
from replay.opened import Export
from replay.remote import hadoop_uri, read_through_fsspec
from replay.workers import prepare_worker

_FAULTS_SCHEMA = "fault string, name string"
_GLOB = re.compile(r"([\[\]{}*?\\])")


def check_files(spark: SparkSession, export: Export) -> None:
    """Check owner, size and hash of the files in question, spread over the workers.

    Raises ReplayError naming the first bad one.
    """
    count = len(export.segments)
    tasks = min(count, 4 * spark.sparkContext.defaultParallelism)
    faults = (
        spark.range(0, count, 1, tasks)
        .mapInArrow(_checker(export), _FAULTS_SCHEMA)
        .limit(20)
        .collect()
    )
    if faults:
        fault, name = min((row.fault, row.name) for row in faults)
        raise as_error(name, fault)


def _checker(export: Export) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    target, segments = export.target, export.segments
    cluster_id, generation = export.manifest.cluster_id, export.manifest.generation

    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        for batch in batches:
            faults: list[tuple[str, str]] = []
            for index in batch.column(0).to_pylist():
                try:
                    check_segment(target, segments[index], cluster_id, generation)
                except RaftlogError as error:
                    # As a row, not as an exception: an exception would arrive wrapped in two stack
                    # traces.
                    faults.append((str(error), type(error).__name__))
            yield pa.record_batch(
                [pa.array([each[at] for each in faults], pa.string()) for at in (0, 1)],
                names=["fault", "name"],
            )

    return check


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
