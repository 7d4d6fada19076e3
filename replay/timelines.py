"""Timelines: from when to when something was so.

Columnar, from the records alone; no record is decoded.

Each function takes the records of an export (:func:`replay.source.records`) and gives one row for
each *interval* in which one thing's facts are constant. It begins at the offset of a record
(``begins``, inclusive) and ends at the offset of the next record that changes it or takes it away
(``ends``, exclusive; null: it still is so where the records end). ``begins_ms`` and ``ends_ms`` are
the timestamps of these two records; ``epoch`` and ``principal`` are of the first.

A record says only what it changes; the rest is carried on from the interval before, by the rules of
:mod:`raftlog.metadata.fold`. So the records must begin where the history does.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as sf

from raftlog.metadata.causes import OLD_TEXT_OF, Cause
from raftlog.metadata.records import RecordType
from replay.causes import cause

BROKER_COLUMNS = (
    "broker_id",
    "broker_epoch",
    "begins",
    "ends",
    "begins_ms",
    "ends_ms",
    "epoch",
    "fenced",
    "in_controlled_shutdown",
    "rack",
    "reason",
    "cause",
    "registration",
    "incarnation_id",
    "principal",
    "batch_base_offset",
    "batch_last_offset",
)
TOPIC_COLUMNS = ("topic_id", "topic_name", "begins", "ends", "begins_ms", "ends_ms")
PARTITION_COLUMNS = (
    "topic_id",
    "topic_name",
    "partition_id",
    "begins",
    "ends",
    "begins_ms",
    "ends_ms",
    "epoch",
    "principal",
    "leader",
    "leader_epoch",
    "partition_epoch",
    "replicas",
    "isr",
    "proposer_id",
    "proposer_epoch",
    "isr_with_epochs",
    "type",
    "leader_recovery_state",
    "adding_replicas",
    "removing_replicas",
    "batch_last_offset",
)
PARTITION_KEY = ("topic_id", "partition_id")
BROKER_TYPES = (
    RecordType.REGISTER_BROKER,
    RecordType.BROKER_REGISTRATION_CHANGE,
    RecordType.UNREGISTER_BROKER,
)
"""The records that :func:`brokers` looks at."""
CONTROLLER_COLUMNS = (
    "epoch",
    "leader_id",
    "begins",
    "ends",
    "begins_ms",
    "last_ms",
    "ends_ms",
    "last_heard_epoch",
    "last_heard_age_ms",
    "last_heard_by_all",
)
CONFIG_COLUMNS = (
    "resource_type",
    "resource_name",
    "config_name",
    "config_value",
    "begins",
    "ends",
    "begins_ms",
    "ends_ms",
    "epoch",
    "principal",
)
_BROKER_CARRIED = ("fenced", "in_controlled_shutdown", "rack", "incarnation_id")
_CARRIED = (
    "leader",
    "leader_recovery_state",
    "replicas",
    "adding_replicas",
    "removing_replicas",
    "isr",
)


def brokers(records: DataFrame) -> DataFrame:
    """Registrations of brokers: BROKER_COLUMNS. No row while a broker is not registered.

    ``registration``: it begins by a registration, not by a change of one; ``reason`` is
    "registered" then, as in the image. ``cause``: see :func:`replay.causes.cause`. The batch is
    that of the record that begins it, inclusive.
    """
    registered = _is(RecordType.REGISTER_BROKER)
    reason = sf.when(registered, sf.lit(OLD_TEXT_OF[Cause.REGISTERED])).otherwise(sf.col("reason"))
    said = sf.col("cause") if "cause" in records.columns else sf.lit(None).cast("string")
    events = _of(records, *BROKER_TYPES).select(
        "broker_id",
        "broker_epoch",
        *_begin(),
        "epoch",
        "fenced",
        "in_controlled_shutdown",
        "rack",
        reason.alias("reason"),
        cause(said, reason).alias("cause"),
        registered.alias("registration"),
        "incarnation_id",
        "principal",
        "batch_base_offset",
        "batch_last_offset",
        _is(RecordType.UNREGISTER_BROKER).alias("gone"),
    )
    of_broker = Window.partitionBy("broker_id").orderBy("begins")
    # A registration says all of these, so nothing is carried on into it.
    facts = {name: _carried(name, of_broker) for name in _BROKER_CARRIED}
    rows = events.withColumns(facts | _end(of_broker))
    return rows.where(~sf.col("gone")).select(*BROKER_COLUMNS)


def topics(records: DataFrame) -> DataFrame:
    """Topics, from creation to removal: TOPIC_COLUMNS."""
    gone = _is(RecordType.REMOVE_TOPIC).alias("gone")
    events = _of(records, RecordType.TOPIC, RecordType.REMOVE_TOPIC).select(
        "topic_id", "topic_name", *_begin(), gone
    )
    of_topic = Window.partitionBy("topic_id").orderBy("begins")
    rows = events.withColumns(_end(of_topic))
    return rows.where(~sf.col("gone")).select(*TOPIC_COLUMNS)


def partitions(records: DataFrame) -> DataFrame:
    """Partitions, between two changes of one and up to the removal of its topic: PARTITION_COLUMNS.

    ``leader`` -1: none. ``proposer_id``, ``proposer_epoch`` and ``isr_with_epochs`` are as the
    record says, null if it says none; ``type`` is the record's. ``topic_name`` is null for a topic
    that was never created, which no fold accepts. In exports from before there were columns for
    them both epochs begin at 0, as every controller begins them, and ``leader_recovery_state``,
    ``adding_replicas`` and ``removing_replicas`` are null.
    """
    events = _with_topic(_partition_events(records), topics(records))
    # A partition that is created anew, behind a removal, says all there is to carry. So one order
    # serves all that looks at it.
    of_partition = Window.partitionBy(*PARTITION_KEY).orderBy("begins")
    so_far = of_partition.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    earlier = of_partition.rowsBetween(Window.unboundedPreceding, -1)
    facts = {name: _carried(name, of_partition) for name in _CARRIED}
    step = {
        "changes": sf.row_number().over(of_partition),
        "named": sf.col("leader").isNotNull(),
        "replicas_before": sf.last("replicas", ignorenulls=True).over(earlier),
    }
    rows = events.withColumns(facts | step | _end(of_partition))
    # KRaft's rule: the leader epoch grows when a leader is named (the same one too) or when a
    # replica goes.
    grown = ~_begun() & (sf.col("named") | _lost(sf.col("replicas_before"), sf.col("replicas")))
    rows = rows.withColumn("leaderships", sf.count_if(grown).over(so_far))
    # What is left of a partition goes with its topic.
    goes = sf.coalesce(sf.col("removed") < sf.col("ends"), sf.col("removed").isNotNull())
    counted = {
        "leader_epoch": _counted("leader_epoch", "leaderships", so_far),
        "partition_epoch": _counted("partition_epoch", "changes", so_far),
        "ends": sf.when(goes, sf.col("removed")).otherwise(sf.col("ends")),
        "ends_ms": sf.when(goes, sf.col("removed_ms")).otherwise(sf.col("ends_ms")),
    }
    return rows.withColumns(counted).select(*PARTITION_COLUMNS)


def controllers(records: DataFrame) -> DataFrame:
    """Controllers: CONTROLLER_COLUMNS; the reign of one ends where the next one's begins.

    ``last_ms`` is the timestamp of the last record of the epoch: up to ``ends_ms`` nobody wrote.
    ``last_heard_…``: of the leaders before, as its first record says.
    """
    events = _of(records, RecordType.LEADER_CHANGE).select(
        "epoch",
        "leader_id",
        "last_heard_epoch",
        "last_heard_age_ms",
        "last_heard_by_all",
        *_begin(),
    )
    last = records.select("epoch", sf.col("timestamp_ms").alias("last_ms"))
    last = last.groupBy("epoch").agg(sf.max("last_ms").alias("last_ms"))
    # One row an election: few enough for one task.
    rows = events.withColumns(_end(Window.orderBy("begins")))
    return rows.join(last, "epoch", "left").select(*CONTROLLER_COLUMNS)


def configs(records: DataFrame) -> DataFrame:
    """Values of config keys, from being set to being set anew or deleted: CONFIG_COLUMNS.

    No row while a key has no value.

    ``resource_type``: 2 topic, 4 broker, 16 client metrics, 32 group. ``resource_name`` is empty
    for all brokers.
    """
    key = ("resource_type", "resource_name", "config_name")
    gone = sf.col("config_value").isNull().alias("gone")
    events = _of(records, RecordType.CONFIG).select(
        *key, "config_value", *_begin(), "epoch", "principal", gone
    )
    rows = events.withColumns(_end(Window.partitionBy(*key).orderBy("begins")))
    return rows.where(~sf.col("gone")).select(*CONFIG_COLUMNS)


def _partition_events(records: DataFrame) -> DataFrame:
    """What each record says of its partition; null: nothing.

    A created one begins to count its epochs.
    """
    created = _is(RecordType.PARTITION)
    epochs = [
        sf.when(created, sf.coalesce(name, sf.lit(0))).alias("partition_epoch")
        if name == "partition_epoch"
        # A change may say the leader epoch, too: after a restore or an unsafe recovery it leaps.
        else sf.when(created, sf.coalesce(name, sf.lit(0))).otherwise(sf.col(name)).alias(name)
        for name in ("leader_epoch", "partition_epoch")
    ]
    return _of(records, RecordType.PARTITION, RecordType.PARTITION_CHANGE).select(
        "topic_id",
        "partition_id",
        *_begin(),
        "epoch",
        "principal",
        *_CARRIED,
        *epochs,
        "proposer_id",
        "proposer_epoch",
        sf.when(sf.size("isr_with_epochs") > 0, sf.col("isr_with_epochs")).alias("isr_with_epochs"),
        "type",
        "batch_last_offset",
    )


def _begun() -> Column:
    """Whether the row says itself what the epochs are: a partition's first."""
    return sf.col("partition_epoch").isNotNull()


