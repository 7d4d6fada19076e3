"""Intervals made coarser: runs of one condition, and what lies too close together to be drawn
apart. Columnar.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

_NEVER = 2**62
"""In the place of an end that has not come, so that max() finds it."""


def spells(
    intervals: DataFrame, key: list[str], condition: Column, first: list[Column]
) -> DataFrame:
    """The runs of intervals without a gap in which ``condition`` holds: one row each.

    ``intervals`` has ``begins``, ``ends`` (null: still), ``begins_ms``, ``ends_ms``. A row: the
    key, those four of the whole run, and ``first``: named columns as they were in its first
    interval, in which ``before`` may be used: whether the key had an interval that ended where the
    run begins.
    """
    in_order = Window.partitionBy(*key).orderBy("begins")
    marked = intervals.withColumn("holds", condition).withColumn(
        "before", sf.coalesce(sf.lag("ends").over(in_order) == sf.col("begins"), sf.lit(False))
    )
    goes_on = sf.col("before") & sf.coalesce(sf.lag("holds").over(in_order), sf.lit(False))
    begun = marked.withColumn("begun", (sf.col("holds") & ~goes_on).cast("int"))
    run = sf.sum("begun").over(in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    numbered = begun.withColumn("run", run).where("holds")
    whole = numbered.groupBy(*key, "run").agg(
        sf.min("begins").alias("begins"),
        sf.min("begins_ms").alias("begins_ms"),
        _last_end("ends"),
        _last_end("ends_ms"),
        sf.min_by(sf.struct(*first), "begins").alias("first"),
    )
    return whole.select(*key, "begins", "begins_ms", "ends", "ends_ms", "first.*")


def _last_end(name: str) -> Column:
    return sf.nullif(sf.max(sf.coalesce(name, sf.lit(_NEVER))), sf.lit(_NEVER)).alias(name)


def merge_close(intervals: DataFrame, lane: list[str], gap_ms: int) -> DataFrame:
    """Intervals of one lane that overlap, or lie at most ``gap_ms`` apart, as one.

    Needs ``begins``, ``begins_ms`` and ``ends_ms`` without nulls. A row: the lane, those of the
    whole, ``spans`` (how many it was), ``total_ms`` (their sum) and ``last`` (a struct of the
    columns of the last one).
    """
    in_order = Window.partitionBy(*lane).orderBy("begins_ms", "begins")
    reached = sf.max("ends_ms").over(in_order.rowsBetween(Window.unboundedPreceding, -1))
    apart = sf.coalesce(sf.col("begins_ms") - reached > gap_ms, sf.lit(True)).cast("int")
    run = sf.sum("apart").over(in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    numbered = intervals.withColumn("apart", apart).withColumn("run", run)
    merged = numbered.groupBy(*lane, "run").agg(
        sf.min("begins").alias("begins"),
        sf.min("begins_ms").alias("begins_ms"),
        sf.max("ends_ms").alias("ends_ms"),
        sf.count("*").alias("spans"),
        sf.sum(sf.col("ends_ms") - sf.col("begins_ms")).alias("total_ms"),
        sf.max_by(sf.struct(*intervals.columns), "begins").alias("last"),
    )
    return merged.drop("run")


def highest_levels(intervals: DataFrame, flags: list[str], bucket: Column) -> DataFrame:
    """For each bucket in which something changes: of each flag, how many intervals it holds for at
    the most, and at the end.

    ``intervals`` has ``begins_ms``, ``ends_ms`` (null: still) and the flags, which are numbers (0
    or 1). Rows: ``bucket``, and of each flag ``NAME_high`` and ``NAME_net``, both relative to the
    level at which the bucket begins. No task needs more than one bucket's changes; what the buckets
    add up to is the caller's, who has few of them.
    """
    begun = intervals.select(sf.col("begins_ms").alias("at_ms"), *flags)
    over = intervals.where(sf.col("ends_ms").isNotNull())
    ended = over.select(sf.col("ends_ms").alias("at_ms"), *(-sf.col(flag) for flag in flags)).toDF(
        "at_ms", *flags
    )
    # What happens at one moment is one change: a partition that goes from one interval to the next
    # is not counted twice.
    changes = (
        begun.unionByName(ended).groupBy("at_ms").agg(*(sf.sum(flag).alias(flag) for flag in flags))
    )
    at = changes.withColumn("bucket", bucket)
    within = (
        Window.partitionBy("bucket")
        .orderBy("at_ms")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    for flag in flags:
        at = at.withColumn(f"{flag}_level", sf.sum(flag).over(within))
    highest = [sf.max(f"{flag}_level").alias(f"{flag}_high") for flag in flags]
    net = [sf.sum(flag).alias(f"{flag}_net") for flag in flags]
    return at.groupBy("bucket").agg(*highest, *net)
