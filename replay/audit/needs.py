"""What the records of clients' requests need, by :mod:`raftlog.security.permissions`: the audit's
side of that table.

Left out is what a node writes in its own name: registrations, heartbeats, ISRs; and the voter set,
which a controller changes for itself. So is what belongs to another record of its batch: the
partitions and configs of a topic that is created, the configs of one that is deleted, the ISRs that
an unregistered broker leaves.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from raftlog.metadata.acls import CLUSTER_NAME, AclOperation, AclResourceType
from raftlog.metadata.config_keys import ResourceType
from raftlog.metadata.records import RecordType
from replay.audit.entries import QUESTION, begins
from replay.audit.history import History


class Need(NamedTuple):
    """What the record of a request needs. ``name``: the column of the resource's name."""

    operation: AclOperation
    type: AclResourceType = AclResourceType.CLUSTER
    name: str = ""


_CLUSTER = Need(AclOperation.ALTER)
NEEDS: dict[RecordType, Need] = {
    RecordType.UNREGISTER_BROKER: _CLUSTER,
    RecordType.FEATURE_LEVEL: _CLUSTER,
    RecordType.PARTITION_CHANGE: _CLUSTER,
    RecordType.ACCESS_CONTROL_ENTRY: _CLUSTER,
    RecordType.REMOVE_ACCESS_CONTROL_ENTRY: _CLUSTER,
    RecordType.TOPIC: Need(AclOperation.CREATE, AclResourceType.TOPIC, "topic_name"),
    RecordType.PARTITION: Need(AclOperation.ALTER, AclResourceType.TOPIC, "topic_name"),
    RecordType.REMOVE_TOPIC: Need(AclOperation.DELETE, AclResourceType.TOPIC, "topic_name"),
    RecordType.HOSTNAME: Need(AclOperation.ALTER, AclResourceType.HOSTNAME, "group_id"),
    RecordType.EXPORT_CURSOR: Need(AclOperation.ALTER, AclResourceType.EXPORT_CURSOR, "group_id"),
    RecordType.OPEN_CLIENT: Need(
        AclOperation.CREATE, AclResourceType.CLIENT_SESSION, "client_name"
    ),
}
"""Configs are in ``_CONFIGS``."""
_CONFIGS = {
    int(ResourceType.TOPIC): AclResourceType.TOPIC,
    int(ResourceType.GROUP): AclResourceType.GROUP,
}
"""Type of a config's resource -> whose permission it needs; the cluster's for all others."""
_BY_ID = (RecordType.PARTITION, RecordType.REMOVE_TOPIC)
"""These name their topic by its id."""
_LEADING = (
    RecordType.REGISTER_BROKER,
    RecordType.BROKER_REGISTRATION_CHANGE,
    RecordType.UNREGISTER_BROKER,
    RecordType.FEATURE_LEVEL,
)
"""Changes of partitions and hosts in a batch with such a record come of that."""
_LED = (RecordType.PARTITION_CHANGE, RecordType.HOSTNAME)
_LED_BY_ANY = "led"


def _numbers(*types: RecordType) -> list[int]:
    return [int(each) for each in types]


def asked(history: History) -> DataFrame:
    """The records of clients' requests that are judged, and what each needs: QUESTION; ``at``: the
    end of the batch before, whose entries count.
    """
    named = (sf.col("principal") != "") & ~sf.col("principal").isin(*history.super_users)
    of_client = sf.col("type").isin(*_numbers(*NEEDS, RecordType.CONFIG)) & ~_proposed()
    rows = history.records.where(named & of_client).select(
        "offset",
        "epoch",
        "timestamp_ms",
        "principal",
        "batch_base_offset",
        "type",
        "type_name",
        "group_id",
        "topic_id",
        "topic_name",
        "resource_type",
        "resource_name",
        "client_name",
        _part_of().alias("part_of"),
    )
    since = begins(history)
    rows = rows.join(sf.broadcast(since), sf.col("batch_base_offset") > sf.col("begins")).drop(
        "begins"
    )
    rows = rows.join(_wholes(history), ["batch_base_offset", "part_of"], "left_anti")
    by_id = sf.col("type").isin(*_numbers(*_BY_ID))
    rows = rows.where(~by_id).unionByName(_with_names(rows.where(by_id), history))
    needed = rows.withColumns(
        {
            "operation": _needed("operation"),
            "on_type": _needed("type"),
            "on_name": _needed("name"),
            "at": sf.col("batch_base_offset") - 1,
        }
    )
    return needed.where(sf.col("on_name").isNotNull()).select(
        "offset", "epoch", "timestamp_ms", "type_name", "at", *QUESTION
    )


