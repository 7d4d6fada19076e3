"""Results to draw a page of, without Spark."""

from __future__ import annotations

from typing import Any

from replay.jobs.audit import AuditResult, RuleResult
from replay.report.model import (
    CRITICAL,
    NOTICE,
    PLANNED,
    WARNING,
    Axis,
    BrokerLane,
    BrokerSpan,
    ControllerSpan,
    Event,
    Growth,
    Header,
    Incident,
    Level,
    ReportResult,
    Timeline,
)  # fmt: skip

HOUR_MS = 3_600_000
BEGINS_MS = 1_795_251_600_000
ENDS_MS = BEGINS_MS + 2 * HOUR_MS
AXIS = Axis(BEGINS_MS, ENDS_MS, 15_001)


def at(minutes: float) -> int:
    """So many minutes after the beginning."""
    return BEGINS_MS + round(minutes * 60_000)


def span(state: str, begins: float, ends: float, **more: Any) -> BrokerSpan:
    values: dict[str, Any] = {"spans": 1, "reason": "", "offset": round(begins * 10)} | more
    return BrokerSpan(state, at(begins), at(ends), total_ms=at(ends) - at(begins), **values)


def event(kind: str, severity: int, begins: float, ends: float | None, text: str) -> Event:
    return Event(kind, severity, at(begins), None if ends is None else at(ends), round(begins * 10), 1, text)


def lanes() -> list[BrokerLane]:
    """Broker 2 is fenced for the second half hour of the second hour."""
    fenced = span("fenced", 60, 90, reason="session timed out")
    return [
        BrokerLane(1, "rack-a", 1, 0, 0, [span("serving", 0, 120)]),
        BrokerLane(2, "rack-b", 1, 1, HOUR_MS // 2, [span("serving", 0, 60), fenced, span("serving", 90, 120)]),
        BrokerLane(3, "", 2, 0, 0, [span("serving", 0, 30), span("leaving", 30, 31), span("starting", 31, 32), span("serving", 32, 120)]),
    ]  # fmt: skip


def incident(**more: Any) -> Incident:
    values: dict[str, Any] = {
        "number": 1,
        "severity": CRITICAL,
        "begins_ms": at(60),
        "ends_ms": at(90),
        "offset": 600,
        "title": "No leader for clicks-0; broker 2 fenced: session timed out",
        "total": 3,
        "events": [
            event("fenced", WARNING, 60, 90, "broker 2 fenced: session timed out"),
            event("leaderless", CRITICAL, 60, 90, "no leader for clicks-0"),
            event("short", NOTICE, 60, 90.5, "ISR short of replicas: orders-1 and 3 more"),
        ],
        "before": [event("config", PLANNED, 58, 58, "topic orders: retention.ms = 5, by User:bob")],
    }
    return Incident(**values | more)


def audited() -> AuditResult:
    """Two rules, which were kept."""
    link = "docs/audit.md#"
    kept = [
        RuleResult("ISR_EMPTY", "critical", "an ISR is empty", f"{link}isr_empty", 60, 0),
        RuleResult("LAO_WENT_BACK", "critical", "LAO went back", f"{link}lao_went_back", 700, 0),
    ]
    return AuditResult(1235, 0, kept, [])


def result(**more: Any) -> ReportResult:
    """Two hours, one incident; ``more`` replaces parts of the timeline."""
    values: dict[str, Any] = {
        "axis": AXIS,
        "controllers": [
            ControllerSpan(1, 1, 1, 1, BEGINS_MS, at(40), 0),
            ControllerSpan(2, 2, 2, 1, at(40), ENDS_MS, 3200),
        ],
        "failovers": 1,
        "brokers": lanes(),
        "brokers_total": 3,
        "levels": [Level(at(minute), 1, 4) if 60 <= minute < 90 else Level(at(minute), 0, 0) for minute in range(120)],
        "growth": [Growth(BEGINS_MS + step * AXIS.bucket_ms, "PROGRESS", 3) for step in range(AXIS.buckets)],
        "incidents": [incident()],
        "incidents_total": 1,
    }
    header = Header("5d9c6c80-d0b0-4b8e-9b0e-7d3f6f0b7a11", 0, 0, 1234, 1235, 1, 2, 3, "2026-11-21T11:00:00+00:00")
    return ReportResult("/tmp/report.html", header, Timeline(**values | more), audited())
