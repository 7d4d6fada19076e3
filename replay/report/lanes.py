"""Lanes of the timeline: the controllers' reigns, and the lives of the brokers that had the most trouble."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from replay.report.axis import clip
from replay.report.model import MAX_EXACT_SPANS, MAX_LANES, Axis, BrokerLane, BrokerSpan, ControllerSpan
from replay.report.spells import merge_close

SERVING, LEAVING, STOPPED, FENCED, STARTING = "serving", "leaving", "stopped", "fenced", "starting"
_COARSE = 4
"""Steps of the axis that must lie between two stretches of a crowded lane, so that they are drawn apart: about ten pixels."""


def controller_spans(controllers: DataFrame, axis: Axis) -> tuple[list[ControllerSpan], int]:
    """The reigns, drawn as one where they are too short, and how many changes of the controller there were."""
    before = controllers.select(sf.col("ends").alias("begins"), sf.col("last_ms").alias("last_before_ms"))
    reigns = clip(controllers, axis).join(before.where(sf.col("begins").isNotNull()), "begins", "left")
    gap = sf.greatest(sf.col("begins_ms") - sf.col("last_before_ms"), sf.lit(0))
    spans = reigns.select(
        sf.lit(0).alias("lane"), "begins", "begins_ms", "ends_ms", "epoch", "leader_id",
        sf.coalesce(gap, sf.lit(0)).alias("gap_ms"),
    )  # fmt: skip
    count = spans.count()
    if count <= MAX_EXACT_SPANS // 3:
        rows = spans.orderBy("begins").collect()
        return [_reign(row.leader_id, row.epoch, row.epoch, 1, row, row.gap_ms) for row in rows], max(0, count - 1)
    # Reigns lie without gaps one after the other: short ones are put together by the step of the axis in which they begin.
    step = sf.floor((sf.col("begins_ms") - axis.begins_ms) / axis.bucket_ms)
    merged = spans.groupBy(step.alias("step")).agg(
        sf.min("epoch").alias("first_epoch"),
        sf.max("epoch").alias("last_epoch"),
        sf.count("*").alias("epochs"),
        sf.min("begins_ms").alias("begins_ms"),
        sf.max("ends_ms").alias("ends_ms"),
        sf.max("gap_ms").alias("gap_ms"),
        sf.max_by("leader_id", "epoch").alias("leader_id"),
    )
    rows = merged.orderBy("step").collect()
    reigns_drawn = [_reign(row.leader_id, row.first_epoch, row.last_epoch, row.epochs, row, row.gap_ms) for row in rows]
    return reigns_drawn, count - 1


def _reign(leader_id: int, first: int, last: int, epochs: int, row: object, gap_ms: int) -> ControllerSpan:
    begins_ms, ends_ms = row.begins_ms, row.ends_ms  # type: ignore[attr-defined]
    return ControllerSpan(leader_id, first, last, epochs, begins_ms, ends_ms, gap_ms)


def broker_lanes(brokers: DataFrame, axis: Axis) -> tuple[list[BrokerLane], int]:
    """The lanes of the brokers that were fenced most and longest, by id; and how many brokers there are."""
    states = clip(brokers, axis).withColumn("state", _state())
    length = sf.col("ends_ms") - sf.col("begins_ms")
    fell = (sf.col("state") == FENCED) & ~sf.col("registration")
    lives = states.groupBy("broker_id").agg(
        sf.coalesce(sf.max_by("rack", "begins"), sf.lit("")).alias("rack"),
        sf.count_if("registration").alias("registrations"),
        sf.count_if(fell).alias("fencings"),
        sf.coalesce(sf.sum(sf.when(sf.col("state") == FENCED, length)), sf.lit(0)).alias("fenced_ms"),
    )
    total = lives.count()
    worst = sf.desc("fencings"), sf.desc("fenced_ms"), sf.desc("registrations"), "broker_id"
    chosen = lives.orderBy(*worst).limit(MAX_LANES).collect()
    wanted = states.where(sf.col("broker_id").isin([row.broker_id for row in chosen]))
    gap_ms = -1 if wanted.count() <= MAX_EXACT_SPANS else _COARSE * axis.bucket_ms
    lanes = merge_close(wanted, ["broker_id", "state"], gap_ms).orderBy("begins_ms").collect()
    spans: dict[int, list[BrokerSpan]] = {row.broker_id: [] for row in chosen}
    for row in lanes:
        span = BrokerSpan(
            row.state, row.begins_ms, row.ends_ms, row.spans, row.total_ms, row["last"].reason or "", row.begins
        )
        spans[row.broker_id].append(span)
    return [
        BrokerLane(row.broker_id, row.rack, row.registrations, row.fencings, row.fenced_ms, spans[row.broker_id])
        for row in sorted(chosen, key=lambda row: int(row.broker_id))
    ], total


def _state() -> Column:
    return (
        sf.when(sf.col("in_controlled_shutdown"), sf.when(sf.col("fenced"), STOPPED).otherwise(LEAVING))
        .when(~sf.col("fenced"), SERVING)
        .when(sf.col("registration"), STARTING)
        .otherwise(FENCED)
    )
