"""Rules about brokers in partitions, each at one moment: who is admitted to an ISR, who proposes
it, who is made its leader.

KIP-903: a replica enters an ISR only under the broker epoch that is registered. What a leader
proposed is judged by what stood in the log below the record; what the controller did by itself, by
what stands there behind the whole batch, as a broker may come or go in it.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from raftlog.metadata.records import RecordType
from raftlog.metadata.versions import METADATA_VERSION
from replay.audit import rules
from replay.audit.finding import Charge, findings, names, partition_subject, text, verdict, when
from replay.audit.history import History
from replay.audit.intervals import in_force
from replay.audit.steps import NO_LEADER

RULES = (
    rules.STALE_BROKER_EPOCH,
    rules.UNKNOWN_BROKER_EPOCH,
    rules.BROKER_NOT_REGISTERED,
    rules.INELIGIBLE_ISR_MEMBER,
    rules.STALE_PROPOSER_EPOCH,
    rules.INELIGIBLE_LEADER,
    rules.UNCLEAN_ELECTION_TOO_EARLY,
)
REPLICA_EPOCHS_LEVEL = 3
"""The metadata.version from which on -1 is no broker epoch: every leader knows those of its
followers.
"""
_UNKNOWN = -1
_MEMBER, _PROPOSER, _ENTERED, _LEADER, _SURVIVOR = range(5)
_RECORD = ("offset", "epoch", "timestamp_ms", "principal", "topic_id", "topic_name", "partition_id")


def check(history: History) -> DataFrame:
    """Ask for each broker that a record relies on what its registration was at that moment."""
    asked = _questions(
        history.steps.withColumnsRenamed({"begins": "offset", "begins_ms": "timestamp_ms"})
    )
    facts = history.brokers.select(
        "broker_id",
        "begins",
        "ends",
        sf.col("broker_epoch").alias("registered"),
        "fenced",
        "in_controlled_shutdown",
    )
    rows = in_force(asked, facts, end_offset=history.end_offset, on=("broker_id",))
    judged = findings(rows.withColumn("subject", partition_subject()), _charge())
    return _where_epochs_are_known(judged, history)


def _questions(rows: DataFrame) -> DataFrame:
    """One row a broker that a record relies on, and why: broker_id, claimed (an epoch or null),
    ``at`` an offset.
    """
    here, behind, nothing = sf.col("offset"), sf.col("batch_last_offset"), sf.lit(None)
    claims = rows.where(sf.size("isr_with_epochs") > 0).select(
        *_RECORD, "isr", here.alias("at"), sf.inline("isr_with_epochs")
    )
    unclean = rows.where(sf.col("unclean") & (sf.size("unproposed") > 0))
    # Not one list of all of them a row: Spark compiles neither that nor what comes behind it.
    asked = (
        _ask(
            _MEMBER,
            claims.where(sf.array_contains("isr", sf.col("broker_id"))),
            "broker_id",
            "broker_epoch",
            "at",
        ),
        _ask(_PROPOSER, rows.where("proposed"), "proposer_id", "proposer_epoch", here),
        _ask(
            _ENTERED,
            rows.where(sf.size("unproposed") > 0),
            sf.explode("unproposed"),
            nothing,
            behind,
        ),
        _ask(_LEADER, rows.where(_leads_now()), "leader", nothing, behind),
        _ask(
            _SURVIVOR,
            unclean,
            sf.explode(sf.array_intersect("before.isr", "replicas")),
            nothing,
            behind,
        ),
    )
    return reduce(DataFrame.unionByName, asked)


def _leads_now() -> Column:
    """Whether the record made somebody leader who was not."""
    return (sf.col("leader") != NO_LEADER) & ~sf.equal_null("leader", "before.leader")


def _ask(
    why: int, rows: DataFrame, broker_id: Column | str, claimed: Column | str, at: Column | str
) -> DataFrame:
    def column(value: Column | str) -> Column:
        return sf.col(value) if isinstance(value, str) else value

    # explode() stands alone in a select: what is computed of it follows.
    named = rows.select(
        *_RECORD,
        column(broker_id).alias("asked"),
        column(claimed).alias("claimed"),
        column(at).alias("at"),
    )
    return named.select(
        *_RECORD,
        sf.lit(why).alias("why"),
        sf.col("asked").cast("int").alias("broker_id"),
        sf.col("claimed").cast("long").alias("claimed"),
        sf.col("at").cast("long").alias("at"),
    )


def _charge() -> Charge:
    """At the most one verdict for each question."""
    why, claimed, registered, broker = (
        sf.col(name) for name in ("why", "claimed", "registered", "broker_id")
    )
    absent = registered.isNull()
    stale = sf.coalesce((claimed != _UNKNOWN) & (claimed != registered), sf.lit(False))
    inactive = sf.col("fenced") | sf.col("in_controlled_shutdown")
    enters = why.isin(_MEMBER, _ENTERED)
    under = text("under epoch {}", claimed)
    now = sf.when(absent, sf.lit("not registered")).otherwise(
        text(
            "epoch {}{}",
            registered,
            sf.when(sf.col("fenced"), sf.lit(", fenced"))
            .when(sf.col("in_controlled_shutdown"), sf.lit(", shutting down"))
            .otherwise(sf.lit("")),
        )
    )
    also = sf.col("begins")

    def of(rule: rules.Rule, found: Column, expected: Column) -> Column:
        return verdict(rule, broker_id=broker, found=found, expected=expected, also=also)

    active = sf.lit("registered, unfenced and not shutting down")
    return (
        when((why == _PROPOSER) & (absent | stale), of(rules.STALE_PROPOSER_EPOCH, under, now))
        .when(enters & absent, of(rules.BROKER_NOT_REGISTERED, now, active))
        .when((why == _MEMBER) & stale, of(rules.STALE_BROKER_EPOCH, under, now))
        .when(
            (why == _MEMBER) & (claimed == _UNKNOWN),
            of(
                rules.UNKNOWN_BROKER_EPOCH,
                sf.lit("epoch -1"),
                sf.lit("the epoch that it has fetched with"),
            ),
        )
        .when(enters & inactive, of(rules.INELIGIBLE_ISR_MEMBER, now, active))
        .when((why == _LEADER) & (absent | inactive), of(rules.INELIGIBLE_LEADER, now, active))
        .when(
            (why == _SURVIVOR) & ~inactive,
            of(
                rules.UNCLEAN_ELECTION_TOO_EARLY,
                text("broker {} of the ISR: {}", broker, now),
                sf.lit("nobody of the ISR is live"),
            ),
        )
    )


def _where_epochs_are_known(found: DataFrame, history: History) -> DataFrame:
    """Findings, without those of epoch -1 where it was allowed."""
    rows = in_force(
        found.withColumn("at", sf.col("offset")), _levels(history), end_offset=history.end_offset
    )
    known = sf.coalesce(sf.col("feature_level") >= REPLICA_EPOCHS_LEVEL, sf.lit(False))
    return rows.where(known | (sf.col("rule") != rules.UNKNOWN_BROKER_EPOCH.id)).select(*names())


def _levels(history: History) -> DataFrame:
    of_feature = Window.partitionBy("feature_name").orderBy("begins")
    return (
        history.of(RecordType.FEATURE_LEVEL)
        .where(sf.col("feature_name") == METADATA_VERSION)
        .select("feature_name", sf.col("offset").alias("begins"), "feature_level")
        .withColumn("ends", sf.lead("begins").over(of_feature))
        .drop("feature_name")
    )
