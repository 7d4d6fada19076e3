"""An export as views for SQL: ``register(spark, EXPORT)``, and ask.

``records`` is the log, a row a record (:mod:`raftlog.segments.columns`); ``changes`` what they
changed: a row for each entity, with its value before and after (:mod:`replay.engine.fold`).

The others are timelines: one row for each *interval* in which one thing's facts are constant. It
begins at the offset of a record (``begins``, inclusive) and ends at that of the next record that
changes it or takes it away (``ends``, exclusive; null if it still is so where the records end).
``begins_ms`` and ``ends_ms`` are the timestamps of these two records; ``epoch`` and ``principal``
are of the first.
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
    """Return the rows in question: columns as in :mod:`raftlog.segments.columns`, whole batches
    only. Of an export at a URI the workers read the files, and every column, whatever is asked for.
    """
    if is_uri(export.target):
        pool = SparkPool(spark, export.record_count)
        parts = stretches(export, pool.stretches(export))
        return pool.frame(partial(_rows, export), parts, SCHEMA)
    # Spark takes a path for a pattern.
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
    """Views over an open export, by their names in VIEWS; the facts are read once for all."""

    def __init__(self, spark: SparkSession, export: Export) -> None:
        self.spark, self.export = spark, export
        self.pool = SparkPool(spark, export.record_count)
        self.log = ExportLog(export, self.pool)

    @cached_property
    def facts(self) -> Facts:
        """Facts of the rare records, by which the timelines of many records are made."""
        return facts_of(self.log)

    def by(
        self,
        kernel: Callable[[Iterable[pa.Table]], Iterator[pa.Table]],
        shuffle: Shuffle,
        schema: pa.Schema,
    ) -> DataFrame:
        """Return the rows that a kernel yields of each bucket."""
        return self.pool.bucket_frame(partial(_run, kernel), shuffle, schema)

    def table(self, rows: pa.Table) -> DataFrame:
        """Return rows of the driver."""
        return self.spark.createDataFrame(rows)


def _run(
    kernel: Callable[[Iterable[pa.Table]], Iterator[pa.Table]], bucket: Bucket
) -> Iterator[pa.Table]:
    return kernel(bucket.tables)


BROKER_COLUMNS = tuple(BROKER_SPANS.names[:-2])


def _partitions(of: Views) -> DataFrame:
    """``proposer_id``, ``proposer_epoch`` and ``isr_with_epochs`` are as the record says, null if
    it says none; ``type`` is the record's. ``topic_name`` is null for a topic that was never
    created, which no fold accepts. In exports from before there were columns for them both epochs
    begin at 0, as every controller begins them, and the columns of reassignments are null.
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
"""Each view's name, and how it comes from the export."""


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
    of = Views(spark, export)
    for name in names:
        VIEWS[name](of).createOrReplaceTempView(prefix + name)
