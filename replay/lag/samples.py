"""The progress records as samples of LAO, and how long each record of the log waited to be
acknowledged everywhere.

A progress record is written when LAO has passed a record that is neither progress nor a no-op, at
most one in ``progress.interval.ms``. So while LAO stands still there is no sample, and a stall
shows in what the sample after it says: the oldest record that it newly covers had waited since it
was written. That time is right but for the interval, by which it may be too long.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from raftlog.metadata.records import RecordType
from replay.order import BUCKETS, Order, Running

_QUIET = (int(RecordType.PROGRESS), int(RecordType.NO_OP))
HOUR_MS = 3_600_000


def news(records: DataFrame) -> DataFrame:
    """What LAO is waited for: all records but progress and no-ops. Columns offset, timestamp_ms."""
    return records.where(~sf.col("type").isin(*_QUIET)).select("offset", "timestamp_ms")


def samples(records: DataFrame, order: Order = BUCKETS) -> DataFrame:
    """One row a progress record, with what the one before it said.

    offset, epoch, timestamp_ms, lowest_acknowledged_offset (inclusive; null: unknown),
    high_watermark (exclusive), applied (list of broker_id, broker_epoch, applied_offset: who
    changed); ``reached``: the highest LAO up to here, ``reached_before`` without this one;
    ``most_applied``: the highest offset that any broker had applied; previous_offset, previous_ms,
    previous_epoch, previous_high_watermark: of the sample before, null at the first.
    """
    known = sf.when(sf.col("lowest_acknowledged_offset") >= 0, sf.col("lowest_acknowledged_offset"))
    told = records.where(sf.col("type") == int(RecordType.PROGRESS)).select(
        "offset",
        "epoch",
        "timestamp_ms",
        known.alias("lowest_acknowledged_offset"),
        "high_watermark",
        "applied",
    )
    most = sf.array_max(sf.transform("applied", lambda entry: entry.applied_offset))
    return order.so_far(
        told,
        previous_offset=Running(sf.col("offset"), including=False),
        previous_ms=Running(sf.col("timestamp_ms"), including=False),
        previous_epoch=Running(sf.col("epoch"), including=False),
        previous_high_watermark=Running(sf.col("high_watermark"), including=False),
        reached=Running(sf.col("lowest_acknowledged_offset"), "max"),
        reached_before=Running(sf.col("lowest_acknowledged_offset"), "max", including=False),
        most_applied=Running(most, "max"),
    )


def waits(records: DataFrame, sampled: DataFrame, order: Order = BUCKETS) -> DataFrame:
    """One row a record that is waited for: offset, timestamp_ms, ``seen_at`` (the sample that first
    covers it), seen_ms, waited_ms.

    The last three are null for what no sample covers yet.
    """
    raising = sampled.where(sf.col("reached") > sf.coalesce("reached_before", sf.lit(-1)))
    events = raising.select(
        "reached", sf.col("offset").alias("seen_at"), sf.col("timestamp_ms").alias("seen_ms")
    )
    covered = order.next_event(news(records), events, at="offset", key="reached", name="seen")
    return covered.select("offset", "timestamp_ms", "seen.seen_at", "seen.seen_ms").withColumn(
        "waited_ms", sf.col("seen_ms") - sf.col("timestamp_ms")
    )


def hourly(waited: DataFrame) -> DataFrame:
    """From commit to visible everywhere, by the hour in which a record was written.

    hour_ms (its beginning), records, p50_ms, p90_ms, p99_ms, max_ms, and ``waiting``: records that
    were not covered by the end.
    """
    hour = sf.col("timestamp_ms") - sf.col("timestamp_ms") % HOUR_MS
    return waited.groupBy(hour.alias("hour_ms")).agg(*wait_figures())


def wait_figures() -> list[Column]:
    """The aggregates of rows of :func:`waits`: records, p50_ms, p90_ms, p99_ms, max_ms, waiting."""
    return [
        sf.count("*").alias("records"),
        *(
            sf.percentile_approx("waited_ms", share / 100).alias(f"p{share}_ms")
            for share in (50, 90, 99)
        ),
        sf.max("waited_ms").alias("max_ms"),
        sf.count_if(sf.col("waited_ms").isNull()).alias("waiting"),
    ]


def timeline(
    records: DataFrame, sampled: DataFrame, waited: DataFrame, order: Order = BUCKETS
) -> DataFrame:
    """One row a sample, unordered: what :func:`samples` says, and how far it was behind.

    ``lag_offsets``: from LAO to the last committed record; ``lag_ms``: the age of the oldest record
    above LAO that was waited for then, 0 if there was none; ``covered``: how many such records the
    sample newly covers, ``oldest_ms``: when the oldest of them was written, ``waited_ms``: how long
    it had waited. Null where LAO, or what was newly covered, is unknown.
    """
    reached = sf.col("lowest_acknowledged_offset")
    asked = sampled.withColumn("_next", reached + 1)
    found = order.next_event(asked, news(records), at="_next", key="offset", name="_oldest")
    waiting = sf.col("_oldest.offset") < sf.col("high_watermark")
    aged = sf.when(waiting, sf.col("timestamp_ms") - sf.col("_oldest.timestamp_ms")).otherwise(0)
    lagging = found.withColumns(
        {
            # greatest() alone would pass over a null: unknown is not zero.
            "lag_offsets": sf.when(
                reached.isNotNull(), sf.greatest(sf.col("high_watermark") - 1 - reached, sf.lit(0))
            ),
            "lag_ms": sf.when(reached.isNotNull(), aged).cast("long"),
        }
    ).drop("_next", "_oldest")
    newly = waited.where(sf.col("seen_at").isNotNull()).groupBy(sf.col("seen_at").alias("offset"))
    counted = newly.agg(sf.count("*").alias("covered"), sf.min("timestamp_ms").alias("oldest_ms"))
    joined = lagging.join(counted, "offset", "left").withColumn(
        "covered", sf.coalesce("covered", sf.lit(0))
    )
    return joined.withColumn("waited_ms", sf.col("timestamp_ms") - sf.col("oldest_ms"))


POINT_COLUMNS = (
    "offset",
    "epoch",
    "timestamp_ms",
    "lowest_acknowledged_offset",
    "high_watermark",
    "lag_offsets",
    "lag_ms",
    "covered",
    "waited_ms",
)


def points(records: DataFrame) -> DataFrame:
    """The timeline of LAO from the records alone, as people ask for it: POINT_COLUMNS."""
    sampled = samples(records)
    return timeline(records, sampled, waits(records, sampled)).select(*POINT_COLUMNS)
