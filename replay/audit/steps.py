"""Steps of partitions: each state that a record led to, beside the one before it."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from raftlog.metadata.records import RecordType
from replay.timelines import PARTITION_KEY

NO_LEADER = -1
RECOVERING = 1
_NOBODY = "array<int>"


def steps(partitions: DataFrame) -> DataFrame:
    """One row a record of a partition, from :func:`replay.timelines.partitions`: its state after
    it, and what is new.

    All columns of the timeline; ``before``: of the state before (a struct; null for the first);
    ``next_begins``: of the one behind it. ``entered``: who is in the ISR and was not.
    ``unproposed``: those of them whom no leader proposed. ``unclean``: the record declares an
    unclean leader: alone in the ISR, and RECOVERING. In an export without the column
    ``leader_recovery_state`` the first is enough.
    """
    earlier = (
        "begins",
        "ends",
        "leader",
        "leader_epoch",
        "partition_epoch",
        "replicas",
        "adding_replicas",
        "isr",
    )
    # The order that the timeline was made in: nothing is sorted again.
    of_partition = Window.partitionBy(*PARTITION_KEY).orderBy("begins")
    beside = {
        "before": sf.lag(sf.struct(*earlier)).over(of_partition),
        "next_begins": sf.lead("begins").over(of_partition),
    }
    rows = partitions.withColumns(beside)
    proposed = sf.coalesce(sf.col("isr_with_epochs.broker_id"), nobody())
    recovering = sf.coalesce(sf.col("leader_recovery_state") == RECOVERING, sf.lit(True))
    entered = sf.coalesce(sf.array_except("isr", sf.coalesce("before.isr", nobody())), nobody())
    return (
        rows.withColumns(
            {"entered": entered, "changed": sf.col("type") == int(RecordType.PARTITION_CHANGE)}
        )
        .withColumns(
            {
                "unproposed": sf.array_except("entered", proposed),
                "unclean": sf.col("changed") & recovering & (sf.col("isr") == sf.array("leader")),
            }
        )
        .withColumn("proposed", sf.coalesce(sf.col("proposer_epoch") > 0, sf.lit(False)))
    )


def nobody() -> Column:
    """An empty list of brokers."""
    return sf.array().cast(_NOBODY)
