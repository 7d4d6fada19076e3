"""Rule about brokers that go: who is fenced, shut down, replaced or unregistered is out of every ISR in the batch that says so.

But as an ISR's last member, who leads nothing then: nobody else is known to hold every record. A batch of more than FENCING_BATCH_MAX
records may leave the rest to the next ones, and the broker stays fenced until all is done; so it is looked at once more just before the
batch that unfences it.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from replay.audit import rules
from replay.audit.finding import findings, partition_subject, text, verdict
from replay.audit.history import History
from replay.audit.steps import NO_LEADER, nobody

RULES = (rules.INACTIVE_IN_ISR,)
FENCING_BATCH_MAX = 5_000
"""As the controller's: see controller/elections.py."""
_START, _STOP, _LOOK = 0, 1, 2
_LOOKED = ("record", "epoch", "timestamp_ms", "principal", "now")
_PARTITION = ("topic_id", "topic_name", "partition_id")


def check(history: History) -> DataFrame:
    """For each stay of a broker in an ISR: whether it was to be out at the first look after it began."""
    # Backwards, so that what follows is what has been seen: a frame that looks ahead costs the square of its rows.
    of_broker = Window.partitionBy("broker_id").orderBy(sf.desc("offset"), sf.desc("kind"))
    later = of_broker.rowsBetween(Window.unboundedPreceding, -1)
    looks = _looks(history)
    rows = _stays(history).unionByName(looks, allowMissingColumns=True)
    seen = sf.when(
        sf.col("kind") == _LOOK, sf.struct(sf.col("offset").alias("at"), *(sf.col(name) for name in _LOOKED))
    )
    first = rows.withColumn("seen", sf.last(seen, ignorenulls=True).over(later)).where(sf.col("kind") == _START)
    late = first.where(sf.col("seen.at") < sf.coalesce(sf.col("stop"), sf.lit(history.end_offset)))
    told = late.select(
        *_PARTITION,
        "broker_id",
        sf.col("offset").alias("entered_at"),
        sf.col("seen.record").alias("offset"),
        sf.col("seen.epoch").alias("epoch"),
        sf.col("seen.timestamp_ms").alias("timestamp_ms"),
        sf.col("seen.principal").alias("principal"),
        sf.col("seen.now").alias("now"),
    ).withColumn("subject", partition_subject())
    return findings(
        told,
        verdict(
            rules.INACTIVE_IN_ISR,
            broker_id=sf.col("broker_id"),
            also=sf.col("entered_at"),
            found=text("broker {}, {}, in the ISR", sf.col("broker_id"), sf.col("now")),
            expected=sf.lit("out of it, or its last member and no leader"),
        ),
    )


def _stays(history: History) -> DataFrame:
    """From when to when a broker was in an ISR with others, or led: kind START at ``offset``, with ``stop`` (null: still)."""
    of_partition = Window.partitionBy("topic_id", "partition_id").orderBy("begins")
    counted = sf.when((sf.size("isr") > 1) | (sf.col("leader") != NO_LEADER), sf.col("isr")).otherwise(nobody())
    rows = history.partitions.withColumn("counted", counted)
    side = sf.struct("begins", "ends", "counted")
    rows = rows.withColumns({"before": sf.lag(side).over(of_partition), "after": sf.lead(side).over(of_partition)})
    came = sf.when(sf.col("before.ends") == sf.col("begins"), sf.array_except("counted", "before.counted"))
    went = sf.when(sf.col("after.begins") == sf.col("ends"), sf.array_except("counted", "after.counted"))
    left = sf.when(sf.col("ends").isNotNull(), sf.coalesce(went, "counted")).otherwise(nobody())
    changes = rows.select(
        *_PARTITION,
        sf.inline(
            sf.concat(_mark(sf.coalesce(came, "counted"), _START, sf.col("begins")), _mark(left, _STOP, sf.col("ends")))
        ),
    )
    of_stay = Window.partitionBy("broker_id", "topic_id", "partition_id").orderBy("offset", sf.desc("kind"))
    return changes.withColumn("stop", sf.lead("offset").over(of_stay)).where(sf.col("kind") == _START)


def _mark(members: Column, kind: int, offset: Column) -> Column:
    return sf.transform(
        members,
        lambda member: sf.struct(
            member.alias("broker_id"), sf.lit(kind).alias("kind"), offset.cast("long").alias("offset")
        ),
    )


def _looks(history: History) -> DataFrame:
    """When a broker has to be out, as an image's offset: kind LOOK, with the record that says so."""
    of_broker = Window.partitionBy("broker_id").orderBy("begins")
    facts = ("begins", "ends", "broker_epoch", "active")
    rows = history.brokers.withColumn("active", ~(sf.col("fenced") | sf.col("in_controlled_shutdown")))
    rows = rows.withColumns(
        {"before": sf.lag(sf.struct(*facts)).over(of_broker), "next_begins": sf.lead("begins").over(of_broker)}
    )
    same = (sf.col("before.ends") == sf.col("begins")) & (sf.col("before.broker_epoch") == sf.col("broker_epoch"))
    same = sf.coalesce(same, sf.lit(False))
    whole = sf.col("batch_last_offset") - sf.col("batch_base_offset") < FENCING_BATCH_MAX
    goes = ~sf.col("active") & (~same | sf.col("before.active")) & whole
    comes = sf.col("active") & same & ~sf.col("before.active")
    here = (sf.col("begins"), sf.col("epoch"), sf.col("begins_ms"), sf.col("principal"))
    said = sf.when(sf.col("registration"), sf.lit("replaced")).otherwise(sf.coalesce("reason", sf.lit("")))
    nothing = sf.lit(None)
    unregistered = sf.col("ends").isNotNull() & ~sf.equal_null("next_begins", "ends")
    looks = sf.array(
        sf.when(goes, _look(sf.col("batch_last_offset"), *here, sf.concat(sf.lit("inactive: "), said))),
        sf.when(comes, _look(sf.col("batch_base_offset") - 1, *here, sf.lit("about to be unfenced"))),
        # The record stands behind the removals of its batch.
        sf.when(
            unregistered,
            _look(sf.col("ends"), sf.col("ends"), nothing, sf.col("ends_ms"), nothing, sf.lit("unregistered")),
        ),
    )
    return rows.select("broker_id", sf.inline(sf.array_compact(looks)))


def _look(at: Column, record: Column, epoch: Column, timestamp_ms: Column, principal: Column, now: Column) -> Column:
    return sf.struct(
        at.cast("long").alias("offset"),
        sf.lit(_LOOK).alias("kind"),
        record.cast("long").alias("record"),
        epoch.cast("int").alias("epoch"),
        timestamp_ms.cast("long").alias("timestamp_ms"),
        principal.cast("string").alias("principal"),
        now.alias("now"),
    )
