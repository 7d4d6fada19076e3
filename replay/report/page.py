"""The page: figures and tables in one file that loads nothing from elsewhere."""

from __future__ import annotations

import errno
import importlib.resources
import os
import tempfile
from pathlib import Path

import plotly.graph_objects as go
import plotly.offline
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from raftlog.text import printable
from replay.entities import config_key
from replay.errors import ReplayError
from replay.kernels.histogram import HOW_COARSE, HOW_EXACT
from replay.lag.show import offsets_of, why
from replay.report import words
from replay.report.colours import PATTERNS, SEVERITY_NAMES, STATES
from replay.report.lag_figure import waits_figure
from replay.report.model import ReportResult
from replay.report.period_figures import lost_figure, state_figure
from replay.report.plots import to_json
from replay.report.summary import extent_of, tiles, verdict
from replay.report.timeline_figure import states_shown, timeline_figure
from replay.request import DEFAULT_OUTPUT
from replay.text import between, duration, micros, percent, size

_FILTERS = ("moment", "precise", "precise_clock", "clock", "number")
_STATE_WORDS = {
    "serving": "unfenced: serves, and counts for LAO",
    "leaving": "in controlled shutdown",
    "stopped": "left by controlled shutdown",
    "fenced": "fenced by the controller",
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
        # What goes there is put in the place of what is there: so it is the directory that counts.
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


def render_page(result: ReportResult) -> str:
    """Return the whole file."""
    loader = PackageLoader("replay.report")
    environment = Environment(
        loader=loader,
        autoescape=True,
        finalize=harmless,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "duration": duration,
        "between": between,
        "percent": percent,
        "size": size,
    }
    environment.filters["micros"] = micros
    environment.filters |= {name: getattr(words, name) for name in _FILTERS}
    environment.globals |= {
        "period": words.period,
        "plural": words.plural,
        "hold_up_words": why,
        "extent_of": extent_of,
        "config_key": config_key,
        "how_exact": HOW_EXACT,
        "how_coarse": HOW_COARSE,
        "offsets_of": offsets_of,
    }
    timeline = result.timeline
    return environment.get_template("report.html.j2").render(
        result=result,
        header=result.header,
        timeline=timeline,
        axis=timeline.axis,
        verdict=verdict(result),
        tiles=tiles(result),
        severity_names=SEVERITY_NAMES,
        legend=[
            (state, STATES[state], PATTERNS[state], _in_words(state, result.header.origin))
            for state in states_shown(timeline.brokers)
        ],
        figures=Markup(to_json(_figures(result))),
        plotly=Markup(plotly.offline.get_plotlyjs()),
        style=Markup(_resource("report.css")),
        script=Markup(_resource("report.js")),
    )


def _in_words(state: str, origin: str) -> str:
    return "unfenced: serves" if origin and state == "serving" else _STATE_WORDS[state]


def _figures(result: ReportResult) -> dict[str, go.Figure]:
    """Return the figures by the ids of their elements."""
    timeline = result.timeline
    origin = result.header.origin
    waits = {} if origin else {"plot-waits": waits_figure(timeline)}
    return waits | {
        "plot-timeline": timeline_figure(timeline, origin),
        "plot-lost": lost_figure(result.availability, timeline.axis),
        "plot-state": state_figure(result.churn, timeline.axis),
    }


def _resource(name: str) -> str:
    return (importlib.resources.files("replay.report") / "templates" / name).read_text(
        encoding="utf-8"
    )
