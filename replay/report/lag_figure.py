"""From commit to visible everywhere over time: median, 99 of 100, and the longest."""

from __future__ import annotations

import plotly.graph_objects as go

from replay.report.colours import AMBER, TEAL, VERMILION
from replay.report.model import Timeline
from replay.report.plots import MARKED, base_layout, log_ms_scale, time_axis
from replay.text import duration

_CURVES = (
    ("max_ms", "longest", VERMILION, "dot"),
    ("p99_ms", "p99", AMBER, "solid"),
    ("p50_ms", "median", TEAL, "solid"),
)


def waits_figure(timeline: Timeline) -> go.Figure:
    """Return the figure of waits, by the axis step in which a write was made."""
    waits, half_ms = timeline.waits, timeline.axis.bucket_ms // 2
    figure = go.Figure(layout=base_layout(260))
    for field, name, colour, dash in _CURVES:
        values = [getattr(wait, field) for wait in waits]
        figure.add_trace(
            go.Scatter(
                x=[wait.at_ms + half_ms for wait in waits],
                y=values,
                mode="markers" if len(waits) <= MARKED else "lines",
                name=name,
                line={"width": 1.8, "color": colour, "dash": dash},
                marker={"size": 5},
                customdata=[
                    [duration(value), wait.records]
                    for value, wait in zip(values, waits, strict=True)
                ],
                hovertemplate=(
                    f"%{{x|%d %b %H:%M}} {name} %{{customdata[0]}} of %{{customdata[1]:,}}"
                    " writes<extra></extra>"
                ),
            )
        )
    highest = max((wait.max_ms or 0 for wait in waits), default=0)
    figure.update_layout(
        xaxis=time_axis(timeline.axis),
        yaxis=log_ms_scale(highest),
        showlegend=True,
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        margin={"l": 64, "r": 16, "t": 30, "b": 36},
    )
    return figure
