"""What happened, as rows: ``kind, severity, begins_ms, ends_ms, begins, count, text``. Columnar.

What happened at one moment for one reason is one row, so that the fencing of a broker with a
hundred thousand partitions is a few.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from raftlog.metadata.records import RecordType
from replay import acls
from replay.entities import RESOURCE_TYPES
from replay.outages.fencings import REGISTERED_ANEW, fencings, service
from replay.report.model import CRITICAL, NOTICE, PLANNED, WARNING
from replay.spells import spells

_COLUMNS = ("kind", "severity", "begins_ms", "ends_ms", "begins", "count", "text")
_FLAP_GAP = "5 minutes"
_FLAPS = 4
"""So many times out of the ISR, each within the gap of the last, are flapping."""


def troubles(
    controllers: DataFrame, brokers: DataFrame, partitions: DataFrame, short: DataFrame
) -> DataFrame:
    """All that nobody asked for. ``short``: of :func:`short_isrs`."""
    kinds = [
        _failovers(controllers),
        _outages(brokers),
        _leaderless(partitions),
        _at_once(short, "short", NOTICE, "ISR short of replicas: "),
        _flapping(short),
    ]
    return reduce(DataFrame.unionByName, kinds)


def event_columns(
    kind: str | Column, severity: int | Column, text: Column, count: Column | None = None
) -> list[Column]:
    """The columns of an event, from rows that have ``begins_ms``, ``ends_ms`` (null: not over) and
    ``begins``, an offset.
    """

    def column(value: str | int | Column) -> Column:
        return value if isinstance(value, Column) else sf.lit(value)

    return [
        column(kind).alias("kind"),
        column(severity).cast("int").alias("severity"),
        sf.col("begins_ms"),
        sf.col("ends_ms"),
        sf.col("begins"),
        (sf.lit(1) if count is None else count).cast("long").alias("count"),
        text.alias("text"),
    ]


def _failovers(controllers: DataFrame) -> DataFrame:
    """A change of the controller, for as long as there was none; where the log does not say, only
    when the new one began: that nobody wrote proves nothing.
    """
    before = controllers.where(sf.col("ends").isNotNull()).select(
        sf.col("ends").alias("begins"),
        sf.col("last_ms").alias("since_ms"),
        sf.col("leader_id").alias("old"),
        sf.col("epoch").alias("old_epoch"),
    )
    pairs = controllers.select(
        "begins",
        sf.col("begins_ms").alias("until_ms"),
        "epoch",
        "leader_id",
        "last_heard_epoch",
        "last_heard_age_ms",
    ).join(before, "begins")
    text = sf.concat(
        sf.lit("controller "),
        _text("old"),
        sf.lit(" → "),
        _text("leader_id"),
        sf.lit(", epoch "),
        _text("epoch"),
    )
    heard_ms = sf.when(
        sf.col("last_heard_epoch") >= sf.col("old_epoch"),
        sf.greatest(sf.col("until_ms") - sf.col("last_heard_age_ms"), "since_ms"),
    )
    moved = pairs.withColumn(
        "begins_ms", sf.least(sf.coalesce(heard_ms, "until_ms"), "until_ms")
    ).withColumn("ends_ms", sf.col("until_ms"))
    return moved.select(*event_columns("failover", WARNING, text))


def _outages(brokers: DataFrame) -> DataFrame:
    """Brokers out of service, and those that registered for the first time."""
    served = service(brokers)
    broker = sf.concat(sf.lit("broker "), _text("broker_id"))
    reason = sf.coalesce(sf.nullif("reason", sf.lit("")), sf.lit("no reason given"))
    again = sf.col("reason") == REGISTERED_ANEW
    kind = sf.when(sf.col("planned"), "left").when(again, "restarted").otherwise("fenced")
    text = (
        sf.when(sf.col("planned"), sf.concat(broker, sf.lit(" left: "), reason))
        .when(again, sf.concat(broker, sf.lit(" restarted, without being fenced first")))
        .otherwise(sf.concat(broker, sf.lit(" fenced: "), reason))
    )
    severity = sf.when(sf.col("planned"), PLANNED).otherwise(WARNING)
    out = fencings(served).select(*event_columns(kind, severity, text))
    new = served.where(sf.col("fenced") & ~sf.col("follows"))
    return out.unionByName(
        new.select(*event_columns("joined", PLANNED, sf.concat(broker, sf.lit(" registered"))))
    )


def _named(partitions: DataFrame) -> DataFrame:
    return partitions.withColumn("name", sf.concat_ws("-", "topic_name", "partition_id"))


def _at_once(found: DataFrame, kind: str, severity: int, words: str) -> DataFrame:
    """Spells of partitions that begin at one moment, as one event that ends with the last of
    them.
    """
    still = sf.count_if(sf.col("ends_ms").isNull()) > 0
    grouped = found.groupBy("begins_ms").agg(
        sf.when(~still, sf.max("ends_ms")).alias("ends_ms"),
        sf.min_by("name", "begins").alias("name"),
        sf.min("begins").alias("begins"),
        sf.count("*").alias("partitions"),
    )
    more = sf.when(
        sf.col("partitions") > 1,
        sf.concat(sf.lit(" and "), (sf.col("partitions") - 1).cast("string"), sf.lit(" more")),
    ).otherwise("")
    return grouped.select(
        *event_columns(kind, severity, sf.concat(sf.lit(words), "name", more), sf.col("partitions"))
    )


def _leaderless(partitions: DataFrame) -> DataFrame:
    without = spells(
        _named(partitions), ["topic_id", "partition_id"], sf.col("leader") < 0, [sf.col("name")]
    )
    return _at_once(without, "leaderless", CRITICAL, "no leader for ")


def short_isrs(partitions: DataFrame) -> DataFrame:
    """From when to when a partition's ISR was smaller than its replicas: of
    :func:`replay.spells.spells`, with the column name.
    """
    short = sf.size("isr") < sf.size("replicas")
    return spells(_named(partitions), ["topic_id", "partition_id"], short, [sf.col("name")])


def _flapping(short: DataFrame) -> DataFrame:
    session = sf.session_window(sf.timestamp_millis("begins_ms"), _FLAP_GAP)
    often = (
        short.groupBy(session, "topic_id", "partition_id", "name")
        .agg(
            sf.min("begins").alias("begins"),
            sf.min("begins_ms").alias("begins_ms"),
            sf.max(sf.coalesce("ends_ms", "begins_ms")).alias("ends_ms"),
            sf.count("*").alias("times"),
        )
        .where(sf.col("times") >= _FLAPS)
    )
    text = sf.concat(
        sf.lit("ISR of "), "name", sf.lit(" flapped "), _text("times"), sf.lit(" times")
    )
    return often.select(*event_columns("flapping", WARNING, text, sf.col("times")))


def changes_on_purpose(records: DataFrame, origin: str = "") -> DataFrame:
    """Configs, topics, feature levels and access control entries that somebody changed: one event
    for each kind, principal and moment. ``origin``: whose log it is; another system's names nobody.
    """
    resource = reduce(
        lambda otherwise, each: sf.when(sf.col("resource_type") == each[0], each[1]).otherwise(
            otherwise
        ),
        RESOURCE_TYPES.items(),
        _text("resource_type"),
    )
    config = sf.concat(
        resource,
        sf.lit(" "),
        sf.when(sf.col("resource_name") == "", "(all)").otherwise(sf.col("resource_name")),
        sf.lit(": "),
        "config_name",
        sf.lit(" = "),
        sf.coalesce("config_value", sf.lit("(deleted)")),
    )
    words = {
        RecordType.CONFIG: config,
        RecordType.TOPIC: sf.concat(sf.lit("topic "), "topic_name", sf.lit(" created")),
        RecordType.REMOVE_TOPIC: sf.concat(
            sf.lit("topic "), sf.substring("topic_id", 1, 8), sf.lit("… deleted")
        ),
        RecordType.FEATURE_LEVEL: sf.concat("feature_name", sf.lit(" = "), _text("feature_level")),
        RecordType.ACCESS_CONTROL_ENTRY: acls.record_in_words(),
        RecordType.REMOVE_ACCESS_CONTROL_ENTRY: sf.concat(sf.lit("removed: "), _entry_removed()),
    }
    wanted = records.where(sf.col("type").isin([int(each) for each in words]))
    wanted = wanted.join(_entries(records), "group_id", "left")
    text = reduce(
        lambda otherwise, each: sf.when(sf.col("type") == int(each[0]), each[1]).otherwise(
            otherwise
        ),
        words.items(),
        sf.lit(""),
    )
    grouped = wanted.groupBy("timestamp_ms", "type", "type_name", "principal").agg(
        sf.min_by(text, "offset").alias("what"),
        sf.min("offset").alias("begins"),
        sf.count("*").alias("times"),
    )
    more = sf.when(
        sf.col("times") > 1,
        sf.concat(sf.lit(" and "), (sf.col("times") - 1).cast("string"), sf.lit(" more")),
    )
    who = sf.concat(
        sf.lit(", by "), sf.coalesce(sf.nullif("principal", sf.lit("")), sf.lit("controller"))
    )
    done = grouped.withColumn("begins_ms", sf.col("timestamp_ms")).withColumn(
        "ends_ms", sf.col("timestamp_ms")
    )
    text_of_all = sf.concat("what", sf.coalesce(more, sf.lit("")), sf.lit("") if origin else who)
    return done.select(*event_columns(sf.lower("type_name"), PLANNED, text_of_all, sf.col("times")))


def _entries(records: DataFrame) -> DataFrame:
    """What each access control entry says: the columns group_id, entry."""
    added = records.where(sf.col("type") == int(RecordType.ACCESS_CONTROL_ENTRY))
    return added.groupBy("group_id").agg(sf.max_by(acls.record_in_words(), "offset").alias("entry"))


def _entry_removed() -> Column:
    return sf.coalesce("entry", sf.concat(sf.lit("entry "), "group_id"))


def _text(name: str) -> Column:
    return sf.col(name).cast("string")
