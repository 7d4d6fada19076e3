"""The lives of brokers and partitions, made once for all that asks how available they were and how
often they changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pyspark.sql import DataFrame

from replay import timelines

_ASKED_FOR = (
    "topic_id",
    "topic_name",
    "partition_id",
    "begins",
    "ends",
    "begins_ms",
    "ends_ms",
    "leader",
    "isr",
    "replicas",
    "adding_replicas",
    "proposer_epoch",
)


class BrokerTimelines(NamedTuple):
    """Of the same records: :func:`replay.timelines.brokers` and, those columns that are asked for,
    :func:`replay.timelines.partitions`.
    """

    brokers: DataFrame
    partitions: DataFrame


def timelines_of(records: DataFrame, kept: Callable[[DataFrame], DataFrame]) -> BrokerTimelines:
    """BrokerTimelines made of the records. ``kept``: of :func:`replay.rows.keeper`."""
    return BrokerTimelines(
        kept(timelines.brokers(records)), kept(timelines.partitions(records).select(*_ASKED_FOR))
    )