def _counted(epoch: str, steps: str, so_far: WindowSpec) -> Column:
    """What the last row that says it says, and one for each step since."""
    said = sf.col(epoch).isNotNull()
    stood, counted = (
        sf.last(sf.when(said, sf.col(name)), ignorenulls=True).over(so_far)
        for name in (epoch, steps)
    )
    return (stood + sf.col(steps) - counted).cast("int")


def _with_topic(events: DataFrame, lives: DataFrame) -> DataFrame:
    """The events with the name of their topic, and from when to when it was there.

    An id is one topic's for ever, so there is one partner. (The fold would let it return after a
    removal.)
    """
    named = lives.select(
        sf.col("topic_id").alias("named_id"),
        "topic_name",
        sf.col("begins").alias("created"),
        sf.col("ends").alias("removed"),
        sf.col("ends_ms").alias("removed_ms"),
    )
    during = (sf.col("begins") >= sf.col("created")) & (
        sf.col("removed").isNull() | (sf.col("begins") < sf.col("removed"))
    )
    return events.join(named, (sf.col("topic_id") == sf.col("named_id")) & during, "left")


def _of(records: DataFrame, *types: RecordType) -> DataFrame:
    return records.where(sf.col("type").isin(*(int(each) for each in types)))


def _is(type_: RecordType) -> Column:
    return sf.col("type") == int(type_)


def _begin() -> tuple[Column, Column]:
    return sf.col("offset").alias("begins"), sf.col("timestamp_ms").alias("begins_ms")


def _end(of_one: WindowSpec) -> dict[str, Column]:
    return {"ends": sf.lead("begins").over(of_one), "ends_ms": sf.lead("begins_ms").over(of_one)}


def _carried(name: str, of_one: WindowSpec) -> Column:
    """The last word on it."""
    return sf.last(name, ignorenulls=True).over(
        of_one.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )


def _lost(before: Column, after: Column) -> Column:
    return sf.coalesce(sf.size(sf.array_except(before, after)) > 0, sf.lit(False))
