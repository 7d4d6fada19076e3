"""Summary of a report: the verdict, and a few figures."""

from __future__ import annotations

from typing import NamedTuple

from replay.lag.model import LaoResult
from replay.outages.model import AvailabilityResult
from replay.report.model import CRITICAL, Incident, ReportResult, Timeline
from replay.text import duration, micros, moment, number, percent, plural

GOOD_GRADE, WARNING_GRADE, CRITICAL_GRADE, PLAIN = "good", "warning", "critical", "plain"


class Verdict(NamedTuple):
    """The first line of the report. ``grade``: good, warning or critical."""

    grade: str
    text: str


class Tile(NamedTuple):
    """One figure, with the section that explains it."""

    name: str
    value: str
    more: str
    grade: str
    section: str


def verdict(result: ReportResult) -> Verdict:
    """Return the verdict: whether rules were broken, and the gravest incident."""
    timeline = result.timeline
    audit = "The audit found no broken rule."
    if not result.audit.passed:
        audit = f"The audit found broken rules: {plural(result.audit.total, 'finding')}."
    if not timeline.incidents_total:
        return Verdict(
            GOOD_GRADE if result.audit.passed else CRITICAL_GRADE, f"No incident. {audit}"
        )
    gravest = timeline.incidents[0]
    extent = f" ({extent_of(gravest)})" if extent_of(gravest) else ""
    told = (
        f"{plural(timeline.incidents_total, 'incident')}, the gravest {moment(gravest.begins_ms)}:"
        f" {gravest.title}{extent}."
    )
    critical = gravest.severity == CRITICAL or not result.audit.passed
    text = f"{told} {audit}" if result.audit.passed else f"{audit} {told}"
    return Verdict(CRITICAL_GRADE if critical else WARNING_GRADE, text)


def extent_of(incident: Incident) -> str:
    """Return how many partitions an incident took along, in words; empty: none."""
    found = []
    if incident.leaderless:
        found.append(f"{plural(incident.leaderless, 'partition')} without a leader")
    if incident.short:
        found.append(f"{plural(incident.short, 'partition')} with an incomplete ISR")
    return ", ".join(found)


def tiles(result: ReportResult) -> list[Tile]:
    """Return the tiles in the order of the sections."""
    timeline = result.timeline
    return [
        _incidents(timeline),
        _controllers(timeline),
        _brokers(timeline),
        _audit(result),
        # Another system's log has no LAO.
        *(() if result.header.origin else (_lao(result.lao),)),
        _availability(result.availability),
    ]


def _incidents(timeline: Timeline) -> Tile:
    critical = sum(incident.severity == CRITICAL for incident in timeline.incidents)
    grade = (
        CRITICAL_GRADE if critical else WARNING_GRADE if timeline.incidents_total else GOOD_GRADE
    )
    return Tile(
        "Incidents", number(timeline.incidents_total), f"{critical} critical", grade, "incidents"
    )


def _controllers(timeline: Timeline) -> Tile:
    longest = max((reign.gap_ms for reign in timeline.controllers), default=0)
    more = (
        f"nobody wrote for {duration(longest)} at most"
        if timeline.failovers
        else "one controller all the time"
    )
    return Tile("Controller changes", number(timeline.failovers), more, PLAIN, "timeline")


def _brokers(timeline: Timeline) -> Tile:
    fencings = sum(lane.fencings for lane in timeline.brokers)
    some = sum(lane.fencings > 0 for lane in timeline.brokers)
    more = f"{some} of {plural(timeline.brokers_total, 'broker')}"
    return Tile(
        "Times a broker was fenced",
        number(fencings),
        more,
        WARNING_GRADE if fencings else GOOD_GRADE,
        "timeline",
    )


def _audit(result: ReportResult) -> Tile:
    audit = result.audit
    more = f"{plural(audit.checked, 'record')} checked"
    if audit.passed:
        return Tile("Audit", "passed", more, GOOD_GRADE, "audit")
    return Tile("Audit", plural(audit.total, "finding"), more, CRITICAL_GRADE, "audit")


def _lao(lao: LaoResult) -> Tile:
    if not lao.samples:
        return Tile("Visible everywhere", "unknown", "no progress record", PLAIN, "lao")
    # Measurements of the controllers are exact; those by progress records are upper bounds.
    p99 = duration(lao.p99_ms) if lao.told is None else micros(lao.told.p99_us)
    most = duration(lao.max_ms) if lao.told is None else micros(lao.told.max_us)
    writes = lao.records if lao.told is None else lao.told.records
    more = f"about p99 of {plural(writes, 'record')}, {most} at most"
    return Tile(
        "Visible everywhere after",
        p99,
        more,
        WARNING_GRADE if lao.hold_ups_total else GOOD_GRADE,
        "lao",
    )


def _availability(there: AvailabilityResult) -> Tile:
    led = there.objectives[0]
    grade = GOOD_GRADE if not led.lost_ms else CRITICAL_GRADE if led.met is False else WARNING_GRADE
    return Tile(
        "Partitions with a leader",
        percent(led.available_percent),
        f"{duration(led.lost_ms)} lost",
        grade,
        "availability",
    )
