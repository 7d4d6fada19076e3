"""Rules about LowestAcknowledgedOffset, as progress records say it: below the high watermark, never
back, and applied by all who count.

A progress record names the brokers whose applied offset has changed since the one before it in its
controller epoch. So what each broker had applied when a record was written is its last word in that
epoch, under that registration: exactly, as the record was decided by the very offsets that it
names. Who counts is who is unfenced where the record stands. (LAO counts those too whose fencing is
not committed yet; which they are does not stand in the log.)
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from raftlog.metadata.records import RecordType
from replay.audit import rules
from replay.audit.finding import findings, text, verdict, when
from replay.audit.history import History
from replay.audit.intervals import in_force, slice_length, slice_of

RULES = (
    rules.LAO_NOT_BELOW_HIGH_WATERMARK,
    rules.HIGH_WATERMARK_BEYOND_LOG,
    rules.LAO_WENT_BACK,
    rules.LAO_ABOVE_APPLIED,
    rules.LAO_WITHOUT_REPORT,
)
_RECORD = ("offset", "epoch", "timestamp_ms", "principal")


def check(history: History) -> DataFrame:
    """Each record by itself, beside those before it, and beside what brokers had reported."""
    said = history.of(RecordType.PROGRESS).select(
        *_RECORD, sf.col("lowest_acknowledged_offset").alias("lao"), "high_watermark", "applied"
    )
    known = said.where(sf.col("lao") >= 0)
    return _single(said, known, history.end_offset).unionByName(_acknowledged(said, known, history))


def _single(said: DataFrame, known: DataFrame, end_offset: int) -> DataFrame:
    lao, mark = sf.col("lao"), sf.col("high_watermark")
    rows = said.drop("applied").join(_highest_before(known, end_offset), "offset", "left")
    return findings(
        rows.withColumn("subject", sf.lit("LAO")),
        when(
            (lao >= 0) & (lao >= mark),
            verdict(
                rules.LAO_NOT_BELOW_HIGH_WATERMARK,
                found=text("LAO {}", lao),
                expected=text("less than {}", mark),
            ),
        ),
        when(
            mark > sf.col("offset"),
            verdict(
                rules.HIGH_WATERMARK_BEYOND_LOG,
                found=text("high watermark {}", mark),
                expected=text("{}, the end of the log, or less", sf.col("offset")),
            ),
        ),
        when(
            (lao >= 0) & (lao < sf.col("highest.lao")),
            verdict(
                rules.LAO_WENT_BACK,
                also=sf.col("highest.offset"),
                found=text("LAO {}", lao),
                expected=text("{} or more", sf.col("highest.lao")),
            ),
        ),
    )


def _highest_before(known: DataFrame, end_offset: int) -> DataFrame:
    """For each known LAO the highest one before it: within its slice of the log, and of the slices
    before. Columns offset, highest.
    """
    stands = sf.struct("lao", "offset")
    sliced = known.select(
        "offset", "lao", slice_of(sf.col("offset"), slice_length(end_offset)).alias("slice")
    )
    in_slice = (
        Window.partitionBy("slice").orderBy("offset").rowsBetween(Window.unboundedPreceding, -1)
    )
    # At the most as many rows as there are slices: one task's work.
    slices_before = Window.orderBy("slice").rowsBetween(Window.unboundedPreceding, -1)
    of_slices = sliced.groupBy("slice").agg(sf.max(stands).alias("top"))
    of_slices = of_slices.select("slice", sf.max("top").over(slices_before).alias("earlier"))
    rows = sliced.withColumn("near", sf.max(stands).over(in_slice)).join(of_slices, "slice")
    return rows.select("offset", sf.greatest("near", "earlier").alias("highest"))


def _acknowledged(said: DataFrame, known: DataFrame, history: History) -> DataFrame:
    unfenced = history.brokers.where(~sf.col("fenced")).select(
        "broker_id", "broker_epoch", "begins", "ends"
    )
    points = known.drop("applied").withColumn("at", sf.col("offset"))
    counting = in_force(points, unfenced, end_offset=history.end_offset, how="inner").drop("at")
    reports = said.select("offset", "epoch", sf.inline("applied"))
    rows = counting.unionByName(reports, allowMissingColumns=True)
    # A record's own reports stand before what is asked of it.
    so_far = (
        Window.partitionBy("broker_id", "broker_epoch", "epoch")
        .orderBy("offset", sf.col("lao").isNotNull())
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    last = sf.last(
        sf.when(sf.col("lao").isNull(), sf.struct("applied_offset", "offset")), ignorenulls=True
    ).over(so_far)
    asked = rows.withColumn("last", last).where(sf.col("lao").isNotNull())
    broker, lao, applied = sf.col("broker_id"), sf.col("lao"), sf.col("last.applied_offset")
    return findings(
        asked.withColumn("subject", text("LAO, broker {}", broker)),
        when(
            applied < lao,
            verdict(
                rules.LAO_ABOVE_APPLIED,
                broker_id=broker,
                also=sf.when(sf.col("last.offset") != sf.col("offset"), sf.col("last.offset")),
                found=text("LAO {}", lao),
                expected=text("{} or less: what broker {} had applied", applied, broker),
            ),
        ),
        when(
            sf.col("last").isNull(),
            verdict(
                rules.LAO_WITHOUT_REPORT,
                broker_id=broker,
                also=sf.col("begins"),
                found=text("LAO {}", lao),
                expected=text(
                    "unknown: broker {} has not reported in epoch {}", broker, sf.col("epoch")
                ),
            ),
        ),
    )
