"""What stands where a micro-batch ends, as tables to be remembered."""

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


def open_spans(
    spark: SparkSession, spans: Sequence[BrokerSpan] | Sequence[TopicLife], ddl: str
) -> DataFrame:
    """Those that have not ended."""
    rows = [(*span[:-2], None, None) for span in spans if span.ends == NEVER]
    return spark.createDataFrame(rows, ddl)
