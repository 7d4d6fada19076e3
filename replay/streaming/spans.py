"""Spans of brokers and topics that a streaming job remembers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from replay.kernels.arrays import NEVER
from replay.kernels.facts import BrokerSpan, TopicLife
from replay.streaming.watch import Piece

Span = TypeVar("Span", BrokerSpan, TopicLife)


def last_spans(spans: Iterable[BrokerSpan]) -> list[BrokerSpan]:
    """Return the last span of each broker: one that has been unregistered may return, and the log
    directories that it had registered are known then.
    """
    return list({span.broker_id: span for span in spans}.values())


def open_spans(spans: Iterable[Span]) -> list[Span]:
    """Return the spans that have not ended."""
    return [span for span in spans if span.ends == NEVER]


def remembered_spans(piece: Piece, name: str, kind: type[Span]) -> list[Span]:
    """Return the spans that an earlier micro-batch remembered under a name, in order."""
    frame = piece.remembered(name)
    if frame is None:
        return []
    rows: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return [
        kind(**row | ({"ends": NEVER} if row["ends"] is None else {}))
        for row in sorted(rows, key=lambda row: int(row["begins"]))
    ]
