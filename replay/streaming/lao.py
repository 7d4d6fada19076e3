"""LAO of an export that is still written: its lag at each progress record, and an alert whenever a
record waited for long.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as sf

from replay.kernels.facts import (
    BROKER_SPANS,
    BROKER_TYPES,
    RARE_COLUMNS,
    BrokerSpan,
    Facts,
    spans_table,
)
from replay.lag.applied import applied_spans
from replay.lag.hold_ups import AT_THE_END, Attribution, Return, attribute, returns, stalls
from replay.lag.waits import PIECE_COLUMNS, look_at, remember, table_of
from replay.outages.service import Departure, departures, service
from replay.streaming.ledger import ALERTS
from replay.streaming.watch import Judge, Judged, Piece, open_spans, remembered_spans

NAME = "lao"
"""Name of the job in its directory."""
SAMPLES = "samples"
"""Name of the other output: a row a progress record, the fields of LaoPoint."""
ALERTS_DDL = (
    "offset long, epoch int, cause string, broker_ids array<int>, reason string, began_ms long,"
    " ended_ms long, waited_ms long, records long, lowest_acknowledged_offset long"
)
"""``offset``: of the progress record that ended the stall; null: it goes on.

The others are as in :mod:`replay.lag.hold_ups`.
"""
_DEPARTED_DDL = "broker_id int, offset long, timestamp_ms long, reason string, cause string"
_RETURNED_DDL = "offset long, timestamp_ms long"
_TOLD_DDL = "began_ms long"


def judge(stall_ms: int) -> Judge:
    """Stalls as alerts (ALERTS_DDL), and samples.

    An alert is a row for each stall in which a record waited ``stall_ms`` or longer, with all
    brokers that it is attributed to (:func:`replay.lag.hold_ups.attribute`). It comes when the
    stall has ended; and before, once, while it goes on.
    """

    def judge_piece(piece: Piece, stack: ExitStack) -> Judged:
        spark = piece.records.sparkSession
        rows = _with_memory(piece)
        brokers = _brokers(piece)
        served = service(brokers)
        departed = [*_departed(piece), *departures(served)]
        # What is remembered of brokers does not tell of times before this piece, and those are
        # remembered themselves.
        returned = [
            *(Return(*row) for row in _rows(piece, "returned", "offset", "timestamp_ms")),
            *(each for each in returns(served) if each.offset >= piece.since),
        ]
        points, waited = look_at(rows)
        sampled = points.samples
        stalled = [
            each for each in stalls(points, waited, least_ms=stall_ms) if each.at >= piece.since
        ]
        attributed = attribute(
            stalled, sampled, applied_spans(sampled, brokers), departed, returned
        )
        last = int(sampled.offset[-1]) if len(sampled) else -1
        first = min((each.offset for each in returned), default=AT_THE_END)
        told = {row[0] for row in _rows(piece, "told", "began_ms")}
        going_on = {each.stall.began_ms for each in attributed if _goes_on(each)}
        state = {
            "records": spark.createDataFrame(remember(rows, sampled)),
            "brokers": spark.createDataFrame(spans_table(open_spans(brokers), BROKER_SPANS)),
            # Of these the next sample will tell.
            "departed": spark.createDataFrame(
                [each for each in departed if each.offset > last], _DEPARTED_DDL
            ),
            # And the first one of all: what waited before it was held back by nobody.
            "returned": spark.createDataFrame(
                [
                    each
                    for each in returned
                    if each.offset < AT_THE_END and (each.offset > last or each.offset == first)
                ],
                _RETURNED_DDL,
            ),
            "told": spark.createDataFrame([(each,) for each in sorted(going_on)], _TOLD_DDL),
        }
        new = points.rows(np.flatnonzero(sampled.offset >= piece.since))
        alerts = spark.createDataFrame(list(_alerts(attributed, told)), ALERTS_DDL)
        output = {ALERTS: alerts, SAMPLES: spark.createDataFrame(table_of(new))}
        return Judged(output, state)

    return judge_piece


def _with_memory(piece: Piece) -> pa.Table:
    """Return the records, behind those that are remembered, in order."""
    rows, memory = piece.records.select(*PIECE_COLUMNS), piece.remembered("records")
    if memory is not None:
        # What a build remembered that had fewer columns has null in the others.
        rows = memory.unionByName(rows, allowMissingColumns=True)
    return rows.toArrow().sort_by("offset")


def _brokers(piece: Piece) -> list[BrokerSpan]:
    numbers = [int(each) for each in BROKER_TYPES]
    rare = piece.records.where(sf.col("type").isin(*numbers)).select(*RARE_COLUMNS)
    return Facts(
        rare.toArrow().sort_by("offset"),
        piece.end_offset,
        brokers_before=remembered_spans(piece, "brokers", BrokerSpan),
    ).brokers


def _departed(piece: Piece) -> Iterator[Departure]:
    for values in _rows(piece, "departed", *Departure._fields):
        yield Departure(*values)


def _rows(piece: Piece, name: str, *columns: str) -> list[tuple[Any, ...]]:
    """Return the remembered rows; None in columns that an earlier build did not have."""
    frame = piece.remembered(name)
    rows = [] if frame is None else [row.asDict() for row in frame.collect()]
    return [tuple(row.get(column) for column in columns) for row in rows]


def _goes_on(attribution: Attribution) -> bool:
    return attribution.stall.at == AT_THE_END


def _alerts(attributed: list[Attribution], told: set[int]) -> Iterator[tuple[Any, ...]]:
    """Yield the alerts: ended stalls, and lasting ones without an alert in an earlier
    micro-batch.
    """
    for attribution in attributed:
        stall = attribution.stall
        if _goes_on(attribution) and stall.began_ms in told:
            continue
        yield (
            None if _goes_on(attribution) else stall.at,
            stall.epoch,
            attribution.cause,
            attribution.broker_ids,
            attribution.why[0],
            stall.began_ms,
            stall.ended_ms,
            stall.waited_ms,
            stall.records,
            stall.lowest_acknowledged_offset,
        )
