"""The figure of the timeline: lanes of the controller and the brokers, and below them the curves,
over one axis of time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import plotly.graph_objects as go

from replay.report.colours import (
    AMBER,
    PATTERNS,
    SERIES,
    SEVERITIES,
    STATES,
    TEAL,
    THICKNESS,
    VERMILION,
    faint,
)
from replay.report.model import (
    Axis,
    BrokerLane,
    BrokerSpan,
    ControllerSpan,
    Growth,
    Incident,
    Level,
    Timeline,
    Wait,
)
from replay.report.plots import MARKED, base_layout, coloured, log_ms_scale, time_axis
from replay.report.words import escape, moment, number
from replay.text import duration

_LANE_PX, _CURVE_PX, _GAP_PX, _TOP_PX, _BOTTOM_PX, _LEFT_PX = 25, 92, 24, 48, 34, 130
_LINE_PX, _LINE_CHARACTERS = 16, 45
"""A line of a title, which fits the 330 px that a phone has for the figure."""
_CONTROLLER = "controller"


class Panel(NamedTuple):
    """A curve below the lanes, with lines of text above it."""

    title: list[str]
    traces: list[go.Scatter]
    log_ms: bool = False

    @property
    def gap_px(self) -> int:
        """Height of the title, in pixels, with the distance to the curve above."""
        return _GAP_PX + _LINE_PX * len(self.title)


def timeline_figure(timeline: Timeline, origin: str = "") -> go.Figure:
    """Return the figure of the whole timeline over one axis, so that what happened at one time
    stands in one line. ``origin``: whose log it is; another system's has no LAO.
    """
    curves = [
        impaired_panel(timeline.levels),
        *(() if origin else (waits_panel(timeline.waits, timeline.axis),)),
        growth_panel(timeline.growth, timeline.axis),
    ]
    lanes_px = _LANE_PX * (len(timeline.brokers) + 1)
    height = lanes_px + sum(_CURVE_PX + panel.gap_px for panel in curves)
    figure = go.Figure(layout=base_layout(height + _TOP_PX + _BOTTOM_PX))
    figure.update_layout(
        xaxis=time_axis(timeline.axis, anchor=f"y{len(curves) + 1}"),
        margin={"l": _LEFT_PX, "r": 16, "t": _TOP_PX, "b": _BOTTOM_PX},
        uniformtext={"mode": "hide", "minsize": 10},
        barmode="overlay",
    )
    _add_lanes(figure, timeline, top=1.0, bottom=1 - lanes_px / height)
    above_px = lanes_px
    for axis, panel in enumerate(curves, 2):
        top = 1 - (above_px + panel.gap_px) / height
        above_px += panel.gap_px + _CURVE_PX
        _add_panel(figure, panel, axis, top=top, bottom=max(0, 1 - above_px / height))
    _mark_incidents(figure, timeline)
    return figure


def _add_lanes(figure: go.Figure, timeline: Timeline, *, top: float, bottom: float) -> None:
    figure.add_traces(_controller_bars(timeline.controllers))
    names = {lane.broker_id: lane_name(lane) for lane in timeline.brokers}
    for state in STATES:
        spans = [
            (names[lane.broker_id], span)
            for lane in timeline.brokers
            for span in lane.spans
            if span.state == state
        ]
        if spans:
            figure.add_trace(_state_bars(state, spans))
    order = [_CONTROLLER, *names.values()]
    figure.update_layout(
        yaxis={
            "domain": [bottom, top],
            "categoryorder": "array",
            "categoryarray": order[::-1],
            "fixedrange": True,
            "range": [-0.5, len(order) - 0.5],
            "showgrid": False,
            "zeroline": False,
            "ticks": "",
            "ticklabelstandoff": 8,
        }
    )


def lane_name(lane: BrokerLane) -> str:
    """Broker 3 · rack-1."""
    return f"broker {lane.broker_id}" + (f" · {escape(lane.rack[:12])}" if lane.rack else "")


def _controller_bars(reigns: list[ControllerSpan]) -> go.Bar:
    leaders = sorted({reign.leader_id for reign in reigns})
    return go.Bar(
        orientation="h",
        y=[_CONTROLLER] * len(reigns),
        base=[reign.begins_ms for reign in reigns],
        x=[reign.ends_ms - reign.begins_ms for reign in reigns],
        width=0.74,
        marker={
            "color": [
                faint(SERIES[(1 + leaders.index(reign.leader_id)) % len(SERIES)], 0.55)
                for reign in reigns
            ],
            "line": {
                "width": 1,
                "color": [
                    SERIES[(1 + leaders.index(reign.leader_id)) % len(SERIES)] for reign in reigns
                ],
            },
        },
        text=[f"node {reign.leader_id} · epoch {reign.last_epoch}" for reign in reigns],
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        hovertext=[_reign_words(reign) for reign in reigns],
        hovertemplate="%{hovertext}<extra></extra>",
        showlegend=False,
    )


def _reign_words(reign: ControllerSpan) -> str:
    epochs = (
        f"epoch {reign.first_epoch}"
        if reign.epochs == 1
        else f"{reign.epochs} epochs, {reign.first_epoch} to {reign.last_epoch}"
    )
    lines = [f"<b>controller {reign.leader_id}</b>, {epochs}", f"from {moment(reign.begins_ms)}"]
    lines.append(f"for {duration(reign.ends_ms - reign.begins_ms)}")
    if reign.gap_ms:
        lines.append(f"nobody wrote for {duration(reign.gap_ms)} before")
    return "<br>".join(lines)


def _state_bars(state: str, spans: list[tuple[str, BrokerSpan]]) -> go.Bar:
    colour, calm = STATES[state], state == "serving"
    # Under the bar of what the broker does: who holds LAO back, serves.
    width = THICKNESS[state]
    offset = -0.5 if state == "holding" else -width / 2
    return go.Bar(
        orientation="h",
        name=state,
        y=[name for name, _ in spans],
        base=[span.begins_ms for _, span in spans],
        x=[span.ends_ms - span.begins_ms for _, span in spans],
        width=width,
        offset=offset,
        marker={
            "color": faint(colour, 0.42) if calm else colour,
            # A line has its width at every zoom: seconds are seen in years.
            "line": {"width": 0 if calm else 2, "color": colour},
            "pattern": (
                {"shape": PATTERNS[state], "size": 5, "solidity": 0.35, "fgopacity": 0.8}
                if not calm
                else {}
            ),
        },
        hovertext=[_span_words(name, span) for name, span in spans],
        hovertemplate="%{hovertext}<extra></extra>",
        showlegend=False,
    )


def _span_words(name: str, span: BrokerSpan) -> str:
    many = f", {span.spans} times" if span.spans > 1 else ""
    doing = "holding LAO back" if span.state == "holding" else span.state
    lines = [
        f"<b>{name}</b> {doing}{many}",
        f"from {moment(span.begins_ms)}, offset {number(span.offset)}",
    ]
    lines.append(
        f"for {duration(span.total_ms)}"
        + (f" within {duration(span.ends_ms - span.begins_ms)}" if many else "")
    )
    if span.reason:
        lines.append(escape(span.reason[:80]))
    return "<br>".join(lines)


def impaired_panel(levels: list[Level]) -> Panel:
    """Partitions short of members in the ISR, and without a leader."""
    at = [level.at_ms for level in levels]
    traces = [
        _steps(at, [level.short for level in levels], "short of replicas", AMBER),
        _steps(at, [level.leaderless for level in levels], "without a leader", VERMILION),
    ]
    return Panel(["Partitions that are", *_legend(traces)], traces)


def waits_panel(waits: list[Wait], axis: Axis) -> Panel:
    """Return the panel of waits until writes were visible everywhere, on a scale that shows
    milliseconds and hours.
    """
    at = [wait.at_ms + axis.bucket_ms // 2 for wait in waits]
    mode = "markers" if len(waits) <= MARKED else "lines"
    traces = [
        go.Scatter(
            x=at,
            y=[getattr(wait, field) for wait in waits],
            mode=mode,
            marker={"size": 5},
            line={"width": 1.4, "color": colour},
            name=name,
            customdata=[duration(getattr(wait, field)) for wait in waits],
            hovertemplate="%{x|%H:%M:%S} %{customdata} " + name + "<extra></extra>",
            showlegend=False,
        )
        for field, name, colour in (("max_ms", "longest", VERMILION), ("p50_ms", "median", TEAL))
    ]
    title = f"From commit to visible everywhere, {duration(axis.bucket_ms)} each"
    return Panel([title, *_legend(traces[::-1])], traces, log_ms=True)


def growth_panel(growth: list[Growth], axis: Axis) -> Panel:
    """Records by type."""
    totals: dict[str, int] = {}
    for each in growth:
        totals[each.type_name] = totals.get(each.type_name, 0) + each.records
    by_step = {(each.type_name, each.at_ms): each.records for each in growth}
    at = [axis.begins_ms + step * axis.bucket_ms for step in range(axis.buckets)]
    traces = []
    for index, name in enumerate(sorted(totals, key=lambda name: -totals[name])):
        colour = SERIES[index % len(SERIES)]
        traces.append(
            go.Scatter(
                x=at,
                y=[by_step.get((name, start), 0) for start in at],
                stackgroup="growth",
                line={"width": 0, "shape": "hv", "color": colour},
                fillcolor=faint(colour, 0.75),
                name=name.lower().replace("_", " "),
                hovertemplate="%{x|%H:%M:%S} %{y:,} "
                + name.lower().replace("_", " ")
                + "<extra></extra>",
                showlegend=False,
            )
        )
    title = f"Records in the log, {duration(axis.bucket_ms)} each"
    return Panel([title, *_legend(traces)], traces)


def _legend(traces: Iterable[go.Scatter]) -> list[str]:
    """Return lines with the traces' names in their colours, each narrow enough for a phone."""
    lines: list[list[go.Scatter]] = [[]]
    for trace in traces:
        if sum(len(one.name) + 2 for one in (*lines[-1], trace)) > _LINE_CHARACTERS:
            lines.append([])
        lines[-1].append(trace)
    return [", ".join(coloured(one.name, one.line.color) for one in line) for line in lines if line]


