"""Figures of hours or days: service time lost, and the size of the state."""

from __future__ import annotations

import plotly.graph_objects as go

from replay.jobs.availability import AvailabilityResult
from replay.jobs.churn import ChurnResult
from replay.report.colours import AMBER, BLUE, VERMILION, faint
from replay.report.model import Axis
from replay.report.plots import base_layout, time_axis
from replay.text import duration, percent, size

_UNITS = ((7_200_000, 3_600_000, "h"), (120_000, 60_000, "min"), (0, 1000, "s"))
"""Units of durations, each with the length from which it is used."""
_LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}


def lost_figure(result: AvailabilityResult, axis: Axis) -> go.Figure:
    """Return the figure of lost time: for each period, how long partitions had no leader, and how
    long they were closed to acks=all for another reason.
    """
    length_ms, periods = result.period_length_ms, result.periods
    figure = go.Figure(layout=base_layout(200))
    highest = max((period.unwritable_ms for period in periods), default=0)
    _, unit_ms, unit = next(each for each in _UNITS if highest >= each[0])
    leaderless = [period.leaderless_ms for period in periods]
    others = [period.unwritable_ms - period.leaderless_ms for period in periods]
    shares = [
        100 - 100 * period.unwritable_ms / period.life_ms if period.life_ms else 100.0
        for period in periods
    ]
    for name, values, colour, shape in (
        ("without a leader", leaderless, VERMILION, ""),
        ("under min ISR only", others, AMBER, "/"),
    ):
        figure.add_trace(
            go.Bar(
                name=name,
                x=[period.period_ms + length_ms // 2 for period in periods],
                y=[value / unit_ms for value in values],
                width=[length_ms * 0.9] * len(periods),
                marker={
                    "color": faint(colour, 0.85),
                    "line": {"width": 1, "color": colour},
                    "pattern": {"shape": shape, "size": 6},
                },
                customdata=[
                    [duration(value), percent(share)]
                    for value, share in zip(values, shares, strict=True)
                ],
                hovertemplate=(
                    f"%{{x|%d %b %H:%M}} {name} %{{customdata[0]}}; open to acks=all"
                    " %{customdata[1]}<extra></extra>"
                ),
            )
        )
    figure.update_layout(
        barmode="stack",
        xaxis=time_axis(axis),
        showlegend=True,
        legend=_LEGEND,
        margin={"l": 64, "r": 16, "t": 30, "b": 36},
        yaxis={
            "ticksuffix": f" {unit}",
            "rangemode": "tozero",
            "nticks": 5,
            "zeroline": False,
            "range": None if highest else [0, 1],
        },
    )
    return figure


def state_figure(result: ChurnResult, axis: Axis) -> go.Figure:
    """About the bytes of a snapshot."""
    figure = go.Figure(layout=base_layout(200))
    ends = [
        min(period.period_ms + result.period_length_ms, axis.ends_ms) for period in result.periods
    ]
    sizes = [period.snapshot_bytes for period in result.periods]
    figure.add_trace(
        go.Scatter(
            x=ends,
            y=sizes,
            mode="lines+markers",
            marker={"size": 5},
            line={"width": 1.8, "color": BLUE},
            fill="tozeroy",
            fillcolor=faint(BLUE, 0.18),
            customdata=[
                [size(period.snapshot_bytes), period.entities] for period in result.periods
            ],
            hovertemplate=(
                "%{x|%d %b %H:%M} about %{customdata[0]}, %{customdata[1]:,}"
                " entities<extra></extra>"
            ),
        )
    )
    figure.update_layout(
        xaxis=time_axis(axis),
        yaxis={
            "rangemode": "tozero",
            "nticks": 5,
            "zeroline": False,
            "tickformat": ".3s",
            "ticksuffix": "B",
        },
    )
    return figure
