"""Spans of brokers and topics that a streaming job remembers, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from pyspark.sql import DataFrame, SparkSession

from replay.kernels.arrays import NEVER
from replay.kernels.facts import BrokerSpan, TopicLife
from replay.streaming.watch import Piece

BROKERS_DDL = (
    "broker_id int, broker_epoch long, begins long, begins_ms long, epoch int, fenced boolean,"
    " in_controlled_shutdown boolean, rack string, reason string, cause string,"
    " registration boolean, incarnation_id string, principal string, batch_base_offset long,"
    " batch_last_offset long, supported_features array<struct<name string,"
    " min_supported_version int, max_supported_version int>>, log_dirs array<string>,"
    " ends long, ends_ms long"
)
TOPICS_DDL = (
    "topic_id string, topic_name string, begins long, begins_ms long, ends long, ends_ms long"
)
Span = TypeVar("Span", BrokerSpan, TopicLife)


def open_spans(spark: SparkSession, spans: Sequence[BrokerSpan | TopicLife], ddl: str) -> DataFrame:
    """Return the spans that have not ended, as a table."""
    return _as_table(spark, [span for span in spans if span.ends == NEVER], ddl)


def last_spans(spark: SparkSession, spans: Sequence[BrokerSpan]) -> DataFrame:
    """Return the last span of each broker: one that has been unregistered may return, and the log
    directories that it had registered are known then.
    """
    last = {span.broker_id: span for span in spans}
    return _as_table(spark, list(last.values()), BROKERS_DDL)


def _as_table(spark: SparkSession, spans: Sequence[BrokerSpan | TopicLife], ddl: str) -> DataFrame:
    rows = [(*span[:-2], None, None) if span.ends == NEVER else tuple(span) for span in spans]
    return spark.createDataFrame(rows, ddl)


def remembered_spans(piece: Piece, name: str, kind: type[Span]) -> list[Span]:
    """Return the spans that an earlier micro-batch remembered under a name, in order."""
    frame = piece.remembered(name)
    if frame is None:
        return []
    rows: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return [
        kind(**row | ({"ends": NEVER} if row["ends"] is None else {}))
        for row in sorted(rows, key=lambda row: int(row["begins"]))
    ]
