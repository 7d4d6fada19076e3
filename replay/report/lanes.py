"""Lanes of the timeline: the controllers' reigns, and the lives of the brokers that had the most
trouble.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as sf

from raftlog.metadata.entities import has_left
from replay.report.axis import bucket_of, clip
from replay.report.model import (
    MAX_EXACT_SPANS,
    MAX_LANES,
    Axis,
    BrokerLane,
    BrokerSpan,
    ControllerSpan,
)
from replay.spells import merge_close

SERVING, LEAVING, STOPPED, FENCED, STARTING = "serving", "leaving", "stopped", "fenced", "starting"
_EXACT_REIGNS = 400
_COARSE = 4
"""Steps of the axis that must lie between two stretches of a crowded lane, so that they are drawn
apart: about ten pixels.
"""


def controller_spans(controllers: DataFrame, axis: Axis) -> tuple[list[ControllerSpan], int]:
    """The reigns, drawn as one where they are too many; and how many changes of the controller
    there were.
    """
    before = controllers.where(sf.col("ends").isNotNull()).select(
        sf.col("ends").alias("begins"), sf.col("last_ms").alias("silent_since_ms")
    )
    gap = sf.greatest(sf.col("begins_ms") - sf.col("silent_since_ms"), sf.lit(0))
    reigns = (
        clip(controllers, axis)
        .join(before, "begins", "left")
        .select(
            "leader_id",
            sf.col("epoch").alias("first_epoch"),
            sf.col("epoch").alias("last_epoch"),
            sf.lit(1).alias("epochs"),
            "begins_ms",
            "ends_ms",
            sf.coalesce(gap, sf.lit(0)).alias("gap_ms"),
        )
    )
    rows = reigns.orderBy("first_epoch").limit(_EXACT_REIGNS + 1).collect()
    changes = len(rows) - 1
    if len(rows) > _EXACT_REIGNS:
        changes = reigns.count() - 1
        rows = _by_step(reigns, axis).collect()
    return [ControllerSpan(**row.asDict()) for row in rows], changes


def _by_step(reigns: DataFrame, axis: Axis) -> DataFrame:
    """Reigns follow one another without gaps: those that begin in one step of the axis are put
    together.
    """
    merged = reigns.groupBy(bucket_of(axis, "begins_ms").alias("step")).agg(
        sf.max_by("leader_id", "last_epoch").alias("leader_id"),
        sf.min("first_epoch").alias("first_epoch"),
        sf.max("last_epoch").alias("last_epoch"),
        sf.count("*").alias("epochs"),
        sf.min("begins_ms").alias("begins_ms"),
        sf.max("ends_ms").alias("ends_ms"),
        sf.max("gap_ms").alias("gap_ms"),
    )
    return merged.orderBy("step").drop("step")


def broker_lanes(
    brokers: DataFrame, holding: DataFrame, axis: Axis
) -> tuple[list[BrokerLane], int]:
    """The lanes of the brokers with the most trouble, by id; and how many brokers there are.

    ``holding``: when LAO waited for a broker, as :func:`replay.report.lags.holding_spans` has it.
    """
    states = clip(brokers, axis).withColumn("state", _state())
    chosen = _most_troubled(states, holding)
    told = ["broker_id", "state", "begins", "begins_ms", "ends_ms", "reason"]
    wanted = states.select(*told).unionByName(holding.select(*told))
    wanted = wanted.where(sf.col("broker_id").isin([row.broker_id for row in chosen]))
    spans = wanted.select(
        "*", sf.lit(1).alias("spans"), (sf.col("ends_ms") - sf.col("begins_ms")).alias("total_ms")
    )
    rows = spans.limit(MAX_EXACT_SPANS + 1).collect()
    if len(rows) > MAX_EXACT_SPANS:
        merged = merge_close(wanted, ["broker_id", "state"], _COARSE * axis.bucket_ms)
        rows = merged.withColumn("reason", sf.col("last.reason")).collect()
    of_broker: dict[int, list[BrokerSpan]] = {row.broker_id: [] for row in chosen}
    for row in sorted(rows, key=lambda row: (row.begins_ms, row.begins)):
        span = BrokerSpan(
            row.state,
            row.begins_ms,
            row.ends_ms,
            row.spans,
            row.total_ms,
            row.reason or "",
            row.begins,
        )
        of_broker[row.broker_id].append(span)
    lanes = [
        BrokerLane(
            row.broker_id,
            row.rack,
            row.registrations,
            row.fencings,
            row.fenced_ms,
            row.held_ms,
            of_broker[row.broker_id],
        )
        for row in sorted(chosen, key=lambda row: int(row.broker_id))
    ]
    return lanes, chosen[0].brokers if chosen else 0


def _most_troubled(states: DataFrame, holding: DataFrame) -> list[Row]:
    """One row for each broker that gets a lane, with the number of all brokers."""
    length = sf.col("ends_ms") - sf.col("begins_ms")
    fell = (sf.col("state") == FENCED) & ~sf.col("registration")
    lives = states.groupBy("broker_id").agg(
        sf.coalesce(sf.max_by("rack", "begins"), sf.lit("")).alias("rack"),
        sf.count_if("registration").alias("registrations"),
        sf.count_if(fell).alias("fencings"),
        sf.coalesce(sf.sum(sf.when(sf.col("state") == FENCED, length)), sf.lit(0)).alias(
            "fenced_ms"
        ),
    )
    held = holding.groupBy("broker_id").agg(sf.sum(length).alias("held_ms"))
    # One row a broker: few enough for one task.
    every = Window.partitionBy()
    ranked = (
        lives.join(held, "broker_id", "left")
        .fillna(0, ["held_ms"])
        .withColumn("brokers", sf.count("*").over(every))
    )
    worst = [sf.desc(name) for name in ("fencings", "held_ms", "fenced_ms", "registrations")]
    return ranked.orderBy(*worst, "broker_id").limit(MAX_LANES).collect()


def _state() -> Column:
    return (
        sf.when(has_left(sf.col("fenced"), sf.col("in_controlled_shutdown")), STOPPED)
        .when(sf.col("in_controlled_shutdown"), LEAVING)
        .when(~sf.col("fenced"), SERVING)
        .when(sf.col("registration"), STARTING)
        .otherwise(FENCED)
    )