def _proposed() -> Column:
    """Whether a leader has proposed the change: a broker's own."""
    return sf.coalesce(sf.col("proposer_epoch") > 0, sf.lit(False))


def _part_of() -> Column:
    """What the record may be a part of; null: of nothing."""
    type_ = sf.col("type")
    of_topic = (type_ == int(RecordType.CONFIG)) & (
        sf.col("resource_type") == int(ResourceType.TOPIC)
    )
    return (
        sf.when(type_.isin(*_numbers(*_LED)), sf.lit(_LED_BY_ANY))
        .when(type_ == int(RecordType.PARTITION), sf.concat(sf.lit("id "), "topic_id"))
        .when(of_topic, sf.concat(sf.lit("topic "), "resource_name"))
    )


def _wholes(history: History) -> DataFrame:
    """What the records of a batch may be parts of: batch_base_offset, part_of."""
    rare = history.of(*_LEADING, RecordType.TOPIC, RecordType.REMOVE_TOPIC)
    led = rare.where(sf.col("type").isin(*_numbers(*_LEADING)))
    created = rare.where(sf.col("type") == int(RecordType.TOPIC))
    removed = _with_names(rare.where(sf.col("type") == int(RecordType.REMOVE_TOPIC)), history)
    base, name = sf.col("batch_base_offset"), sf.concat(sf.lit("topic "), "topic_name")
    parts = (
        led.select(base, sf.lit(_LED_BY_ANY).alias("part_of")),
        created.select(base, sf.concat(sf.lit("id "), "topic_id").alias("part_of")),
        created.select(base, name.alias("part_of")),
        removed.select(base, name.alias("part_of")),
    )
    return reduce(DataFrame.unionByName, parts)


def _with_names(rows: DataFrame, history: History) -> DataFrame:
    """Rows with the name of the topic of their id; none of a topic that is not there."""
    lives = history.topics.select(
        sf.col("topic_id").alias("id"), sf.col("topic_name").alias("name"), "begins", "ends"
    )
    alive = (sf.col("begins") < sf.col("offset")) & (
        sf.col("ends").isNull() | (sf.col("offset") <= sf.col("ends"))
    )
    joined = rows.join(lives, (sf.col("topic_id") == sf.col("id")) & alive)
    return joined.withColumn("topic_name", sf.col("name")).select(*rows.columns)


def _needed(part: str) -> Column:
    """A part of what the record needs."""
    chosen = sf.when(sf.col("type") == int(RecordType.CONFIG), _of_config(part))
    for type_, need in NEEDS.items():
        value = getattr(need, part)
        if part == "name":
            given = sf.col(value) if value else sf.lit(CLUSTER_NAME)
        else:
            given = sf.lit(int(value))
        chosen = chosen.when(sf.col("type") == int(type_), given)
    return chosen


def _of_config(part: str) -> Column:
    if part == "operation":
        return sf.lit(int(AclOperation.ALTER_CONFIGS))
    chosen, other = sf.lit(int(AclResourceType.CLUSTER)), sf.lit(CLUSTER_NAME)
    for number, type_ in _CONFIGS.items():
        of_type = sf.col("resource_type") == number
        chosen = sf.when(of_type, sf.lit(int(type_))).otherwise(chosen)
        other = sf.when(of_type, sf.col("resource_name")).otherwise(other)
    return chosen if part == "type" else other