def _steps(at: list[int], values: list[int], name: str, colour: str) -> go.Scatter:
    keep = [
        step
        for step in range(len(values))
        if step in (0, len(values) - 1) or values[step] != values[step - 1]
    ]
    return go.Scatter(
        x=[at[step] for step in keep],
        y=[values[step] for step in keep],
        line={"shape": "hv", "width": 1.6, "color": colour},
        fill="tozeroy",
        fillcolor=faint(colour, 0.25),
        mode="lines",
        name=name,
        hovertemplate="%{x|%H:%M:%S} %{y:,} " + name + "<extra></extra>",
        showlegend=False,
    )


def _add_panel(figure: go.Figure, panel: Panel, axis: int, *, top: float, bottom: float) -> None:
    for trace in panel.traces:
        figure.add_trace(trace.update(xaxis="x", yaxis=f"y{axis}"))
    figure.update_layout(
        {
            f"yaxis{axis}": {
                "domain": [bottom, top],
                "fixedrange": True,
                "zeroline": False,
                **_scale(panel),
            }
        }
    )
    figure.add_annotation(
        text="<br>".join(panel.title),
        x=0,
        xref="paper",
        xanchor="left",
        xshift=-_LEFT_PX,
        align="left",
        y=top,
        yref="paper",
        yanchor="bottom",
        showarrow=False,
        font={"size": 12},
    )


