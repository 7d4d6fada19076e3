"""What to know first: the verdict, and a few figures."""

from __future__ import annotations

from typing import NamedTuple

from replay.report.model import CRITICAL, ReportResult, Timeline
from replay.report.words import duration, number, plural

GOOD_GRADE, WARNING_GRADE, CRITICAL_GRADE, PLAIN = "good", "warning", "critical", "plain"


class Verdict(NamedTuple):
    """The first line of the report. ``grade``: good, warning or critical."""

    grade: str
    text: str


class Tile(NamedTuple):
    """One figure, with the section that says more of it."""

    name: str
    value: str
    more: str
    grade: str
    section: str


def verdict(result: ReportResult) -> Verdict:
    """What to know if one reads no further."""
    timeline = result.timeline
    incidents = plural(timeline.incidents_total, "incident")
    critical = sum(incident.severity == CRITICAL for incident in timeline.incidents)
    if not result.audit.passed:
        found = plural(result.audit.total, "finding")
        return Verdict(CRITICAL_GRADE, f"The audit found broken rules: {found}. {incidents}.")
    if critical:
        return Verdict(CRITICAL_GRADE, f"{incidents}, {critical} of them critical. The audit found no broken rule.")
    if timeline.incidents_total:
        return Verdict(WARNING_GRADE, f"{incidents}, none of them critical. The audit found no broken rule.")
    return Verdict(GOOD_GRADE, "No incident, and the audit found no broken rule.")


def tiles(result: ReportResult) -> list[Tile]:
    """In the order of the sections."""
    return [_incidents(result.timeline), _controllers(result.timeline), _brokers(result.timeline), _audit(result)]


def _incidents(timeline: Timeline) -> Tile:
    critical = sum(incident.severity == CRITICAL for incident in timeline.incidents)
    grade = CRITICAL_GRADE if critical else WARNING_GRADE if timeline.incidents_total else GOOD_GRADE
    return Tile("Incidents", number(timeline.incidents_total), f"{critical} critical", grade, "incidents")


def _controllers(timeline: Timeline) -> Tile:
    longest = max((reign.gap_ms for reign in timeline.controllers), default=0)
    more = f"nobody wrote for {duration(longest)} at most" if timeline.failovers else "one controller all the time"
    return Tile("Controller changes", number(timeline.failovers), more, PLAIN, "timeline")


def _brokers(timeline: Timeline) -> Tile:
    fencings = sum(lane.fencings for lane in timeline.brokers)
    some = sum(lane.fencings > 0 for lane in timeline.brokers)
    more = f"{some} of {plural(timeline.brokers_total, 'broker')}"
    return Tile(
        "Times a broker was fenced", number(fencings), more, WARNING_GRADE if fencings else GOOD_GRADE, "timeline"
    )


def _audit(result: ReportResult) -> Tile:
    audit = result.audit
    more = f"{plural(audit.checked, 'record')} checked"
    if audit.passed:
        return Tile("Audit", "passed", more, GOOD_GRADE, "audit")
    return Tile("Audit", plural(audit.total, "finding"), more, CRITICAL_GRADE, "audit")
