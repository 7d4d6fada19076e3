"""Who held LAO back, from when to when.

A *stall* is a sample whose oldest newly covered record had waited for long; records that no sample
covers at the end are one, too. Whom LAO waited for, by what the log has to say; the first that
holds:

* ``FENCED``: a member was fenced, unregistered or replaced while the record waited, and LAO went on
  without it;
* ``NO_BROKER``: no broker was in service for a part of the time, as before a cluster's first one:
  there was no LAO;
* ``FAILOVER``: a controller's epoch began meanwhile: until all members have reported to it, LAO is
  unknown;
* ``BEHIND``: a member had applied just what LAO was, and less than another one;
* ``UNKNOWN``: whoever it was has caught up at one blow, and left no trace.

A *hold-up* is a run of stalls by the same broker, without a sample between them that is none.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from raftlog.metadata.causes import SHUT_DOWN
from replay.causes import is_one_of
from replay.lag.absence import AT_THE_END
from replay.order import BUCKETS, Order

FENCED, NO_BROKER, FAILOVER, BEHIND, UNKNOWN = (
    "FENCED",
    "NO_BROKER",
    "FAILOVER",
    "BEHIND",
    "UNKNOWN",
)
_WHO = "struct<broker_id: int, reason: string, broker_cause: string>"
_ON_ITS_WAY_MS = 250
"""A record that is younger may just be on its way to a broker."""


def stalls(
    points: DataFrame, waited: DataFrame, *, least_ms: int, end_ms: int, end_epoch: int
) -> DataFrame:
    """The samples whose oldest record had waited for ``least_ms`` or more, and what waits for so
    long at the end of the log.

    at (the sample's offset, or AT_THE_END), epoch, lowest_acknowledged_offset, most_applied,
    lag_ms, previous_offset, previous_epoch, began_ms (when the oldest record was written),
    ended_ms, waited_ms, held_ms (the part of it since the sample before: parts do not overlap),
    records (how many waited).
    """
    seen = points.select(
        sf.col("offset").alias("at"),
        "epoch",
        "lowest_acknowledged_offset",
        "most_applied",
        "lag_ms",
        "previous_offset",
        "previous_ms",
        "previous_epoch",
        sf.col("oldest_ms").alias("began_ms"),
        sf.col("timestamp_ms").alias("ended_ms"),
        sf.col("covered").alias("records"),
    )
    every = seen.unionByName(_unseen(points, waited, end_ms, end_epoch), allowMissingColumns=True)
    every = every.withColumn("waited_ms", sf.col("ended_ms") - sf.col("began_ms"))
    since = sf.greatest("previous_ms", "began_ms")
    return every.where(sf.col("waited_ms") >= least_ms).withColumn(
        "held_ms", sf.col("ended_ms") - since
    )


def _unseen(points: DataFrame, waited: DataFrame, end_ms: int, end_epoch: int) -> DataFrame:
    """One row for all records that no sample covers; none of a log without samples, where LAO is
    not recorded at all.
    """
    waiting = waited.where(sf.col("seen_at").isNull()).agg(
        sf.count("*").alias("records"), sf.min("timestamp_ms").alias("began_ms")
    )
    last = points.agg(
        sf.max("offset").alias("previous_offset"),
        sf.max("timestamp_ms").alias("previous_ms"),
        sf.max("epoch").alias("previous_epoch"),
        sf.max("reached").alias("lowest_acknowledged_offset"),
        sf.max("most_applied").alias("most_applied"),
    ).where(sf.col("previous_offset").isNotNull())
    fixed = {"at": AT_THE_END, "ended_ms": end_ms}
    # One row each.
    return waiting.crossJoin(last).withColumns(
        {
            **{name: sf.lit(value).cast("long") for name, value in fixed.items()},
            "epoch": sf.lit(end_epoch),
            "lag_ms": sf.lit(end_ms).cast("long") - sf.col("began_ms"),
        }
    )


def blamed(
    stalled: DataFrame,
    sampled: DataFrame,
    stood: DataFrame,
    departed: DataFrame,
    returned: DataFrame,
    order: Order = BUCKETS,
) -> DataFrame:
    """One row for each stall and broker that it is laid to: the stall's columns, cause, broker_id
    (null: nobody), reason, broker_cause.

    ``stood``: of :func:`replay.lag.words.words`; ``departed``: broker_id, offset, timestamp_ms,
    reason and cause of members that left; ``returned``: of :func:`replay.lag.absence.returns`.
    """
    joined = (
        stalled.join(_left(sampled, departed, order), "at", "left")
        .join(_served(sampled, returned, order), "at", "left")
        .join(_lowest(stalled, stood), "at", "left")
    )
    fenced = sf.filter("left", lambda broker: broker.left_ms >= sf.col("began_ms"))
    failover = sf.col("previous_epoch") != sf.col("epoch")
    nobody = sf.lit(None).cast(_WHO)
    laid = (
        sf.when(sf.size(fenced) > 0, _laid(FENCED, fenced))
        .when(sf.col("served_ms") > sf.col("began_ms"), sf.array(_blame(NO_BROKER, nobody)))
        .when(failover, sf.array(_blame(FAILOVER, nobody)))
        .when(sf.size("lowest") > 0, _laid(BEHIND, sf.col("lowest")))
        .otherwise(sf.array(_blame(UNKNOWN, nobody)))
    )
    return joined.select(*stalled.columns, sf.inline(laid))


def _laid(cause: str, brokers: Column) -> Column:
    return sf.transform(brokers, lambda broker: _blame(cause, broker))


def _blame(cause: str, broker: Column) -> Column:
    who = (broker.getField(name).alias(name) for name in ("broker_id", "reason", "broker_cause"))
    return sf.struct(sf.lit(cause).alias("cause"), *who)


def _left(sampled: DataFrame, departed: DataFrame, order: Order) -> DataFrame:
    """Who left before a sample and behind the one before it: at, left.

    Who shuts down in order goes on applying: it is not why.
    """
    abrupt = departed.where(~is_one_of(SHUT_DOWN)).withColumnRenamed("cause", "broker_cause")
    broker = sf.struct(
        "broker_id", "reason", "broker_cause", sf.col("timestamp_ms").alias("left_ms")
    )
    return (
        _next_sample(abrupt, sampled, order)
        .groupBy("at")
        .agg(sf.collect_list(broker).alias("left"))
    )


def _served(sampled: DataFrame, returned: DataFrame, order: Order) -> DataFrame:
    """When there was a broker in service again, before a sample and behind the one before it: at,
    served_ms.
    """
    return (
        _next_sample(returned, sampled, order)
        .groupBy("at")
        .agg(sf.max("timestamp_ms").alias("served_ms"))
    )


def _next_sample(events: DataFrame, sampled: DataFrame, order: Order) -> DataFrame:
    """``events`` with the offset of the first sample behind each: at."""
    ends = sampled.select(sf.col("offset").alias("sampled_at"))
    found = order.next_event(events, ends, at="offset", key="sampled_at", name="next")
    return found.withColumn("at", sf.coalesce("next.sampled_at", sf.lit(AT_THE_END)))


def _lowest(stalled: DataFrame, stood: DataFrame) -> DataFrame:
    """Who had applied just what LAO was: at, lowest.

    LAO grows from sample to sample, so that each word meets few of them.
    """
    telling = (sf.col("most_applied") > sf.col("lowest_acknowledged_offset")) & (
        sf.col("lag_ms") >= _ON_ITS_WAY_MS
    )
    sample = sf.when(sf.col("at") == AT_THE_END, sf.col("previous_offset")).otherwise(sf.col("at"))
    asked = stalled.where(telling).select(
        "at", sample.alias("sample"), "epoch", sf.col("lowest_acknowledged_offset").alias("applied")
    )
    said = stood.select("epoch", "applied", "broker_id", "begins", "ends")
    stands = (sf.col("begins") <= sf.col("sample")) & (
        sf.col("ends").isNull() | (sf.col("sample") < sf.col("ends"))
    )
    nothing = (sf.lit(None).cast("string").alias(name) for name in ("reason", "broker_cause"))
    broker = sf.struct("broker_id", *nothing)
    met = asked.join(said, ["epoch", "applied"]).where(stands)
    return met.groupBy("at").agg(sf.collect_list(broker).alias("lowest"))


def hold_ups(laid: DataFrame) -> DataFrame:
    """Runs of stalls: one row for each time that a broker held LAO back, from the rows of
    :func:`blamed`.

    broker_id (null: nobody is known), cause, reason and broker_cause of its last stall, began_ms,
    ended_ms, held_ms (time in which something waited for it), waited_ms (the longest that one
    record waited), records, samples (stalls), first_offset (of the last sample before; null: none),
    last_offset (of the sample that ended it; null: it goes on).
    """
    # A run that is nobody's is of one cause.
    of_broker = Window.partitionBy("broker_id", "nobody").orderBy("at")
    laid = laid.withColumn("nobody", sf.when(sf.col("broker_id").isNull(), sf.col("cause")))
    begins = ~sf.coalesce(sf.lag("at").over(of_broker) == sf.col("previous_offset"), sf.lit(False))
    numbered = laid.withColumn("begins", begins).withColumn(
        "run", sf.sum(sf.col("begins").cast("int")).over(of_broker)
    )
    runs = numbered.groupBy("broker_id", "nobody", "run").agg(
        sf.max_by("cause", "at").alias("cause"),
        sf.max_by("reason", "at").alias("reason"),
        sf.max_by("broker_cause", "at").alias("broker_cause"),
        sf.min("began_ms").alias("began_ms"),
        sf.max("ended_ms").alias("ended_ms"),
        sf.sum("held_ms").alias("held_ms"),
        sf.max("waited_ms").alias("waited_ms"),
        sf.sum("records").alias("records"),
        sf.count("*").alias("samples"),
        sf.min("previous_offset").alias("first_offset"),
        sf.nullif(sf.max("at"), sf.lit(AT_THE_END)).alias("last_offset"),
    )
    return runs.drop("nobody", "run")
