"""Timelines: the intervals in which a fact held.

The kernels' (:mod:`replay.kernels`), as tables of Spark; no record is decoded.

Each function takes the records of an export (:func:`replay.spark.views.records`) and returns one
row for each *interval* in which one thing's facts are constant. It begins at the offset of a record
(``begins``, inclusive) and ends at the offset of the next record that changes it or takes it away
(``ends``, exclusive; null: it still is so where the records end). ``begins_ms`` and ``ends_ms`` are
the timestamps of these two records; ``epoch`` and ``principal`` are of the first.

A record says only what it changes; the rest is carried on from the interval before, by the rules of
:mod:`raftlog.metadata.fold`. So the records must begin where the history does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema

from raftlog.metadata.records import RecordType
from replay.engine.pool import prepare_worker
from replay.engine.reading import slices_of
from replay.kernels import timelines as kernels
from replay.kernels.arrays import NEVER
from replay.kernels.facts import (
    BROKER_SPANS,
    BROKER_TYPES,
    RARE_COLUMNS,
    TOPIC_LIVES,
    Facts,
    spans_table,
)
from replay.kernels.steps import COLUMNS, PARTITION_TYPES
from replay.lag.result import LaoPoint
from replay.lag.waits import PIECE_COLUMNS, points_of

_FACTS = (*BROKER_TYPES, RecordType.TOPIC, RecordType.REMOVE_TOPIC)
Kernel = Callable[[Iterable[pa.Table]], Iterator[pa.Table]]


def facts_of(records: DataFrame) -> Facts:
    """Return the facts of the rare records, by which the timelines of many records are made. One
    Spark job; each rare record becomes a row in the driver.
    """
    clears = sf.col("imported_name") == "ClearElrRecord"
    rare = records.where(_is(*_FACTS) | clears).select(*RARE_COLUMNS)
    return Facts(rare.toArrow().sort_by("offset"), NEVER)


BROKER_COLUMNS = tuple(BROKER_SPANS.names[:-2])
CONTROLLER_COLUMNS = (
    "epoch",
    "leader_id",
    "begins",
    "ends",
    "begins_ms",
    "last_ms",
    "ends_ms",
    "last_heard_epoch",
    "last_heard_age_ms",
    "last_heard_by_all",
)


def brokers(records: DataFrame, facts: Facts | None = None) -> DataFrame:
    """Registrations of brokers: BROKER_COLUMNS. No row while a broker is not registered.

    ``registration``: it begins by a registration, not by a change of one; ``reason`` is
    "registered" then, as in the image. The batch is that of the record that begins it, inclusive.
    """
    spans = spans_table((facts or facts_of(records)).brokers, BROKER_SPANS)
    return records.sparkSession.createDataFrame(spans.select(BROKER_COLUMNS))


def topics(records: DataFrame, facts: Facts | None = None) -> DataFrame:
    """Topics, from creation to removal: TOPIC_LIVES."""
    lives = spans_table((facts or facts_of(records)).topics, TOPIC_LIVES)
    return records.sparkSession.createDataFrame(lives)


def partitions(records: DataFrame, facts: Facts | None = None) -> DataFrame:
    """Partitions, between two changes of one and up to the removal of its topic:
    ``kernels.PARTITIONS``.

    ``leader`` -1: none. ``proposer_id``, ``proposer_epoch`` and ``isr_with_epochs`` are as the
    record says, null if it says none; ``type`` is the record's. ``topic_name`` is null for a topic
    that was never created, which no fold accepts. In exports from before there were columns for
    them both epochs begin at 0, as every controller begins them, and ``leader_recovery_state``,
    ``adding_replicas`` and ``removing_replicas`` are null.
    """
    rows = records.where(_is(*PARTITION_TYPES)).select(*COLUMNS)
    rows = rows.repartition("topic_id", "partition_id").sortWithinPartitions("offset")
    return _by(partial(kernels.partitions, facts or facts_of(records)), rows, kernels.PARTITIONS)


def controllers(records: DataFrame) -> DataFrame:
    """Controllers: CONTROLLER_COLUMNS; the reign of one ends where the next one's begins.

    ``last_ms`` is the timestamp of the last record of the epoch: up to ``ends_ms`` no record
    follows. ``last_heard_…``: of the leaders before, as its first record says.
    """
    said = records.where(_is(RecordType.LEADER_CHANGE)).select(*kernels.CONTROLLER_COLUMNS)
    # One row an election: few enough for one task.
    rows = said.repartition(1).sortWithinPartitions("offset")
    reigns = _by(kernels.controllers, rows, kernels.CONTROLLERS)
    last = records.groupBy("epoch").agg(sf.max("timestamp_ms").alias("last_ms"))
    return reigns.join(last, "epoch", "left").select(*CONTROLLER_COLUMNS)


def configs(records: DataFrame, facts: Facts | None = None) -> DataFrame:
    """Values of config keys, from being set to being set anew or deleted: ``kernels.CONFIGS``.

    No row while a key has no value. In Kafka's log a topic's configs go with it.

    ``resource_type``: 2 topic, 4 broker, 16 client metrics, 32 group. ``resource_name`` is empty
    for all brokers.
    """
    rows = records.where(_is(RecordType.CONFIG)).select(*kernels.CONFIG_COLUMNS)
    rows = rows.repartition("resource_type", "resource_name", "config_name")
    rows = rows.sortWithinPartitions("offset")
    return _by(partial(kernels.configs, facts or facts_of(records)), rows, kernels.CONFIGS)


def _by(kernel: Kernel, rows: DataFrame, schema: pa.Schema) -> DataFrame:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        for table in kernel(slices_of(batches)):
            yield from table.to_batches()

    return rows.mapInArrow(run, from_arrow_schema(schema))


def _is(*types: RecordType) -> Column:
    return sf.col("type").isin(*(int(each) for each in types))


POINTS_DDL = (
    "offset long, epoch int, timestamp_ms long, lowest_acknowledged_offset long,"
    " high_watermark long, lag_offsets long, lag_ms long, covered long, waited_ms long"
)
"""The fields of LaoPoint."""
_SCHEMA = pa.schema(
    [(name, pa.int32() if name == "epoch" else pa.int64()) for name in LaoPoint.__struct_fields__]
)


def points_table(records: DataFrame) -> DataFrame:
    """Return the timeline of LAO from the records alone, as people ask for it: a LaoPoint a row.
    One task's work, piece by piece.
    """
    rows = records.select(*PIECE_COLUMNS).repartition(1).sortWithinPartitions("offset")
    return rows.mapInArrow(_points, POINTS_DDL)


def _points(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    prepare_worker()
    for found in points_of(slices_of(batches)):
        yield pa.RecordBatch.from_pylist(
            [msgspec.structs.asdict(each) for each in found], schema=_SCHEMA
        )


def as_rows(found: Iterable[LaoPoint]) -> list[tuple[int | None, ...]]:
    """Return the points as rows of POINTS_DDL."""
    return [msgspec.structs.astuple(each) for each in found]
