"""Changes of the controller, and how long there was none."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from raftlog.metadata.records import RecordType


def failovers(controllers: DataFrame, records: DataFrame) -> DataFrame:
    """One row for each epoch but the first, from ``timelines.controllers``.

    epoch, leader_id, begins, begins_ms; previous_leader_id; ``silent_since_ms`` (the old
    controller's last record) and ``silent_ms`` from it to the new one's first: nobody wrote for so
    long, though on a quiet cluster the old one may have lived for most of it. ``absent_most_ms``:
    there was none for so long at the most, as those say that elected the new one (null: the log
    does not say; then the silence proves nothing), and ``absent_least_ms`` at the least;
    ``epochs_without_leader``: elections that nobody won; ``lao_known_ms``: from the beginning until
    LAO was recorded again (null: never).
    """
    # One row an election: few enough for one task.
    in_order = Window.orderBy("begins")
    known = records.where(sf.col("type") == int(RecordType.PROGRESS)).groupBy("epoch")
    first = known.agg(sf.min("timestamp_ms").alias("known_ms"))
    before = {
        "previous_leader_id": sf.lag("leader_id").over(in_order),
        "silent_since_ms": sf.lag("last_ms").over(in_order),
        "previous_epoch": sf.lag("epoch").over(in_order),
    }
    known_of = sf.col("last_heard_epoch") >= sf.col("previous_epoch")
    heard = sf.least("last_heard_age_ms", sf.col("begins_ms") - sf.col("silent_since_ms"))
    by_all = sf.coalesce("last_heard_by_all", sf.lit(False))
    later = controllers.withColumns(before).where(sf.col("previous_epoch").isNotNull())
    return later.join(first, "epoch", "left").select(
        "epoch",
        "leader_id",
        "begins",
        "begins_ms",
        "previous_leader_id",
        "silent_since_ms",
        (sf.col("begins_ms") - sf.col("silent_since_ms")).alias("silent_ms"),
        sf.when(by_all, heard).otherwise(sf.lit(0)).alias("absent_least_ms"),
        sf.when(known_of, heard).alias("absent_most_ms"),
        (sf.col("epoch") - sf.col("previous_epoch") - 1).alias("epochs_without_leader"),
        (sf.col("known_ms") - sf.col("begins_ms")).alias("lao_known_ms"),
    )
