"""Rule about brokers that go: who is fenced, shut down, replaced or unregistered is out of every
ISR in the batch that says so.

But as an ISR's last member, who leads nothing then: nobody else is known to hold every record. A
batch of more than FENCING_BATCH_MAX records may leave the rest to the next ones, and the broker
stays fenced until all is done; so it is looked at once more just before the batch that unfences it.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from replay.audit import rules
from replay.audit.finding import findings, partition_subject, text, verdict, when
from replay.audit.history import History
from replay.audit.intervals import in_force
from replay.audit.steps import NO_LEADER, nobody

RULES = (rules.INACTIVE_IN_ISR,)
FENCING_BATCH_MAX = 5_000
"""As the controller's: see controller/rules/elections.py."""
_START, _STOP = 0, 1
_PARTITION = ("topic_id", "topic_name", "partition_id")


def check(history: History) -> DataFrame:
    """For each stay of a broker in an ISR: whether it was to be out at the first look after it
    began.
    """
    stays = _stays(history).withColumn("at", sf.col("entered_at"))
    rows = in_force(
        stays, _next_looks(history), end_offset=history.end_offset, on=("broker_id",), how="inner"
    )
    return findings(
        rows.withColumn("subject", partition_subject()),
        when(
            sf.col("looked_at") < sf.coalesce(sf.col("left_at"), sf.lit(history.end_offset)),
            verdict(
                rules.INACTIVE_IN_ISR,
                broker_id=sf.col("broker_id"),
                also=sf.col("entered_at"),
                found=text("broker {}, {}, in the ISR", sf.col("broker_id"), sf.col("now")),
                expected=sf.lit("out of it, or its last member and no leader"),
            ),
        ),
    )


def _stays(history: History) -> DataFrame:
    """From when to when a broker was in an ISR with others, or led: PARTITION, broker_id,
    entered_at, left_at (null: still).
    """

    def counted(state: str = "") -> Column:
        isr, leader = sf.col(f"{state}isr"), sf.col(f"{state}leader")
        return sf.when((sf.size(isr) > 1) | (leader != NO_LEADER), isr).otherwise(nobody())

    follows = sf.coalesce(sf.col("before.ends") == sf.col("begins"), sf.lit(False))
    rows = history.steps.withColumns(
        {
            "members": sf.sort_array(counted()),
            # Who counted up to here: nobody, if there was no partition.
            "were": sf.sort_array(sf.when(follows, counted("before.")).otherwise(nobody())),
            "gone": sf.col("ends").isNotNull() & ~sf.equal_null("next_begins", "ends"),
        }
    )
    changed = rows.where(sf.col("members") != sf.col("were"))
    came = _mark(changed, sf.array_except("members", "were"), _START, "begins")
    went = _mark(changed, sf.array_except("were", "members"), _STOP, "begins")
    changes = came.unionByName(went).unionByName(
        _mark(rows.where("gone"), sf.col("members"), _STOP, "ends")
    )
    of_stay = Window.partitionBy("broker_id", "topic_id", "partition_id").orderBy(
        "entered_at", sf.desc("kind")
    )
    return (
        changes.withColumn("left_at", sf.lead("entered_at").over(of_stay))
        .where(sf.col("kind") == _START)
        .drop("kind")
    )


def _mark(rows: DataFrame, members: Column, kind: int, offset: str) -> DataFrame:
    marked = rows.select(
        *_PARTITION, sf.explode(members).alias("broker_id"), sf.col(offset).alias("entered_at")
    )
    return marked.withColumn("kind", sf.lit(kind))


def _next_looks(history: History) -> DataFrame:
    """For each broker the next look, as intervals: it is the one for all that happened from
    ``begins`` on and before ``ends``.
    """
    in_order = Window.partitionBy("broker_id").orderBy("looked_at", "offset")
    begins = sf.coalesce(sf.lag("looked_at").over(in_order) + 1, sf.lit(0))
    return _looks(history).withColumns({"begins": begins, "ends": sf.col("looked_at") + 1})


def _looks(history: History) -> DataFrame:
    """When a broker has to be out, as an image's offset: broker_id, looked_at, and of the record
    that says so.
    """
    of_broker = Window.partitionBy("broker_id").orderBy("begins")
    facts = ("begins", "ends", "broker_epoch", "active")
    rows = history.brokers.withColumn(
        "active", ~(sf.col("fenced") | sf.col("in_controlled_shutdown"))
    )
    rows = rows.withColumns(
        {
            "before": sf.lag(sf.struct(*facts)).over(of_broker),
            "next_begins": sf.lead("begins").over(of_broker),
        }
    )
    same = (sf.col("before.ends") == sf.col("begins")) & (
        sf.col("before.broker_epoch") == sf.col("broker_epoch")
    )
    same = sf.coalesce(same, sf.lit(False))
    whole = sf.col("batch_last_offset") - sf.col("batch_base_offset") < FENCING_BATCH_MAX
    goes = ~sf.col("active") & (~same | sf.col("before.active")) & whole
    comes = sf.col("active") & same & ~sf.col("before.active")
    here = (sf.col("begins"), sf.col("epoch"), sf.col("begins_ms"), sf.col("principal"))
    said = sf.when(sf.col("registration"), sf.lit("replaced")).otherwise(
        sf.coalesce("reason", sf.lit(""))
    )
    nothing = sf.lit(None)
    unregistered = sf.col("ends").isNotNull() & ~sf.equal_null("next_begins", "ends")
    looks = sf.array(
        sf.when(
            goes, _look(sf.col("batch_last_offset"), *here, sf.concat(sf.lit("inactive: "), said))
        ),
        sf.when(
            comes, _look(sf.col("batch_base_offset") - 1, *here, sf.lit("about to be unfenced"))
        ),
        # The record stands behind the removals of its batch.
        sf.when(
            unregistered,
            _look(
                sf.col("ends"),
                sf.col("ends"),
                nothing,
                sf.col("ends_ms"),
                nothing,
                sf.lit("unregistered"),
            ),
        ),
    )
    return rows.select("broker_id", sf.inline(sf.array_compact(looks)))


def _look(
    at: Column, record: Column, epoch: Column, timestamp_ms: Column, principal: Column, now: Column
) -> Column:
    return sf.struct(
        at.cast("long").alias("looked_at"),
        record.cast("long").alias("offset"),
        epoch.cast("int").alias("epoch"),
        timestamp_ms.cast("long").alias("timestamp_ms"),
        principal.cast("string").alias("principal"),
        now.alias("now"),
    )