def _scale(panel: Panel) -> dict[str, Any]:
    highest = max(
        (value for trace in panel.traces for value in trace.y if value is not None), default=0
    )
    if panel.log_ms:
        return log_ms_scale(highest)
    return {
        "rangemode": "tozero",
        "nticks": 4,
        "tickformat": "~s" if highest >= 10_000 else ",d",
        "range": None if highest else [0, 1],
    }


def _mark_incidents(figure: go.Figure, timeline: Timeline) -> None:
    axis, row, reached = timeline.axis, 0, [float("-inf")] * 3
    least_ms = (axis.ends_ms - axis.begins_ms) * 0.024
    shapes, annotations = [], []
    for incident in timeline.incidents:
        colour = SEVERITIES[incident.severity]
        ends_ms = axis.ends_ms if incident.ends_ms is None else incident.ends_ms
        common = {"xref": "x", "yref": "paper", "y0": 0, "y1": 1, "layer": "below"}
        band = {"fillcolor": faint(colour, 0.13), "line": {"width": 0}}
        edge = {"line": {"width": 1, "color": faint(colour, 0.8), "dash": "dot"}}
        shapes.append({"type": "rect", "x0": incident.begins_ms, "x1": ends_ms, **band, **common})
        shapes.append(
            {"type": "line", "x0": incident.begins_ms, "x1": incident.begins_ms, **edge, **common}
        )
        # Badges that would lie upon each other go into the next row.
        row = next((index for index, end in enumerate(reached) if end <= incident.begins_ms), 0)
        reached[row] = incident.begins_ms + least_ms
        annotations.append(_badge(incident, colour, row))
    figure.update_layout(shapes=shapes)
    for annotation in annotations:
        figure.add_annotation(annotation)


def _badge(incident: Incident, colour: str, row: int) -> dict[str, Any]:
    return {
        "text": f"<b>{incident.number}</b>",
        "x": incident.begins_ms,
        "xref": "x",
        "y": 1,
        "yref": "paper",
        "yanchor": "bottom",
        "yshift": 3 + 20 * row,
        "showarrow": False,
        "bordercolor": colour,
        "borderwidth": 1.5,
        "borderpad": 2,
        "font": {"size": 11},
        "captureevents": True,
        "name": f"incident-{incident.number}",
        "hovertext": escape(incident.title),
    }


def states_shown(lanes: Iterable[BrokerLane]) -> list[str]:
    """Return the states that occur, in the order of the legend."""
    there = {span.state for lane in lanes for span in lane.spans}
    return [state for state in STATES if state in there]
