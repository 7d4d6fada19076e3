"""How many replicas had to be in sync, when: ``min.insync.replicas`` of a topic, else of all
brokers, else Kafka's default.

As brokers do, no more is asked of a partition than it has replicas; those that are only being added
do not count.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from raftlog.metadata.config_keys import ResourceType
from raftlog.metadata.config_layers import ALL_BROKERS, BROKER_NAME
from raftlog.metadata.records import RecordType

_KEY = "min.insync.replicas"
_DEFAULT = 1
_EVER = (1 << 63) - 1


def with_min_isr(partitions: DataFrame, records: DataFrame, *, only_below: Column) -> DataFrame:
    """The intervals of ``timelines.partitions`` that may have had too few in sync, or fulfil
    ``only_below``; cut where the config changed.

    ``min_isr``: how many had to be in sync. An interval whose ISR was never smaller than the
    highest value there ever was is left out, so that in a healthy history few are left to be looked
    up.
    """
    of_topics, of_all = (
        _steps(records, ResourceType.TOPIC, _KEY),
        _steps(records, ResourceType.BROKER, BROKER_NAME[_KEY]),
    )
    of_all = of_all.where(sf.col("resource_name") == ALL_BROKERS).drop("resource_name")
    most_of_topic = of_topics.groupBy(sf.col("resource_name").alias("topic_name")).agg(
        sf.max("value").alias("most_own")
    )
    most_of_all = of_all.agg(sf.coalesce(sf.max("value"), sf.lit(_DEFAULT)).alias("most_shared"))
    # One row on the right side.
    asked = partitions.join(most_of_topic, "topic_name", "left").crossJoin(
        sf.broadcast(most_of_all)
    )
    most = sf.greatest("most_own", "most_shared")
    few = asked.where((sf.size("isr") < most) | only_below).drop("most_own", "most_shared")
    own = _cut(
        few, of_topics.withColumnRenamed("resource_name", "topic_name"), "own", ["topic_name"]
    )
    shared = _cut(own, of_all, "shared", [])
    there = sf.size("replicas") - sf.size(
        sf.coalesce("adding_replicas", sf.array().cast("array<int>"))
    )
    wanted = sf.coalesce("own", "shared", sf.lit(_DEFAULT))
    return shared.withColumn("min_isr", sf.least(wanted, sf.greatest(there, sf.lit(1)))).drop(
        "own", "shared"
    )


def _steps(records: DataFrame, resource_type: int, name: str) -> DataFrame:
    """From when to when the key had which value: resource_name, value (null: none), from, to,
    from_ms, to_ms, without a gap.
    """
    of_type = (sf.col("type") == int(RecordType.CONFIG)) & (
        sf.col("resource_type") == int(resource_type)
    )
    said = records.where(of_type & (sf.col("config_name") == name)).select(
        "resource_name",
        sf.col("config_value").try_cast("int").alias("value"),
        sf.col("offset").alias("from"),
        sf.col("timestamp_ms").alias("from_ms"),
    )
    nothing = {
        "value": sf.lit(None).cast("int"),
        "from": sf.lit(0).cast("long"),
        "from_ms": sf.lit(0).cast("long"),
    }
    # An offset of 0 is a controller's, so no config record stands there.
    begun = said.unionByName(said.select("resource_name").distinct().withColumns(nothing))
    of_resource = Window.partitionBy("resource_name").orderBy("from")
    ends = {
        f"to{of}": sf.coalesce(sf.lead(f"from{of}").over(of_resource), sf.lit(_EVER))
        for of in ("", "_ms")
    }
    return begun.withColumns(ends)


def _cut(intervals: DataFrame, steps: DataFrame, name: str, keys: list[str]) -> DataFrame:
    """Each interval, cut where steps begin and end, with the step's value as the column ``name``;
    whole and null without steps.
    """
    prefixed = steps.select(
        *(sf.col(key).alias(f"_{key}") for key in keys), "value", "from", "to", "from_ms", "to_ms"
    )
    ends = sf.coalesce("ends", sf.lit(_EVER))
    overlap = (sf.col("begins") < sf.col("to")) & (sf.col("from") < ends)
    for key in keys:
        overlap = overlap & (sf.col(key) == sf.col(f"_{key}"))
    joined = intervals.join(prefixed if keys else sf.broadcast(prefixed), overlap, "left")
    cut = {
        "begins": sf.greatest("begins", "from"),
        "begins_ms": sf.greatest("begins_ms", "from_ms"),
        "ends": sf.nullif(sf.least(ends, sf.col("to")), sf.lit(_EVER)),
        "ends_ms": sf.nullif(
            sf.least(sf.coalesce("ends_ms", sf.lit(_EVER)), sf.col("to_ms")), sf.lit(_EVER)
        ),
    }
    return joined.select(
        *(cut.get(column, sf.col(column)).alias(column) for column in intervals.columns),
        sf.col("value").alias(name),
    )
