"""The report page, one file that loads no other resources: the verdict, a few figures, the
incidents, the timeline, and the answers of the jobs.

The timeline is plain HTML and SVG, so it works without scripts. Positions are fractions of the
axis. One set of colours serves light and dark themes; they can be distinguished with red-green
colour blindness, and have a contrast of at least 3:1 to both backgrounds.
"""

from __future__ import annotations

import errno
import importlib.resources
import os
import tempfile
from collections.abc import Callable, Sequence
from itertools import groupby
from math import log10
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from raftlog.segments.files import temporary, write_atomically
from raftlog.text import printable
from replay import text
from replay.errors import ReplayError
from replay.jobs import availability, lao
from replay.jobs.audit import AuditResult, findings_listing
from replay.report.model import (
    CRITICAL,
    NOTICE,
    PLANNED,
    WARNING,
    Axis,
    Incident,
    ReportResult,
    Timeline,
)
from replay.report.timeline import REIGN, STATES
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

_FILTERS = ("moment", "precise_clock", "number", "duration")
_OPEN = ("Service levels", "LAO held back", "Findings")
"""Tables that are initially open."""
BLUE, VERMILION, AMBER, TEAL, PURPLE, PINK, GREY = (
    "#3b7fc4", "#d0521f", "#b3801a", "#1c8f80", "#8b6cc8", "#c4588f", "#7b8794",
)  # fmt: skip
COLOURS = dict(
    zip((*STATES, REIGN), (BLUE, PURPLE, GREY, VERMILION, AMBER, PINK, TEAL), strict=True)
)
"""Colour of each state; the style sheet adds a pattern or a height."""
STATE_WORDS = dict(zip(STATES, (
    "unfenced: counts for LAO", "in controlled shutdown", "after a controlled shutdown",
    "by the controller", "registered, not yet unfenced", "LAO waited for it",
), strict=True))  # fmt: skip
SEVERITY_NAMES = {CRITICAL: "critical", WARNING: "warning", NOTICE: "notice", PLANNED: "planned"}
_BADGE_ROWS = 4
_BADGE_WIDTH = 0.07
"""Width of a badge as a share of the axis; a badge that would overlap goes to the next row."""
_LOG_TICKS_MS = (1, 100, 10_000, 600_000, 36_000_000)


def writable(output: str | None) -> Path:
    """Return the path of the report, after checking that it can be written. Raises ReplayError.

    A regular file is replaced, and a symbolic link to one is kept; a device or pipe is written to.
    """
    path = Path(output or DEFAULT_OUTPUT).absolute()
    if path.is_dir():
        raise ReplayError(
            f"{path} is a directory: give a file, for example -o {path / DEFAULT_OUTPUT}"
        )
    path = path if _is_special(path) else Path(os.path.realpath(path))
    if not path.parent.is_dir():
        raise ReplayError(
            f"the report can't be written to {path}: {path.parent} is not a directory"
        )
    try:
        if not _is_special(path):
            # The file is replaced rather than written to, so the directory must be writable.
            tempfile.TemporaryFile(dir=path.parent).close()
        elif not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise _refused(path, error) from error
    return path


def write(text: str, path: Path) -> None:
    """Write the page; a regular file is replaced atomically. Raises ReplayError."""
    try:
        if _is_special(path):
            path.write_text(text, encoding="utf-8")
        else:
            write_atomically(path, text.encode())
    except OSError as error:
        temporary(path).unlink(missing_ok=True)
        raise _refused(path, error) from error


def _is_special(path: Path) -> bool:
    """Return whether the path is a device, a pipe or a socket."""
    return path.exists() and not path.is_file()


def _refused(path: Path, error: OSError) -> ReplayError:
    return ReplayError(f"the report can't be written to {path}: {error.strerror}")


def sanitize(value: object) -> object:
    """Return a value for a template: text without control characters; markup and other values
    unchanged.
    """
    return (
        printable(value, keep="\n")
        if isinstance(value, str) and not isinstance(value, Markup)
        else value
    )


