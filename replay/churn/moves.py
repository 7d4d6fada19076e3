"""Brokers that left and joined ISRs, and leaderships that moved.

Columnar, from ``timelines.partitions``.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

KEY = ["topic_id", "topic_name", "partition_id"]


def isr_moves(partitions: DataFrame) -> DataFrame:
    """One row for each broker that left or joined the ISR of a partition that was there.

    KEY, begins (offset), begins_ms, broker_id, ``joined`` (else it left), ``by_leader`` (the
    partition's leader proposed it: the replica lagged, or has caught up; else the controller did
    it, for a fencing, a shutdown or a reassignment), ``out_ms``: how long it had been out when it
    joined; null for a leave, and for who had not been in before.
    """
    of_partition = Window.partitionBy("topic_id", "partition_id").orderBy("begins")

    def each(brokers: Column, *, joined: bool) -> Column:
        return sf.transform(
            brokers,
            lambda broker: sf.struct(broker.alias("broker_id"), sf.lit(joined).alias("joined")),
        )

    before = partitions.withColumn("before", sf.lag("isr").over(of_partition)).where(
        sf.col("before").isNotNull()
    )
    left, came = sf.array_except("before", "isr"), sf.array_except("isr", "before")
    by_leader = sf.coalesce(sf.col("proposer_epoch") > 0, sf.lit(False)).alias("by_leader")
    moved = before.where((sf.size(left) > 0) | (sf.size(came) > 0)).select(
        *KEY,
        "begins",
        "begins_ms",
        by_leader,
        sf.inline(sf.concat(each(left, joined=False), each(came, joined=True))),
    )
    of_replica = Window.partitionBy("topic_id", "partition_id", "broker_id").orderBy("begins")
    since = sf.when(sf.col("joined"), sf.col("begins_ms") - sf.lag("begins_ms").over(of_replica))
    return moved.withColumn("out_ms", since)


def flapping(moved: DataFrame, *by: str) -> DataFrame:
    """ISR moves counted by the columns ``by``: leaves, leaves_by_leader, joins, returns (joins of
    who had been in), p50_out_ms, max_out_ms.

    p50_out_ms and max_out_ms: how long those that returned had been out.
    """
    left = ~sf.col("joined")
    return moved.groupBy(*by).agg(
        sf.count_if(left).alias("leaves"),
        sf.count_if(left & sf.col("by_leader")).alias("leaves_by_leader"),
        sf.count_if(sf.col("joined")).alias("joins"),
        sf.count("out_ms").alias("returns"),
        sf.percentile_approx("out_ms", 0.5).alias("p50_out_ms"),
        sf.max("out_ms").alias("max_out_ms"),
    )


def leader_moves(partitions: DataFrame) -> DataFrame:
    """One row for each time that a partition's leader became another: KEY, begins, begins_ms,
    from_id, to_id (-1: none).
    """
    of_partition = Window.partitionBy("topic_id", "partition_id").orderBy("begins")
    before = partitions.withColumn("from_id", sf.lag("leader").over(of_partition))
    return before.where(sf.col("from_id") != sf.col("leader")).select(
        *KEY, "begins", "begins_ms", "from_id", sf.col("leader").alias("to_id")
    )


def leaderships(moved: DataFrame) -> DataFrame:
    """One row a broker, from the rows of :func:`leader_moves`: broker_id, leaderships_lost,
    leaderships_gained.
    """
    lost, gained = (
        moved.select(sf.col(of).alias("broker_id"), sf.lit(of == "to_id").alias("gained"))
        for of in ("from_id", "to_id")
    )
    return (
        lost.unionByName(gained)
        .where(sf.col("broker_id") >= 0)
        .groupBy("broker_id")
        .agg(
            sf.count_if(~sf.col("gained")).alias("leaderships_lost"),
            sf.count_if("gained").alias("leaderships_gained"),
        )
    )
