"""The page, one file that loads nothing from elsewhere: the verdict, a few figures, the timeline,
and the answer of each job.
"""

from __future__ import annotations

import errno
import importlib.resources
import os
import tempfile
from pathlib import Path
from typing import NamedTuple

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from raftlog.text import printable
from replay import text
from replay.churn import result as churn_tables
from replay.errors import ReplayError
from replay.jobs.audit import AuditResult, findings_listing
from replay.lag import result as lao_tables
from replay.lag.result import LaoResult
from replay.outages import result as outage_tables
from replay.outages.result import AvailabilityResult
from replay.report.charts import SEVERITY_NAMES, STATES, draw
from replay.report.model import CRITICAL, Incident, ReportResult, Timeline
from replay.request import DEFAULT_OUTPUT
from replay.text import (
    TEXT,
    Field,
    Listing,
    duration,
    listing,
    micros,
    moment,
    number,
    percent,
    plural,
)

_FILTERS = ("moment", "precise_clock", "number")
_OPEN = ("Service levels", "LAO held back", "Findings")
"""Tables that are open from the beginning."""
_STATE_WORDS = {
    "serving": "unfenced: counts for LAO",
    "leaving": "controlled shutdown",
    "stopped": "after controlled shutdown",
    "fenced": "by the controller",
    "starting": "registered, not yet unfenced",
    "holding": "LAO waited for it",
}


def writable(output: str | None) -> Path:
    """Return where the report will go, tried before the work is done. Raises ReplayError.

    A regular file is replaced, and a link to one stays; a device or a pipe is written to.
    """
    path = Path(output or DEFAULT_OUTPUT).absolute()
    if path.is_dir():
        raise ReplayError(
            f"{path} is a directory: name a file, for instance -o {path / DEFAULT_OUTPUT}"
        )
    if _is_special(path):
        if not os.access(path, os.W_OK):
            raise _refused(path, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
        return path
    path = Path(os.path.realpath(path))
    if not path.parent.is_dir():
        raise ReplayError(
            f"the report can't be written to {path}: there is no directory {path.parent}"
        )
    try:
        # The file is replaced, not written to: so the directory must be writable.
        with tempfile.TemporaryFile(dir=path.parent):
            return path
    except OSError as error:
        raise _refused(path, error) from error


def write(text: str, path: Path) -> None:
    """Write the page, into a file whole or not at all. Raises ReplayError."""
    try:
        if _is_special(path):
            path.write_text(text, encoding="utf-8")
        else:
            _replace(path, text)
    except OSError as error:
        raise _refused(path, error) from error


def _is_special(path: Path) -> bool:
    """Return whether the path names a device, a pipe or a socket."""
    return path.exists() and not path.is_file()


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    # Never through a link that somebody has put there.
    with partial.open("x", encoding="utf-8") as file:
        try:
            file.write(text)
            file.flush()
            partial.replace(path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise


def _refused(path: Path, error: OSError) -> ReplayError:
    return ReplayError(f"the report can't be written to {path}: {error.strerror}")


def harmless(value: object) -> object:
    """Return a value as a template may show it: text without control characters, and marked-up text
    as it is.
    """
    return (
        printable(value, keep="\n")
        if isinstance(value, str) and not isinstance(value, Markup)
        else value
    )


class Section(NamedTuple):
    """A part of the page with the answer of one job: sentences, and tables that open."""

    id: str
    title: str
    lead: list[str]
    listings: list[Listing]
    tag: str = ""
    grade: str = ""


def _sections(result: ReportResult) -> list[Section]:
    audit, lao, origin = result.audit, result.lao, result.header.origin
    held = plural(lao.hold_ups_total, "time")
    passed = audit.passed
    sections = [
        Section(
            "audit",
            "Audit",
            [
                f"{plural(len(audit.rules), 'rule')} over {plural(audit.checked, 'record')}."
                + (" None was broken." if passed else "")
            ],
            [findings_listing(audit), _rules(audit)],
            "passed" if passed else plural(audit.total, "finding"),
            "good" if passed else "critical",
        ),
        Section(
            "lao",
            "LAO",
            lao_tables.sentences(lao),
            lao_tables.listings(lao, samples=False),
            f"held back {held}" if lao.hold_ups_total else "never held back",
            "warning" if lao.hold_ups_total else "good",
        ),
        Section(
            "availability",
            "Availability",
            outage_tables.sentences(result.availability),
            outage_tables.listings(result.availability),
        ),
        Section(
            "churn",
            "Churn and growth",
            churn_tables.sentences(result.churn),
            churn_tables.listings(result.churn),
        ),
    ]
    # The log of another system has no LAO.
    return [each for each in sections if not (origin and each.id == "lao")]


def _rules(audit: AuditResult) -> Listing:
    return listing(
        "Rules",
        sorted(audit.rules, key=lambda rule: -rule.findings),
        Field("rule", "id", kind=TEXT),
        Field("broken if", "title", kind=TEXT),
        Field("records", "checked", text.number),
        Field("findings", "findings"),
        Field("page", "documentation", kind=TEXT),
    )


def _lives(timeline: Timeline) -> Listing:
    return listing(
        "Brokers on the timeline",
        timeline.brokers,
        Field("broker", "broker_id"),
        Field("rack", "rack", lambda rack: rack or "–", TEXT),
        Field("registrations", "registrations", text.number),
        Field("fenced", "fencings", text.number),
        Field("time fenced", "fenced_ms", duration),
    )


def render_page(result: ReportResult) -> str:
    """Return the whole file."""
    environment = Environment(
        loader=PackageLoader("replay.report"),
        autoescape=True,
        finalize=harmless,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"duration": duration}
    environment.filters |= {name: getattr(text, name) for name in _FILTERS}
    environment.globals |= {"period": text.period, "plural": plural}
    timeline, origin, chart = result.timeline, result.header.origin, draw(result)
    return environment.get_template("report.html.j2").render(
        header=result.header,
        timeline=timeline,
        axis=timeline.axis,
        verdict=verdict(result),
        tiles=tiles(result),
        chart=chart,
        lives=_lives(timeline),
        sections=_sections(result),
        open=_OPEN,
        colours=STATES,
        severity_names=SEVERITY_NAMES,
        state_words=lambda state: _state_words(state, origin),
        readings=Markup(_script_safe([each.readings for each in chart.panels])),
        style=Markup(_resource("report.css")),
        script=Markup(_resource("report.js")),
    )


def _script_safe(value: object) -> str:
    """Return JSON that may stand in a script element: nothing in it can end the element."""
    text = msgspec.json.encode(value).decode()
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _state_words(state: str, origin: str) -> str:
    return "unfenced" if origin and state == "serving" else _STATE_WORDS[state]


def _resource(name: str) -> str:
    return (importlib.resources.files("replay.report") / "templates" / name).read_text(
        encoding="utf-8"
    )


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