def render_page(result: ReportResult) -> str:
    """Return the page as HTML."""
    environment = Environment(
        loader=PackageLoader("replay.report"),
        autoescape=True,
        finalize=sanitize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {name: getattr(text, name) for name in _FILTERS}
    environment.globals |= {"period": text.period, "plural": plural}
    timeline, origin = result.timeline, result.header.origin
    shown = {span.state for lane in timeline.lanes for span in lane.spans}
    words = STATE_WORDS | ({"serving": "unfenced"} if origin else {})
    return environment.get_template("report.html.j2").render(
        header=result.header,
        timeline=timeline,
        axis=timeline.axis,
        verdict=verdict(result),
        tiles=tiles(result),
        place=lambda begins_ms, ends_ms: _place(timeline.axis, begins_ms, ends_ms),
        badges=_badges(timeline),
        panels=panels(result),
        states={state: words[state] for state in STATES if state in shown},
        sections=_sections(result),
        open=_OPEN,
        colours=COLOURS,
        severity_names=SEVERITY_NAMES,
        style=Markup(_resource("report.css")),
        script=Markup(_resource("report.js")),
    )


def _resource(name: str) -> str:
    return (importlib.resources.files("replay.report") / "templates" / name).read_text(
        encoding="utf-8"
    )


def _place(axis: Axis, begins_ms: int, ends_ms: int) -> str:
    """Return the position and width of a period on the axis, as CSS variables."""
    length = max(1, axis.ends_ms - axis.begins_ms)
    begin, width = (begins_ms - axis.begins_ms) / length, max(0, ends_ms - begins_ms) / length
    return f"--b:{round(begin, 6)};--w:{round(width, 6)}"


def _badges(timeline: Timeline) -> list[tuple[Incident, int]]:
    """Return the incidents in order of time, each with the row of its badge, from 0."""
    axis = timeline.axis
    width_ms = _BADGE_WIDTH * (axis.ends_ms - axis.begins_ms)
    reached, found = [float("-inf")] * _BADGE_ROWS, []
    for incident in sorted(timeline.incidents, key=lambda each: each.begins_ms):
        row = next((at for at, end in enumerate(reached) if end <= incident.begins_ms), 0)
        reached[row] = incident.begins_ms + width_ms
        found.append((incident, row))
    return found


class Curve(NamedTuple):
    """A curve as SVG paths, in steps of the axis and percent of the panel's height from the top."""

    name: str
    colour: str
    line: str
    area: str


class Panel(NamedTuple):
    """Curves on a common scale. ``ticks``: heights in percent, with labels."""

    title: str
    curves: list[Curve]
    ticks: list[tuple[float, str]]


Values = Sequence[int | None]
"""One value per step of the axis, or None."""


def panels(result: ReportResult) -> list[Panel]:
    """Return the curves of a report. Another system's log has no LAO."""
    timeline, axis = result.timeline, result.timeline.axis
    troubles = panel(
        "Partitions",
        ("ISR incomplete", AMBER, [each.short for each in timeline.levels]),
        ("without a leader", VERMILION, [each.leaderless for each in timeline.levels]),
    )
    if result.header.origin:
        return [troubles]
    of_step = {(each.at_ms - axis.begins_ms) // axis.bucket_ms: each for each in timeline.waits}

    def waits(field: str) -> Values:
        return [getattr(of_step.get(step), field, None) for step in range(axis.buckets)]

    title = f"From commit to visible everywhere, by {duration(axis.bucket_ms)}"
    curves = (
        ("longest", VERMILION, waits("max_ms")),
        ("p99", AMBER, waits("p99_ms")),
        ("median", TEAL, waits("p50_ms")),
    )
    return [troubles, panel(title, *curves, durations=True)]


def panel(title: str, *curves: tuple[str, str, Values], durations: bool = False) -> Panel:
    """Return a panel of curves, given as name, colour and values. ``durations``: values are in ms,
    on a logarithmic scale from 1 ms.
    """
    highest = max((value or 0 for _, _, values in curves for value in values), default=0)
    if durations:
        top = max(highest, 100) * 1.6
        ticks = [mark for mark in _LOG_TICKS_MS if mark <= top]
    else:
        top, ticks = max(highest, 1), sorted({0, highest})

    def height(value: int) -> float:
        share = log10(max(value, 1)) / log10(top) if durations else value / top
        return round(100 * (1 - share), 2)

    words = duration if durations else number
    return Panel(
        title,
        [
            Curve(
                name, colour, line := _line(values, height), "" if durations else f"{line}V100H0Z"
            )
            for name, colour, values in curves
        ],
        [(height(value), words(value)) for value in ticks],
    )


def _line(values: Values, height: Callable[[int], float]) -> str:
    """Return a path that steps at each value and has a gap where there is none."""
    words: list[str] = []
    gap = True
    for value, run in groupby(enumerate(values), key=itemgetter(1)):
        steps = [step for step, _ in run]
        if value is not None:
            begin = f"M{steps[0]}," if gap else "V"
            words.append(f"{begin}{height(value):g}H{steps[-1] + 1}")
        gap = value is None
    return "".join(words)


class Section(NamedTuple):
    """A part of the page with one job's answer: sentences, and tables that can be opened."""

    id: str
    title: str
    lead: list[str]
    listings: list[Listing]


def _sections(result: ReportResult) -> list[Section]:
    audit = result.audit
    checked = f"{plural(len(audit.rules), 'rule')} over {plural(audit.checked, 'record')}."
    audited = [checked + (" None was broken." if audit.passed else "")]
    lag, there = result.lao, result.availability
    sections = [
        Section("audit", "Audit", audited, [findings_listing(audit), _rules(audit)]),
        Section("lao", "LAO", lao.sentences(lag), lao.listings(lag)),
        Section(
            "availability",
            "Availability",
            availability.sentences(there),
            availability.listings(there),
        ),
    ]
    # Other systems' logs have no LAO.
    return [each for each in sections if not (result.header.origin and each.id == "lao")]


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


GOOD_GRADE, WARNING_GRADE, CRITICAL_GRADE, PLAIN = "good", "warning", "critical", "plain"


class Verdict(NamedTuple):
    """The report's first line. ``grade``: good, warning or critical."""

    grade: str
    text: str


class Tile(NamedTuple):
    """A figure that links to the section that explains it."""

    name: str
    value: str
    more: str
    grade: str
    section: str


def verdict(result: ReportResult) -> Verdict:
    """Return the verdict: whether rules were broken, and the most severe incident."""
    timeline, passed = result.timeline, result.audit.passed
    audit = "The audit found no broken rule."
    if not passed:
        audit = f"The audit found broken rules: {plural(result.audit.total, 'finding')}."
    if not timeline.incidents_total:
        return Verdict(GOOD_GRADE if passed else CRITICAL_GRADE, f"No incident. {audit}")
    gravest = timeline.incidents[0]
    extent = f" ({extent_of(gravest)})" if extent_of(gravest) else ""
    summary = (
        f"{plural(timeline.incidents_total, 'incident')}, the most severe at"
        f" {moment(gravest.begins_ms)}: {gravest.title}{extent}."
    )
    critical = gravest.severity == CRITICAL or not passed
    words = f"{summary} {audit}" if passed else f"{audit} {summary}"
    return Verdict(CRITICAL_GRADE if critical else WARNING_GRADE, words)


def extent_of(incident: Incident) -> str:
    """Return a text on how many partitions an incident affected, or "" if none."""
    found = []
    if incident.leaderless:
        found.append(f"{plural(incident.leaderless, 'partition')} without a leader")
    if incident.short:
        found.append(f"{plural(incident.short, 'partition')} with an incomplete ISR")
    return ", ".join(found)


def tiles(result: ReportResult) -> list[Tile]:
    """Return the tiles in the order of the sections."""
    timeline, audit, there = result.timeline, result.audit, result.availability
    critical = sum(incident.severity == CRITICAL for incident in timeline.incidents)
    total, findings = timeline.incidents_total, plural(audit.total, "finding")
    leader, _, brokers, controller = there.objectives
    absent = f"absent for {duration(controller.lost_ms)} at most"
    return [
        Tile(
            "Incidents", number(total), f"{critical} critical", _grade(total, critical), "incidents"
        ),
        Tile(
            "Audit",
            "passed" if audit.passed else findings,
            f"{plural(audit.checked, 'record')} checked",
            _grade(0, audit.total),
            "audit",
        ),
        # Other systems' logs have no LAO.
        *(() if result.header.origin else (_visible(result.lao),)),
        Tile(
            "Partitions with a leader",
            percent(leader.available_percent),
            f"{duration(leader.lost_ms)} lost",
            _grade(leader.lost_ms),
            "availability",
        ),
        Tile(
            "Brokers in service",
            percent(brokers.available_percent),
            f"{duration(brokers.lost_ms)} lost",
            _grade(brokers.lost_ms),
            "availability",
        ),
        Tile("Controller changes", number(there.failovers_total), absent, PLAIN, "availability"),
    ]


def _grade(warning: int, critical: int = 0) -> str:
    return CRITICAL_GRADE if critical else WARNING_GRADE if warning else GOOD_GRADE


def _visible(lag: lao.LaoResult) -> Tile:
    if not lag.samples:
        return Tile("Visible everywhere", "unknown", "no progress record", PLAIN, "lao")
    # The controllers' measurements are exact; figures from progress records are upper bounds.
    p99 = duration(lag.p99_ms) if lag.told is None else micros(lag.told.p99_us)
    most = duration(lag.max_ms) if lag.told is None else micros(lag.told.max_us)
    writes = lag.records if lag.told is None else lag.told.records
    more = f"about p99 of {plural(writes, 'record')}, {most} at most"
    return Tile("Visible everywhere after", p99, more, _grade(lag.hold_ups_total), "lao")
