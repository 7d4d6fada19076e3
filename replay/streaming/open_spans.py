"""Spans open at the end of a micro-batch, as tables to be remembered."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from replay.kernels.arrays import NEVER
from replay.kernels.facts import BrokerSpan, TopicLife

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


def open_spans(spark: SparkSession, spans: Sequence[BrokerSpan | TopicLife], ddl: str) -> DataFrame:
    """Return the spans that have not ended, as a table."""
    return _as_table(spark, [span for span in spans if span.ends == NEVER], ddl)


def last_spans(spark: SparkSession, spans: Sequence[BrokerSpan]) -> DataFrame:
    """Return the last one of each broker: one that has gone may come back, and the log directories
    that it had registered are known then.
    """
    last = {span.broker_id: span for span in spans}
    return _as_table(spark, list(last.values()), BROKERS_DDL)


def _as_table(spark: SparkSession, spans: Sequence[BrokerSpan | TopicLife], ddl: str) -> DataFrame:
    rows = [(*span[:-2], None, None) if span.ends == NEVER else tuple(span) for span in spans]
    return spark.createDataFrame(rows, ddl)
