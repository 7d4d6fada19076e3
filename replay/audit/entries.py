"""Access control entries over time: where the verdict on a question turns.

As :class:`raftlog.security.authorizer.Authorizer` has it: a DENY that matches decides, else an
ALLOW. Hosts are not in the log; a right from some host counts as one.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from raftlog.metadata.acls import (
    ALL_RESOURCES,
    ANY_HOST,
    ANYBODY,
    CLUSTER_NAME,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
)
from raftlog.metadata.records import RecordType
from raftlog.metadata.versions import ACLS, METADATA_VERSION
from replay.audit.history import History

ENTRIES = (RecordType.ACCESS_CONTROL_ENTRY, RecordType.REMOVE_ACCESS_CONTROL_ENTRY)
QUESTION = ("principal", "operation", "on_type", "on_name")
"""Who did what, on which resource."""


def begins(history: History) -> DataFrame:
    """One row: ``begins``, the offset behind which writes are judged; null: none is.

    That of the first entry: from then on it is written down who may do what. Who names super users
    says that there was an authorizer before any entry, too: as soon as entries could be.
    """
    first = sf.min(
        sf.when(sf.col("type") == int(RecordType.ACCESS_CONTROL_ENTRY), sf.col("offset"))
    )
    rows = history.of(*ENTRIES, RecordType.FEATURE_LEVEL)
    begin = sf.least(first, _first_level()) if history.super_users else first
    return rows.agg(begin.alias("begins"))


def first_level(history: History) -> DataFrame:
    """The offset from which on there could be entries: none, or one."""
    rows = history.of(RecordType.FEATURE_LEVEL).agg(_first_level().alias("offset"))
    return rows.where(sf.col("offset").isNotNull())


def _first_level() -> Column:
    known = (sf.col("feature_name") == METADATA_VERSION) & (sf.col("feature_level") >= ACLS)
    return sf.min(sf.when(known, sf.col("offset")))


def last_of_entries(history: History) -> DataFrame:
    """The offsets of the records that tell which entries there are, and since when there are any:
    those of every entry that is there, and of the first there was.
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


def turns(asked: DataFrame, history: History) -> DataFrame:
    """Where the number of ways to have a right changes: QUESTION, ``at`` (= ``offset``), ``turn``.

    A way is a resource whose entries may give the right, and a host: one that an entry allows, or
    any other. It is open while an entry of it allows, and none denies.
    """
    said = _about(asked.select(*QUESTION).distinct(), _entries(history))
    way = (*QUESTION, "way_type")
    allowing = said.where(sf.col("allows"))
    hosts = allowing.select(*way, sf.explode(sf.array("host", sf.lit(ANY_HOST))).alias("from_host"))
    keys = {name: f"way_{name}" for name in QUESTION} | {"way_type": "way_way_type"}
    same = (sf.col("host") == ANY_HOST) | (sf.col("host") == sf.col("from_host"))
    for name, key in keys.items():
        same &= sf.col(name) == sf.col(key)
    changes = said.withColumnsRenamed(keys).select(
        *keys.values(), "host", "allows", sf.inline(_comings_and_goings())
    )
    rows = hosts.distinct().join(changes.where(sf.col("at").isNotNull()), same)
    of_way = Window.partitionBy(*way, "from_host").orderBy("at")
    so_far = of_way.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    allow = sf.sum(sf.when(sf.col("allows"), sf.col("more")).otherwise(0)).over(so_far)
    deny = sf.sum(sf.when(sf.col("allows"), 0).otherwise(sf.col("more"))).over(so_far)
    rows = rows.withColumn("open", ((allow > 0) & (deny == 0)).cast("int"))
    turn = sf.col("open") - sf.coalesce(sf.lag("open").over(of_way), sf.lit(0))
    return (
        rows.withColumn("turn", turn)
        .where(sf.col("turn") != 0)
        .select(*QUESTION, "at", sf.col("at").alias("offset"), "turn")
    )


