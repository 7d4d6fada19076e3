"""Memory of an audit: the records of a judged history that the judgement of later ones needs.

Brokers, partitions and topics are remembered as the open intervals of their timelines; of the other
records those are kept that a later one is compared with. They are as many as the cluster has
brokers, hostnames, features, export cursors, open clients and access control entries, and one an
election.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from raftlog.metadata.records import RecordType
from raftlog.metadata.versions import METADATA_VERSION
from replay.audit.history import History
from replay.kernels.entries import ENTRIES
from replay.kernels.rules.supported import CONTROLLERS

_AS_THEY_ARE = (
    RecordType.FEATURE_LEVEL,
    RecordType.HOSTNAME,
    RecordType.PROGRESS,
    RecordType.LEADER_CHANGE,
    RecordType.RECOVERY,
    RecordType.VOTERS,
    RecordType.OPEN_CLIENT,
    RecordType.EXPORT_CURSOR,
    RecordType.IMPORTED,
    RecordType.ACCESS_CONTROL_ENTRY,
    RecordType.REMOVE_ACCESS_CONTROL_ENTRY,
)


def remember(history: History) -> DataFrame:
    """Return the records that a History behind this one begins with, all their columns.

    * the last level of each feature, and the last mapping of each hostname;
    * the last voter set, the cursors that are there, and the clients that are open;
    * of Kafka's records the last of those in :func:`_compared`, and the registrations of the
      controllers that are there;
    * the access control entries that are there, and since when there are any;
    * of the progress records the one with the highest LAO, and of the newest epoch the one with the
      highest high watermark, and for each broker the last that names it;
    * every election, and the first record of each epoch: if it is of another type than these, as a
      NO_OP, since the timelines know it.
    """
    progress = history.of(RecordType.PROGRESS)
    kept = (
        _last(history.of(RecordType.FEATURE_LEVEL), "feature_name"),
        _last(history.of(RecordType.HOSTNAME), "group_id"),
        _last(history.of(RecordType.VOTERS), "type"),
        _last(history.of(RecordType.IMPORTED).where(_compared()), "imported_name"),
        _last_there(history.of(RecordType.IMPORTED).where(_of_controllers()), _is_there()),
        _last_there(history.of(RecordType.EXPORT_CURSOR), sf.col("cursor_end_offset").isNotNull()),
        _last_there(
            history.of(RecordType.OPEN_CLIENT, RecordType.CLOSE_CLIENT),
            sf.col("type") == int(RecordType.OPEN_CLIENT),
        ),
        history.of(RecordType.LEADER_CHANGE).select("offset"),
        history.records.groupBy("epoch").agg(sf.min("offset").alias("offset")).select("offset"),
        last_of_entries(history),
        first_level(history),
        highest(progress),
        highest_mark(progress),
        reports(progress, history.records),
    )
    offsets = reduce(DataFrame.union, kept).distinct()
    as_it_is = sf.col("type").isin(*(int(each) for each in _AS_THEY_ARE))
    type_ = sf.when(as_it_is, sf.col("type")).otherwise(int(RecordType.NO_OP))
    return history.records.join(sf.broadcast(offsets), "offset", "left_semi").withColumn(
        "type", type_
    )


def _compared() -> Column:
    """Return the condition for those of Kafka's records that the next of their kind is compared
    with.
    """
    of_transactions = ("BeginTransactionRecord", "EndTransactionRecord", "AbortTransactionRecord")
    numbers = ("ProducerIdsRecord", "ZkMigrationStateRecord")
    name, said = sf.col("imported_name"), sf.col("imported_fields").isNotNull()
    return name.isin(*of_transactions) | (name.isin(*numbers) & said)


def _of_controllers() -> Column:
    return sf.col("imported_name").isin(*CONTROLLERS) & sf.col("imported_fields").isNotNull()


def _is_there() -> Column:
    return sf.col("imported_name") == CONTROLLERS[0]


def _last(rows: DataFrame, key: str) -> DataFrame:
    return rows.groupBy(key).agg(sf.max("offset").alias("offset")).select("offset")


def _last_there(rows: DataFrame, there: Column) -> DataFrame:
    """Return the offset of each group's last record, if that one sets it."""
    last = rows.groupBy("group_id").agg(
        sf.max("offset").alias("offset"), sf.max_by(there, "offset").alias("there")
    )
    return last.where("there").select("offset")


def highest(progress: DataFrame) -> DataFrame:
    """Return the newest of those that say the highest LAO: none, or one."""
    standing = sf.struct("lowest_acknowledged_offset", "offset")
    top = progress.where(sf.col("lowest_acknowledged_offset") >= 0).agg(
        sf.max(standing).alias("top")
    )
    return top.where(sf.col("top").isNotNull()).select("top.offset")


def highest_mark(progress: DataFrame) -> DataFrame:
    """Return the newest of those that say the highest high watermark of the newest epoch: none, or
    one.
    """
    standing = sf.struct("epoch", "high_watermark", "offset")
    top = progress.agg(sf.max(standing).alias("top"))
    return top.where(sf.col("top").isNotNull()).select("top.offset")


def reports(progress: DataFrame, records: DataFrame) -> DataFrame:
    """Return the offset of the last progress record that names each broker; those of earlier
    controllers count no more.
    """
    newest = records.agg(sf.max("epoch").alias("newest"))
    # One row.
    current = progress.join(sf.broadcast(newest), sf.col("epoch") == sf.col("newest"))
    named = current.select("offset", sf.inline("applied"))
    return (
        named.groupBy("broker_id", "broker_epoch")
        .agg(sf.max("offset").alias("offset"))
        .select("offset")
    )


def first_level(history: History) -> DataFrame:
    """Return the offset from which on there could be entries: none, or one."""
    rows = history.of(RecordType.FEATURE_LEVEL).agg(_first_level().alias("offset"))
    return rows.where(sf.col("offset").isNotNull())


def _first_level() -> Column:
    known = sf.col("feature_name") == METADATA_VERSION
    return sf.min(sf.when(known, sf.col("offset")))


def last_of_entries(history: History) -> DataFrame:
    """Return the offsets of the records that tell which entries there are, and since when there are
    any: those of every entry that is there, and of the first there was.
    """
    of_entry = (
        history.of(*ENTRIES)
        .groupBy("group_id")
        .agg(
            sf.min("offset").alias("first"),
            sf.max("offset").alias("last"),
            sf.max_by("type", "offset").alias("type"),
        )
    )
    # One row an entry: one task's work.
    earliest = sf.min("first").over(Window.partitionBy(sf.lit(0)))
    rows = of_entry.withColumn("earliest", earliest)
    is_there = sf.col("type") == int(RecordType.ACCESS_CONTROL_ENTRY)
    is_first = sf.col("first") == sf.col("earliest")
    kept = sf.array(
        sf.when(is_first, sf.col("first")), sf.when(is_there | is_first, sf.col("last"))
    )
    return rows.select(sf.explode(sf.array_distinct(sf.array_compact(kept))).alias("offset"))
