"""Results for a page, made without Spark."""

from typing import Any

from replay.jobs.audit import AuditResult, RuleResult
from replay.jobs.availability import AvailabilityResult, Objective, PartitionOutage
from replay.jobs.lao import BrokerLag, LaoResult
from replay.lag.hold_ups import HoldUp
from replay.outages.service import Failover, Fencing
from replay.report.model import (
    CRITICAL,
    NOTICE,
    PLANNED,
    WARNING,
    Axis,
    Event,
    Header,
    Incident,
    Lane,
    Level,
    ReportResult,
    Span,
    Timeline,
    Wait,
)

HOUR_MS = 3_600_000
BEGINS_MS = 1_795_251_600_000
ENDS_MS = BEGINS_MS + 2 * HOUR_MS
AXIS = Axis(BEGINS_MS, ENDS_MS, 15_001)


def at(minutes: float) -> int:
    return BEGINS_MS + round(minutes * 60_000)


def span(state: str, begins: float, ends: float, text: str = "") -> Span:
    return Span(state, at(begins), at(ends), round(begins * 10), text, 1, at(ends) - at(begins))


def event(kind: str, severity: int, begins: float, ends: float | None, text: str) -> Event:
    return Event(
        kind, severity, at(begins), None if ends is None else at(ends), round(begins * 10), 1, text
    )


def lanes() -> list[Lane]:
    """Broker 2 is fenced for the second half hour of the second hour."""
    fenced = span("fenced", 60, 90, "session timed out")
    return [
        Lane("controller", "", [span("reign", 0, 40, "1 · epoch 1"), span("reign", 40, 120, "2 · epoch 2")]),
        Lane("broker 1", "rack-a", [span("serving", 0, 120)]),
        Lane("broker 2", "rack-b", [span("serving", 0, 60), fenced, span("serving", 90, 120)]),
        Lane("broker 3", "", [span("serving", 0, 30), span("leaving", 30, 31), span("starting", 31, 120)]),
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
        "leaderless": 1,
        "short": 4,
        "leaderless_ms": HOUR_MS // 2,
        "short_ms": 2 * HOUR_MS,
        "brokers": 1,
        "before": [event("config", PLANNED, 58, 58, "topic orders: retention.ms = 5, by User:bob")],
    }
    return Incident(**values | more)


def audited() -> AuditResult:
    """Two rules without findings."""
    link = "docs/audit.md#"
    kept = [
        RuleResult("ISR_EMPTY", "critical", "an ISR is empty", f"{link}isr_empty", 60, 0),
        RuleResult("LAO_WENT_BACK", "critical", "LAO went back", f"{link}lao_went_back", 700, 0),
    ]
    return AuditResult(1235, 0, kept, [])


def lag() -> LaoResult:
    """One hold-up by broker 2, of a minute."""
    times = (at(59), at(60), 60_000, 60_000, 3, 590, 600)
    held = HoldUp([2], "FENCED", "session timed out", "SESSION_TIMED_OUT", *times)
    return LaoResult(
        end_ms=ENDS_MS, stall_ms=2000, records=120, waiting=0, p50_ms=40, p99_ms=90, max_ms=60_000, hold_ups_total=1,
        held_ms=60_000, hold_ups=[held], brokers_total=1, brokers=[BrokerLag(2, 1, 60_000, 60_000)], samples=700, unknown=1,
    )  # fmt: skip


def availability() -> AvailabilityResult:
    """One partition without a leader for half an hour."""
    half, life = HOUR_MS // 2, 26 * HOUR_MS
    return AvailabilityResult(
        since_ms=BEGINS_MS, until_ms=ENDS_MS,
        objectives=[
            Objective("partitions with a leader", life, half, "partition-time"),
            Objective("partitions with all replicas in sync", life, 2 * HOUR_MS, "partition-time"),
            Objective("brokers in service, except for planned stops", 6 * HOUR_MS, half, "broker-time"),
            Objective("a controller present (lower bound)", 2 * HOUR_MS, 3200, "wall-clock"),
        ],
        failovers_total=1, failovers=[Failover(2, 2, 400, at(40), 1, 3200, 0, 3200)],
        fencings_total=1, fencings=[Fencing(2, 600, 900, at(60), at(90), "session timed out", "SESSION_TIMED_OUT", False, False)],
        partitions_total=1, partitions=[PartitionOutage("aa", "clicks", 0, half, 1, half, half, 1)],
    )  # fmt: skip


def result(**more: Any) -> ReportResult:
    """Two hours, one incident; ``more`` replaces parts of the timeline."""
    values: dict[str, Any] = {
        "axis": AXIS,
        "lanes": lanes(),
        "brokers_total": 3,
        "levels": [
            Level(at(step / 4), 1, 4) if 240 <= step < 360 else Level(at(step / 4), 0, 0)
            for step in range(AXIS.buckets)
        ],
        "waits": [
            Wait(at(minute), 5, 40, 90, 60_000 if minute == 60 else 120, 0)
            for minute in range(0, 120, 5)
        ],
        "incidents": [incident()],
        "incidents_total": 1,
    }
    cluster_id, exported_at = "5d9c6c80-d0b0-4b8e-9b0e-7d3f6f0b7a11", "2026-11-21T11:00:00+00:00"
    header = Header(cluster_id, 0, 0, 1234, 1235, 1, 2, 3, exported_at)
    timeline = Timeline(**values | more)
    return ReportResult("/tmp/report.html", header, timeline, audited(), lag(), availability())
