"""An export as SQL views: call ``register(spark, EXPORT)``, then query.

``records`` is the log with a row per record (:mod:`raftlog.segments.columns`). ``changes`` has a
row per entity that a record changed, with the values before and after (:mod:`replay.engine.fold`).

The other views are timelines, with a row per *interval* during which something is constant. An
interval begins at the offset of a record (``begins``, inclusive) and ends at that of the next
record that changes or removes it (``ends``, exclusive; null if there is none). ``begins_ms`` and
``ends_ms`` are the timestamps of these two records; ``epoch`` and ``principal`` are from the first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property, partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema

from raftlog.metadata.records import RecordType
from raftlog.segments.columns import SCHEMA
from raftlog.segments.files import is_uri
from raftlog.segments.manifest import Segment
from replay.engine.audit import check_files
from replay.engine.fold import CHANGED, change_work
from replay.engine.passes import ExportLog, partition_shuffle
from replay.engine.plan import Bucket, Shuffle, stretches
from replay.engine.reading import slices
from replay.export import Export, open_export, require_whole_history
from replay.kernels import timelines
from replay.kernels.census import count_records
from replay.kernels.facts import BROKER_SPANS, TOPIC_LIVES, Facts, spans_table
from replay.kernels.passes import BY_CONFIG, facts_of
from replay.kernels.steps import COLUMNS, PARTITION_TYPES
from replay.outages.service import controllers
from replay.request import JobRequest
from replay.spark.pool import SparkPool

_GLOB = re.compile(r"([\[\]{}*?\\])")


def records(spark: SparkSession, export: Export) -> DataFrame:
    """Return the records in question in whole batches, with the columns of
    :mod:`raftlog.segments.columns`. For an export at a URI, workers read the files with all
    columns, even if only some are used.
    """
    if is_uri(export.target):
        pool = SparkPool(spark, export.record_count)
        parts = stretches(export, pool.stretches(export))
        return pool.frame(partial(_rows, export), parts, SCHEMA)
    # Spark treats paths as patterns.
    paths = [_GLOB.sub(r"\\\1", f"{export.target}/{one.file}") for one in export.segments]
    rows = spark.read.schema(from_arrow_schema(SCHEMA)).parquet(*paths)
    if export.begin is not None:
        rows = rows.where(sf.col("offset") > export.begin.offset)
    if export.at_offset is not None:
        # The offset is sorted, so it prunes row groups; a batch is applied whole or not at all.
        rows = rows.where(sf.col("offset") <= export.at_offset)
        rows = rows.where(sf.col("batch_last_offset") <= export.at_offset)
    return rows


def _rows(export: Export, segments: Sequence[Segment]) -> Iterator[pa.Table]:
    return slices(export, SCHEMA.names, segments=segments, coded=())


class Views:
    """The views of an open export, by their names in VIEWS; the facts are read once for all."""

    def __init__(self, spark: SparkSession, export: Export) -> None:
        self.spark, self.export = spark, export
        self.pool = SparkPool(spark, export.record_count)
        self.log = ExportLog(export, self.pool)

    @cached_property
    def facts(self) -> Facts:
        """Facts from rare records, which several timelines need."""
        return facts_of(self.log)

    def by(
        self,
        kernel: Callable[[Iterable[pa.Table]], Iterator[pa.Table]],
        shuffle: Shuffle,
        schema: pa.Schema,
    ) -> DataFrame:
        """Return the rows that a kernel yields for each bucket."""
        return self.pool.bucket_frame(partial(_run, kernel), shuffle, schema)

    def table(self, rows: pa.Table) -> DataFrame:
        """Return the driver's rows as a table."""
        return self.spark.createDataFrame(rows)


def _run(
    kernel: Callable[[Iterable[pa.Table]], Iterator[pa.Table]], bucket: Bucket
) -> Iterator[pa.Table]:
    return kernel(bucket.tables)


BROKER_COLUMNS = tuple(BROKER_SPANS.names[:-2])


def _partitions(of: Views) -> DataFrame:
    """Return the view ``partitions``.

    ``proposer_id``, ``proposer_epoch`` and ``isr_with_epochs`` are null if the record does not
    contain them; ``type`` is the record's. ``topic_name`` is null for a topic that was never
    created, which no fold accepts. In old exports that lack their columns, both epochs count from
    0, where every controller starts them, and the columns of reassignments are null.
    """
    shuffle = partition_shuffle(of.export, COLUMNS, types=PARTITION_TYPES)
    return of.by(partial(timelines.partitions, of.facts), shuffle, timelines.PARTITIONS)


def _configs(of: Views) -> DataFrame:
    types = (RecordType.CONFIG,)
    shuffle = partition_shuffle(of.export, timelines.CONFIG_COLUMNS, BY_CONFIG, types)
    return of.by(partial(timelines.configs, of.facts), shuffle, timelines.CONFIGS)


def _controllers(of: Views) -> DataFrame:
    reigns = [each._asdict() for each in controllers(of.log, count_records(of.log))]
    return of.table(pa.Table.from_pylist(reigns, timelines.CONTROLLERS))


VIEWS: dict[str, Callable[[Views], DataFrame]] = {
    "records": lambda of: records(of.spark, of.export),
    "changes": lambda of: of.pool.bucket_frame(*change_work(of.export), CHANGED),
    "brokers": lambda of: of.table(
        spans_table(of.facts.brokers, BROKER_SPANS).select(BROKER_COLUMNS)
    ),
    "partitions": _partitions,
    "topics": lambda of: of.table(spans_table(of.facts.topics, TOPIC_LIVES)),
    "configs": _configs,
    "controllers": _controllers,
}
"""View name -> function that returns the view."""


def register(
    spark: SparkSession,
    target: str,
    *,
    at_offset: int | None = None,
    at_time_ms: int | None = None,
    prefix: str = "",
    verify: bool = True,
) -> Export:
    """Create temporary views of the export at a path or URI, optionally only up to an offset or
    time, both inclusive.

    The views show what the export contains now; register again to see more. ``prefix``: prefix of
    their names, for several exports in one session. ``verify``: first read all files and compare
    their hashes. Raises ExportError and its subclasses, and ReplayError.
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
    """Create the views of an open export, or some of them. The views brokers, topics, partitions
    and configs require reading records first.
    """
    of = Views(spark, export)
    for name in names:
        VIEWS[name](of).createOrReplaceTempView(prefix + name)
