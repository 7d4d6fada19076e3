"""Rules about registrations: a broker epoch is the offset of its registration, so each is of one
incarnation; and fenced at first.

A process that registers again under the incarnation id it is registered by keeps its epoch: that
amends a registration, and is none.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from replay.audit import rules
from replay.audit.finding import findings, text, verdict, when
from replay.audit.history import History

RULES = (rules.BROKER_EPOCH_REUSED, rules.REGISTERED_UNFENCED)


def check(history: History) -> DataFrame:
    """Each new registration."""
    of_broker = Window.partitionBy("broker_id").orderBy("begins")
    before = sf.lag(sf.struct("ends", "broker_epoch", "incarnation_id")).over(of_broker)
    rows = history.brokers.withColumn("before", before)
    amends = (
        (sf.col("before.ends") == sf.col("begins"))
        & (sf.col("before.broker_epoch") == sf.col("broker_epoch"))
        & (sf.col("before.incarnation_id") == sf.col("incarnation_id"))
    )
    new = rows.where(sf.col("registration") & ~sf.coalesce(amends, sf.lit(False)))
    new = new.withColumnsRenamed({"begins": "offset", "begins_ms": "timestamp_ms"})
    broker, epoch, offset = sf.col("broker_id"), sf.col("broker_epoch"), sf.col("offset")
    return findings(
        new.withColumn("subject", text("broker {}", broker)),
        when(
            epoch != offset,
            verdict(
                rules.BROKER_EPOCH_REUSED,
                broker_id=broker,
                # The registration that it is of, if there is one.
                also=sf.when((epoch >= 0) & (epoch < offset), epoch),
                found=text("epoch {}, incarnation {}", epoch, sf.col("incarnation_id")),
                expected=text("{}, the offset of the registration", offset),
            ),
        ),
        when(
            ~sf.col("fenced"),
            verdict(
                rules.REGISTERED_UNFENCED,
                broker_id=broker,
                found=sf.lit("unfenced"),
                expected=sf.lit("fenced at first"),
            ),
        ),
    )
