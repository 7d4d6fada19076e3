"""Incidents: what began close together, the gravest first, with what had been changed shortly
before.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import DataFrame, Row, Window
from pyspark.sql import functions as sf

from replay.report.model import MAX_EVENTS, MAX_INCIDENTS, PLANNED, WARNING, Axis, Event, Incident

GAP_MS = 60_000
"""Events that begin no further apart than this belong together."""
BEFORE_MS = 600_000
"""How long before an incident a change on purpose is worth a look."""


def find_incidents(
    troubles: DataFrame, on_purpose: DataFrame, axis: Axis
) -> tuple[list[Incident], int]:
    """The gravest incidents, by time, and how many there are.

    A lesser event (severity below WARNING) makes no incident, but is told with one.
    """
    # One row an incident: few enough for one task.
    sessions = _sessions(troubles, axis).withColumn(
        "incidents", sf.count("*").over(Window.partitionBy())
    )
    length = sf.col("ends_ms") - sf.col("begins_ms")
    chosen = (
        sessions.orderBy(sf.desc("severity"), sf.desc(length), "begins")
        .limit(MAX_INCIDENTS)
        .collect()
    )
    chosen.sort(key=lambda row: (row.begins_ms, row.begins))
    if not chosen:
        return [], 0
    told = _told(troubles, on_purpose, chosen)
    return [_incident(number, row, told) for number, row in enumerate(chosen, 1)], chosen[
        0
    ].incidents


def _sessions(troubles: DataFrame, axis: Axis) -> DataFrame:
    window = sf.session_window(sf.timestamp_millis("begins_ms"), f"{GAP_MS} milliseconds")
    until = sf.coalesce("ends_ms", sf.lit(axis.ends_ms))
    return (
        troubles.where(sf.col("severity") >= WARNING)
        .withColumn("until_ms", until)
        .groupBy(window)
        .agg(
            sf.min("begins").alias("begins"),
            sf.min("begins_ms").alias("begins_ms"),
            sf.max("begins_ms").alias("last_begins_ms"),
            sf.max("until_ms").alias("ends_ms"),
            sf.max("severity").alias("severity"),
            (sf.count_if(sf.col("ends_ms").isNull()) > 0).alias("open"),
        )
        .drop("session_window")
    )


def _told(troubles: DataFrame, on_purpose: DataFrame, chosen: list[Row]) -> list[Row]:
    """The gravest events of each chosen incident, and of those on purpose the last ones before
    it.
    """
    bounds = [
        (
            number,
            row.begins_ms - BEFORE_MS,
            row.begins_ms,
            row.begins_ms - GAP_MS,
            row.last_begins_ms + GAP_MS,
        )
        for number, row in enumerate(chosen, 1)
    ]
    planned = sf.col("severity") == PLANNED
    # What was changed when it had begun is no reason for it, and may be much.
    since, until = (
        sf.when(planned, sf.col(a)).otherwise(sf.col(b))
        for a, b in (("before_ms", "from_ms"), ("at_ms", "to_ms"))
    )
    within = (sf.col("begins_ms") >= since) & (sf.col("begins_ms") <= until)

    incidents = troubles.sparkSession.createDataFrame(
        bounds, "number int, before_ms long, at_ms long, from_ms long, to_ms long"
    )
    # A few rows on the right side: each event is compared with each. Each kind by itself: Spark
    # makes one union of a union in a union, and would not know again the one that is kept.
    near_troubles, near_on_purpose = (
        events.join(sf.broadcast(incidents), within) for events in (troubles, on_purpose)
    )
    joined = near_troubles.unionByName(near_on_purpose).withColumn("planned", planned)
    of_incident = Window.partitionBy("number", "planned")
    length = sf.coalesce("ends_ms", sf.lit(2**62)) - sf.col("begins_ms")
    recent = sf.when(planned, -sf.col("begins"))
    gravest = of_incident.orderBy(
        recent, sf.desc("severity"), sf.desc("count"), sf.desc(length), "begins"
    )
    ranked = joined.withColumn("rank", sf.row_number().over(gravest)).withColumn(
        "total", sf.count("*").over(of_incident)
    )
    return (
        ranked.where(sf.col("rank") <= MAX_EVENTS)
        .orderBy("number", "begins_ms", "begins", "kind")
        .collect()
    )


def _incident(number: int, row: Row, told: Iterable[Row]) -> Incident:
    mine = [each for each in told if each.number == number]
    events = [_event(each) for each in mine if not each.planned]
    return Incident(
        number=number,
        severity=row.severity,
        begins_ms=row.begins_ms,
        ends_ms=None if row.open else row.ends_ms,
        offset=row.begins,
        title=_title(events),
        total=max((each.total for each in mine if not each.planned), default=0),
        events=events,
        before=[_event(each) for each in mine if each.planned],
    )


def _event(row: Row) -> Event:
    # Row has a method of the name count.
    return Event(
        row.kind, row.severity, row.begins_ms, row.ends_ms, row.begins, row["count"], row.text
    )


def _title(events: list[Event]) -> str:
    """The gravest two kinds in words: what an operator would call it."""
    gravest = sorted(events, key=lambda event: (-event.severity, event.begins_ms, event.offset))
    texts: dict[str, str] = {}
    for event in gravest:
        texts.setdefault(event.kind, event.text)
    title = "; ".join(list(texts.values())[:2])
    return title[:1].upper() + title[1:]
