"""The page: one file that loads nothing from elsewhere."""

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
from replay.churn import tables as churn_tables
from replay.errors import ReplayError
from replay.jobs.audit import AuditResult
from replay.lag import tables as lao_tables
from replay.listing import FIXED, NUMBER, TEXT, Listing
from replay.outages import tables as outage_tables
from replay.report.charts import SEVERITY_NAMES, STATES, draw
from replay.report.model import ReportResult, Timeline
from replay.report.summary import tiles, verdict
from replay.request import DEFAULT_OUTPUT
from replay.text import duration, plural

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
            _audit_listings(audit, origin),
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


def _audit_listings(audit: AuditResult, origin: str) -> list[Listing]:
    by = {} if origin else {"by": TEXT}
    findings = [
        (
            each.rule,
            ", ".join(map(str, each.offsets)),
            "–" if each.timestamp_ms is None else text.moment(each.timestamp_ms),
            *((each.principal or "controller",) if by else ()),
            each.subject,
            each.found,
            each.expected,
        )
        for each in audit.findings
    ]
    rules = [
        (each.id, each.title, text.number(each.checked), str(each.findings), each.documentation)
        for each in sorted(audit.rules, key=lambda rule: -rule.findings)
    ]
    columns = {"rule": TEXT, "offsets": FIXED, "time": FIXED} | by
    columns |= dict.fromkeys(("what", "found", "expected"), TEXT)
    return [
        Listing("Findings", columns, findings, audit.total),
        Listing(
            "Rules",
            {"rule": TEXT, "broken if": TEXT, "records": NUMBER, "findings": NUMBER, "page": TEXT},
            rules,
        ),
    ]


def _lives(timeline: Timeline) -> Listing:
    rows = [
        (
            str(lane.broker_id),
            lane.rack or "–",
            text.number(lane.registrations),
            text.number(lane.fencings),
            duration(lane.fenced_ms),
        )
        for lane in timeline.brokers
    ]
    numbers = dict.fromkeys(("registrations", "fenced", "time fenced"), NUMBER)
    return Listing("Brokers on the timeline", {"broker": NUMBER, "rack": TEXT} | numbers, rows)


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
