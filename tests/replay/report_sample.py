"""Results to draw a page of, without Spark."""

from typing import Any

from replay.churn.result import (
    BrokerChurn,
    ChurnResult,
    ConfigChurn,
    Forecast,
    PartitionChurn,
    PeriodGrowth,
    TypeGrowth,
)
from replay.jobs.audit import AuditResult, RuleResult
from replay.lag.result import BrokerLag, Hour, LaoResult, LaoStall
from replay.outages.result import (
    AvailabilityResult,
    BrokerOutage,
    Failover,
    Fencing,
    Objective,
    PartitionOutage,
    PeriodOutage,
    TopicOutage,
)
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
    Wait,
)  # fmt: skip

HOUR_MS = 3_600_000
BEGINS_MS = 1_795_251_600_000
ENDS_MS = BEGINS_MS + 2 * HOUR_MS
AXIS = Axis(BEGINS_MS, ENDS_MS, 15_001)


def at(minutes: float) -> int:
    """Return the time this many minutes after the beginning."""
    return BEGINS_MS + round(minutes * 60_000)


def span(state: str, begins: float, ends: float, **more: Any) -> BrokerSpan:
    values: dict[str, Any] = {"spans": 1, "reason": "", "offset": round(begins * 10)} | more
    return BrokerSpan(state, at(begins), at(ends), total_ms=at(ends) - at(begins), **values)


def event(kind: str, severity: int, begins: float, ends: float | None, text: str) -> Event:
    return Event(
        kind, severity, at(begins), None if ends is None else at(ends), round(begins * 10), 1, text
    )


def lanes() -> list[BrokerLane]:
    """Broker 2 is fenced for the second half hour of the second hour."""
    fenced = span("fenced", 60, 90, reason="session timed out")
    return [
        BrokerLane(1, "rack-a", 1, 0, 0, 0, [span("serving", 0, 120)]),
        BrokerLane(2, "rack-b", 1, 1, HOUR_MS // 2, 0, [span("serving", 0, 60), fenced, span("serving", 90, 120)]),
        BrokerLane(3, "", 2, 0, 0, 0, [span("serving", 0, 30), span("leaving", 30, 31), span("starting", 31, 120)]),
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
    """Two rules, which were kept."""
    link = "docs/audit.md#"
    kept = [
        RuleResult("ISR_EMPTY", "critical", "an ISR is empty", f"{link}isr_empty", 60, 0),
        RuleResult("LAO_WENT_BACK", "critical", "LAO went back", f"{link}lao_went_back", 700, 0),
    ]
    return AuditResult(1235, 0, kept, [])


def lag() -> LaoResult:
    """One hold-up by broker 2, of a minute."""
    return LaoResult(
        end_ms=ENDS_MS, stall_ms=2000, records=120, waiting=0, p50_ms=40, p90_ms=70, p99_ms=90, max_ms=60_000, hold_ups_total=1,
        held_ms=60_000,
        hold_ups=[LaoStall([2], "FENCED", "session timed out", "SESSION_TIMED_OUT", at(59), at(60), 60_000, 60_000, 3, 1, 590, 600)],
        brokers_total=1, brokers=[BrokerLag(2, 700, 1200, 1, 9, 1, 60_000, 60_000)], hours_total=1,
        hours=[Hour(BEGINS_MS, 60, 40, 70, 90, 60_000, 0)], samples=700, unknown=1, p50_lag_offsets=1, p99_lag_offsets=3,
        max_lag_offsets=9, max_lag_ms=60_000, timeline=[],
    )  # fmt: skip


def availability() -> AvailabilityResult:
    """One partition without a leader for half an hour."""
    half, life = HOUR_MS // 2, 26 * HOUR_MS
    return AvailabilityResult(
        since_ms=BEGINS_MS, until_ms=ENDS_MS, target_percent=99.9,
        objectives=[
            Objective("partitions with a leader", life, half, 100 - 100 * half / life, life // 1000, False),
            Objective("a controller, at the least", 2 * HOUR_MS, 3200, 99.9556, 7200, True),
        ],
        topics_total=2,
        topics=[TopicOutage("aa", "clicks", 4, 8 * HOUR_MS, half, half, half, half), TopicOutage("bb", "orders", 6, HOUR_MS, 0, 0, 0, 0)],
        partitions_total=1, partitions=[PartitionOutage("aa", "clicks", 0, half, half, half, 1, half)],
        brokers_total=1, brokers=[BrokerOutage(2, 2 * HOUR_MS, 1, half, 0, half, False)],
        fencings_total=1, fencings=[Fencing(2, 600, 900, at(60), at(90), "session timed out", "SESSION_TIMED_OUT", False, False)],
        failovers_total=1, failovers=[Failover(2, 2, 400, at(40), 1, at(40) - 3200, 3200, 0, 3200, 0, 900)],
        period_length_ms=HOUR_MS,
        periods=[PeriodOutage(BEGINS_MS, life // 2, 0, 0), PeriodOutage(at(60), life // 2, half, half)],
    )  # fmt: skip


def churn() -> ChurnResult:
    """One partition, broker and key of each kind."""
    return ChurnResult(
        since_ms=BEGINS_MS, until_ms=ENDS_MS,
        brokers_total=1, brokers=[BrokerChurn(2, 9, 2, 9, 9, 20_000, 40_000, 3, 3)],
        partitions_total=1, partitions=[PartitionChurn("bb", "orders", 1, 9, 2, 9, 9, 1)],
        configs_total=1, configs=[ConfigChurn(2, "orders", "retention.ms", 3, 1, 2, 580, at(58), "User:bob", "5")],
        types=[TypeGrowth("PROGRESS", 700, 40_000, 8400.0), TypeGrowth("CONFIG", 5, 300, 60.0)],
        period_length_ms=HOUR_MS, periods=[PeriodGrowth(BEGINS_MS, 600, 9000), PeriodGrowth(at(60), 635, 9400)],
        log_bytes=123_456, snapshot_bytes=9400, forecasts=[Forecast(7, 900_000, 12_000)],
    )  # fmt: skip


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
        "levels": [
            Level(at(minute), 1, 4) if 60 <= minute < 90 else Level(at(minute), 0, 0)
            for minute in range(120)
        ],
        "waits": [
            Wait(at(minute), 5, 40, 90, 60_000 if minute == 60 else 120, 0)
            for minute in range(0, 120, 5)
        ],
        "growth": [
            Growth(BEGINS_MS + step * AXIS.bucket_ms, "PROGRESS", 3) for step in range(AXIS.buckets)
        ],
        "incidents": [incident()],
        "incidents_total": 1,
    }
    header = Header(
        "5d9c6c80-d0b0-4b8e-9b0e-7d3f6f0b7a11",
        0,
        0,
        1234,
        1235,
        1,
        2,
        3,
        "2026-11-21T11:00:00+00:00",
    )
    return ReportResult(
        "/tmp/report.html",
        header,
        Timeline(**values | more),
        audited(),
        lag(),
        availability(),
        churn(),
    )
