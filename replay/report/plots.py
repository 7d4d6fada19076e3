"""Common parts of all figures.

Their colours of text and grid come from the page: see ``report.css``.
"""

from __future__ import annotations

from math import log10
from typing import Any

import plotly.graph_objects as go

from replay.report.model import Axis
from replay.report.words import escape
from replay.text import duration

_FONT = {
    "family": "system-ui, -apple-system, Segoe UI, Roboto, Noto Sans, Liberation Sans, sans-serif",
    "size": 12,
}
MARKED = 120
"""Number of points that are drawn as points: a line through few, far apart, would say more than
they do.
"""
_DURATIONS_MS = (
    1,
    10,
    100,
    1000,
    10_000,
    60_000,
    600_000,
    3_600_000,
    36_000_000,
    86_400_000,
    864_000_000,
)


def base_layout(height_px: int) -> dict[str, Any]:
    """Return a layout without a template, on no ground of its own."""
    return {
        "template": None,
        "height": height_px,
        "font": _FONT,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 64, "r": 16, "t": 10, "b": 36},
        "hovermode": "closest",
        "hoverlabel": {"align": "left", "namelength": -1},
        "dragmode": "zoom",
        "showlegend": False,
    }


def time_axis(axis: Axis, **more: Any) -> dict[str, Any]:
    """Return the axis of time, in UTC.

    All plots over time have the same, and the page keeps their ranges the same.
    """
    return {
        "type": "date",
        "range": [axis.begins_ms, axis.ends_ms],
        "showgrid": True,
        "zeroline": False,
        "showspikes": True,
        "spikemode": "across",
        "spikesnap": "cursor",
        "spikethickness": 1,
        "spikedash": "solid",
        "spikecolor": "#7b8794",
        "ticks": "outside",
        "ticklen": 4,
        **more,
    }


def coloured(name: str, colour: str) -> str:
    """Words of a plot's title in the colour of what they name: a legend where it is read."""
    return f'<span style="color:{colour}"><b>{escape(name)}</b></span>'


def log_ms_scale(highest_ms: float) -> dict[str, Any]:
    """Return a logarithmic axis of durations, from a millisecond, with ticks that people have words
    for.
    """
    marks = [mark for mark in _DURATIONS_MS if mark <= max(highest_ms, 100) * 3]
    step = -(-len(marks) // 5)
    return {
        "type": "log",
        "range": [0, log10(max(highest_ms, 100) * 1.6)],
        "tickvals": marks[::step],
        "ticktext": [duration(mark) for mark in marks[::step]],
    }


def to_json(figures: dict[str, go.Figure]) -> str:
    """Return the figures by name as one JSON object that may stand in a script element: nothing in
    it can end the element.
    """
    parts = (f'"{name}":{figure.to_json(validate=False)}' for name, figure in figures.items())
    text = "{" + ",".join(parts) + "}"
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