def _comings_and_goings() -> Column:
    return sf.array(
        sf.struct(sf.col("begins").alias("at"), sf.lit(1).alias("more")),
        sf.struct(sf.col("ends").alias("at"), sf.lit(-1).alias("more")),
    )


def _entries(history: History) -> DataFrame:
    """From when to when each entry was there; ``pattern``: type and name in one."""
    of_entry = Window.partitionBy("group_id").orderBy("offset")
    rows = history.of(*ENTRIES).select(
        sf.col("type").alias("record_type"),
        sf.col("acl_resource_type").alias("about_type"),
        _pattern(sf.col("pattern_type"), sf.col("resource_name")).alias("pattern"),
        sf.when(
            sf.col("pattern_type") == int(PatternType.PREFIXED), sf.length("resource_name")
        ).alias("prefix_length"),
        sf.col("acl_principal"),
        "host",
        sf.col("operation").alias("about_operation"),
        (sf.col("permission_type") == int(AclPermission.ALLOW)).alias("allows"),
        sf.col("offset").alias("begins"),
        sf.lead("offset").over(of_entry).alias("ends"),
    )
    added = sf.col("record_type") == int(RecordType.ACCESS_CONTROL_ENTRY)
    return rows.where(added).drop("record_type")


def _pattern(pattern_type: Column, name: Column) -> Column:
    return sf.concat(pattern_type.cast("string"), sf.lit(":"), name)


def _about(questions: DataFrame, entries: DataFrame) -> DataFrame:
    """Each question with each entry that may decide it; ``way_type``: the type of the resource that
    the entry is about.

    By equal patterns, not by comparing: a name is cut to the lengths of the prefixes that there
    are.
    """
    cluster = sf.struct(
        sf.lit(int(AclResourceType.CLUSTER)).alias("way_type"),
        sf.lit(CLUSTER_NAME).alias("way_name"),
    )
    itself = sf.struct(sf.col("on_type").alias("way_type"), sf.col("on_name").alias("way_name"))
    ways = questions.select(
        *QUESTION,
        sf.inline(sf.when(creates_topic(), sf.array(itself, cluster)).otherwise(sf.array(itself))),
    )
    # A few rows: one a type.
    lengths = entries.groupBy(sf.col("about_type").alias("prefixed_type")).agg(
        sf.collect_set("prefix_length").alias("lengths")
    )
    ways = ways.join(sf.broadcast(lengths), sf.col("way_type") == sf.col("prefixed_type"))
    name, literal, prefixed = (
        sf.col("way_name"), sf.lit(int(PatternType.LITERAL)), sf.lit(int(PatternType.PREFIXED))
    )  # fmt: skip
    fitting = sf.filter("lengths", lambda length: length <= sf.length(name))
    patterns = sf.array_distinct(
        sf.concat(
            sf.array(_pattern(literal, name), _pattern(literal, sf.lit(ALL_RESOURCES))),
            sf.transform(
                fitting, lambda length: _pattern(prefixed, name.substr(sf.lit(1), length))
            ),
        )
    )
    ways = ways.select(*QUESTION, "way_type", sf.explode(patterns).alias("wanted"))
    who = sf.array_distinct(sf.array("principal", sf.lit(ANYBODY)))
    ways = ways.withColumn("who", sf.explode(who))
    decides = (sf.col("about_operation") == int(AclOperation.ALL)) | (
        sf.col("about_operation") == sf.col("operation")
    )
    return ways.join(
        entries,
        (sf.col("way_type") == sf.col("about_type"))
        & (sf.col("wanted") == sf.col("pattern"))
        & (sf.col("who") == sf.col("acl_principal"))
        & decides,
    )


def creates_topic() -> Column:
    """Whether a question is about a topic's creation, which the right to create on the cluster
    allows as well.
    """
    creates = sf.col("operation") == int(AclOperation.CREATE)
    return creates & (sf.col("on_type") == int(AclResourceType.TOPIC))
