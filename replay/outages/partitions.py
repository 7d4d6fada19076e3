"""Partitions that could not be used: without a leader, or with fewer in sync than
``min.insync.replicas``.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from replay.outages.min_isr import with_min_isr
from replay.outages.stretch import Stretch
from replay.spells import merge_close, spells

KEY = ["topic_id", "topic_name", "partition_id"]


def lives(partitions: DataFrame, stretch: Stretch) -> DataFrame:
    """One row a partition, from its creation to the removal of its topic: KEY, begins_ms,
    ends_ms.
    """
    open_end = sf.max(sf.coalesce("ends_ms", sf.lit(stretch.until_ms)))
    return stretch.clip(
        partitions.groupBy(*KEY).agg(
            sf.min("begins_ms").alias("begins_ms"), open_end.alias("ends_ms")
        )
    )


def impaired(partitions: DataFrame, records: DataFrame) -> DataFrame:
    """The intervals in which a partition had no leader or too few in sync.

    KEY, begins, ends, begins_ms, ends_ms, ``leaderless`` (nobody serves it), ``under_min_isr``
    (writes with acks=all are refused), leader, isr, replicas, min_isr.
    """
    leaderless = sf.col("leader") < 0
    columns = [
        *KEY,
        "begins",
        "ends",
        "begins_ms",
        "ends_ms",
        "leader",
        "isr",
        "replicas",
        "adding_replicas",
    ]
    looked_up = with_min_isr(partitions.select(*columns), records, only_below=leaderless)
    flagged = looked_up.withColumns(
        {"leaderless": leaderless, "under_min_isr": sf.size("isr") < sf.col("min_isr")}
    )
    return flagged.where("leaderless OR under_min_isr").drop("adding_replicas")


def _ms(flag: Column) -> Column:
    return sf.coalesce(
        sf.sum(sf.when(flag, sf.col("ends_ms") - sf.col("begins_ms"))), sf.lit(0).cast("long")
    )


def _sums() -> list[Column]:
    leaderless, under = sf.col("leaderless"), sf.col("under_min_isr")
    return [
        _ms(leaderless).alias("leaderless_ms"),
        _ms(under).alias("under_min_isr_ms"),
        _ms(leaderless | under).alias("unwritable_ms"),
    ]


def by_partition(found: DataFrame, stretch: Stretch) -> DataFrame:
    """One row a partition that was impaired: KEY, leaderless_ms, under_min_isr_ms, unwritable_ms
    (either), outages, longest_ms.

    ``outages``: how often it had no leader; ``longest_ms``: for how long at the most.
    """
    sums = stretch.clip(found).groupBy(*KEY).agg(*_sums())
    without = stretch.clip(spells(found, KEY, sf.col("leaderless"), [sf.col("isr")]))
    times = without.groupBy(*KEY).agg(
        sf.count("*").alias("outages"),
        sf.max(sf.col("ends_ms") - sf.col("begins_ms")).alias("longest_ms"),
    )
    return sums.join(times, KEY, "left").fillna(0, ["outages", "longest_ms"])


def by_topic(lived: DataFrame, found: DataFrame, stretch: Stretch) -> DataFrame:
    """One row a topic: topic_id, topic_name, partitions, life_ms (all partitions' together),
    leaderless_ms, under_min_isr_ms, unwritable_ms (all of them sums over partitions) and
    offline_ms: how long at least one partition had no leader.
    """
    topic = ["topic_id", "topic_name"]
    all_of_it = lived.groupBy(*topic).agg(
        sf.count("*").alias("partitions"), _ms(sf.lit(True)).alias("life_ms")
    )
    clipped = stretch.clip(found)
    sums = clipped.groupBy(*topic).agg(*_sums())
    merged = merge_close(
        clipped.where("leaderless").select(*topic, "begins", "begins_ms", "ends_ms"), topic, 0
    )
    offline = merged.groupBy(*topic).agg(_ms(sf.lit(True)).alias("offline_ms"))
    joined = all_of_it.join(sums, topic, "left").join(offline, topic, "left")
    return joined.fillna(0, ["leaderless_ms", "under_min_isr_ms", "unwritable_ms", "offline_ms"])
