"""LAO of an export that is still written: its lag at each progress record, and an alert whenever
something waited for long.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from raftlog.metadata.records import RecordType
from replay import timelines
from replay.audit.memory import highest, reports
from replay.causes import with_causes
from replay.lag.absence import AT_THE_END, returns
from replay.lag.holders import blamed, stalls
from replay.lag.samples import POINT_COLUMNS, samples, timeline, waits
from replay.lag.words import words
from replay.order import order_for
from replay.outages.fencings import departures, service
from replay.rows import keeper
from replay.streaming.ledger import ALERTS
from replay.streaming.watch import Judge, Judged, Piece

NAME = "lao"
"""Of the job, in its directory."""
SAMPLES = "samples"
"""Of its other output: a row a progress record, POINT_COLUMNS."""
ALERT_COLUMNS = (
    "offset",
    "epoch",
    "cause",
    "broker_id",
    "reason",
    "began_ms",
    "ended_ms",
    "waited_ms",
    "records",
    "lowest_acknowledged_offset",
)
"""``offset``: of the progress record that ended the stall; null: it goes on.

The others are as in :mod:`replay.lag.holders`.
"""
_COLUMNS = (
    "offset",
    "epoch",
    "timestamp_ms",
    "type",
    "lowest_acknowledged_offset",
    "high_watermark",
    "applied",
)


def judge(stall_ms: int) -> Judge:
    """Stalls as alerts (ALERT_COLUMNS), and samples.

    An alert is a row for each stall in which a record waited ``stall_ms`` or longer, and each
    broker that it is laid to (:func:`replay.lag.holders.blamed`). It comes when the stall has
    ended; and before, once, while it goes on.
    """

    def judge_piece(piece: Piece, stack: ExitStack) -> Judged:
        kept = keeper(stack)
        memory = piece.remembered("records")
        rows = piece.records.select(*_COLUMNS)
        rows = kept(rows if memory is None else memory.unionByName(rows))
        end = rows.agg(
            sf.max("timestamp_ms").alias("ms"),
            sf.max("epoch").alias("epoch"),
            sf.count("*").alias("records"),
        ).collect()[0]
        order = order_for(end.records)
        brokers = kept(timelines.brokers(piece.records, piece.remembered("brokers")))
        served = service(brokers)
        left = piece.remembered("departed")
        departed = kept(_also(departures(served), None if left is None else with_causes(left)))
        # What is remembered of brokers does not tell of times before this piece, and those are
        # remembered themselves.
        returned = returns(served, order).where(sf.col("offset") >= piece.since)
        returned = kept(_also(returned, piece.remembered("returned")))
        sampled = kept(samples(rows, order))
        waited = kept(waits(rows, sampled, order))
        points = kept(timeline(rows, sampled, waited, order))
        stalled = stalls(points, waited, least_ms=stall_ms, end_ms=end.ms, end_epoch=end.epoch)
        stalled = kept(stalled.where(sf.col("at") >= piece.since))
        laid = kept(
            blamed(
                stalled, sampled, words(rows, sampled, brokers, order), departed, returned, order
            )
        )
        last = points.agg(sf.max("offset").alias("last"))
        state = {
            "records": _remember(rows, waited),
            "brokers": brokers.where(sf.col("ends").isNull()),
            # Of these the next sample will tell.
            "departed": _behind(departed, last),
            "returned": _behind(returned.where(sf.col("offset") < AT_THE_END), last),
            "told": laid.where(_goes_on()).select("began_ms").distinct(),
        }
        new = points.where(sf.col("offset") >= piece.since).select(*POINT_COLUMNS)
        return Judged({ALERTS: _alerts(laid, piece.remembered("told")), SAMPLES: new}, state)

    return judge_piece


def _also(new: DataFrame, remembered: DataFrame | None) -> DataFrame:
    return new if remembered is None else remembered.unionByName(new)


def _behind(events: DataFrame, last: DataFrame) -> DataFrame:
    """Those behind the last sample."""
    return events.join(sf.broadcast(last), sf.col("offset") > sf.coalesce("last", sf.lit(-1))).drop(
        "last"
    )


def _goes_on() -> Column:
    return sf.col("at") == AT_THE_END


def _alerts(laid: DataFrame, told: DataFrame | None) -> DataFrame:
    """What is to be said: what has ended, and what goes on and was not said in an earlier
    micro-batch.
    """
    goes_on = laid.where(_goes_on())
    if told is not None:
        goes_on = goes_on.join(sf.broadcast(told), "began_ms", "left_anti").select(*laid.columns)
    offset = sf.when(~_goes_on(), sf.col("at"))
    return (
        laid.where(~_goes_on())
        .unionByName(goes_on)
        .withColumn("offset", offset)
        .select(*ALERT_COLUMNS)
    )


def _remember(rows: DataFrame, waited: DataFrame) -> DataFrame:
    """The records that a later piece begins with: what LAO has not passed yet, and some progress
    records.

    Of these the last one, the one with the highest LAO, the one that says the most applied, and
    each broker's last word.
    """
    progress = rows.where(sf.col("type") == int(RecordType.PROGRESS))
    most = sf.array_max(sf.transform("applied", lambda entry: entry.applied_offset))
    kept = (
        waited.where(sf.col("seen_at").isNull()).select("offset"),
        progress.agg(sf.max("offset").alias("offset")),
        progress.agg(sf.max_by("offset", most).alias("offset")),
        highest(progress),
        reports(progress, rows),
    )
    offsets = reduce(DataFrame.union, kept).where(sf.col("offset").isNotNull()).distinct()
    return rows.join(offsets, "offset", "left_semi").select(*_COLUMNS)
